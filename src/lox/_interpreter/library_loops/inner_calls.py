"""Passes per-lane values to the loops inside calls, scans and custom functions."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._interpreter.contents import cotangents_of
from lox._interpreter.handlers import Handler, State
from lox._interpreter.patches.masking import EventMasker
from lox._interpreter.patches.rewriter import AllEventsRewriter
from lox._interpreter.rows import Record
from lox._interpreter.rule_table import Result, find_rule
from lox._interpreter.walk import Walk
from lox._jax import hijax, jaxprs, primitives

from .counters import counters_of
from .lane_primitives import active_state, refuse_different_starts

# Evaluates a closed jaxpr with these arguments, of which some have per-lane values.
Evaluate = Callable[[Any, Sequence[Any], dict[int, Any]], list[Any]]

_KINDS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "remat2",
        "checkpoint",
        hijax.CHECKPOINT,
        "scan",
        "custom_jvp_call",
        "custom_vjp_call",
        hijax.CUSTOM_VJP,
    }
)


def passes_values(eqn: Any) -> bool:
    """Whether `bind_with_values` supports an equation."""
    return hijax.kind_of(eqn) in _KINDS


def bind_with_values(
    eqn: Any, args: list[Any], per_lane: dict[int, Any], evaluate: Evaluate
) -> list[Any]:
    """Binds an equation, and passes per-lane values to the loops inside.

    Args:
        eqn: the equation.
        args: its inputs.
        per_lane: the per-lane values of merged inputs, by their indices.
        evaluate: evaluates the jaxprs inside.
    """
    rule = find_rule(eqn)
    assert rule is not None
    state = State(context=list(per_lane.values()))
    return rule(_ValuePassing(eqn, list(per_lane), evaluate), eqn, args, state)[0]


class _Unreached(AllEventsRewriter):
    """The handler of `_ValuePassing`, which does not evaluate derivative rules."""

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        raise UnsupportedPrimitiveError(
            f"{event.call.description}, is in the derivative rule of a custom function "
            "that gets a loop counter which Equinox has merged over lanes, so that the "
            "lanes that log it are not known. Use the transformation inside "
            "`jax.vmap`, or log outside of the function."
        )


class _StepMasker(EventMasker):
    """Masks the events of steps that a lane only takes because of another one."""

    def for_backward_rules(self, lines: frozenset[Any] = frozenset()) -> Handler:
        del lines
        return _BackwardRules()


class _BackwardRules(EventMasker):
    """Refuses the events of backward rules in loops with different starts."""

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if event.call.keys and context is not None:
            context = refuse_different_starts(context, context, event)
        super().rewrite(event, operands, context)


class _ValuePassing(Walk):
    """A traversal whose context is a list of per-lane values."""

    def __init__(self, eqn: Any, indices: list[int], evaluate: Evaluate) -> None:
        super().__init__(_Unreached())
        self._eqn = eqn
        self._indices = indices
        self._evaluate = evaluate

    def __call__(self, closed: Any, args: Sequence[Any], state: State) -> Result:
        indices = self._indices
        if state.context is None:  # a backward rule, which has other inputs
            return jaxprs.evaluate(closed, args), Record(), state
        if len(closed.in_avals) < len(self._eqn.invars):  # a derivative rule
            consts = self._eqn.params.get("num_consts", 0)
            indices = [i - consts for i in indices]
        pairs = zip(indices, state.context, strict=True)
        per_lane = {i: x for i, x in pairs if i >= 0}
        if self._eqn.primitive is not primitives.scan_p:
            return self._evaluate(closed, args, per_lane), Record(), state
        active = self._active_steps(closed, args, per_lane)
        if active is None:
            return jaxprs.evaluate(closed, args), Record(), state
        outs, _, _ = Walk(_StepMasker())(closed, args, active)
        return outs, Record(), state

    def _active_steps(
        self, closed: Any, args: Sequence[Any], per_lane: dict[int, Any]
    ) -> State | None:
        """In which lanes a step of a scan has been reached; None if in all."""
        # `kind="bounded"` nests scans of checkpoints: their steps are not masked here
        if any(map(hijax.is_checkpoint_eqn, closed.jaxpr.eqns)):
            return None
        for event in cotangents_of(closed):
            per_lane = {
                i: refuse_different_starts(x, x, event) for i, x in per_lane.items()
            }
        counters = counters_of(self._eqn)
        reached = [args[i] >= start for i, start in per_lane.items() if i in counters]
        return (
            active_state(functools.reduce(operator.and_, reached)) if reached else None
        )
