"""Evaluates a program with masks for the events that depend on merged values."""

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from lox._events.event import Event
from lox._interpreter.contents import cotangents_of, events_inside, events_of
from lox._interpreter.iteration_numbers import of_lanes_that_run
from lox._interpreter.patches.masking import EventMasker
from lox._interpreter.rule_table import before_walk
from lox._interpreter.walk import Walk, cached, without_events
from lox._jax import jaxprs, primitives, tracing
from lox._jax.array_types import as_array

from .backward_loops import predicates_of_backward_loop
from .counters import counters_of, find_counters_in_sync
from .deciding_inputs import (
    called_jaxpr,
    is_event,
    limiting_counters,
    other_deciding_inputs,
    own_deciding_inputs,
    starts_of_counters,
)
from .directions import (
    BELOW,
    SAME,
    Value,
    direction_of_predicate,
    may_lose,
    value_of_atom,
    values_in_sync,
    values_of_results,
)
from .inner_calls import (
    bind_with_values,
    is_custom_function,
    pass_constants,
    passes_values,
)
from .lane_primitives import (
    across_lanes_p,
    active_state,
    merges_lanes,
    refuse_different_starts,
    refuse_lanes,
    refuse_lost_events,
    refuse_merged_carry,
)
from .merged_values import (
    calls_reduction,
    events_of_backward_pass,
    is_backward_loop,
    is_merging_loop,
    may_decide,
    may_log_inside,
    merged_variables,
    merges_lanes_inside,
    needs_masks,
)
from .reduced_lanes import bind_refused, depends_on_reduced, reduced_variables


@before_walk
def mask_events(jaxpr: Any) -> Any:
    """Returns a closed jaxpr with masks for the events in its loops and branches.

    The jaxprs inside other equations are not processed: that happens when they are
    traversed or batched themselves.
    """
    if "equinox" not in sys.modules:  # its primitives do not exist
        return jaxpr
    if merges_lanes_inside(jaxpr):
        find_counters_in_sync(jaxpr)
    if not needs_masks(jaxpr):
        return jaxpr

    def fun(*args: Any) -> list[Any]:
        return _evaluate(jaxpr, args, {}, {})

    return _retraced(jaxpr, "lanes", fun)


def _retraced(closed: Any, key: Any, fun: Callable[..., list[Any]]) -> Any:
    """A jaxpr of `fun`, with the inputs of another one; traced once per key."""
    return cached(closed, key, lambda: jaxprs.trace(fun, closed.in_avals, closed)[0])


def _evaluate(
    closed: Any,
    args: Sequence[Any],
    per_lane_args: dict[int, Any],
    directions: dict[int, int],
) -> list[Any]:
    return _evaluate_both(closed, args, per_lane_args, directions, both=False)[0]


