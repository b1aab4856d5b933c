"""The derivative rules of `custom_jvp` and `custom_vjp` functions."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex, linear_util as lu
from jax.extend.core import JaxprEqn
from jax.interpreters import ad

from . import compat, debug_info, jaxprs
from .ad import instantiated
from .rule_sources import with_source_location_of

_CustomVJPException = compat.private(
    "interpreters.ad.CustomVJPException",
    "report a `custom_vjp` function that closes over a differentiated value",
)


def jvp_rule_jaxpr(eqn: JaxprEqn, zeros: Sequence[bool]) -> tuple[Any, list[bool]]:
    """The rule of a `custom_jvp` equation, as a closed jaxpr.

    It takes the primals, then the nonzero tangents, and returns the primal results,
    then the nonzero tangents of the results.

    Args:
        eqn: the equation.
        zeros: which tangents are zero.

    Returns:
        The jaxpr, and which tangents of the results are zero.
    """
    with debug_info.own_lines():
        jaxpr, consts, out_zeros = eqn.params["jvp_jaxpr_fun"].call_wrapped(*zeros)
    return _closed(jaxpr, consts), list(out_zeros)


def like_custom_jvp(
    eqn: JaxprEqn,
    call: Callable[..., list[Any]],
    evaluate_rule: Callable[..., tuple[list[Any], list[Any]]],
    extra: int = 0,
) -> Callable[..., list[Any]]:
    """A `custom_jvp` function that replaces the one that an equation calls.

    Args:
        eqn: the equation.
        call: what the new function computes, from `extra` inputs and those of the
            equation. It may have extra results, which have no derivative.
        evaluate_rule: evaluates the derivative rule, given its jaxpr, the inputs of
            this jaxpr, and all inputs of the new function. Returns the results of the
            jaxpr, and the extra results.
        extra: the number of extra inputs, which have no derivative.
    """
    front = extra + eqn.params["num_consts"]
    count = len(eqn.outvars)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        given = list(tangents[front:])
        if not eqn.params["symbolic_zeros"]:
            given = list(map(instantiated, given))
        zeros = [type(tangent) is SymbolicZero for tangent in given]
        jaxpr, out_zeros = jvp_rule_jaxpr(eqn, zeros)
        nonzero = [t for t, zero in zip(given, zeros, strict=True) if not zero]
        ins = [*primals[front:], *nonzero]
        outs, more = evaluate_rule(jaxpr, ins, primals)
        results, rest = outs[:count], iter(outs[count:])
        out_tangents = [
            _zero(result) if zero else next(rest)
            for result, zero in zip(results, out_zeros, strict=True)
        ]
        return [*results, *more], [*out_tangents, *map(_zero, more)]

    # the source locations show whether a rule calls its own function
    old, rule = eqn.params["call_jaxpr"], eqn.params["jvp_jaxpr_fun"]
    fun = jax.custom_jvp(with_source_location_of(call, old))
    fun.defjvp(with_source_location_of(jvp, rule), symbolic_zeros=True)
    return fun


def _zero(primal: Any) -> Any:
    return SymbolicZero(jax.typeof(primal).to_tangent_aval())


def fwd_rule_jaxpr(eqn: JaxprEqn, perturbed: Sequence[bool]) -> Any:
    """The forward rule of a `custom_vjp`: from primals to residuals and results."""
    with debug_info.own_lines():
        jaxpr, consts = eqn.params["fwd_jaxpr_thunk"].call_wrapped(*perturbed)
    return _closed(jaxpr, consts)


def _closed(jaxpr: Any, consts: Sequence[Any]) -> Any:
    if isinstance(jaxpr, jex.ClosedJaxpr) and not consts:
        return jaxpr
    return jex.ClosedJaxpr(jaxprs.open_jaxpr(jaxpr), consts)


def fwd_rule_residuals(
    eqn: JaxprEqn, args: Sequence[Any], outs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Splits the outputs of the forward rule into residuals and results.

    Residuals that are inputs are not among the outputs; JAX stores their positions.
    """
    _, residual_tree, forwarded = eqn.params["out_trees"]()
    computed = sum(position is None for position in forwarded)
    assert residual_tree.num_leaves == len(forwarded)
    rest = iter(outs[:computed])
    residuals = [
        next(rest) if position is None else args[position] for position in forwarded
    ]
    return residuals, list(outs[computed:])


def bwd_rule(eqn: JaxprEqn) -> Callable[..., tuple[list[Any], Any]]:
    """The backward rule: from residuals and cotangents to cotangents, None where zero.

    The second result is the logs of `defvjp_with_logs`, a feature of JAX itself (from
    0.11.1 on).
    """

    def call(*args: Any) -> tuple[list[Any], Any]:
        outs = eqn.params["bwd"].call_wrapped(*args)
        outs, logs = outs if isinstance(outs, tuple) else (outs, None)
        return [None if type(out) is ad.Zero else out for out in outs], logs

    return call


# whether a backward rule returns a pair
_BWD_WITH_LOGS = hasattr(jax.custom_vjp, "defvjp_with_logs")


def define_vjp(
    fun: Any, fwd: Callable[..., Any], bwd: Callable[..., Any], **options: Any
) -> None:
    """Defines the rules of `fun`; `bwd` returns a pair, as `bwd_rule` does."""
    if _BWD_WITH_LOGS:
        fun.defvjp_with_logs(fwd, bwd, **options)
    else:
        fun.defvjp(fwd, lambda *args: bwd(*args)[0], **options)


def changed_jvp_rule(eqn: JaxprEqn, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Parameters of a `custom_jvp` equation that apply `change` to its rule."""
    old = eqn.params["jvp_jaxpr_fun"]

    def rule(*zeros: bool) -> tuple[Any, Any, Any]:
        closed, out_zeros = jvp_rule_jaxpr(eqn, zeros)
        new = change(closed)
        return new.jaxpr, new.consts, out_zeros

    return {"jvp_jaxpr_fun": lu.wrap_init(rule, debug_info=old.debug_info)}


def changed_vjp_rules(
    eqn: JaxprEqn,
    change: Callable[[Any], Any],
    bwd: Callable[..., tuple[list[Any], Any]],
) -> dict[str, Any]:
    """Parameters of a `custom_vjp` equation with changed rules.

    Args:
        eqn: the equation.
        change: changes the closed jaxpr of the forward rule.
        bwd: the backward rule, in the form of `bwd_rule`.
    """
    old = eqn.params["fwd_jaxpr_thunk"]
    arguments = eqn.invars[eqn.params["num_consts"] :]

    def fwd_rule(*perturbed: bool) -> tuple[Any, Any]:
        new = change(fwd_rule_jaxpr(eqn, perturbed))
        return new.jaxpr, new.consts

    def new_bwd(*args: Any) -> Any:
        outs, logs = bwd(*args)
        outs = [
            ad.Zero(_cotangent_aval(var.aval)) if out is None else out
            for var, out in zip(arguments, outs, strict=True)
        ]
        return (outs, logs) if _BWD_WITH_LOGS else outs

    return {
        "fwd_jaxpr_thunk": lu.wrap_init(fwd_rule, debug_info=old.debug_info),
        "bwd": lu.wrap_init(new_bwd, debug_info=eqn.params["bwd"].debug_info),
    }


def _cotangent_aval(aval: Any) -> Any:
    convert = getattr(aval, "to_ct_aval", None) or aval.to_tangent_aval
    return convert()


def closed_over_error() -> Exception:
    """JAX's error for a `custom_vjp` function that closes over a perturbed value."""
    return _CustomVJPException()
