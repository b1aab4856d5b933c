"""Partial evaluation and the removal of unused equations."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex
from jax.extend.core import JaxprEqn
from jax.interpreters import partial_eval as pe

from . import array_types, compat, jaxprs

_dce_jaxpr = compat.private(
    "interpreters.partial_eval.dce_jaxpr", "find what the events of a program need"
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
    """What the effects of a program need: an open jaxpr, and its first inputs."""
    jaxpr, consts = jaxprs.constants_to_inputs(closed)
    unused = [False] * len(jaxpr.outvars)
    return _dce_jaxpr(jaxpr, unused, instantiate=True)[0], consts


def is_known(tracer: Any) -> bool:
    """Whether partial evaluation knows the value of `tracer`."""
    return tracer.pval.is_known()


def known_tracer(trace: Any, value: Any) -> Any:
    """A value, as partial evaluation takes one that it knows."""
    return trace.new_const(value)


def literal_and_unused(value: Any) -> tuple[Any, Any]:
    """What an equation has for a constant scalar, and for a result nobody uses."""
    aval = jax.typeof(jax.numpy.asarray(value))
    return jex.Literal(value, aval), _DropVar(aval)


def known_value(tracer: Any) -> Any:
    """Its value, or zeros where it is not known."""
    return (
        tracer.pval.get_known()
        if is_known(tracer)
        else array_types.zeros_of_aval(tracer.aval)
    )


def known_part(
    closed: Any, unknown: Sequence[bool], instantiate: Any
) -> tuple[Any, Any, list[bool]]:
    """Splits a jaxpr into what the known inputs suffice for, and the rest.

    Returns:
        The two jaxprs, and which outputs are not known.
    """
    known_jaxpr, rest, out = _partial_eval_jaxpr(closed, list(unknown), instantiate)[:3]
    return known_jaxpr, rest, list(out)


def trace_unknown(fun: Any, values: Sequence[Any]) -> Any:
    """The closed jaxpr of what partial evaluation is about to evaluate.

    Args:
        fun: a wrapped function of flat arguments.
        values: the arguments, none of which is known.
    """
    avals = [value.get_aval() for value in values]
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(fun, avals)[:3]
    return jex.ClosedJaxpr(jaxpr, consts)


def without_unused(eqn: JaxprEqn, used: Sequence[bool]) -> tuple[list[bool], Any]:
    """An equation of an open jaxpr without what only its unused outputs need.

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
    """Lets a partial evaluation that has ended forget its equations with an effect.

    It holds their inputs, which hold it in turn, so that `jax.checking_leaks` takes
    them for leaked tracers.

    Args:
        is_ours: says of an equation whether to forget it.
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
