"""A `checkpoint` whose results are not used, which JAX removes (up to 0.11).

JAX also removes high-level primitives, which include `checkpoint` with `jax_remat3`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._jax import partial_eval


def dce_checkpoint(rule: Callable[..., Any], used: Sequence[bool], *rest: Any) -> Any:
    """Wraps dead code elimination: keeps a `checkpoint` that has an effect."""
    inputs, kept = rule(used, *rest)
    eqn = rest[-1]
    if kept is None:
        return partial_eval.without_unused(eqn, used)
    return inputs, kept


def dce_hijax(rule: Callable[..., Any], used: Sequence[bool], *rest: Any) -> Any:
    """Wraps dead code elimination: keeps a high-level primitive that has an effect."""
    inputs, kept = rule(used, *rest)
    eqn = rest[-1]
    return ([True] * len(eqn.invars), eqn) if kept is None else (inputs, kept)
