"""Partial evaluation and dead code elimination."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex
from jax.extend.core import JaxprEqn
from jax.interpreters import partial_eval as pe

from . import array_types, compat, jaxprs

_dce_jaxpr = compat.private(
    "interpreters.partial_eval.dce_jaxpr", "find what the events of a program depend on"
)
_partial_eval_jaxpr = compat.private(
    "interpreters.partial_eval.partial_eval_jaxpr_nounits",
    "log once in a `while_loop` that JAX runs twice",
)
_JaxprTrace = compat.private(
    "interpreters.partial_eval.JaxprTrace", "pass `jax.checking_leaks` with events"
)
_DropVar = compat.private("core.DropVar", "keep events in a `scan` without a carry")


def only_effects(closed: Any) -> tuple[Any, list[Any]]:
    """The equations that effects depend on: an open jaxpr, and its first inputs."""
    jaxpr, consts = jaxprs.constants_to_inputs(closed)
    unused = [False] * len(jaxpr.outvars)
    return _dce_jaxpr(jaxpr, unused, instantiate=True)[0], consts


def is_known(tracer: Any) -> bool:
    """Whether partial evaluation knows the value of `tracer`."""
    return tracer.pval.is_known()


def known_tracer(trace: Any, value: Any) -> Any:
    """A tracer of partial evaluation with a known value."""
    return trace.new_const(value)


def literal_and_unused(value: Any) -> tuple[Any, Any]:
    """The literal of a constant scalar, and the variable of an unused result."""
    aval = jax.typeof(jax.numpy.asarray(value))
    return jex.Literal(value, aval), _DropVar(aval)


def known_value(tracer: Any) -> Any:
    """The value of `tracer`, or zeros if it is not known."""
    return (
        tracer.pval.get_known()
        if is_known(tracer)
        else array_types.zeros_of_aval(tracer.aval)
    )


def known_part(
    closed: Any, unknown: Sequence[bool], instantiate: Any
) -> tuple[Any, Any, list[bool]]:
    """Splits a jaxpr into the part that depends on known inputs only, and the rest.

    Returns:
        The two jaxprs, and which outputs are unknown.
    """
    known_jaxpr, rest, out = _partial_eval_jaxpr(closed, list(unknown), instantiate)[:3]
    return known_jaxpr, rest, list(out)


def trace_unknown(fun: Any, values: Sequence[Any]) -> Any:
    """The closed jaxpr of a function that partial evaluation is about to evaluate.

    Args:
        fun: a wrapped function of flat arguments.
        values: the arguments, none of which is known.
    """
    avals = [value.get_aval() for value in values]
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(fun, avals)[:3]
    return jex.ClosedJaxpr(jaxpr, consts)


def without_unused(eqn: JaxprEqn, used: Sequence[bool]) -> tuple[list[bool], Any]:
    """Removes what only unused outputs of an equation depend on.

    Returns:
        Which inputs are used, and the equation.
    """
    jaxpr, inputs = _dce_jaxpr(eqn.params["jaxpr"], list(used))
    params = {**eqn.params, "jaxpr": jaxpr}
    if isinstance(params["prevent_cse"], tuple):
        flags = zip(params["prevent_cse"], inputs, strict=True)
        params["prevent_cse"] = tuple(flag for flag, used in flags if used)

    def chosen(variables: Sequence[Any], used: Sequence[bool]) -> list[Any]:
        return [var for var, one in zip(variables, used, strict=True) if one]

    new = eqn.replace(
        invars=chosen(eqn.invars, inputs),
        outvars=chosen(eqn.outvars, used),
        params=params,
        effects=jaxpr.effects,
    )
    return list(inputs), new


def forget_effect_handles(is_ours: Callable[[Any], bool]) -> None:
    """Drops references from a finished partial evaluation to equations with effects.

    They form a reference cycle with their inputs, which `jax.checking_leaks` would
    report as leaked tracers.

    Args:
        is_ours: whether to drop the reference to an equation.
    """
    kind = _JaxprTrace
    original = kind.invalidate

    @functools.wraps(original)
    def invalidate(self: Any) -> None:
        original(self)
        handles = getattr(self, "effect_handles", None)
        if handles:
            self.effect_handles = [
                handle for handle in handles if not is_ours(handle.recipe)
            ]

    kind.invalidate = invalidate
