"""The step `iteration` of observed results, at any depth inside a loop.

Such an event is bound without the number of the iteration, which is a value of the
loop's body. When the body is complete, a traversal passes the number to the events,
also into calls, branches and derivative rules.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import captured_events, log_p

from .handlers import Rewriter, State
from .walk import Walk

_UNNUMBERED = "without the number of its iteration"


def bind_unnumbered(log: Callable[[], None]) -> None:
    """Binds the events of `log()`, which get their numbers later."""
    with captured_events() as events:
        log()
    for event, operands in events:
        log_p.bind(*operands, event=event.with_call(api_data=_UNNUMBERED))


def evaluate_numbered(closed: Any, args: Sequence[Any], number: Any) -> list[Any]:
    """Evaluates a closed jaxpr, whose events without numbers get this one."""
    # after a `vmap` there is one number per lane, and all are equal
    number = jnp.ravel(number)[0] if jnp.ndim(number) else number
    return Walk(_Numbering())(closed, args, State(context=number))[0]


class _Numbering(Rewriter):
    """Adds the context, the number of the iteration, to events without one."""

    rules_need_state = True

    def wants(self, event: Event) -> bool:
        return event.call.api_data == _UNNUMBERED

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if context is None:
            raise UnsupportedPrimitiveError(
                f"{event.call.description}, is observed in the backward or batching "
                "rule of a function inside a loop, where the number of the iteration "
                "is not known. Observe it outside of the loop, or use `loops=` to "
                "observe others."
            )
        parts = event.split(operands)
        parts.steps = [context]
        log_p.bind(*parts.flat(), event=event.with_call(api_data=None))
