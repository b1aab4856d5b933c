"""Finds the merged values of a program, and the loops that depend on them."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from lox._events.event import Event
from lox._interpreter.contents import (
    cotangents_inside,
    equation_has_hidden_rules,
    equations_with_events,
    events_inside,
    events_of,
    jaxpr_has_hidden_rules,
    may_log,
)
from lox._interpreter.walk import cached
from lox._jax import debug_info, jaxprs, primitives

from .backward_loops import predicates_of_backward_loop
from .deciding_inputs import (
    called_jaxpr,
    deciding_inputs,
    is_elementary,
    is_event,
    own_deciding_inputs,
    starts_of_counters,
)
from .inner_calls import is_custom_function, passes_values
from .lane_primitives import merges_lanes


def may_log_inside(eqn: Any) -> bool:
    """Whether an equation logs inside, or would if reverse mode differentiated it."""
    if events_inside(eqn) or cotangents_inside(eqn):
        return True
    # `while` loops have no reverse mode, others do: their derivative rules may log
    if eqn.primitive in (primitives.cond_p, primitives.scan_p):
        return equation_has_hidden_rules(eqn)
    return _calls_loops_with_rules(eqn)


def _calls_loops_with_rules(eqn: Any) -> bool:
    """Whether an equation calls a loop with derivative rules, which may log.

    An Equinox loop that supports reverse mode is a custom function, and its rule
    differentiates the body, with the custom functions there.
    """
    inside = list(jaxprs.jaxprs_of(eqn)) if passes_values(eqn) else []
    if is_custom_function(eqn):
        return any(map(jaxpr_has_hidden_rules, inside))
    return any(
        may_log_inside(inner)
        for jaxpr in inside
        for inner in equations_with_events(jaxpr)
    )


def needs_masks(jaxpr: Any) -> bool:
    """Whether events in the loops and branches of a jaxpr need masks."""
    if not may_log(jaxpr):
        return False
    equations = jaxprs.open_jaxpr(jaxpr).eqns
    if any(is_merging_loop(eqn) or is_backward_loop(eqn) for eqn in equations):
        return True
    return any(map(calls_reduction, equations)) and bool(merged_variables(jaxpr))


def calls_reduction(eqn: Any) -> bool:
    """Whether an equation reduces over lanes, or calls a function that does."""
    called = called_jaxpr(eqn)
    if called is None:
        return merges_lanes(eqn)
    return merges_lanes_inside(called) and any(map(calls_reduction, called.jaxpr.eqns))


def is_merging_loop(eqn: Any) -> bool:
    """Whether an equation is a loop that logs, with a merged predicate."""
    if eqn.primitive is not primitives.while_p:
        return False
    cond = jaxprs.open_jaxpr(eqn.params["cond_jaxpr"])
    return any(map(merges_lanes, cond.eqns)) and may_log_inside(eqn)


def is_backward_loop(eqn: Any) -> bool:
    """Whether an equation is the backward pass of a loop, and logs."""
    if eqn.primitive is not primitives.while_p or not events_inside(eqn):
        return False
    return any(predicates_of_backward_loop(eqn.params))


def events_of_backward_pass(eqn: Any, jaxpr: Any) -> list[Event]:
    """The events that the backward pass of loops, in the same jaxpr, may log.

    Args:
        eqn: a loop, or an equation that passes the starts of counters to loops inside.
        jaxpr: the jaxpr that it is in.
    """
    if not starts_of_counters(eqn) or debug_info.is_backward(eqn):
        return []
    lines = {event.call.source for event in events_of(jaxpr)}
    found = [event for event in cotangents_inside(eqn) if event.call.source in lines]
    return found or _events_of_backward_loops(jaxpr)


_LOOPS = (primitives.while_p, primitives.scan_p)


def _events_of_backward_loops(jaxpr: Any, backward: bool = False) -> list[Event]:
    """The events in the loops of a backward pass.

    Args:
        jaxpr: the jaxpr.
        backward: whether it is part of a backward pass.
    """
    jaxpr = jaxprs.open_jaxpr(jaxpr)

    def find() -> Iterator[Event]:
        for eqn in jaxpr.eqns:
            here = backward or debug_info.is_backward(eqn)
            if eqn.primitive not in _LOOPS:
                for inner in jaxprs.jaxprs_in(eqn.params):
                    yield from _events_of_backward_loops(inner, here)
            elif here or is_backward_loop(eqn):
                yield from (event for event in events_inside(eqn) if event.call.keys)

    key = "events of backward loops", backward
    return cached(jaxpr, key, lambda: list(find()))


def merges_lanes_in(params: dict[str, Any]) -> bool:
    """Whether an equation with these parameters reduces over lanes inside."""
    return any(map(merges_lanes_inside, jaxprs.jaxprs_in(params)))


def merges_lanes_inside(jaxpr: Any) -> bool:
    """Whether a jaxpr reduces over lanes, at any depth, or is prepared to do so."""

    def find() -> bool:
        return any(
            merges_lanes(eqn)
            or eqn.primitive.name == "select_if_vmap"
            or any(map(merges_lanes_inside, jaxprs.jaxprs_in(eqn.params)))
            for eqn in jaxprs.open_jaxpr(jaxpr).eqns
        )

    return cached(jaxpr, "merges lanes", find)


def merged_variables(
    jaxpr: Any, results: Iterable[Any] = (), merged_inputs: Iterable[Any] = ()
) -> set[Any]:
    """The merged variables that decide which lanes log.

    These are predicates of branches, initial values of counters of loops and the `when`
    of events, and the variables that they are computed from.

    Args:
        jaxpr: the jaxpr.
        results: other variables to include, if they are merged.
        merged_inputs: the inputs that are merged values.
    """
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    sources = _sources(jaxpr)
    known: dict[Any, bool] = dict.fromkeys(merged_inputs, True)

    def is_merged(atom: Any) -> bool:
        if isinstance(atom, jaxprs.Literal):
            return False
        if atom not in known and atom in sources:
            eqn = sources[atom]
            # the results of a loop or a branch are per-lane values already
            inputs = list(map(is_merged, eqn.invars)) if is_elementary(eqn) else []
            known[atom] = False
            if any(inputs) or (inputs and calls_reduction(eqn)):
                found = _merged_results(eqn, inputs)
                known.update(zip(eqn.outvars, found, strict=True))
        return known.get(atom, False)

    for eqn in jaxpr.eqns:
        if is_event(eqn):
            results = [*results, *(eqn.invars[i] for i in own_deciding_inputs(eqn))]
        elif may_log_inside(eqn) or events_of_backward_pass(eqn, jaxpr):
            results = [*results, *(eqn.invars[i] for i in may_decide(eqn))]
    for result in results:
        is_merged(result)
    return {atom for atom, merged in known.items() if merged}


def _merged_results(eqn: Any, inputs: Iterable[bool]) -> list[bool]:
    """Which results of an elementary equation are merged.

    Args:
        eqn: the equation, which reduces over lanes or has merged inputs.
        inputs: which of its inputs are merged.
    """
    called = called_jaxpr(eqn)
    if called is None:
        return [True] * len(eqn.outvars)
    jaxpr = called.jaxpr
    merged_inputs = itertools.compress(jaxpr.invars, inputs)
    merged = merged_variables(jaxpr, jaxpr.outvars, merged_inputs)
    return [not isinstance(x, jaxprs.Literal) and x in merged for x in jaxpr.outvars]


def may_decide(eqn: Any) -> list[int]:
    """The inputs of an equation that may decide which lanes log inside."""
    found = deciding_inputs(eqn)
    return [i for i, x in enumerate(eqn.invars) if i in found or _is_scalar(x)]


def _is_scalar(atom: Any) -> bool:
    """Whether a variable may be a predicate or a counter."""
    kind = getattr(getattr(atom.aval, "dtype", None), "kind", "")
    return bool(kind) and kind in "biu" and not atom.aval.shape


def _sources(jaxpr: Any) -> dict[Any, Any]:
    """The equations that compute the variables of a jaxpr."""
    equations = jaxprs.open_jaxpr(jaxpr).eqns
    return {var: eqn for eqn in equations for var in eqn.outvars}
