"""Patches of JAX's lowering of programs with ordered effects."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from . import compat, jaxprs, patches, primitives, rule_tables
from .patches import Patch, UnavailableError


def patches_for(effect: Any) -> tuple[Patch, ...]:
    """The patches that programs with an ordered effect need."""
    return (
        Patch(
            "the lowering rule of `jit`",
            without="XLA copies a loop in a `jit` without arguments dozens of times, "
            "including callbacks, or crashes",
            instead="give the jitted function an argument",
            install=lambda: _inline_calls_without_arguments(effect),
            refuse=lambda patch: _refuse_calls_without_arguments(patch, effect),
        ),
        Patch(
            "the lowering of functions with memory kinds",
            without="JAX fails to pair the memories of a program's results with its "
            "tokens",
            instead="do not offload residuals in programs that log in order",
            install=lambda: _give_tokens_memory_kinds(effect),
        ),
    )


def _inline_calls_without_arguments(effect: Any) -> None:
    """Inlines a `jit` with an ordered effect but without arguments.

    XLA's inliner (as of JAX 0.12) ties the inlined operations of such a call to its
    token, and then copies a loop in it dozens of times, including callbacks, or
    crashes.
    """
    if primitives.jit_inline_is_bool():  # up to 0.10, which inlines correctly
        return
    inline = compat.private("api.Inline", "inline a `jit` without arguments")

    def lower(rule: Callable[..., Any], ctx: Any, *args: Any, **params: Any) -> Any:
        if not args:
            params["inline"] = inline.JAX_LATE
        return rule(ctx, *args, **params)

    if not hasattr(inline, "JAX_LATE"):
        raise UnavailableError("`jit` cannot be inlined before it is lowered")
    rule_tables.wrap_lowering(
        primitives.jit_p, lower, lambda params: effect in params["jaxpr"].effects
    )


def lower_with_used_input(
    rule: Callable[..., Any], ctx: Any, args: Sequence[Any], params: dict[str, Any]
) -> Any:
    """Lowers a `shard_map` that uses none of its inputs with one more, which it uses.

    To XLA's inliner, it is a call without arguments: see above.
    """
    jaxpr = jaxprs.with_used_input(params["jaxpr"])
    aval = jaxprs.open_jaxpr(jaxpr).invars[-1].aval
    in_specs = (*params["in_specs"], jax.sharding.PartitionSpec())
    inner = ctx.replace(avals_in=[*ctx.avals_in, aval])
    zero = mlir.ir_constant(np.zeros(aval.shape, aval.dtype))
    changed = {**params, "jaxpr": jaxpr, "in_specs": in_specs}
    outs = rule(inner, *args, zero, **changed)
    ctx.set_tokens_out(inner.tokens_out)
    return outs


def _refuse_calls_without_arguments(patch: Patch, effect: Any) -> None:
    def check(args: Sequence[Any], params: dict[str, Any]) -> None:
        if not args and effect in params["jaxpr"].effects:
            name = params.get("name", "")
            raise patches.error(patch, f"`{name}`, jitted without arguments, logs")

    rule_tables.check_before_bind(primitives.jit_p, check)


def _give_tokens_memory_kinds(effect: Any) -> None:
    """Makes memory kinds (to offload residuals) work with ordered effects.

    JAX (as of 0.12) lists the memory kinds of a program's results without its tokens,
    and then fails to pair the two.
    """
    name = "propagated_out_mem_kinds"

    def wrap(lower: Any) -> Any:
        if f"*{name}" in inspect.getsource(lower):  # this version lists the tokens
            return lower

        @functools.wraps(lower)
        def lower_jaxpr_to_fun(*args: Any, **params: Any) -> Any:
            effects = params["effects"] if "effects" in params else args[3]
            if effect in effects and params.get(name) is not None:
                params[name] = ((None,) * len(effects)) + tuple(params[name])
            return lower(*args, **params)

        return lower_jaxpr_to_fun

    compat.replace(
        "interpreters.mlir.lower_jaxpr_to_fun",
        "lower programs that both log in order and offload residuals",
        wrap,
    )
