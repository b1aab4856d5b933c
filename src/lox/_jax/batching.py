"""Batches jaxprs and values, as JAX's own rules do."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core as jex

from . import compat, jaxprs

_batch_jaxpr = compat.private(
    "interpreters.batching.batch_jaxpr", "find the lanes of a `while_loop` that log"
)
_broadcast = compat.private(
    "interpreters.batching.broadcast", "log in every lane on an explicit mesh"
)


def batch_jaxpr(closed: Any, axis_data: Any, batched: Sequence[bool]) -> Any:
    """Batches a closed jaxpr, with a leading lane axis on every output."""
    outs = [True] * len(closed.out_avals)
    return _batch_jaxpr(closed, axis_data, list(batched), outs)[0]


def batched_outputs(
    closed: Any, axis_data: Any, batched: Sequence[bool], at_least: Sequence[bool]
) -> Sequence[bool]:
    """Which outputs of a closed jaxpr are batched.

    This is the same call that JAX's rules make for the carry of a loop, so that JAX
    finds the result in its cache.

    Args:
        closed: the closed jaxpr.
        axis_data: the axis.
        batched: which inputs are batched.
        at_least: the outputs to be batched in any case.
    """
    return _batch_jaxpr(closed, axis_data, list(batched), list(at_least))[1]


def batch(
    closed: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Evaluates a closed jaxpr on batched inputs; returns outputs and their axes."""
    front = [
        x if dim is None else jax.numpy.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    mapped = [dim is not None for dim in dims]
    new, out = _batch_jaxpr(closed, axis_data, mapped, False)
    return jaxprs.evaluate(new, front), [0 if batched else None for batched in out]


def broadcast_lanes(x: Any, axis_data: Any) -> Any:
    """Broadcasts `x` to all lanes, sharded like the lanes."""
    mesh_axis = getattr(axis_data, "explicit_mesh_axis", None)
    if mesh_axis is None:
        return jax.numpy.broadcast_to(x, (axis_data.size, *x.shape))
    return _broadcast(x, axis_data.size, 0, mesh_axis)


def broadcast_carry(x: Any, axis_data: Any) -> Any:
    """Broadcasts `x`, which may be a Python number, as JAX's rules for loops do."""
    return _broadcast(x, axis_data.size, 0, axis_data.explicit_mesh_axis)


def lane_aval(axis_data: Any, dim: Any, aval: Any) -> Any:
    """The type of one lane of a batched value."""
    return jex.mapped_aval(axis_data.size, dim, aval)
