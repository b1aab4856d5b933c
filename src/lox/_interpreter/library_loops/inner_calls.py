"""Passes per-lane values to the loops inside calls, scans and custom functions."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._events.event import Event
from lox._events.primitive import log_p
from lox._interpreter.contents import cotangents_of, events_inside
from lox._interpreter.handlers import Handler, State
from lox._interpreter.iteration_numbers import of_lanes_that_run
from lox._interpreter.patches.masking import EventMasker
from lox._interpreter.patches.rewriter import AllEventsRewriter
from lox._interpreter.rows import Record
from lox._interpreter.rule_table import Result, find_rule
from lox._interpreter.rule_watches import Line, lines_of
from lox._interpreter.walk import Walk, cached
from lox._jax import hijax, jaxprs, primitives
from lox._jax.array_types import as_array

from .counters import counters_of
from .deciding_inputs import deciding_inputs
from .lane_primitives import (
    active_state,
    refuse_different_starts,
    refuse_different_steps,
)

# Evaluates a closed jaxpr, given its arguments, the per-lane values of some of them by
# index, and how these arguments compare with their per-lane values (see `directions`).
Evaluate = Callable[[Any, Sequence[Any], dict[int, Any], dict[int, int]], list[Any]]

_CUSTOM_FUNCTIONS = frozenset({"custom_jvp_call", "custom_vjp_call", hijax.CUSTOM_VJP})
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "remat2", "checkpoint", hijax.CHECKPOINT, "scan"}
)


def passes_values(eqn: Any) -> bool:
    """Whether `bind_with_values` supports an equation."""
    return hijax.kind_of(eqn) in _CALLS or is_custom_function(eqn)


def is_custom_function(eqn: Any) -> bool:
    """Whether an equation calls a function with custom derivatives."""
    return hijax.kind_of(eqn) in _CUSTOM_FUNCTIONS


def bind_with_values(
    eqn: Any,
    args: list[Any],
    per_lane: dict[int, Any],
    directions: dict[int, int],
    evaluate: Evaluate,
) -> list[Any]:
    """Binds an equation, and passes per-lane values to the loops inside.

    Args:
        eqn: the equation.
        args: its inputs.
        per_lane: the per-lane values of merged inputs, by their indices.
        directions: how the merged inputs compare with them.
        evaluate: evaluates the jaxprs inside.
    """
    rule = find_rule(eqn)
    assert rule is not None
    state = State(context=list(per_lane.values()))
    known = {i: directions.get(i, 0) for i in per_lane}
    return rule(_ValuePassing(eqn, known, evaluate), eqn, args, state)[0]


def pass_constants(
    eqn: Any,
    args: list[Any],
    per_lane: dict[int, Any],
    directions: dict[int, int],
    evaluate: Evaluate,
) -> tuple[Any, list[Any], dict[int, Any]]:
    """Passes the per-lane values of constants to the loops inside a loop or branch.

    Args:
        eqn, args, per_lane, directions, evaluate: as in `bind_with_values`.

    Returns:
        The equation with additional constants, its inputs, and the remaining per-lane
        values.
    """
    first, end = _constants(eqn)
    indices = sorted(
        i for i in deciding_inputs(eqn) & per_lane.keys() if first <= i < end
    )
    if not indices:
        return eqn, args, per_lane
    count = len(indices)
    values = [per_lane[i] for i in indices]
    avals = tuple(map(jax.typeof, values))

    inner_indices = [i - first for i in indices]
    known = {i - first: directions[i] for i in indices}

    def changed(jaxpr: Any) -> Any:
        def fun(*args: Any) -> list[Any]:
            inside = dict(zip(inner_indices, args, strict=False))
            return evaluate(jaxpr, args[count:], inside, known)

        def make() -> Any:
            return jaxprs.trace(fun, [*avals, *jaxpr.in_avals], jaxpr)[0]

        return cached(jaxpr, ("per-lane constants", *known.items(), *avals), make)

    params = dict(eqn.params)
    if eqn.primitive is primitives.cond_p:
        params["branches"] = tuple(map(changed, params["branches"]))
    elif eqn.primitive is primitives.while_p:
        params["body_jaxpr"] = changed(params["body_jaxpr"])
        params["body_nconsts"] += count
    else:
        body = params["jaxpr"]
        consts, carry, xs = primitives.scan_sizes(params, len(args))
        ys = len(body.out_avals) - carry
        params["jaxpr"] = changed(body)
        params.update(primitives.scan_params(params, consts + count, carry, xs, ys))

    def extended(inputs: Sequence[Any], more: Sequence[Any]) -> list[Any]:
        return [*inputs[:first], *more, *inputs[first:]]

    invars = extended(eqn.invars, [eqn.invars[i] for i in indices])
    rest = {
        i if i < first else i + count: x
        for i, x in per_lane.items()
        if i not in indices
    }
    return eqn.replace(invars=invars, params=params), extended(args, values), rest


def _constants(eqn: Any) -> tuple[int, int]:
    """Where the constants begin and end among the inputs of a loop or branch.

    Those of a loop's condition are not included.
    """
    if eqn.primitive is primitives.cond_p:
        return 1, len(eqn.invars)
    if eqn.primitive is primitives.while_p:
        first = eqn.params["cond_nconsts"]
        return first, first + eqn.params["body_nconsts"]
    if eqn.primitive is primitives.scan_p:
        return 0, primitives.scan_sizes(eqn.params, len(eqn.invars))[0]
    return 0, 0


class _BackwardRuleRefuser(AllEventsRewriter):
    """The handler of `_ValuePassing`: refuses the events of backward rules.

    They are in the backward pass of a loop with different starts, unless all lanes have
    the same per-lane values, which are the context.

    Args:
        lines: the lines of the function itself. Events of these lines are recomputation
            in its backward rule; JAX's rule is wrapped to remove them.
    """

    rules_need_state = True

    def __init__(self, lines: frozenset[Line] = frozenset()) -> None:
        self._lines = lines

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        first, *rest = operands
        if not lines_of([event]) <= self._lines:
            for start in context:
                first = refuse_different_starts(as_array(first), start, event)
        log_p.bind(first, *rest, event=event)

    def for_backward_rules(self, lines: frozenset[Line] = frozenset()) -> Handler:
        return _BackwardRuleRefuser(self._lines | lines)


class _StepMasker(EventMasker):
    """Masks the events of steps that a lane only takes because of another one."""

    def for_backward_rules(self, lines: frozenset[Any] = frozenset()) -> Handler:
        del lines
        return _MaskedBackwardRuleRefuser()


class _MaskedBackwardRuleRefuser(EventMasker):
    """Refuses the events of backward rules in loops with different starts."""

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if event.call.keys and context is not None:
            context = refuse_different_starts(context, context, event)
        super().rewrite(event, operands, context)


class _ValuePassing(Walk):
    """A traversal whose context is a list of per-lane values of inputs.

    Args:
        eqn: the equation.
        directions: how the inputs that have such values compare with them, by index.
        evaluate: evaluates the jaxprs inside.
    """

    def __init__(
        self, eqn: Any, directions: dict[int, int], evaluate: Evaluate
    ) -> None:
        super().__init__(_BackwardRuleRefuser())
        self._eqn = eqn
        self._directions = directions
        self._evaluate = evaluate

    def for_derivative_rules(self) -> Walk:
        # the rules do not get the constants
        consts = self._eqn.params.get("num_consts", 0)
        directions = {i - consts: one for i, one in self._directions.items()}
        return _ValuePassing(self._eqn, directions, self._evaluate)

    def __call__(self, closed: Any, args: Sequence[Any], state: State) -> Result:
        pairs = zip(self._directions, state.context, strict=True)
        per_lane = {i: x for i, x in pairs if i >= 0}
        if self._eqn.primitive is not primitives.scan_p:
            directions = {i: self._directions[i] for i in per_lane}
            outs = self._evaluate(closed, args, per_lane, directions)
            return outs, Record(), state
        active = self._active_steps(closed, args, per_lane)
        if active is None:
            return jaxprs.evaluate(closed, args), Record(), state
        outs, _, _ = Walk(_StepMasker())(closed, args, active)
        consts, carried, _ = primitives.scan_sizes(self._eqn.params, len(args))
        carry = args[consts:][:carried]
        outs = of_lanes_that_run(closed, carry, outs, active.context)
        return outs, Record(), state

    def _active_steps(
        self, closed: Any, args: Sequence[Any], per_lane: dict[int, Any]
    ) -> State | None:
        """In which lanes a step of a scan has been reached; None if in all."""
        # `kind="bounded"` nests scans of checkpoints: their steps are not masked here
        if any(map(hijax.is_checkpoint_eqn, closed.jaxpr.eqns)):
            return None
        counters = counters_of(self._eqn)
        starts = {i: x for i, x in per_lane.items() if i in counters}
        for event in cotangents_of(closed):
            starts = {
                i: refuse_different_starts(x, x, event) for i, x in starts.items()
            }
        for event in _events_of_every_step(closed):
            starts = {i: refuse_different_steps(x, x, event) for i, x in starts.items()}
        reached = [args[i] >= start for i, start in starts.items()]
        return (
            active_state(functools.reduce(operator.and_, reached)) if reached else None
        )


def _events_of_every_step(closed: Any) -> list[Event]:
    """The events of a scan's body that are not in a branch."""
    found: list[Event] = []
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive is log_p:
            found.append(eqn.params["event"])
        elif eqn.primitive is not primitives.cond_p:
            found += events_inside(eqn)
    return [event for event in found if event.call.keys]
