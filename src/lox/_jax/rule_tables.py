"""JAX's rule tables: registers lox's rules, and reads and wraps JAX's own."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir, partial_eval as pe

from . import compat
from .patches import UnavailableError

# --- rules of lox's primitives -----------------------------------------------

register_lowering = mlir.register_lowering


def register_lowering_as(primitive: Any, fun: Callable[..., Any]) -> None:
    """Lowers a primitive like a call of `fun` with its operands and parameters."""
    lower = mlir.lower_fun(fun, multiple_results=primitive.multiple_results)
    register_lowering(primitive, lower)


def lower_as(ctx: Any, fun: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Any:
    """Lowers an equation, inside a lowering rule, like a call of `fun`."""
    return mlir.lower_fun(fun, multiple_results=True)(ctx, *args)


def register_batching(primitive: Any, rule: Callable[..., Any]) -> None:
    """Registers a batching rule, a function of the axis, operands and their axes.

    It is called even if no operand is batched.
    """
    batching.fancy_primitive_batchers[primitive] = rule


def register_jvp(primitive: Any, rule: Callable[..., Any]) -> None:
    """Registers a JVP rule, a function of the primals and tangents."""
    ad.primitive_jvps[primitive] = rule


def register_transpose(primitive: Any, rule: Callable[..., Any]) -> None:
    """Registers a transpose rule, a function of the cotangents and operands."""
    ad.primitive_transposes[primitive] = rule


def register_linear(primitive: Any, transpose: Callable[..., Any]) -> None:
    """Registers the derivatives of a linear primitive, given its transpose rule."""
    ad.deflinear2(primitive, transpose)


def set_no_derivative(primitive: Any) -> None:
    """Registers a zero derivative for a primitive with one result."""

    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], **params: Any
    ) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())

    register_jvp(primitive, jvp)


def register_jet(primitive: Any, results: Callable[..., list[Any]]) -> None:
    """Makes `jax.experimental.jet` pass through a primitive that computes nothing.

    Args:
        primitive: the primitive.
        results: selects those of its operands that are its results.
    """
    try:
        from jax.experimental import jet
    except ImportError:  # this version of JAX has no `jet`
        return

    def rule(primals: Sequence[Any], series: Any, **params: Any) -> tuple[Any, Any]:
        return primitive.bind(*primals, **params), results(*series, **params)

    jet.jet_rules[primitive] = rule


# --- JAX's own rules ---------------------------------------------------------


def jvp_rule(primitive: Any) -> Callable[..., Any]:
    """The JVP rule of a primitive."""
    return ad.primitive_jvps[primitive]


def transpose_rule(primitive: Any) -> Callable[..., Any]:
    """The transpose rule of a primitive."""
    return ad.primitive_transposes[primitive]


def batching_rule(primitive: Any) -> Callable[..., Any]:
    """The batching rule: a function of the axis, the operands and their axes."""
    if primitive in batching.fancy_primitive_batchers:
        return batching.fancy_primitive_batchers[primitive]
    # up to 0.9, simpler rules are in separate tables
    if primitive in batching.axis_primitive_batchers:
        rule = batching.axis_primitive_batchers[primitive]
        return lambda axis, args, dims, **params: rule(
            axis.size, axis.name, None, args, dims, **params
        )
    rule = batching.primitive_batchers[primitive]
    return lambda axis, args, dims, **params: rule(args, dims, **params)


# --- wrapping JAX's rules ----------------------------------------------------

_dce_rules = compat.private(
    "interpreters.partial_eval.dce_rules", "keep a `checkpoint` that only logs"
)
_linearizations = compat.private(
    "interpreters.ad.primitive_linearizations", "keep events in a loop under `grad`"
)
_partial_eval_equation_rules = compat.private(
    "interpreters.partial_eval.partial_eval_jaxpr_custom_rules",
    "keep events in a loop under `checkpoint`",
)
_lowerings = compat.private(
    "interpreters.mlir._lowerings", "log in the condition of a `while_loop`"
)

# The tables, by the names that patches use, each with the minimum number of positional
# arguments of its rules.
_TABLES: dict[str, tuple[Callable[[], Any], int]] = {
    "batching": (lambda: batching.fancy_primitive_batchers, 3),
    "checkify": (
        # a function, because `checkify` may be imported later
        lambda: compat.private(
            "checkify.error_checks", "log in the condition of a checked `while_loop`"
        ),
        2,
    ),
    "dead code": (lambda: _dce_rules, 2),
    "JVP": (lambda: ad.primitive_jvps, 2),
    "linearization": (lambda: _linearizations, 1),
    "partial evaluation": (lambda: pe.custom_partial_eval_rules, 1),
    "checkpoint": (lambda: _partial_eval_equation_rules, 4),
}
# the tables whose rules take an equation instead of its parameters
_OF_EQUATIONS = ("dead code", "checkpoint")

# whether a wrapper applies to an equation with these parameters
Applies = Callable[[dict[str, Any]], Any]


def wrap_rule(
    kind: str, primitive: Any, wrapper: Callable[..., Any], applies: Applies
) -> None:
    """Replaces one of JAX's rules with `wrapper(rule, *args, **params)`.

    Args:
        kind: the name of the rule table (see `_TABLES`).
        primitive: the primitive.
        wrapper: receives the rule, and the arguments that JAX calls it with.
        applies: to which equations the wrapper applies; others get JAX's own rule.
    """
    get_table, positional = _TABLES[kind]
    try:
        table = get_table()
    except AttributeError:
        raise UnavailableError(f"JAX has no table of {kind} rules") from None
    if compat.is_missing(table):
        raise table.error()
    if primitive not in table:
        raise UnavailableError(f"`{primitive}` has no {kind} rule")
    rule = table[primitive]
    _check_arguments(rule, positional)
    of_equation = kind in _OF_EQUATIONS

    @functools.wraps(rule)
    def wrapped(*args: Any, **params: Any) -> Any:
        if not applies(args[-1].params if of_equation else params):
            return rule(*args, **params)
        return wrapper(rule, *args, **params)

    table[primitive] = wrapped


def _check_arguments(rule: Any, positional: int) -> None:
    try:
        signature = inspect.signature(rule)
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        signature.bind_partial(*[None] * positional)
    except TypeError:
        raise UnavailableError(f"the rule takes other arguments: {signature}") from None


def wrap_lowering(
    primitive: Any, wrapper: Callable[..., Any], applies: Applies
) -> None:
    """Replaces the lowering rule for all platforms, as `wrap_rule` does."""
    if primitive not in _lowerings:
        raise UnavailableError(f"`{primitive}` has no lowering rule")
    entry = _lowerings[primitive]
    rule = entry.rule

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        if not applies(params):
            return rule(ctx, *args, **params)
        return wrapper(rule, ctx, *args, **params)

    register_lowering(primitive, lower, inline=getattr(entry, "inline", True))


def check_before_bind(
    primitive: Any, check: Callable[[Sequence[Any], dict[str, Any]], None]
) -> None:
    """Calls `check`, which may raise, whenever a primitive is bound."""
    bind = primitive.bind

    def checked(*args: Any, **params: Any) -> Any:
        check(args, params)
        return bind(*args, **params)

    primitive.bind = checked
