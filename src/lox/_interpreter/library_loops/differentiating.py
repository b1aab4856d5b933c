"""Wrappers of JAX's derivative rules, which mask cotangents before they exist.

`eqxi.while_loop(kind="bounded")` is a `scan` of branches whose predicates are merged.
Reverse mode separates the events of `log_grad`, and of the backward rules of custom
functions, from these predicates. So they get their masks before, while they are still
inside the branches.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._events.event import Event
from lox._events.primitive import log_p
from lox._interpreter.handlers import NO_STATE
from lox._interpreter.patches.missing import may_log_in_rules
from lox._interpreter.patches.rewriter import AllEventsRewriter
from lox._interpreter.walk import Walk, cached

from .merged_values import merges_lanes_in


class _Unchanged(AllEventsRewriter):
    """Binds every event unchanged: the traversal itself masks those in loops."""

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        log_p.bind(*operands, event=event)


def differentiate_scan(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Wraps the JVP rule and the linearization rule of `scan`."""
    body = params["jaxpr"]

    def make() -> Any:
        return Walk(_Unchanged()).rebuilt(body, NO_STATE)[0]

    return rule(*args, **{**params, "jaxpr": cached(body, "masked cotangents", make)})


def may_log_with_merged_lanes(params: dict[str, Any]) -> bool:
    """Whether derivatives of an equation may log, and it reduces over lanes inside."""
    return may_log_in_rules(params) and merges_lanes_in(params)
