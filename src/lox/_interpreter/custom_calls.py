"""Code that is shared by the rules of functions with custom derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._jax import jaxprs, partial_eval

from .contents import events_of
from .handlers import NO_STATE, Collector, State
from .rule_table import Result, Rule
from .rule_watches import Line, LineRemover, lines_of
from .walk import Walk


def state_outside(inner: Rule) -> Rule:
    """Collects rows inside the function, and updates the state after it, if possible.

    The extra results of a custom function have no derivative, but the state before it
    may have one.
    """

    def outer(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
        collector = walk.handler
        if not isinstance(collector, Collector) or not any(state.per_lane_leaves()):
            return inner(walk, eqn, args, state)
        rows_only = collector.rows_only(eqn)
        if rows_only is None:
            return inner(walk, eqn, args, state)
        part = rows_only.part(state, eqn)
        outs, record, part = inner(Walk(rows_only), eqn, args, part)
        return outs, *collector.absorb(record, state.updated(part))

    return outer


# Returns the jaxpr that an equation runs, and the inputs of this jaxpr, given those of
# the equation.
Called = Callable[[Any, Sequence[Any]], tuple[Any, Sequence[Any]]]


def separates_events(called: Called) -> Callable[[Rule], Rule]:
    """Evaluates an equation without its events, and then only its events.

    This is for traversals with `separate_events`.
    """

    def decorate(inner: Rule) -> Rule:
        def outer(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
            if not walk.separate_events:
                return inner(walk, eqn, args, state)
            function, inputs = called(eqn, args)
            silent = Walk(LineRemover(lines_in(function), anchors=True))
            outs, _, _ = inner(silent, eqn, args, NO_STATE)
            jaxpr, consts = partial_eval.only_effects(jaxprs.close(function))
            _, record, state = walk(jaxprs.close(jaxpr), [*consts, *inputs], state)
            return outs, record, state

        return outer

    return decorate


def lines_in(jaxpr: Any) -> frozenset[Line]:
    return frozenset(lines_of(events_of(jaxpr)))


def evaluate_body(body: Any, args: Sequence[Any], results: int) -> list[Any]:
    """Evaluates a rebuilt function, without derivatives of its extra results.

    Its rule returns zero tangents for them as well, but JAX loses these when a loop is
    differentiated twice.
    """
    outs = jaxprs.evaluate(body, args)
    return [*outs[:results], *map(jax.lax.stop_gradient, outs[results:])]
