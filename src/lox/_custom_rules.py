"""Rules for functions with derivative or transposition rules of their own.

Logs become extra results of a new custom function, with no derivative. The hidden
rules go through the same traversal, or `grad(spool(f))` would print from them.
"""

from collections.abc import Sequence
from typing import Any

import jax

from . import _compat
from ._compat import SymbolicZero
from ._errors import UnsupportedPrimitiveError
from ._rows import Record, outline
from ._walk import (
    Remover,
    Rule,
    State,
    Walk,
    hidden_rules,
    rule,
    unsupported,
    without_events,
)

Result = tuple[list[Any], Record, State]


def _state_outside(inner: Rule) -> Rule:
    """Keeps the state out of the function, if its rows can be collected instead.

    What comes out of a custom function has no derivative, but what was in the state
    before may have one.
    """

    def outer(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
        keyed = any(walk.collector.keyed(state))
        rows_only = walk.collector.rows_only(walk, eqn) if keyed else None
        if rows_only is None:
            return inner(walk, eqn, args, state)
        part = rows_only.part(state, eqn)
        outs, record, part = inner(Walk(rows_only), eqn, args, part)
        return outs, *walk.collector.absorb(record, {**state, **part})

    return outer


@rule("custom_jvp_call")
@_state_outside
def _custom_jvp_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old, consts = eqn.params["call_jaxpr"], eqn.params["num_consts"]
    new, tree = walk.rebuilt(old, state)
    leaves, state_tree = jax.tree.flatten(state)
    front = len(leaves) + consts
    results = len(old.out_avals)

    @jax.custom_jvp
    def fun(*flat: Any) -> list[Any]:
        return _evaluate_body(new, flat, results)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        ins, seeds = primals[front:], list(tangents[front:])
        if not eqn.params["symbolic_zeros"]:
            seeds = [_instantiate(t) for t in seeds]
        zeros = [type(t) is SymbolicZero for t in seeds]
        jaxpr, out_zeros = _compat.jvp_rule_jaxpr(eqn, zeros)
        ins = [*ins, *(t for t in seeds if type(t) is not SymbolicZero)]
        before = state_tree.unflatten(primals[: len(leaves)])
        outs, rest = _evaluate_rule(walk, jaxpr, ins, before, old, new, tree, primals)
        values = outs[:results]
        given = iter(outs[results:])
        out_tangents = [
            _zero(primal) if zero else next(given)
            for primal, zero in zip(values, out_zeros, strict=True)
        ]
        return [*values, *rest], [*out_tangents, *map(_zero, rest)]

    fun.defjvp(jvp, symbolic_zeros=True)
    return tree.unflatten(fun(*leaves, *args))


@rule("custom_vjp_call")
@_state_outside
def _custom_vjp_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old, consts = eqn.params["call_jaxpr"], eqn.params["num_consts"]
    new, tree = walk.rebuilt(old, state)
    leaves, state_tree = jax.tree.flatten(state)
    front = len(leaves) + consts
    results = len(old.out_avals)
    constant = walk.collector.constant_state

    @jax.custom_vjp
    def fun(*flat: Any) -> list[Any]:
        return _evaluate_body(new, flat, results)

    def fwd(*primals: Any) -> Any:
        values = [primal.value for primal in primals]
        perturbed = [primal.perturbed for primal in primals]
        if any(perturbed[len(leaves) : front]):
            raise _compat.closed_over_error()
        jaxpr = _compat.fwd_rule_jaxpr(eqn, perturbed[front:])
        before = state_tree.unflatten(values[: len(leaves)])
        outs, rest = _evaluate_rule(
            walk, jaxpr, values[front:], before, old, new, tree, values
        )
        residuals, outs = _compat.fwd_rule_residuals(eqn, values[len(leaves) :], outs)
        return [*outs, *rest], (before if constant else None, residuals)

    def bwd(saved: Any, cotangents: list[Any]) -> tuple[Any, Any]:
        before, residuals = saved
        given = list(cotangents[:results])
        if not eqn.params["symbolic_zeros"]:
            given = [_instantiate(ct) for ct in given]
        outs, logs = _cleaned_bwd(walk, eqn, before)(*residuals, *given)
        return (*[None] * front, *outs), logs

    _compat.define_vjp(fun, fwd, bwd)
    return tree.unflatten(fun(*leaves, *args))


def _evaluate_body(body: Any, args: Sequence[Any], results: int) -> list[Any]:
    """Evaluates a function with its logs, which have no derivative.

    The rule says so too, but JAX forgets it when a loop is differentiated twice.
    """
    outs = _compat.evaluate(body, args)
    return [*outs[:results], *map(jax.lax.stop_gradient, outs[results:])]


def _evaluate_rule(
    walk: Walk,
    jaxpr: Any,
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
    _, body_record, _ = body_tree.unflatten(body.out_avals)
    if walk.collector.logs_alike(jaxpr, function):
        outs, record, after = walk(jaxpr, ins, before)
        if outline(record) == outline(body_record):
            leaves = jax.tree.leaves((record, after))
            return outs, list(map(jax.lax.stop_gradient, leaves))
    else:
        outs, _, _ = Walk(Remover(walk.collector.wants))(jaxpr, ins, ())
    results = len(body.out_avals) - len(jax.tree.leaves((body_record, before)))
    # what the rule leaves for others it has left already
    clean = without_events(body)
    return outs, _evaluate_body(clean, body_args, results)[results:]


def _cleaned_bwd(walk: Walk, eqn: Any, state: State = None) -> Any:
    """The backward rule with its events taken."""
    call = _compat.bwd_rule(eqn)

    def cleaned(*args: Any) -> tuple[list[Any], Any]:
        arrays = [x for x in args if type(x) is not SymbolicZero]

        def flat(*arrays: Any) -> tuple[list[Any], Any]:
            rest = iter(arrays)
            full = [x if type(x) is SymbolicZero else next(rest) for x in args]
            return call(*full)

        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*arrays)
        outs, _, _ = _rule_walk(walk)(closed, arrays, state)
        return jax.tree.unflatten(jax.tree.structure(shape), outs)

    return cleaned


@hidden_rules("custom_jvp_call")
def _clean_jvp_rule(walk: Walk, eqn: Any) -> dict[str, Any]:
    def changed(closed: Any) -> Any:
        return _without_rows(walk, closed)

    return _compat.changed_jvp_rule(eqn, changed)


@hidden_rules("custom_vjp_call")
def _clean_vjp_rules(walk: Walk, eqn: Any) -> dict[str, Any]:
    def changed(closed: Any) -> Any:
        return _without_rows(walk, closed)

    return _compat.changed_vjp_rules(eqn, changed, _cleaned_bwd(walk, eqn))


def _without_rows(walk: Walk, closed: Any) -> Any:
    """A rule whose function gives no rows: its events are delivered, or removed."""
    if not walk.wants_in(closed):
        return closed
    if walk.collector.gives_rows:
        return without_events(closed, walk.collector.wants)
    return Walk(walk.collector).rebuilt(closed, None)[0]


@rule("custom_linear_solve")
@_state_outside
def _linear_solve_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Only `solve` runs; the other functions describe its derivatives."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    end = start + lengths.solve
    tail = sum(lengths)

    def run(state: State, *args: Any) -> Any:
        return walk(jaxprs.solve, [*args[start:end], *args[tail:]], state)

    return _with_derivative_of(walk, eqn, args, state, run)


@rule("call_hi_primitive")
@_state_outside
def _hijax_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    def run(state: State, *args: Any) -> Any:
        expanded = jax.make_jaxpr(lambda *a: _compat.expand_hijax(eqn, a))(*args)
        return walk(expanded, args, state)

    return _with_derivative_of(walk, eqn, args, state, run)


def _with_derivative_of(
    walk: Walk, eqn: Any, args: list[Any], state: State, run: Any
) -> Result:
    """Evaluates `run`, with the derivatives of `eqn` once its events are removed."""
    clean = _compat.changed_equation(
        eqn, lambda jaxpr: without_events(_compat.close(jaxpr), walk.collector.wants)
    )
    leaves, state_tree = jax.tree.flatten(state)
    front = len(leaves)
    avals = [*map(jax.typeof, leaves), *(var.aval for var in eqn.invars)]

    def flat_run(*flat: Any) -> Any:
        return run(state_tree.unflatten(flat[:front]), *flat[front:])

    like = next(iter(_compat.jaxprs_in(eqn.params)))
    new, tree, _ = _compat.trace(flat_run, avals, like)

    results = len(eqn.outvars)

    @jax.custom_jvp
    def fun(*flat: Any) -> list[Any]:
        return _evaluate_body(new, flat, results)

    @fun.defjvp
    def _jvp(primals: Any, tangents: Any) -> Any:
        outs, out_tangents = jax.jvp(clean, primals[front:], tangents[front:])
        rest = _evaluate_body(new, primals, results)[results:]
        return [*outs, *rest], [*out_tangents, *map(_compat.zero_tangent, rest)]

    return tree.unflatten(fun(*leaves, *args))


@rule("custom_vmap_call")
def _custom_vmap_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Under a later `vmap`, its own rule replaces the function and what that logs."""
    old = eqn.params["call"]
    new, tree = walk.rebuilt(old, state)
    leaves = jax.tree.leaves(state)
    more = len(new.out_avals) - len(old.out_avals)

    def batch(axis_size: int, batched: list[bool], *flat: Any) -> Any:
        if more > len(leaves) or any(walk.collector.keyed(state)):
            raise UnsupportedPrimitiveError(
                f"{unsupported(walk, eqn)} (Its `def_vmap` rule replaces the function "
                "that logs: use the transformation after `jax.vmap`, not before it.)"
            )
        front = len(leaves)
        inner = eqn.params["in_tree"].unflatten
        call = _cleaned_vmap_rule(walk, eqn)
        outs, out_batched = call(
            axis_size, inner(batched[front:]), *inner(flat[front:])
        )
        return (
            [*jax.tree.leaves(outs), *flat[:front]],
            [*jax.tree.leaves(out_batched), *batched[:front]],
        )

    outs = _compat.bind(
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
        outs, _, _ = _rule_walk(walk)(closed, jax.tree.leaves(args), None)
        return jax.tree.unflatten(jax.tree.structure(shape), outs), out_batched[-1]

    return cleaned


def _rule_walk(walk: Walk) -> Walk:
    """For a hidden rule: no rows can come out of it, so that events are removed."""
    collector = walk.collector
    return Walk(Remover(collector.wants)) if collector.gives_rows else walk


def _zero(primal: Any) -> Any:
    return SymbolicZero(jax.typeof(primal).to_tangent_aval())


def _instantiate(x: Any) -> Any:
    return _compat.zeros_of_aval(x.aval) if type(x) is SymbolicZero else x
