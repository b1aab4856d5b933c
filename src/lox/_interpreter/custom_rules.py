"""Rules for functions with derivative or transposition rules of their own.

Logs become extra results of a new custom function, with no derivative. A transformation
that is differentiated gives what the function itself logs: the events of its derivative
rules are taken out of them, or `grad(spool(f))` would print from them. Rules that were
traced go through the same traversal; a backward rule runs under a watch, since it may
need the Python values that it gets as residuals.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._jax import (
    ad,
    array_types,
    custom_derivatives,
    custom_vjp,
    hijax,
    jaxprs,
    partial_eval,
    rule_sources,
    tracing,
    watches,
)

from .contents import events_of
from .derivative_rules import Changer, DerivativeRule, Dropper, Line, lines_of
from .handlers import NO_STATE, Collector, Handler, Remover, Rewriter, State
from .rows import Record, outline
from .rule_table import Result, Rule, hidden_rules, rule
from .same_events import same_events
from .walk import Walk, unsupported, without_events


def _state_outside(inner: Rule) -> Rule:
    """Keeps the state out of the function, if its rows can be collected instead.

    What comes out of a custom function has no derivative, but what was in the state
    before may have one.
    """

    def outer(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
        collector = walk.handler
        if not isinstance(collector, Collector) or not any(state.per_lane_leaves()):
            return inner(walk, eqn, args, state)
        rows_only = collector.rows_only(walk, eqn)
        if rows_only is None:
            return inner(walk, eqn, args, state)
        part = rows_only.part(state, eqn)
        outs, record, part = inner(Walk(rows_only), eqn, args, part)
        return outs, *collector.absorb(record, state.updated(part))

    return outer


@rule("custom_jvp_call")
@_state_outside
def _custom_jvp_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old, consts = eqn.params["call_jaxpr"], eqn.params["num_consts"]
    if walk.events_beside:
        return _events_beside(_custom_jvp_rule, walk, eqn, args, state, old, args)
    new, tree = walk.rebuilt(old, state)
    leaves, state_tree = jax.tree.flatten(state)
    # rules outlive this trace, so that they must not hold the leaves themselves
    size = len(leaves)
    front = size + consts
    results = len(old.out_avals)

    def call(*flat: Any) -> list[Any]:
        return _evaluate_body(new, flat, results)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        ins, seeds = primals[front:], list(tangents[front:])
        if not eqn.params["symbolic_zeros"]:
            seeds = [_instantiate(t) for t in seeds]
        zeros = [type(t) is SymbolicZero for t in seeds]
        jaxpr, out_zeros = custom_derivatives.jvp_rule_jaxpr(eqn, zeros)
        ins = [*ins, *(t for t in seeds if type(t) is not SymbolicZero)]
        before = state_tree.unflatten(primals[:size])
        outs, rest = _evaluate_rule(
            walk, eqn, jaxpr, ins, before, old, new, tree, primals
        )
        values = outs[:results]
        given = iter(outs[results:])
        out_tangents = [
            _zero(primal) if zero else next(given)
            for primal, zero in zip(values, out_zeros, strict=True)
        ]
        return [*values, *rest], [*out_tangents, *map(_zero, rest)]

    # it can still be told that a rule calls its own function (see `derivatives`)
    fun = jax.custom_jvp(rule_sources.placed_like(call, old))
    fun.defjvp(
        rule_sources.placed_like(jvp, eqn.params["jvp_jaxpr_fun"]),
        symbolic_zeros=True,
    )
    return tree.unflatten(fun(*leaves, *args))


@rule("custom_vjp_call", hijax.CUSTOM_VJP)
@_state_outside
def _custom_vjp_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    called = custom_vjp.custom_vjp_call(eqn)
    old = called.function
    if walk.events_beside:
        return _events_beside(_custom_vjp_rule, walk, eqn, args, state, old, args)
    new, tree = walk.rebuilt(old, state)
    leaves, state_tree = jax.tree.flatten(state)
    # rules outlive this trace, so that they must not hold the leaves themselves
    size = len(leaves)
    results = len(old.out_avals)
    handler = walk.handler
    constant = isinstance(handler, Rewriter) and handler.rules_need_state

    @jax.custom_vjp
    def fun(*flat: Any) -> list[Any]:
        return _evaluate_body(new, flat, results)

    def fwd(values: list[Any], varied: list[bool]) -> Any:
        jaxpr, inputs, split = called.forward(values[size:], varied[size:])
        before = state_tree.unflatten(values[:size])
        outs, rest = _evaluate_rule(
            walk, eqn, jaxpr, inputs, before, old, new, tree, values
        )
        outs, residuals = split(outs)
        return [*outs, *rest], (before if constant else NO_STATE, residuals)

    def bwd(saved: Any, cotangents: list[Any]) -> tuple[Any, Any]:
        before, residuals = saved
        rule = _watched_rule(called.backward, walk, before, _lines_in(old))
        outs, logs = rule(residuals, list(cotangents[:results]))
        return (*[None] * size, *outs), logs

    called.define(fun, fwd, bwd)
    return tree.unflatten(fun(*leaves, *called.checked(args)))


def _events_beside(
    rule: Rule,
    walk: Walk,
    eqn: Any,
    args: list[Any],
    state: State,
    function: Any,
    inputs: Sequence[Any],
) -> Result:
    """Evaluates an equation without its events, and then what they need alone.

    Args:
        rule: the rule of the equation.
        walk, eqn, args, state: what it gets.
        function: what the equation runs.
        inputs: the inputs of that.
    """
    silent = Walk(Dropper(_lines_in(function), anchors=True))
    outs, _, _ = rule(silent, eqn, args, NO_STATE)
    jaxpr, consts = partial_eval.only_effects(jaxprs.close(function))
    _, record, state = walk(jaxprs.close(jaxpr), [*consts, *inputs], state)
    return outs, record, state


def _lines_in(jaxpr: Any) -> frozenset[Line]:
    return frozenset(lines_of(events_of(jaxpr)))


def _evaluate_body(body: Any, args: Sequence[Any], results: int) -> list[Any]:
    """Evaluates a function with its logs, which have no derivative.

    The rule says so too, but JAX forgets it when a loop is differentiated twice.
    """
    outs = jaxprs.evaluate(body, args)
    return [*outs[:results], *map(jax.lax.stop_gradient, outs[results:])]


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
    """Runs a rule; gives its results, and the leaves of the rows and the state.

    A rule that logs what its function logs (most call it) gives these rows itself. For
    one that does not, they come from the function, whose results nobody then needs.
    """
    collector = walk.handler
    if not isinstance(collector, Collector):
        outs, record, after = Walk(collector.in_rules())(rule, ins, before)
        leaves = jax.tree.leaves((record, after))
        return outs, list(map(jax.lax.stop_gradient, leaves))
    _, body_record, _ = body_tree.unflatten(body.out_avals)
    once = _without_recomputation(eqn, rule)
    if same_events(once, function, collector.wants):
        outs, record, after = walk(once, ins, before)
        if outline(record) == outline(body_record):
            leaves = jax.tree.leaves((record, after))
            return outs, list(map(jax.lax.stop_gradient, leaves))
    outs, _, _ = Walk(collector.in_rules(_lines_in(function)))(once, ins, NO_STATE)
    results = len(body.out_avals) - len(jax.tree.leaves((body_record, before)))
    # what the rule leaves for others it has left already
    clean = without_events(body)
    return outs, _evaluate_body(clean, body_args, results)[results:]


def _without_recomputation(eqn: Any, rule: Any) -> Any:
    """A rule of `custom_jvp` that logs its function's events once, if at all."""
    if eqn.primitive.name != "custom_jvp_call" or not events_of(rule):
        return rule
    watch = DerivativeRule(name=rule_sources.name_of_custom_jvp(eqn))

    def run(*args: Any) -> list[Any]:
        return watches.watched(jaxprs.evaluate, watch)(rule, args)

    return jaxprs.trace(run, rule.in_avals, rule)[0]


