"""The current trace: binding and copying equations into it."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex, source_info_util
from jax.extend.core import JaxprEqn
from jax.interpreters import partial_eval as pe

from . import compat, jaxprs, primitives, vma

_trace_ctx = compat.private(
    "core.trace_ctx", "functions are jitted unnecessarily", default=None
)
_DynamicJaxprTrace = compat.private(
    "interpreters.partial_eval.DynamicJaxprTrace",
    "tell whether a program is being traced",
)
_trace_context = compat.private("config.trace_context", "cache rewritten programs")


def _current_trace() -> Any:
    return None if _trace_ctx is None else _trace_ctx.trace


def _plain_trace() -> Any:
    """The current trace, if it is a plain trace to a jaxpr; otherwise None."""
    trace = _current_trace()
    return trace if type(trace) is _DynamicJaxprTrace else None


def bind(eqn: JaxprEqn, args: Sequence[Any], **changes: Any) -> list[Any]:
    """Binds the primitive of `eqn`, with some of its parameters changed."""
    if eqn.primitive.name == "pvary":
        axes = frozenset(eqn.params["axes"])
        if vma.varying_axes(jax.typeof(args[0])) & axes:  # JAX's own would fail
            return [vma.vary_like(args[0], axes)]
    params = eqn.primitive.get_bind_params({**eqn.params, **changes})
    if isinstance(params, tuple):  # up to 0.9: functions and parameters
        functions, params = params
        outs = eqn.primitive.bind(*functions, *args, **params)
    else:
        outs = eqn.primitive.bind(*args, **params)
    return list(outs) if eqn.primitive.multiple_results else [outs]


# Adds an equation to the current trace, given the values of variables. Returns its
# outputs, or None if it must be bound instead.
Copy = Callable[[JaxprEqn, dict[Any, Any]], list[Any] | None]


def equation_copier(jaxpr: Any) -> Copy | None:
    """A function that adds equations to the current trace without inferring types.

    Binding an equation takes five times as long.

    Args:
        jaxpr: the open jaxpr of the equations.

    Returns:
        The function, or None if the current trace is not a plain trace to a jaxpr.
    """
    trace = _plain_trace()
    if trace is None:
        return None
    names = source_info_util.current_name_stack()
    has_names = bool(names.stack)
    may_be_high = getattr(jaxpr, "is_high", True)
    literal, tracer_type, array = jex.Literal, pe.DynamicJaxprTracer, jax.Array

    def copy(eqn: JaxprEqn, env: dict[Any, Any]) -> list[Any] | None:
        if eqn.effects or (may_be_high and _is_high(eqn)):
            return None
        info = eqn.source_info
        if has_names:
            info = info.replace(name_stack=names + info.name_stack)
        tracers = []
        for atom in eqn.invars:
            if type(atom) is literal:
                tracers.append(tracer_type(trace, atom.aval, atom, info))
                continue
            x = env[atom]
            if type(x) is not tracer_type or x._trace is not trace:
                if not isinstance(x, array):
                    return None
                x = trace.to_jaxpr_tracer(x, info)
            if x.aval is not atom.aval and x.aval != atom.aval:
                return None
            tracers.append(x)
        avals = [var.aval for var in eqn.outvars]
        return trace.emit_eqn(
            tracers, avals, eqn.primitive, eqn.params, eqn.effects, info, eqn.ctx
        )

    return copy


def _is_high(eqn: JaxprEqn) -> bool:
    """Whether there are high-level primitives in an equation, which must be bound."""
    if eqn.primitive.name.startswith("call_hi_primitive"):
        return True
    if not jaxprs.has_jaxprs(eqn.params):
        return False
    inner = jaxprs.jaxprs_in(eqn.params)
    return any(getattr(jaxprs.open_jaxpr(jaxpr), "is_high", False) for jaxpr in inner)


_unknown_p: Any = primitives.Primitive("lox_unknown")
_unknown_p.multiple_results = True
_unknown_p.def_abstract_eval(lambda *, aval: [aval])


def unknown_values() -> Callable[[Any], Any] | None:
    """A function that creates tracers of a type without a value.

    A program with such values can be inspected, but not run.

    Returns:
        The function, or None if the current trace is not a plain trace to a jaxpr.
    """
    trace = _plain_trace()
    if trace is None:
        return None

    def unknown(aval: Any) -> Any:
        return trace.emit_eqn([], [aval], _unknown_p, {"aval": aval}, frozenset())[0]

    return unknown


def unknown_results(eqn: JaxprEqn, args: Sequence[Any]) -> list[Any]:
    """Values of the types of an equation's results, for a program that never runs."""
    unknown = unknown_values()
    if unknown is None:
        return bind(eqn, args)
    return [unknown(var.aval) for var in eqn.outvars]


