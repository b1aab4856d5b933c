"""Refuses events with `over` that only some of their devices reach (see `device_flow`).

Transformations check the programs that they collect events from. Events that none of
them collects are checked here, when JAX lowers a `shard_map`.
"""

from collections.abc import Callable
from typing import Any

from lox._events.event import Event
from lox._interpreter.device_flow import check_devices_agree
from lox._jax import primitives, rule_tables
from lox._jax.patches import Patch

from .missing import events_in, reject


def install() -> None:
    rule_tables.wrap_lowering(
        primitives.shard_map_p, _lower_shard_map, events_with_over
    )


def refuse(patch: Patch) -> None:
    """Without the patch, no branch and no loop may contain such events."""
    for primitive in (primitives.cond_p, primitives.while_p):
        reject(patch, primitive, events_with_over)


def events_with_over(params: dict[str, Any]) -> tuple[Event, ...]:
    return tuple(event for event in events_in(params) if event.call.over)


def _lower_shard_map(
    rule: Callable[..., Any], ctx: Any, *args: Any, **params: Any
) -> Any:
    check_devices_agree(params)
    return rule(ctx, *args, **params)
