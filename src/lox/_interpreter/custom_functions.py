"""Rules of `custom_jvp` and `custom_vjp` functions.

Rows and state become extra results of a new custom function, with no derivative. A
transformation inside a derivative collects what the function itself logs. The events of
its derivative rules are removed; otherwise, `grad(spool(f))` would print them. A rule
that JAX has traced goes through the traversal. A backward rule runs under a watch,
since its residuals may be Python values.
"""

from collections.abc import Sequence
from typing import Any

import jax

from lox._jax import (
    custom_derivatives,
    custom_vjp,
    hijax,
    jaxprs,
    rule_sources,
    watches,
)

from .contents import events_of
from .custom_calls import evaluate_body, lines_in, separates_events, state_outside
from .handlers import NO_STATE, Collector, State
from .joining import signature
from .rule_table import Result, hidden_rules, rule
from .rule_watches import DerivativeRuleWatch, HandlingWatch, Line
from .same_events import same_events
from .walk import Walk, without_events


@rule("custom_jvp_call")
@state_outside
@separates_events(lambda eqn, args: (eqn.params["call_jaxpr"], args))
def _custom_jvp_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old = eqn.params["call_jaxpr"]
    new, tree = walk.rebuilt(old, state)
    leaves, state_tree = jax.tree.flatten(state)
    # rules outlive this trace, so they must not hold the leaves themselves
    size = len(leaves)

    def call(*flat: Any) -> list[Any]:
        return evaluate_body(new, flat, len(old.out_avals))

    def evaluate_rule(rule: Any, ins: Sequence[Any], primals: Sequence[Any]) -> Any:
        before = state_tree.unflatten(primals[:size])
        return _evaluate_rule(walk, eqn, rule, ins, before, old, new, tree, primals)

    fun = custom_derivatives.like_custom_jvp(eqn, call, evaluate_rule, extra=size)
    return tree.unflatten(fun(*leaves, *args))


@rule("custom_vjp_call", hijax.CUSTOM_VJP)
@state_outside
@separates_events(lambda eqn, args: (custom_vjp.custom_vjp_call(eqn).function, args))
def _custom_vjp_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    called = custom_vjp.custom_vjp_call(eqn)
    old = called.function
    new, tree = walk.rebuilt(old, state)
    leaves, state_tree = jax.tree.flatten(state)
    # rules outlive this trace, so they must not hold the leaves themselves
    size = len(leaves)
    results = len(old.out_avals)
    rules_need_state = walk.handler.rules_need_state

    @jax.custom_vjp
    def fun(*flat: Any) -> list[Any]:
        return evaluate_body(new, flat, results)

    def fwd(values: list[Any], perturbed: list[bool]) -> Any:
        jaxpr, inputs, split = called.forward(values[size:], perturbed[size:])
        before = state_tree.unflatten(values[:size])
        outs, rest = _evaluate_rule(
            walk, eqn, jaxpr, inputs, before, old, new, tree, values
        )
        outs, residuals = split(outs)
        return [*outs, *rest], (before if rules_need_state else NO_STATE, residuals)

    def bwd(saved: Any, cotangents: list[Any]) -> tuple[Any, Any]:
        before, residuals = saved
        rule = _watched_rule(called.backward, walk, before, lines_in(old))
        outs, logs = rule(residuals, list(cotangents[:results]))
        return (*[None] * size, *outs), logs

    called.define(fun, fwd, bwd)
    return tree.unflatten(fun(*leaves, *called.checked(args)))


def _evaluate_rule(
    walk: Walk,
    eqn: Any,
    rule: Any,
    ins: Sequence[Any],
    before: State,
    function: Any,
    body: Any,
    body_tree: Any,
    body_args: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Evaluates a derivative rule with the rows of its function.

    Most rules call their function, and so log the same values: the rows are then those
    of the rule. Otherwise the function is evaluated as well, only for its rows.

    Args:
        walk: the traversal.
        eqn: the equation of the custom function.
        rule: the jaxpr of the rule.
        ins: its inputs.
        before: the state before the equation.
        function: the jaxpr of the function.
        body: the function with its rows and the state, rebuilt by the traversal.
        body_tree: the structure of its results.
        body_args: its inputs.

    Returns:
        The results of the rule, and the leaves of the rows and the new state.
    """
    collector = walk.handler
    if not isinstance(collector, Collector):
        outs, record, after = walk.for_derivative_rules()(rule, ins, before)
        leaves = jax.tree.leaves((record, after))
        return outs, list(map(jax.lax.stop_gradient, leaves))
    _, body_record, _ = body_tree.unflatten(body.out_avals)
    once = _without_recomputation(eqn, rule)
    if same_events(once, function, collector.wants):
        outs, record, after = walk(once, ins, before)
        if signature(record) == signature(body_record):
            leaves = jax.tree.leaves((record, after))
            return outs, list(map(jax.lax.stop_gradient, leaves))
    results = len(body.out_avals) - len(jax.tree.leaves((body_record, before)))
    # The rule binds the events that stay in the program, and those that another
    # transformation has collected. The function comes first, because a watch takes
    # events of lines that the rule has already logged for recomputation.
    own = without_events(function, lambda x: not collector.wants(x), collected=True)
    rows = without_events(walk.rebuilt(own, before)[0])
    leaves = evaluate_body(rows, body_args, results)[results:]
    outs, _, _ = Walk(collector.for_derivative_rules(lines_in(function)))(
        once, ins, NO_STATE
    )
    return outs, leaves


def _without_recomputation(eqn: Any, rule: Any) -> Any:
    """Returns a rule of `custom_jvp` that logs the events of its function only once."""
    if eqn.primitive.name != "custom_jvp_call" or not events_of(rule):
        return rule
    watch = DerivativeRuleWatch(function=rule_sources.function_of_custom_jvp(eqn))

    def run(*args: Any) -> list[Any]:
        return watches.watched(jaxprs.evaluate, watch)(rule, args)

    return jaxprs.trace(run, rule.in_avals, rule)[0]


def _watched_rule(
    rule: Any, walk: Walk, state: State = NO_STATE, lines: frozenset[Line] = frozenset()
) -> Any:
    """Returns a backward rule with its events handled.

    Args:
        rule: a Python function.
        walk: the traversal.
        state: the state before the call of the function.
        lines: the lines of the function itself that log.
    """
    return watches.watched(
        rule, HandlingWatch(walk.handler.for_backward_rules(lines), state)
    )


@hidden_rules("custom_jvp_call")
def _hidden_jvp_rule(walk: Walk, eqn: Any) -> dict[str, Any]:
    change = HandlingWatch(walk.handler.for_derivative_rules()).rewritten
    return custom_derivatives.changed_jvp_rule(eqn, change)


@hidden_rules("custom_vjp_call")
def _hidden_vjp_rules(walk: Walk, eqn: Any) -> dict[str, Any]:
    change = HandlingWatch(walk.handler.for_derivative_rules()).rewritten
    bwd = _watched_rule(custom_derivatives.bwd_rule(eqn), walk)
    return custom_derivatives.changed_vjp_rules(eqn, change, bwd)


@hidden_rules(hijax.CUSTOM_VJP)
def _hidden_hijax_vjp_rules(walk: Walk, eqn: Any) -> dict[str, Any]:
    fwd = HandlingWatch(walk.handler.for_derivative_rules())
    bwd = HandlingWatch(walk.handler.for_backward_rules())
    prim = hijax.with_watched_rules(jaxprs.hijax(eqn), fwd, bwd)
    return {"_prim": prim}
