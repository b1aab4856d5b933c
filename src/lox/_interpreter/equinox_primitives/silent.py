"""`silent_p`: another primitive with all of its rules, without some of its events."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from lox._events.primitive import without_transpose_warnings
from lox._interpreter.handlers import NO_STATE, Handler
from lox._interpreter.patches.unmapped import with_lanes_for_all
from lox._interpreter.rule_table import other_jaxprs
from lox._interpreter.walk import Walk
from lox._jax import ad, primitives, rule_tables, tracing

from .expansion import trace, without_checks


class _Expansions:
    """The jaxprs of a primitive without its events; unlike a dict, not a pytree."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}


class SilentCall(NamedTuple):
    """A primitive with its parameters, and the handler of its events.

    Attributes:
        primitive: the primitive.
        params: its parameters.
        handler: removes or changes its events.
        expansions: a cache.
    """

    primitive: Any
    params: dict[str, Any]
    handler: Handler
    expansions: _Expansions

    @classmethod
    def of(cls, eqn: Any, handler: Handler) -> "SilentCall":
        """The call of an equation."""
        return cls(eqn.primitive, eqn.params, handler, _Expansions())

    def bind(self, *args: Any) -> Any:
        return self.primitive.bind(*args, **self.params)

    # calls are compared by identity
    def __hash__(self) -> int:
        return id(self.params)

    def __eq__(self, other: object) -> bool:
        return self is other


silent_p: Any = primitives.Primitive("lox_silent")
silent_p.multiple_results = True


def _silently(call: SilentCall, fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Evaluates `fun(*args)`, and passes its events to the handler."""
    with without_transpose_warnings:
        closed, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
    outs, _, _ = Walk(call.handler)(closed, list(args), NO_STATE)
    return jax.tree.unflatten(jax.tree.structure(shape), outs)


@silent_p.def_impl
def _run(*args: Any, call: SilentCall) -> list[Any]:
    def fun(*args: Any) -> list[Any]:
        return list(call.primitive.impl(*args, **call.params))

    return _silently(call, fun, args)


@silent_p.def_abstract_eval
def _types(*avals: Any, call: SilentCall) -> Any:
    return call.primitive.abstract_eval(*avals, **call.params)[0]


rule_tables.register_lowering_as(silent_p, _run)


def expand_silent(eqn: Any) -> Any:
    """What an equation of `silent_p` does, as a closed jaxpr of its inputs."""
    call: SilentCall = eqn.params["call"]
    avals = tuple(atom.aval for atom in eqn.invars)
    key = avals, tracing.trace_context()
    kept = call.expansions.kept
    if key not in kept:
        kept[key] = without_checks(trace(lambda *args: _run(*args, call=call), avals))
    return kept[key]


@other_jaxprs("lox_silent")
def _expansion_with_events(eqn: Any) -> list[Any]:
    """The events that the handler has changed, but not removed, are in it."""
    return [] if eqn.params["call"].handler.removes_all else [expand_silent(eqn)]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: SilentCall) -> Any:
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


def _transpose(cotangents: Sequence[Any], *args: Any, call: SilentCall) -> list[Any]:
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
    axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, call: SilentCall
) -> tuple[list[Any], list[Any]]:
    out_dims: list[Any] = []

    def fun(*args: Any) -> list[Any]:
        rule = rule_tables.batching_rule(call.primitive)
        outs, found = rule(axis_data, list(args), tuple(dims), **call.params)
        out_dims[:] = found
        return list(outs)

    call = call._replace(handler=call.handler.inside_vmap())
    return _silently(call, fun, args), out_dims


rule_tables.register_jvp(silent_p, _jvp)
rule_tables.register_transpose(silent_p, _transpose)
rule_tables.register_batching(
    silent_p, functools.partial(with_lanes_for_all(silent_p), _batch)
)
