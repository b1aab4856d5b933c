"""`vmap` of jaxprs and values, as JAX's own batching rules do it."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core as jex

from . import compat, jaxprs

_batch_jaxpr = compat.private(
    "interpreters.batching.batch_jaxpr", "tell which lanes of a `while_loop` log"
)
_broadcast = compat.private(
    "interpreters.batching.broadcast", "log in every lane on an explicit mesh"
)


def batch_jaxpr(closed: Any, axis_data: Any, batched: Sequence[bool]) -> Any:
    """`closed` over one more leading axis, on every output."""
    outs = [True] * len(closed.out_avals)
    return _batch_jaxpr(closed, axis_data, list(batched), outs)[0]


def batched_outputs(
    closed: Any, axis_data: Any, batched: Sequence[bool], at_least: Sequence[bool]
) -> Sequence[bool]:
    """Which outputs differ between lanes, if these inputs do, or are to.

    It is asked as JAX's own rule asks for a loop's carry, who remembers the answer.
    """
    return _batch_jaxpr(closed, axis_data, list(batched), list(at_least))[1]


def batch(
    closed: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Evaluates a closed jaxpr over one more axis, as a batching rule would."""
    front = [
        x if dim is None else jax.numpy.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    mapped = [dim is not None for dim in dims]
    new, out = _batch_jaxpr(closed, axis_data, mapped, False)
    return jaxprs.evaluate(new, front), [0 if batched else None for batched in out]


def broadcast_lanes(x: Any, axis_data: Any) -> Any:
    """`x` in every lane, split over the mesh as the lanes are."""
    mesh_axis = getattr(axis_data, "explicit_mesh_axis", None)
    if mesh_axis is None:
        return jax.numpy.broadcast_to(x, (axis_data.size, *x.shape))
    return _broadcast(x, axis_data.size, 0, mesh_axis)


def broadcast_carry(x: Any, axis_data: Any) -> Any:
    """`x` in every lane, as JAX's own rules for loops do it; `x` may be a number."""
    return _broadcast(x, axis_data.size, 0, axis_data.explicit_mesh_axis)


def lane_aval(axis_data: Any, dim: Any, aval: Any) -> Any:
    """The type that one lane has of a batched value."""
    return jex.mapped_aval(axis_data.size, dim, aval)
