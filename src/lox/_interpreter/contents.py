"""Where in a program events are."""

import weakref
from typing import Any, NamedTuple

from lox._events.event import Event
from lox._events.log_grad import log_grad_p
from lox._events.primitive import log_p
from lox._jax import callbacks, jaxprs, rule_sources

from .rule_table import change_of_hidden_rules, jaxprs_of, may_log_elsewhere


class _Contents(NamedTuple):
    """What a jaxpr contains, at any depth; found once per jaxpr."""

    events: tuple[Event, ...]
    # those that derivatives add: `log_grad` of the cotangents
    cotangents: tuple[Event, ...]
    # whether there are derivative or batching rules that may log: `log_grad`, and those
    # that users define
    hides_rules: bool
    # the functions that are called on the host
    host_functions: tuple[Any, ...]
    # the equations that contain events or rules; all others are bound as they are
    places: frozenset[int]


_contents: "weakref.WeakKeyDictionary[Any, _Contents]" = weakref.WeakKeyDictionary()


def _contents_of(jaxpr: Any) -> _Contents:
    key = jaxprs.open_jaxpr(jaxpr)
    found = _contents.get(key)
    if found is None:
        found = _contents[key] = _find_contents(key)
    return found


def _find_contents(jaxpr: Any) -> _Contents:
    events: dict[Event, None] = {}
    cotangents: dict[Event, None] = {}
    places = set()
    hides_rules = False
    host: list[Any] = []
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive is log_p:
            events[eqn.params["event"]] = None
            places.add(i)
            continue
        if eqn.primitive is log_grad_p:
            cotangents[eqn.params["event"]] = None
            hides_rules = True
            places.add(i)
            continue
        if not _may_contain_any(eqn):
            continue
        inside = [_contents_of(jaxpr) for jaxpr in jaxprs_of(eqn)]
        hides = _hides_rules_itself(eqn) or any(one.hides_rules for one in inside)
        hides_rules |= hides
        host += callbacks.host_functions_of(eqn)
        for one in inside:
            events.update(dict.fromkeys(one.events))
            cotangents.update(dict.fromkeys(one.cotangents))
            host += one.host_functions
        if hides or any(one.events for one in inside):
            places.add(i)
    return _Contents(
        tuple(events), tuple(cotangents), hides_rules, tuple(host), frozenset(places)
    )


def _may_contain_any(eqn: Any) -> bool:
    """A quick check that rules out most equations."""
    return bool(
        eqn.effects
        or may_log_elsewhere(eqn.primitive)
        or eqn.primitive.name in callbacks.PRIMITIVES
        or jaxprs.has_jaxprs(eqn.params)
    )


def events_of(jaxpr: Any) -> tuple[Event, ...]:
    """The events in a jaxpr, at any depth, each once, in program order.

    Effects cannot tell: some primitives do not pass them on.
    """
    return _contents_of(jaxpr).events


def cotangents_of(jaxpr: Any) -> tuple[Event, ...]:
    """The events that reverse mode would add to a jaxpr, by `log_grad`."""
    return _contents_of(jaxpr).cotangents


def host_functions_in(jaxpr: Any) -> tuple[Any, ...]:
    """The functions that a jaxpr calls on the host, at any depth."""
    return _contents_of(jaxpr).host_functions


def equations_with_events(jaxpr: Any) -> list[Any]:
    """The equations that contain events, or rules that may log."""
    equations = jaxprs.open_jaxpr(jaxpr).eqns
    return [equations[i] for i in sorted(places_of(jaxpr))]


def has_hidden_rules(eqn: Any) -> bool:
    """Whether an equation has derivative rules that may log, at any depth."""
    return _hides_rules_itself(eqn) or any(
        _contents_of(jaxpr).hides_rules for jaxpr in jaxprs_of(eqn)
    )


def _hides_rules_itself(eqn: Any) -> bool:
    if eqn.primitive is log_grad_p:
        return True
    return change_of_hidden_rules(eqn) is not None and not rule_sources.rules_of_jax(
        eqn
    )


def hides_rules(jaxpr: Any) -> bool:
    """Whether a jaxpr has derivative rules that may log, at any depth."""
    return _contents_of(jaxpr).hides_rules


def places_of(jaxpr: Any) -> frozenset[int]:
    """The numbers of the equations that contain events, or rules that may log."""
    return _contents_of(jaxpr).places


def events_inside(eqn: Any) -> tuple[Event, ...]:
    """The events in the jaxprs of an equation."""
    events: dict[Event, None] = {}
    for jaxpr in jaxprs_of(eqn):
        events.update(dict.fromkeys(events_of(jaxpr)))
    return tuple(events)
