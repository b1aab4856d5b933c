"""A `while_loop` that JAX runs twice.

Linearizing a `while_loop`, or recomputing it under `checkpoint`, runs it once for the
known values and once for all values. Each event is kept in one of the two runs.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from lox._events.event import Event
from lox._events.primitive import log_p
from lox._flag import Flag
from lox._interpreter.contents import events_of
from lox._interpreter.handlers import NO_STATE
from lox._interpreter.walk import Walk
from lox._jax import partial_eval, primitives

from .rewriter import AllEventsRewriter


def partial_eval_while(
    rule: Callable[..., Any], trace: Any, *tracers: Any, **params: Any
) -> Any:
    """Wraps partial evaluation: for `linearize`, and for code hoisted out of a scan."""
    unknown = [not partial_eval.is_known(tracer) for tracer in tracers]
    if not any(unknown) or all(unknown):
        return rule(trace, *tracers, **params)
    params = _numbered(params)
    with _keeping_numbers:
        known, others = _split_sites(params, unknown)
    # JAX runs the loop for the known values, and again for all values. Events that need
    # only known values get an additional run, whose results are not used.
    if known:
        values = [partial_eval.known_value(tracer) for tracer in tracers]
        primitives.while_p.bind(*values, **_without_sites(params, others))
    return rule(trace, *tracers, **_without_sites(params, known))


def partial_eval_while_equation(
    rule: Callable[..., Any], saveable: Any, unknown: Any, instantiated: Any, eqn: Any
) -> Any:
    """Wraps the rule of `checkpoint`, which returns the two runs as equations."""
    eqn = eqn.replace(params=_numbered(eqn.params))
    with _keeping_numbers:
        known, staged, *rest = rule(saveable, unknown, instantiated, eqn)
    if known is not None and staged is not None:
        sites = {event.layout.site for event in _loop_events(known.params)}
        params = _without_sites(staged.params, sites)
        effects = {*params["cond_jaxpr"].effects, *params["body_jaxpr"].effects}
        staged = staged.replace(params=params, effects=effects)
    return (known, staged, *rest)


class _SiteNumbering(AllEventsRewriter):
    """Numbers the events."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        log_p.bind(*operands, event=event.with_layout(site=next(self._count)))


# set while a numbered loop is split, so that its events keep their numbers
_keeping_numbers = Flag()


def _numbered(params: dict[str, Any]) -> dict[str, Any]:
    if _keeping_numbers:
        return params
    # The events of a function that is called twice need two numbers, so its jaxpr must
    # not be cached. JAX cannot split equations that have both effects and results, so
    # the events of custom functions are separated from their calls.
    walk = Walk(_SiteNumbering(), cache=False, separate_events=True)
    return _with_jaxprs(params, lambda jaxpr: walk.rebuilt(jaxpr, NO_STATE)[0])


def _with_jaxprs(
    params: dict[str, Any], change: Callable[[Any], Any]
) -> dict[str, Any]:
    changes = {name: change(params[name]) for name in ("cond_jaxpr", "body_jaxpr")}
    return {**params, **changes}


def _loop_events(params: dict[str, Any]) -> set[Event]:
    return {*events_of(params["cond_jaxpr"]), *events_of(params["body_jaxpr"])}


def _split_sites(
    params: dict[str, Any], unknown: Sequence[bool]
) -> tuple[set[int], set[int]]:
    """The sites of the events that need only known values, and the other sites."""
    cond_unknown, body_unknown, carry = primitives.split_while(params, unknown)
    while True:
        known, _, out = partial_eval.known_part(
            params["body_jaxpr"], [*body_unknown, *carry], carry
        )
        if out == carry:
            break
        carry = [a or b for a, b in zip(carry, out, strict=True)]
    cond, _, _ = partial_eval.known_part(
        params["cond_jaxpr"], [*cond_unknown, *carry], False
    )
    found = {event.layout.site for event in (*events_of(known), *events_of(cond))}
    return found, {event.layout.site for event in _loop_events(params)} - found


def _without_sites(params: dict[str, Any], sites: set[int]) -> dict[str, Any]:
    def clean(jaxpr: Any) -> Any:
        walk = Walk(_SiteRemover(sites))
        return walk.rebuilt(jaxpr, NO_STATE)[0] if walk.wants_in_jaxpr(jaxpr) else jaxpr

    return _with_jaxprs(params, clean)


class _SiteRemover(AllEventsRewriter):
    """Removes the events of certain sites, also events that are collected already."""

    def __init__(self, sites: set[int]) -> None:
        self._sites = sites

    def wants(self, event: Event) -> bool:
        return event.layout.site in self._sites

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        pass
