"""Primitives of other libraries, whose rules run Python code.

Equinox and lineax have primitives that are no single operation: what they do is traced
when they are lowered, from functions in their parameters. Lineax' `linear_solve` runs a
solver, with derivatives of its own; `eqxi.noinline` calls a function. To look inside,
they are traced here in the same way.

Their parameters cannot be changed: each says in several places, also in the structure
of pytrees, what it was made for. Where the events of such a primitive are to go, it is
replaced by one that does the same, and whose every rule is that of the original with
the events removed.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lox._errors import UnsupportedPrimitiveError
from lox._events.primitive import without_transpose_warnings
from lox._imports import when_imported
from lox._jax import ad, jaxprs, patches, primitives, rule_tables, tracing, watches
from lox._jax.patches import Patch

from .contents import events_inside, events_of
from .custom_rules import _with_derivative_of
from .derivative_rules import DerivativeRule, lines_of
from .handlers import NO_STATE, Collector, Handler, Remover, State
from .patches.missing import events_in, refuse
from .rows import Record
from .rule_table import Result, other_jaxprs, rule, rule_finder
from .walk import Walk


def _filtered(params: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters of such a primitive, or of one that is batched by `eqxi.vprim`."""
    while "prim" in params and "__batch_axes" in params:  # once for each `vmap`
        params = dict(params["params"])
    return params if {"treedef", "static", "flatten"} <= params.keys() else None


# --- what such a primitive does ----------------------------------------------

_expansions: "weakref.WeakKeyDictionary[Any, dict[Any, Any]]" = (
    weakref.WeakKeyDictionary()
)


def _expanded(eqn: Any) -> Any:
    """What an equation does, as a closed jaxpr of its inputs (but for an index)."""
    params = _filtered(eqn.params)
    assert params is not None
    kept = _expansions.setdefault(params["flatten"], {})
    if eqn.primitive.name == "noinline":
        return _function_called(eqn, kept)
    avals = tuple(atom.aval for atom in eqn.invars)
    key = eqn.primitive, avals, tracing.trace_context()
    if key not in kept:
        kept[key] = _without_checks(
            _trace(lambda *args: eqn.primitive.impl(*args, **eqn.params), avals)
        )
    return kept[key]


def _trace(fun: Callable[..., Any], avals: Sequence[Any]) -> Any:
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.make_jaxpr(lambda *args: list(fun(*args)))(*structs)


def _without_checks(closed: Any) -> Any:
    """Leaves out what forbids every transformation from then on."""

    def run(*args: Any) -> list[Any]:
        jaxpr = closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, jaxprs.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            ins = list(map(read, eqn.invars))
            if eqn.primitive.name == "nontraceable":
                outs = ins
            else:
                with tracing.equation_context(eqn):
                    outs = tracing.bind(eqn, ins)
            env.update(zip(eqn.outvars, outs, strict=True))
        return list(map(read, jaxpr.outvars))

    if not any(eqn.primitive.name == "nontraceable" for eqn in closed.jaxpr.eqns):
        return closed
    return jaxprs.trace(run, closed.in_avals, closed)[0]


# --- noinline ----------------------------------------------------------------


def _function_called(eqn: Any, kept: dict[Any, Any]) -> Any:
    """The function of `noinline`, or None where it is not known yet."""
    first, *rest = eqn.invars
    index = int(first.val) if isinstance(first, jaxprs.Literal) else None
    avals = tuple(atom.aval for atom in rest)
    key = index, avals, tracing.trace_context()
    if key not in kept:
        run = _shape_function(eqn) if index is None else _function(eqn, index)
        kept[key] = None if run is None else _trace(run, avals)
    return kept[key]


def _function(eqn: Any, index: int) -> Callable[..., list[Any]]:
    def run(*args: Any) -> list[Any]:
        return eqn.primitive.impl(np.asarray(index), *args, **eqn.params)

    return run


