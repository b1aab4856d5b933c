"""`vmap` of `cond` with a predicate per lane.

JAX runs all branches for all lanes. The events inside get a *mask*: the lanes that
selected the branch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._interpreter.handlers import State
from lox._interpreter.walk import Walk, cached
from lox._jax import batching, jaxprs

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
        args, dims = [index, index, *operands], [dims[0], *dims]
        aval = batching.lane_aval(axis_data, dims[0], jax.typeof(index))
        params["branches"] = tuple(
            _masked_branch(branch, i, aval) for i, branch in enumerate(branches)
        )
    return rule(axis_data, args, dims, **params)


def _masked_branch(branch: Any, i: int, index_aval: Any) -> Any:
    return cached(
        branch, (i, index_aval), lambda: _trace_masked_branch(branch, i, index_aval)
    )


def _trace_masked_branch(branch: Any, i: int, index_aval: Any) -> Any:
    walk = Walk(EventMasker())

    def fun(index: Any, *args: Any) -> list[Any]:
        # the index is in range: JAX clamps it before the conditional
        outs, _, _ = walk(branch, args, State(context=index == i))
        return outs

    return jaxprs.trace(fun, [index_aval, *branch.in_avals], branch)[0]
