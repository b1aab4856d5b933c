"""A `checkpoint` whose results are not used, which JAX removes (up to 0.11).

So it does with high-level primitives, of which checkpoints may be some.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._jax import partial_eval


def kept_checkpoint(rule: Callable[..., Any], used: Sequence[bool], *rest: Any) -> Any:
    """Keeps one that needs no inputs any more, since it has an effect."""
    inputs, kept = rule(used, *rest)
    eqn = rest[-1]
    if kept is None:
        return partial_eval.without_unused(eqn, used)
    return inputs, kept


def kept_hijax(rule: Callable[..., Any], used: Sequence[bool], *rest: Any) -> Any:
    """Keeps a high-level primitive, since it has an effect."""
    inputs, kept = rule(used, *rest)
    eqn = rest[-1]
    return ([True] * len(eqn.invars), eqn) if kept is None else (inputs, kept)