def _watched_rule(
    rule: Any, walk: Walk, state: State = NO_STATE, lines: frozenset[Line] = frozenset()
) -> Any:
    """A derivative rule with its events received.

    Args:
        rule: a Python function.
        walk: the traversal.
        state: the state before the call of the function.
        lines: those by which the function itself logs.
    """
    return watches.watched(rule, Changer(walk.handler.in_rules(lines), state))


@hidden_rules("custom_jvp_call")
def _clean_jvp_rule(walk: Walk, eqn: Any) -> dict[str, Any]:
    change = Changer(walk.handler.in_rules()).changed
    return custom_derivatives.changed_jvp_rule(eqn, change)


@hidden_rules("custom_vjp_call")
def _clean_vjp_rules(walk: Walk, eqn: Any) -> dict[str, Any]:
    change = Changer(walk.handler.in_rules()).changed
    bwd = _watched_rule(custom_derivatives.bwd_rule(eqn), walk)
    return custom_derivatives.changed_vjp_rules(eqn, change, bwd)


@hidden_rules(hijax.CUSTOM_VJP)
def _clean_high_vjp_rules(walk: Walk, eqn: Any) -> dict[str, Any]:
    watch = Changer(walk.handler.in_rules())
    prim = hijax.with_watched_rules(jaxprs.hijax(eqn), watch, watch)
    return {"_prim": prim}


