"""`vmap` of `cond` with a predicate per lane.

JAX runs all branches for all lanes. The events inside get a *mask*: which lanes really
took the branch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._interpreter.handlers import State
from lox._interpreter.walk import Walk, remembered
from lox._jax import batching, jaxprs

from .guard import Guard


def guarded_cond(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> Any:
    branches = params["branches"]
    # with `platform_dependent`, the index is the same in all lanes whatever it says
    if dims[0] is not None and "branches_platforms" not in params:
        index, *operands = args
        args, dims = [index, index, *operands], [dims[0], *dims]
        aval = batching.lane_aval(axis_data, dims[0], jax.typeof(index))
        params["branches"] = tuple(
            _guarded_branch(branch, i, aval) for i, branch in enumerate(branches)
        )
    return rule(axis_data, args, dims, **params)


def _guarded_branch(branch: Any, i: int, index_aval: Any) -> Any:
    return remembered(
        branch, (i, index_aval), lambda: _new_guarded_branch(branch, i, index_aval)
    )


def _new_guarded_branch(branch: Any, i: int, index_aval: Any) -> Any:
    walk = Walk(Guard())

    def fun(index: Any, *args: Any) -> list[Any]:
        # JAX clamps an index that is out of range before the conditional
        outs, _, _ = walk(branch, args, State(context=index == i))
        return outs

    return jaxprs.trace(fun, [index_aval, *branch.in_avals], branch)[0]
