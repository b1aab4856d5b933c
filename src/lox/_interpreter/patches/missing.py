"""Rejects programs that need a patch of JAX that could not be installed."""

from collections.abc import Callable, Sequence
from typing import Any

from lox._events.event import Event
from lox._flag import Flag
from lox._interpreter import contents
from lox._interpreter.contents import cotangents_of, events_of, jaxpr_has_hidden_rules
from lox._jax import jaxprs, patches, primitives, rule_tables
from lox._jax.patches import Patch

_JAXPRS = ("jaxpr", "cond_jaxpr", "body_jaxpr", "branches", "jaxprs")


def events_in(params: dict[str, Any]) -> tuple[Event, ...]:
    """The events inside an equation with these parameters."""
    return tuple(event for jaxpr in _jaxprs_in(params) for event in events_of(jaxpr))


def events_and_cotangents_in(params: dict[str, Any]) -> tuple[Event, ...]:
    """As `events_in`, with the events that reverse mode would add, by `log_grad`."""
    found = _jaxprs_in(params)
    later = (event for jaxpr in found for event in cotangents_of(jaxpr))
    return *events_in(params), *later


def may_log(params: dict[str, Any]) -> bool:
    """Whether an equation logs, or has derivative rules inside that may log."""
    return any(map(contents.may_log, _jaxprs_in(params)))


def may_log_in_rules(params: dict[str, Any]) -> bool:
    """Whether an equation has derivative rules inside that may log."""
    return any(map(jaxpr_has_hidden_rules, _jaxprs_in(params)))


def _jaxprs_in(params: dict[str, Any]) -> list[Any]:
    named = {name: params[name] for name in _JAXPRS if name in params}
    return list(jaxprs.jaxprs_in(named or params))


def events_in_condition(params: dict[str, Any]) -> tuple[Event, ...]:
    """The events in the condition of a `while_loop`."""
    return events_of(params["cond_jaxpr"])


# set during calls of functions whose events are removed: nothing is rejected
removing_events = Flag()

# Returns the events of an equation that need a patch, given its parameters.
Needs = Callable[[dict[str, Any]], Sequence[Event]]


def reject(patch: Patch, primitive: Any, needs: Needs = events_in) -> None:
    """Raises an error in every program with events in such an equation.

    When the equation is bound, it is not known whether the program will need the patch.
    Later it is too late, since JAX's own rule then runs.
    """

    def check(args: Sequence[Any], params: dict[str, Any]) -> None:
        events = [event for event in needs(params) if event.call.keys]
        if events and not removing_events:
            name = primitives.public_name(primitive)
            subject = f"{events[0].call.description}, is inside `{name}`"
            raise patches.error(patch, subject)

    rule_tables.check_before_bind(primitive, check)