@rule("custom_linear_solve")
@_state_outside
def _linear_solve_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Only `solve` runs; the other functions describe its derivatives."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    end = start + lengths.solve
    tail = sum(lengths)

    def inputs(args: Sequence[Any]) -> list[Any]:
        return [*args[start:end], *args[tail:]]

    if walk.events_beside:
        return _events_beside(
            _linear_solve_rule, walk, eqn, args, state, jaxprs.solve, inputs(args)
        )
    return _with_derivative_of(walk, eqn, args, state, jaxprs.solve, inputs)


@rule("call_hi_primitive")
@_state_outside
def _hijax_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    expanded = jaxprs.expanded_hijax(eqn)
    if walk.events_beside:
        return _events_beside(_hijax_rule, walk, eqn, args, state, expanded, args)
    if isinstance(walk.handler, Rewriter) and not jax.tree.leaves(state):
        watch = Changer(walk.handler)
        new = hijax.watched(jaxprs.hijax(eqn), watch.changed, watch)
        return tracing.bind(eqn, args, _prim=new), Record(), state
    return _with_derivative_of(walk, eqn, args, state, expanded, list)


def _with_derivative_of(
    walk: Walk,
    eqn: Any,
    args: list[Any],
    state: State,
    solution: Any,
    inputs: Any,
    clean: Any = None,
) -> Result:
    """Evaluates `solution`, with the derivatives of `eqn` once its events are removed.

    `clean` is the equation without them, if that takes more than changing its jaxprs.
    """
    leaves, state_tree = jax.tree.flatten(state)
    front = len(leaves)
    avals = [*map(jax.typeof, leaves), *(var.aval for var in eqn.invars)]

    def flat_run(*flat: Any) -> Any:
        before = state_tree.unflatten(flat[:front])
        return walk(solution, inputs(flat[front:]), before)

    new, tree, _ = jaxprs.trace(flat_run, avals, solution)
    results = len(eqn.outvars)

    def without_events_of_solution() -> Any:
        lines = _lines_in(solution)
        watch = Changer(_Derivative(walk.handler, lines, in_rules=not front))
        return hijax.changed_equation(eqn, watch.changed, watch)

    @jax.custom_jvp
    def fun(*flat: Any) -> list[Any]:
        return _evaluate_body(new, flat, results)

    def jvp(primals: Any, tangents: Any) -> Any:
        # some primitives refuse a tangent that is not needed, even if it is zero
        varied = [
            i
            for i, tangent in enumerate(tangents)
            if i >= front and type(tangent) is not SymbolicZero
        ]
        run = clean or without_events_of_solution()

        def along(*some: Any) -> Any:
            full = list(primals)
            for i, x in zip(varied, some, strict=True):
                full[i] = x
            return run(*full[front:])

        outs, out_tangents = jax.jvp(
            along, [primals[i] for i in varied], [tangents[i] for i in varied]
        )
        rest = _evaluate_body(new, primals, results)[results:]
        return [*outs, *rest], [
            *out_tangents,
            *map(ad.zero_tangent, rest),
        ]

    fun.defjvp(jvp, symbolic_zeros=True)
    return tree.unflatten(fun(*leaves, *args))