class equation_context:
    """A context with the source line, name stack and config of `eqn`."""

    __slots__ = ("_eqn", "_managers")

    def __init__(self, eqn: JaxprEqn) -> None:
        self._eqn = eqn

    def __enter__(self) -> None:
        info = self._eqn.source_info
        names = source_info_util.current_name_stack() + info.name_stack
        user = source_info_util.user_context(info.traceback, name_stack=names)
        self._managers = (user, self._eqn.ctx.manager)
        for manager in self._managers:
            manager.__enter__()

    def __exit__(self, *exc: Any) -> None:
        for manager in reversed(self._managers):
            manager.__exit__(*exc)


# the errors that JAX raises where Python needs the value of a traced array
CONCRETE_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

# Whether no JAX transformation encloses a call. JAX's own function, without a wrapper,
# because every call of a transformed function calls it.
at_top_level: Callable[[], bool] = compat.private(
    "core.trace_state_clean",
    "an eager call is treated like one inside a transformation",
    default=lambda: False,
)


class _TraceState:
    """The current trace as an attribute, before JAX 0.10."""

    @property
    def value(self) -> Any:
        return None if _trace_ctx is None else _trace_ctx.trace


# If `trace_state.value is TOP_TRACE`, no JAX transformation traces a call. It is at the
# top level, or evaluated inside a transformation, as by `jax.core.eval_context`.
trace_state: Any = compat.private(
    "core.trace_state_strong_ref", "eager calls take longer", default=_TraceState()
)
TOP_TRACE: Any = compat.private(
    "core.eval_trace", "eager calls take longer", default=object()
)


def is_staging() -> bool:
    """Whether this call is being traced to a jaxpr, by `jit` or a loop.

    Under an eager `vmap` or `grad` it is not: these evaluate while they trace.
    """
    trace = _current_trace()
    while trace is not None:
        if isinstance(trace, _DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def trace_reference() -> Callable[[], Any]:
    """A weak reference to the current trace; it may return None."""
    trace = _current_trace()
    return (lambda: None) if trace is None else weakref.ref(trace)


def is_tracer_of(x: Any, trace: Any) -> bool:
    """Whether `x` is a tracer of a trace."""
    return isinstance(x, jax.core.Tracer) and getattr(x, "_trace", None) is trace


def trace_context() -> Any:
    """The config that is part of the keys of JAX's trace caches."""
    return _trace_context()


def traced_equation(
    primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Traces a call of a primitive.

    Returns:
        A closed jaxpr with one equation, and its inputs: the arguments that are known
        only at run time. All others are constants.
    """
    known = [not isinstance(x, jax.core.Tracer) for x in args]
    inputs = [x for x, one in zip(args, known, strict=True) if not one]

    def call(*unknown: Any) -> Any:
        rest = iter(unknown)
        full = [x if one else next(rest) for x, one in zip(args, known, strict=True)]
        return primitive.bind(*full, **params)

    return jax.make_jaxpr(call)(*inputs), inputs
