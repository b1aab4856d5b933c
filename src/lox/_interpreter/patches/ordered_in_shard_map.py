"""Refuses events in program order where XLA does not support that.

XLA aborts the process if a program with ordered effects runs in a `shard_map` that
splits only some axes of its mesh. Where an event is bound, the mesh shows this, except
in a nested `shard_map`, which seems to split all axes.
"""

from collections.abc import Callable
from typing import Any

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._jax import jaxprs, lowering, primitives, rule_tables
from lox._jax.patches import Patch

from .missing import events_in, reject


def install() -> None:
    rule_tables.wrap_lowering(primitives.shard_map_p, _lower_shard_map, ordered_events)


def refuse(patch: Patch) -> None:
    reject(patch, primitives.shard_map_p, ordered_events)


def ordered_events(params: dict[str, Any]) -> tuple[Event, ...]:
    return tuple(event for event in events_in(params) if event.route.ordered)


def _lower_shard_map(
    rule: Callable[..., Any], ctx: Any, *args: Any, **params: Any
) -> Any:
    if set(primitives.manual_axes(params)) != set(params["mesh"].axis_names):
        (event, *_) = ordered_events(params)
        raise UnsupportedPrimitiveError(
            f"{event.call.description}, is in a `jax.shard_map` inside another one, "
            "and goes from there to a logger or a callback in program order, which XLA "
            "does not support. Write `lox.log` there, and apply `lox.tap`, `lox.spool` "
            "or the logger outside the outer `jax.shard_map`; or give `lox.tap` "
            "`ordered=False`; or split all axes of the mesh in one `jax.shard_map`."
        )
    if not jaxprs.uses_inputs(params["jaxpr"]):
        # XLA (as of JAX 0.12) would copy its loops dozens of times
        return lowering.lower_with_used_input(rule, ctx, args, params)
    return rule(ctx, *args, **params)
