"""Finds the events in a program."""

import itertools
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from lox._events.event import Event
from lox._events.log_grad import log_grad_p
from lox._events.primitive import log_p
from lox._jax import callbacks, jaxprs, rule_sources

from .rule_table import change_of_hidden_rules, jaxprs_of, may_log_elsewhere


class _Contents(NamedTuple):
    """The events in a jaxpr, at any depth; computed once per jaxpr.

    Attributes:
        events: the events.
        cotangents: the events that derivatives add, by `log_grad`.
        has_hidden_rules: whether there are derivative or batching rules that may log:
            user-defined ones, and those of `log_grad`.
        host_functions: the functions that are called on the host.
        indices: the equations that contain events or hidden rules; all others are bound
            unchanged.
    """

    events: tuple[Event, ...]
    cotangents: tuple[Event, ...]
    has_hidden_rules: bool
    host_functions: tuple[Any, ...]
    indices: frozenset[int]


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
    indices = set()
    has_hidden_rules = False
    host: list[Any] = []
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive is log_p:
            events[eqn.params["event"]] = None
            indices.add(i)
            continue
        if eqn.primitive is log_grad_p:
            cotangents[eqn.params["event"]] = None
            has_hidden_rules = True
            indices.add(i)
            continue
        if not _may_contain_events(eqn):
            continue
        inside = [_contents_of(jaxpr) for jaxpr in jaxprs_of(eqn)]
        hidden = _has_own_hidden_rules(eqn) or any(
            one.has_hidden_rules for one in inside
        )
        has_hidden_rules |= hidden
        host += callbacks.host_functions_of(eqn)
        for one in inside:
            events.update(dict.fromkeys(one.events))
            cotangents.update(dict.fromkeys(one.cotangents))
            host += one.host_functions
        if hidden or any(one.events for one in inside):
            indices.add(i)
    return _Contents(
        tuple(events),
        tuple(cotangents),
        has_hidden_rules,
        tuple(host),
        frozenset(indices),
    )


def _may_contain_events(eqn: Any) -> bool:
    """A quick check that rules out most equations."""
    return bool(
        eqn.effects
        or may_log_elsewhere(eqn.primitive)
        or eqn.primitive.name in callbacks.PRIMITIVES
        or jaxprs.has_jaxprs(eqn.params)
    )


def events_of(jaxpr: Any) -> tuple[Event, ...]:
    """The distinct events in a jaxpr, at any depth, in program order.

    The effects of the jaxpr are not enough: some primitives do not propagate them.
    """
    return _contents_of(jaxpr).events


def cotangents_of(jaxpr: Any) -> tuple[Event, ...]:
    """The events that reverse mode would add to a jaxpr, by `log_grad`."""
    return _contents_of(jaxpr).cotangents


def host_functions_in(jaxpr: Any) -> tuple[Any, ...]:
    """The functions that a jaxpr calls on the host, at any depth."""
    return _contents_of(jaxpr).host_functions


def equations_with_events(jaxpr: Any) -> list[Any]:
    """The equations that contain events or hidden rules, which may log."""
    equations = jaxprs.open_jaxpr(jaxpr).eqns
    return [equations[i] for i in sorted(indices_with_events(jaxpr))]


def equation_has_hidden_rules(eqn: Any) -> bool:
    """Whether an equation has user-defined derivative or batching rules."""
    return _has_own_hidden_rules(eqn) or any(
        _contents_of(jaxpr).has_hidden_rules for jaxpr in jaxprs_of(eqn)
    )


def _has_own_hidden_rules(eqn: Any) -> bool:
    if eqn.primitive is log_grad_p:
        return True
    if change_of_hidden_rules(eqn) is None:
        return False
    return not rule_sources.rules_of_jax(eqn)


def may_log(jaxpr: Any) -> bool:
    """Whether a jaxpr contains events, or derivative or batching rules that may log."""
    return bool(indices_with_events(jaxpr))


def jaxpr_has_hidden_rules(jaxpr: Any) -> bool:
    """Whether a jaxpr has user-defined derivative or batching rules, at any depth."""
    return _contents_of(jaxpr).has_hidden_rules


def indices_with_events(jaxpr: Any) -> frozenset[int]:
    """The indices of the equations that contain events or hidden rules."""
    return _contents_of(jaxpr).indices


def events_inside(eqn: Any) -> tuple[Event, ...]:
    """The events in the jaxprs of an equation."""
    return _distinct(map(events_of, jaxprs_of(eqn)))


def cotangents_inside(eqn: Any) -> tuple[Event, ...]:
    """The events that reverse mode would add to the jaxprs of an equation."""
    return _distinct(map(cotangents_of, jaxprs_of(eqn)))


def _distinct(parts: Iterable[Iterable[Event]]) -> tuple[Event, ...]:
    return tuple(dict.fromkeys(itertools.chain.from_iterable(parts)))
