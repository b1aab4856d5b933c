"""Finds the merged values of a program, and the loops that depend on them."""

from collections.abc import Iterable, Iterator
from typing import Any

from lox._events.event import Event
from lox._interpreter.contents import (
    cotangents_inside,
    equation_has_hidden_rules,
    events_inside,
    events_of,
    may_log,
)
from lox._interpreter.walk import cached
from lox._jax import debug_info, jaxprs, primitives

from .backward_loops import predicates_of_backward_loop
from .lane_primitives import merges_lanes


def may_log_inside(eqn: Any) -> bool:
    """Whether an equation logs inside, or would if reverse mode differentiated it."""
    if events_inside(eqn) or cotangents_inside(eqn):
        return True
    # `while` loops have no reverse mode, others do: their derivative rules may log
    reversible = (primitives.cond_p, primitives.scan_p)
    return eqn.primitive in reversible and equation_has_hidden_rules(eqn)


def needs_masks(jaxpr: Any) -> bool:
    """Whether events in the loops and branches of a jaxpr need masks."""
    if not may_log(jaxpr):
        return False
    equations = jaxprs.open_jaxpr(jaxpr).eqns
    if any(is_merging_loop(eqn) or is_backward_loop(eqn) for eqn in equations):
        return True
    return any(map(merges_lanes, equations)) and bool(merged_variables(jaxpr))


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
    """The events that the backward pass of a loop may log, which is in the same jaxpr.

    Args:
        eqn: the loop.
        jaxpr: the jaxpr that it is in.
    """
    if eqn.primitive not in _LOOPS or debug_info.is_backward(eqn):
        return []
    lines = {event.call.source for event in events_of(jaxpr)}
    found = [event for event in cotangents_inside(eqn) if event.call.source in lines]
    return found or _events_of_backward_loops(jaxpr)


_LOOPS = (primitives.while_p, primitives.scan_p)


def _events_of_backward_loops(jaxpr: Any) -> list[Event]:
    jaxpr = jaxprs.open_jaxpr(jaxpr)

    def find() -> Iterator[Event]:
        for eqn in jaxpr.eqns:
            if eqn.primitive not in _LOOPS:
                for inner in jaxprs.jaxprs_in(eqn.params):
                    yield from _events_of_backward_loops(inner)
            elif is_backward_loop(eqn) or debug_info.is_backward(eqn):
                yield from (event for event in events_inside(eqn) if event.call.keys)

    return cached(jaxpr, "events of backward loops", lambda: list(find()))


def merges_lanes_in(params: dict[str, Any]) -> bool:
    """Whether an equation with these parameters reduces over lanes inside."""
    return any(map(merges_lanes_inside, jaxprs.jaxprs_in(params)))


def merges_lanes_inside(jaxpr: Any) -> bool:
    """Whether a jaxpr reduces over lanes, or is made for that, at any depth."""

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

    These are predicates of branches and initial values of counters of loops, and the
    variables that they are computed from.

    Args:
        jaxpr: the jaxpr.
        results: other variables to include, if they are merged.
        merged_inputs: the inputs that are merged values.
    """
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    sources = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    known: dict[Any, bool] = dict.fromkeys(merged_inputs, True)

    def is_merged(atom: Any) -> bool:
        if isinstance(atom, jaxprs.Literal):
            return False
        if atom not in known and atom in sources:
            eqn = sources[atom]
            # the results of a loop or a branch are per-lane values already
            inputs = eqn.invars if _is_elementary(eqn) else ()
            known[atom] = any(list(map(is_merged, inputs))) or merges_lanes(eqn)
        return known.get(atom, False)

    for eqn in jaxpr.eqns:
        if may_log_inside(eqn) or events_of_backward_pass(eqn, jaxpr):
            results = [*results, *filter(may_decide, eqn.invars)]
    for result in results:
        is_merged(result)
    return {atom for atom, merged in known.items() if merged}


def may_decide(atom: Any) -> bool:
    """Whether a variable may be a predicate or a counter."""
    kind = getattr(getattr(atom.aval, "dtype", None), "kind", "")
    return bool(kind) and kind in "biu" and not atom.aval.shape


def _is_elementary(eqn: Any) -> bool:
    return eqn.primitive.name in ("jit", "pjit") or not any(
        True for _ in jaxprs.jaxprs_in(eqn.params)
    )
