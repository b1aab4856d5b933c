"""`vmap` of `cond` with a predicate per lane.

JAX runs all branches for all lanes. The events inside get a *mask*: the lanes that
selected the branch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._interpreter.handlers import State
from lox._interpreter.walk import Walk, cached
from lox._jax import batching, jaxprs, vma
from lox._jax.array_types import as_array

from .masking import EventMasker


def batch_cond(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> Any:
    """Wraps the batching rule of `cond`."""
    branches = params["branches"]
    # `platform_dependent` ignores the index, so all lanes run the same branch
    if dims[0] is not None and "branches_platforms" not in params:
        index, *operands = args
        varying = vma.varying_axes(jax.typeof(index))
        if varying:  # in a `shard_map`
            operands = [vma.vary_like(as_array(x), varying) for x in operands]
        args, dims = [index, index, *operands], [dims[0], *dims]
        avals = [
            batching.lane_aval(axis_data, dim, jax.typeof(x))
            for x, dim in zip(args[1:], dims[1:], strict=True)
        ]
        params["branches"] = tuple(
            _masked_branch(branch, i, _types(branch, avals))
            for i, branch in enumerate(branches)
        )
    return rule(axis_data, args, dims, **params)


def _types(branch: Any, avals: Sequence[Any]) -> tuple[Any, ...]:
    """The types of the index and of the operands.

    JAX's rule lets all operands vary over the same devices as the index. The operations
    of a branch were traced with their former types.
    """
    index, *operands = avals
    pairs = zip(branch.in_avals, operands, strict=True)
    axes = vma.varying_axes
    return index, *(old if axes(old) == axes(new) else new for old, new in pairs)


def _masked_branch(branch: Any, i: int, avals: tuple[Any, ...]) -> Any:
    return cached(branch, (i, avals), lambda: _trace_masked_branch(branch, i, avals))


def _trace_masked_branch(branch: Any, i: int, avals: tuple[Any, ...]) -> Any:
    walk = Walk(EventMasker())

    def fun(index: Any, *args: Any) -> list[Any]:
        # the index is in range: JAX clamps it before the conditional
        outs, _, _ = walk(branch, args, State(context=index == i))
        return outs

    return jaxprs.trace(fun, avals, branch)[0]