def _evaluate_both(
    closed: Any,
    args: Sequence[Any],
    per_lane_args: dict[int, Any],
    directions: dict[int, int],
    both: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Evaluates a closed jaxpr with masks.

    Args:
        closed: the jaxpr.
        args: its arguments.
        per_lane_args: the per-lane values of merged arguments, by their indices.
        directions: how the merged arguments compare with them (see `directions`).
        both: whether the per-lane values of the results are needed.

    Returns:
        The results, and their per-lane values.
    """
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    per_lane = {jaxpr.invars[i]: value for i, value in per_lane_args.items()}
    merged = merged_variables(jaxpr, jaxpr.outvars if both else (), per_lane)
    reduced = reduced_variables(jaxpr)
    compared = values_in_sync(jaxpr)
    compared |= {jaxpr.invars[i]: Value(one) for i, one in directions.items()}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jaxprs.Literal) else env[atom]

    def has_per_lane(atom: Any) -> bool:
        return not isinstance(atom, jaxprs.Literal) and atom in per_lane

    def read_per_lane(atom: Any) -> Any:
        return per_lane[atom] if has_per_lane(atom) else read(atom)

    def compare(eqn: Any) -> list[Value]:
        return [
            value_of_atom(atom, lambda var: compared.get(var, Value()))
            for atom in eqn.invars
        ]

    for eqn in jaxpr.eqns:
        ins = [read(atom) for atom in eqn.invars]
        with tracing.equation_context(eqn):
            if any(var in merged for var in eqn.outvars):
                outs, others = _bind_both(
                    eqn, ins, map(read_per_lane, eqn.invars), compare(eqn)
                )
                pairs = zip(eqn.outvars, others, strict=True)
                per_lane.update((var, x) for var, x in pairs if var in merged)
                compared.update(
                    zip(eqn.outvars, values_of_results(eqn, compare(eqn)), strict=True)
                )
            elif reduced and depends_on_reduced(eqn, reduced):
                outs = bind_refused(eqn, ins)
            elif is_event(eqn):
                for i in own_deciding_inputs(eqn):
                    ins[i] = read_per_lane(eqn.invars[i])
                outs = tracing.bind(eqn, ins)
            elif may_log_inside(eqn) or events_of_backward_pass(eqn, jaxpr):
                values = {
                    i: as_array(per_lane[eqn.invars[i]])
                    for i in may_decide(eqn)
                    if has_per_lane(eqn.invars[i])
                }
                backward = events_of_backward_pass(eqn, jaxpr)
                ins = _with_same_starts(eqn, ins, values, backward)
                known = {i: compared[eqn.invars[i]].direction or 0 for i in values}
                ins = _without_lost_events(eqn, ins, values, known)
                outs = (
                    _bind_with_masks(eqn, ins, values, known)
                    if may_log_inside(eqn)
                    else tracing.bind(eqn, ins)
                )
            else:
                outs = tracing.bind(eqn, ins)
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars)), list(map(read_per_lane, jaxpr.outvars))


def _with_same_starts(
    eqn: Any, args: Sequence[Any], per_lane: dict[int, Any], events: Sequence[Event]
) -> list[Any]:
    """Refuses loops that start earlier in some lanes, if their backward pass logs.

    Args:
        eqn: the equation.
        args: its inputs.
        per_lane: the per-lane values of merged inputs, by their indices.
        events: the events of its backward pass.
    """
    args = list(args)
    for i in starts_of_counters(eqn) & per_lane.keys() if events else ():
        for event in events:
            args[i] = refuse_different_starts(as_array(args[i]), per_lane[i], event)
    return args


def _without_lost_events(
    eqn: Any,
    args: Sequence[Any],
    per_lane: dict[int, Any],
    directions: dict[int, int],
) -> list[Any]:
    """Refuses branches and loops that a lane may not run because of other lanes.

    Args:
        eqn: the equation.
        args: its inputs.
        per_lane: the per-lane values of merged inputs, by their indices.
        directions: how the merged inputs compare with them.
    """
    args = list(args)
    if eqn.primitive is primitives.cond_p and 0 in per_lane:
        branches = eqn.params["branches"]
        for i, branch in enumerate(branches):
            if may_lose(i, len(branches), directions[0]):
                for event in _logged_or_cotangents(branch):
                    args[0] = refuse_lost_events(as_array(args[0]), per_lane[0], event)
    for i in limiting_counters(eqn) & per_lane.keys():
        if directions[i] not in (BELOW, SAME):
            for event in events_inside(eqn):
                args[i] = refuse_lost_events(as_array(args[i]), per_lane[i], event)
    return args


def _logged_or_cotangents(jaxpr: Any) -> list[Event]:
    """The events of a jaxpr, including those that reverse mode would add."""
    found = (*events_of(jaxpr), *cotangents_of(jaxpr))
    return [event for event in found if event.call.keys]


def _bind_both(
    eqn: Any,
    args: Sequence[Any],
    per_lane_args: Iterable[Any],
    compared: Sequence[Value],
) -> tuple[list[Any], list[Any]]:
    """Binds an equation to merged values, and again to per-lane values."""
    per_lane = list(per_lane_args)
    if merges_lanes(eqn):
        (x,), (per_lane_x,) = map(as_array, args), map(as_array, per_lane)
        outs = [across_lanes_p.bind(x, like=eqn.primitive)]
        return outs, [eqn.primitive.impl(per_lane_x)]
    outs = _bind_processed(eqn, args)
    if eqn.primitive.name == "nonbatchable":  # an identity that rejects lanes
        return outs, per_lane
    called = called_jaxpr(eqn)
    if called is None:
        return outs, tracing.bind(eqn, per_lane)
    # it may reduce over lanes itself, and its events must not be logged again
    inputs = dict(enumerate(per_lane))
    known = {i: x.direction or 0 for i, x in enumerate(compared)}
    return outs, _evaluate_both(without_events(called), args, inputs, known)[1]


def _bind_processed(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """Binds an equation whose reductions over lanes need not be processed again."""
    if merges_lanes(eqn):
        return [across_lanes_p.bind(as_array(args[0]), like=eqn.primitive)]
    if not calls_reduction(eqn) or is_custom_function(eqn):
        return tracing.bind(eqn, args)

    def process(closed: Any) -> Any:
        def evaluate(inner: Any, ins: list[Any]) -> list[Any]:
            with tracing.equation_context(inner):
                return _bind_processed(inner, ins)

        def fun(*args: Any) -> list[Any]:
            return jaxprs.interpret(closed.jaxpr, [*closed.consts, *args], evaluate)

        return _retraced(closed, "processed", fun)

    def change(jaxpr: Any) -> Any:
        return jaxprs.rewritten(jaxpr, process)

    return tracing.bind(eqn, args, **jaxprs.map_jaxprs(eqn.params, change))


def _bind_with_masks(
    eqn: Any,
    args: list[Any],
    per_lane: dict[int, Any],
    directions: dict[int, int],
) -> list[Any]:
    """Binds an equation with events inside.

    Args:
        eqn: the equation.
        args: its inputs.
        per_lane: the per-lane values of merged inputs, by their indices.
        directions: how the merged inputs compare with them.
    """
    eqn, args, per_lane = pass_constants(eqn, args, per_lane, directions, _evaluate)
    args = _without_merged_carries(eqn, args, per_lane)
    if is_merging_loop(eqn) or (per_lane and eqn.primitive is primitives.while_p):
        return _bind_loop(eqn, args, per_lane)
    if is_backward_loop(eqn):
        return _bind_backward_loop(eqn, args)
    if per_lane and eqn.primitive is primitives.cond_p:
        if 0 not in per_lane:
            return tracing.bind(eqn, args)
        return _bind_cond(eqn, args, per_lane[0])
    if per_lane and passes_values(eqn):
        return bind_with_values(eqn, args, per_lane, directions, _evaluate)
    return tracing.bind(eqn, args)


def _without_merged_carries(
    eqn: Any, args: Sequence[Any], per_lane: dict[int, Any]
) -> list[Any]:
    """Refuses lanes whose steps or branches inside a loop depend on merged carries.

    A counter is a carry whose per-lane value is known in each iteration; that of
    another carry is only known in the first.
    """
    args = list(args)
    if per_lane and eqn.primitive in (primitives.scan_p, primitives.while_p):
        logged = [event for event in events_inside(eqn) if event.call.keys]
        for i in other_deciding_inputs(eqn) & per_lane.keys():
            for event in logged:
                args[i] = refuse_merged_carry(as_array(args[i]), per_lane[i], event)
    return args


# --- branches ----------------------------------------------------------------


def _bind_cond(eqn: Any, args: Sequence[Any], per_lane_index: Any) -> list[Any]:
    index, *operands = args
    per_lane_index = as_array(per_lane_index)
    branches = tuple(
        _masked_branch(branch, i, jax.typeof(per_lane_index))
        for i, branch in enumerate(eqn.params["branches"])
    )
    return tracing.bind(eqn, [index, per_lane_index, *operands], branches=branches)


def _masked_branch(branch: Any, i: int, index_aval: Any) -> Any:
    def fun(index: Any, *args: Any) -> list[Any]:
        return Walk(EventMasker())(branch, args, active_state(index == i))[0]

    def make() -> Any:
        return jaxprs.trace(fun, [index_aval, *branch.in_avals], branch)[0]

    return cached(branch, ("lanes", i, index_aval), make)


# --- loops -------------------------------------------------------------------


def _bind_loop(eqn: Any, args: Sequence[Any], per_lane: dict[int, Any]) -> list[Any]:
    """Binds a loop whose body begins with the per-lane predicate.

    A predicate that logs is instead evaluated before the loop and at the end of its
    body, so that its events are logged as often as before. So is one that may be true
    again after a lane has ended.
    """
    params = eqn.params
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    consts = cond_consts + body_consts
    counters = [i - consts for i in counters_of(eqn) if i in per_lane]
    starts = [per_lane[consts + i] for i in counters]
    rotated = bool(events_of(cond)) or not _keeps_ended_lanes(cond)
    front = 2 if rotated else 0
    predicates = _both_predicates(cond)
    may_end_early = direction_of_predicate(cond) in (BELOW, 0)
    lost = events_inside(eqn) if may_end_early else ()

    def new_cond(*args: Any) -> Any:
        return args[0] if rotated else jaxprs.evaluate(predicates, args)[0]

    def new_body(*args: Any) -> list[Any]:
        of_cond, of_body = args[:cond_consts], args[cond_consts:consts]
        first = args[consts : consts + len(starts)]
        running = list(args[consts + len(starts) :][:front])
        carry = args[-carried:]
        if not rotated:
            running = jaxprs.evaluate(predicates, [*of_cond, *carry])
        own = running[1]
        for event in lost:
            own = refuse_lost_events(own, own, event)
        for i, start in zip(counters, first, strict=True):
            own = own & (carry[i] >= start)
        active = active_state(own)
        walk = Walk(EventMasker())
        outs, _, _ = walk(body, [*of_body, *carry], active)
        if starts:
            outs = of_lanes_that_run(body, carry, outs, active.context)
        if not rotated:
            return outs
        (merged, still), _, _ = walk(predicates, [*of_cond, *outs], active)
        return [merged, running[1] & still, *outs]

    first: list[Any] = []
    if rotated:
        first = jaxprs.evaluate(predicates, [*args[:cond_consts], *args[consts:]])
    carried = len(args) - consts
    const_avals = [*cond.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    start_avals = list(map(jax.typeof, starts))
    carry_avals = [*predicates.out_avals[:front], *body.in_avals[body_consts:]]
    used = 0 if rotated else cond_consts

    def make() -> dict[str, Any]:
        cond_avals = [*const_avals[:used], *carry_avals]
        body_avals = [*const_avals, *start_avals, *carry_avals]
        return {
            "cond_jaxpr": jaxprs.trace(new_cond, cond_avals, cond)[0],
            "body_jaxpr": jaxprs.trace(new_body, body_avals, body)[0],
            "cond_nconsts": used,
            "body_nconsts": consts + len(starts),
        }

    key = "lanes", weakref.ref(cond), cond_consts, body_consts, *counters, *start_avals
    changes = cached(body, key, make)
    operands = [*args[:used], *args[:consts], *starts, *first, *args[consts:]]
    return tracing.bind(eqn, operands, **changes)[front:]


def _keeps_ended_lanes(cond: Any) -> bool:
    """Whether a loop does not change the carry of a lane that has ended.

    That is so for Equinox loops, whose conditions are recognized by a check.
    Without it, the predicate of a lane may be true again.
    """
    return any(eqn.primitive.name == "nonbatchable" for eqn in cond.jaxpr.eqns)


def _both_predicates(cond: Any) -> Any:
    """The condition of a loop, which returns its merged and its per-lane value."""

    def fun(*args: Any) -> list[Any]:
        (merged,), (per_lane,) = _evaluate_both(cond, args, {}, {})
        return [merged, as_array(per_lane)]

    return _retraced(cond, "predicates", fun)


def _bind_backward_loop(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """Binds the backward pass of a loop, with masks for the events inside."""
    body = eqn.params["body_jaxpr"]
    predicates = predicates_of_backward_loop(eqn.params)
    events = [event for event in events_inside(eqn) if event.call.keys]

    def fun(*args: Any) -> list[Any]:
        known, unknown = ([args[i] for i in indices] for indices in predicates)
        own = as_array(functools.reduce(operator.and_, known, True))
        if unknown and events:
            own = refuse_lanes(own, unknown, events[0])
        return Walk(EventMasker())(body, args, active_state(own))[0]

    masked = _retraced(body, ("lanes", predicates), fun)
    return tracing.bind(eqn, args, body_jaxpr=masked)
