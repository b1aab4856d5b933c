"""`log_grad` in a traversal, before reverse mode has created its events.

The handler of the traversal changes the event that the equation will log.
"""

from collections.abc import Sequence
from typing import Any

from lox._events.event import Event
from lox._events.log_grad import log_grad_p, value_count
from lox._events.primitive import captured_events

from .handlers import NO_STATE, Handler, State
from .rows import Record
from .rule_table import Result, rule
from .walk import Walk


@rule("lox_log_grad")
def _log_grad_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    outs = rebound(walk.handler, eqn.params["event"], args, state)
    return outs, Record(), state


def rebound(
    handler: Handler, event: Event, operands: Sequence[Any], state: State
) -> list[Any]:
    """Binds `log_grad_p` again, with its event changed by a handler.

    Args:
        handler: the handler of the program's events.
        event: the event of the cotangents.
        operands: the operands; those that are values are not changed.
        state: the state of the traversal.

    Returns:
        The values.
    """
    later = handler.for_cotangents()
    events: list[tuple[Event, Sequence[Any]]] = [(event, operands)]
    if later.wants(event):
        with captured_events() as events:
            later.receive(
                event, operands, state if later.rules_need_state else NO_STATE
            )
    count = value_count(event)
    values = list(operands[:count])
    for changed, new in events:
        values = log_grad_p.bind(*values, *new[count:], event=changed)
    return values