def _shape_function(eqn: Any) -> Callable[..., list[Any]] | None:
    """For a function that is known when the program runs, and not before.

    Beside its index there is a function for the shapes of its results. Unless the user
    gave one, it calls the function itself.
    """
    missing = _equinox("_primitive")._missing_dynamic

    def parts(*args: Any) -> Any:
        rest = iter((None, *args))
        flat = [next(rest) if x is missing else x for x in eqn.params["static"]]
        return jax.tree.unflatten(eqn.params["treedef"], flat)

    def run(*args: Any) -> list[Any]:
        _, function, transforms, inputs = parts(*args)

        def fun(inputs: Any) -> Any:
            dynamic, args, kwargs = inputs
            return function(dynamic, *args, **kwargs)

        for transform in transforms[1:]:  # the first one looks up the function
            fun = transform(fun)
        return jax.tree.leaves(fun(inputs))

    given = parts(*eqn.invars[1:])[1]
    return run if given.__qualname__ == "noinline.<locals>.abstract_fn" else None


def _equinox(name: str) -> Any:
    return sys.modules[f"equinox.internal.{name}"]


def _possible_functions(eqn: Any) -> list[Any]:
    """Every function that may be the one of an equation, and that logs."""
    avals = [atom.aval for atom in eqn.invars[1:]]
    outs = [var.aval for var in eqn.outvars]
    found = []
    for index in range(len(_equinox("_noinline")._index_to_fn)):
        try:
            closed = _trace(_function(eqn, index), avals)
        except Exception:  # a function of something else
            continue
        same = [(a.shape, a.dtype) for a in closed.out_avals] == [
            (a.shape, a.dtype) for a in outs
        ]
        if same and events_of(closed):
            found.append(closed)
    return found


def _is_derivative(eqn: Any) -> bool:
    """Whether it computes a derivative of its function, beside a call of it."""
    names = {getattr(item, "__name__", "") for item in eqn.params["static"]}
    tree = str(eqn.params["treedef"])
    return "_jvp_transform" in names or "_MetaTransposeTransform" in tree


@other_jaxprs("noinline")
def _functions_of_noinline(eqn: Any) -> list[Any]:
    expanded = _expanded(eqn)
    return _possible_functions(eqn) if expanded is None else [expanded]


@rule("noinline")
def _noinline_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """The function becomes a call of its own in the program around it."""
    expanded = _expanded(eqn)
    if expanded is None:
        keys = ", ".join(
            f"{key!r} (logged at {event.call.source})"
            for event in filter(walk.handler.wants, events_inside(eqn))
            for key in event.call.keys
        )
        raise UnsupportedPrimitiveError(
            f"a function of `eqxi.noinline` may log {keys}, but which function is "
            "called is known only when the program runs: it is an argument, and has "
            "an `abstract_fn`. Leave out `abstract_fn`, or close over the function "
            "instead of passing it."
        )
    args = args[1:]
    if _is_derivative(eqn):  # what it logs is logged by the call beside it
        silent = Walk(Remover(walk.handler.wants))
        outs, _, _ = jax.jit(lambda *args: silent(expanded, args, NO_STATE))(*args)
        return outs, Record(), state
    return jax.jit(lambda state, *args: walk(expanded, args, state))(state, *args)


# --- all others --------------------------------------------------------------


class _Call(NamedTuple):
    """A primitive with its parameters, and what receives its events."""

    primitive: Any
    params: dict[str, Any]
    handler: Handler

    def bind(self, *args: Any) -> Any:
        return self.primitive.bind(*args, **self.params)

    # two calls are never the same
    def __hash__(self) -> int:
        return id(self.params)

    def __eq__(self, other: object) -> bool:
        return self is other


@rule_finder
def _rule_for(eqn: Any) -> Any:
    return _foreign_rule if _filtered(eqn.params) is not None else None


def _foreign_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    handler = walk.handler
    if handler.memo_key is not None:  # there are neither rows nor a state
        call = _Call(eqn.primitive, eqn.params, handler)
        return silent_p.bind(*args, call=call), Record(), state
    expanded = _expanded(eqn)
    if not isinstance(handler, Collector) or not walk.wants_in(expanded):
        return tracing.bind(eqn, args), Record(), state
    call = _Call(eqn.primitive, eqn.params, Remover(handler.wants))

    def silent(*args: Any) -> list[Any]:
        return silent_p.bind(*args, call=call)

    return _with_derivative_of(walk, eqn, args, state, expanded, list, silent)


silent_p: Any = primitives.Primitive("lox_silent")
silent_p.multiple_results = True