class _Derivative(Rewriter):
    """Removes the events of a solution, wherever they come again.

    Other events of the derivatives go the way of those in derivative rules, or, where
    there is no state that they would need, away.
    """

    def __init__(
        self, handler: Handler, lines: frozenset[Line], in_rules: bool
    ) -> None:
        self._rest = handler.in_rules(lines) if in_rules else Remover(handler.wants)
        self._dropped = Dropper(lines)
        self.memo_key = (self,)

    def wants(self, event: Event) -> bool:
        return self._dropped.wants(event) or self._rest.wants(event)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        kept = self._dropped.kept(event, operands)
        if kept is not None and self._rest.wants(event):
            self._rest.receive(*kept, State(context=context))
        elif kept is not None:
            log_p.bind(*kept[1], event=kept[0])


@rule("custom_vmap_call")
def _custom_vmap_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Under a later `vmap`, its own rule replaces the function and what that logs."""
    old = eqn.params["call"]
    new, tree = walk.rebuilt(old, state)
    leaves = jax.tree.leaves(state)
    front = len(leaves)
    more = len(new.out_avals) - len(old.out_avals)
    per_lane = any(state.per_lane_leaves())

    def batch(axis_size: int, batched: list[bool], *flat: Any) -> Any:
        if more > front or per_lane:
            raise UnsupportedPrimitiveError(
                f"{unsupported(walk, eqn)} (Its `def_vmap` rule replaces the function "
                "that logs: use the transformation after `jax.vmap`, not before it.)"
            )
        inner = eqn.params["in_tree"].unflatten
        call = _cleaned_vmap_rule(walk, eqn)
        outs, out_batched = call(
            axis_size, inner(batched[front:]), *inner(flat[front:])
        )
        return (
            [*jax.tree.leaves(outs), *flat[:front]],
            [*jax.tree.leaves(out_batched), *batched[:front]],
        )

    outs = tracing.bind(
        eqn,
        [*leaves, *args],
        call=new,
        rule=batch,
        in_tree=jax.tree.structure(tuple(new.in_avals)),
        out_tree=jax.tree.structure(list(new.out_avals)),
    )
    return tree.unflatten(outs)


@hidden_rules("custom_vmap_call")
def _clean_vmap_rule(walk: Walk, eqn: Any) -> dict[str, Any]:
    return {"rule": _cleaned_vmap_rule(walk, eqn)}


def _cleaned_vmap_rule(walk: Walk, eqn: Any) -> Any:
    def cleaned(axis_size: int, batched: Any, *args: Any) -> Any:
        out_batched: list[Any] = []

        def fun(*args: Any) -> Any:
            outs, flags = eqn.params["rule"](axis_size, list(batched), *args)
            out_batched.append(flags)
            return outs

        closed, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
        # no rows can come out of it
        inner = Walk(walk.handler.without_rows())
        outs, _, _ = inner(closed, jax.tree.leaves(args), NO_STATE)
        return jax.tree.unflatten(jax.tree.structure(shape), outs), out_batched[-1]

    return cleaned


def _zero(primal: Any) -> Any:
    return SymbolicZero(jax.typeof(primal).to_tangent_aval())


def _instantiate(x: Any) -> Any:
    return array_types.zeros_of_aval(x.aval) if type(x) is SymbolicZero else x