def _silently(call: _Call, fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    """`fun(*args)`, whose events the handler receives."""
    with without_transpose_warnings():  # there is nothing to say of what is not wanted
        closed, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
    outs, _, _ = Walk(call.handler)(closed, list(args), NO_STATE)
    return jax.tree.unflatten(jax.tree.structure(shape), outs)


@silent_p.def_impl
def _run(*args: Any, call: _Call) -> list[Any]:
    def fun(*args: Any) -> list[Any]:
        return list(call.primitive.impl(*args, **call.params))

    return _silently(call, fun, args)


@silent_p.def_abstract_eval
def _types(*avals: Any, call: _Call) -> Any:
    return call.primitive.abstract_eval(*avals, **call.params)[0]


rule_tables.register_lowering_as(silent_p, _run)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: _Call) -> Any:
    is_zero = ad.is_symbolic_zero
    given = [t for t in tangents if not is_zero(t)]
    out_zeros: list[Any] = []

    def fun(*args: Any) -> Any:
        rest = iter(args[len(primals) :])
        full = [t if is_zero(t) else next(rest) for t in tangents]
        rule = rule_tables.jvp_rule(call.primitive)
        outs, out_tangents = rule(args[: len(primals)], tuple(full), **call.params)
        out_zeros[:] = [t if is_zero(t) else None for t in out_tangents]
        return list(outs), [t for t in out_tangents if not is_zero(t)]

    outs, nonzero = _silently(call, fun, [*primals, *given])
    rest = iter(nonzero)
    return outs, [next(rest) if t is None else t for t in out_zeros]


def _transpose(cotangents: Sequence[Any], *args: Any, call: _Call) -> list[Any]:
    is_given = [not _is_symbolic(x) for x in (*cotangents, *args)]
    given = [x for x, is_ in zip((*cotangents, *args), is_given, strict=True) if is_]
    kept: list[Any] = []

    def fun(*flat: Any) -> Any:
        rest = iter(flat)
        full = [
            next(rest) if is_ else x
            for x, is_ in zip((*cotangents, *args), is_given, strict=True)
        ]
        rule = rule_tables.transpose_rule(call.primitive)
        count = len(cotangents)
        outs = rule(full[:count], *full[count:], **call.params)
        kept[:] = [x if _is_symbolic(x) else ... for x in outs]
        return [x for x in outs if not _is_symbolic(x)]

    rest = iter(_silently(call, fun, given))
    return [next(rest) if x is ... else x for x in kept]


def _is_symbolic(x: Any) -> bool:
    return x is None or ad.is_symbolic_zero(x) or ad.is_linear_operand(x)


def _batch(
    axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, call: _Call
) -> tuple[list[Any], list[Any]]:
    out_dims: list[Any] = []

    def fun(*args: Any) -> list[Any]:
        rule = rule_tables.batching_rule(call.primitive)
        outs, found = rule(axis_data, list(args), tuple(dims), **call.params)
        out_dims[:] = found
        return list(outs)

    return _silently(call, fun, args), out_dims


rule_tables.register_jvp(silent_p, _jvp)
rule_tables.register_transpose(silent_p, _transpose)
rule_tables.register_batching(silent_p, _batch)


# --- derivatives of lineax' solves -------------------------------------------


def _watched_jvp(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """As for `custom_linear_solve`: the solves for tangents log nothing more."""

    def is_own(primitive: Any, params: Any) -> bool:
        return _filtered(params) is not None and primitive.name != "noinline"

    events = events_in(params)
    if not events:
        return rule(*args, **params)
    watch = DerivativeRule(is_own, lines=lines_of(events))
    return watches.watched(rule, watch)(*args, **params)


def _patch_of_lineax(module: Any) -> Patch:
    primitive = module.linear_solve_p

    def install() -> None:
        rules = getattr(_equinox("_primitive"), "_vprim_jvp_registry", {})
        if primitive in rules:  # for what `vmap` makes of it
            rules[primitive] = functools.partial(_watched_jvp, rules[primitive])
        rule_tables.wrap_rule("JVP", primitive, _watched_jvp, events_in)

    return Patch(
        "the JVP rule of `lineax.linear_solve`",
        without="the solution of a linear system is logged again for each tangent",
        instead="log outside of `lineax.linear_solve`",
        install=install,
        refuse=lambda patch: refuse(patch, primitive),
    )


when_imported("lineax._solve", lambda module: patches.add(_patch_of_lineax(module)))
