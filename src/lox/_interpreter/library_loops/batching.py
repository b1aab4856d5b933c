"""Wrappers of JAX's batching rules, which mask events before JAX batches a program."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from lox._events.event import Event
from lox._interpreter.patches.missing import (
    events_and_cotangents_in,
    events_in,
    may_log,
)
from lox._interpreter.walk import cached
from lox._jax import batching, hijax, jaxprs, primitives

from .backward_loops import predicates_of_backward_loop
from .counters import remember_counters_in_sync
from .lane_primitives import merges_lanes
from .masking import mask_events
from .merged_values import merges_lanes_in, needs_masks


def batch_inner_jaxprs(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Wraps the batching rule of a higher-order primitive."""
    for name in ("jaxpr", "body_jaxpr", "cond_jaxpr"):
        if name in params:
            params[name] = _masked(params[name])
    prim = params.get("_prim")
    if prim is not None and hijax.is_checkpoint(prim):
        params["_prim"] = jaxprs.with_changed_jaxprs(prim, _masked)
    if "branches" in params:
        params["branches"] = tuple(map(_masked, params["branches"]))
    return rule(*args, **params)


def _masked(jaxpr: Any) -> Any:
    return jaxprs.rewritten(jaxpr, mask_events) if needs_masks(jaxpr) else jaxpr


def batch_while(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> Any:
    """Wraps the batching rule of `while_loop`, whose own predicate may be merged."""
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    remember_counters_in_sync(params, args, [dim is None for dim in dims])
    merges = any(map(merges_lanes, jaxprs.open_jaxpr(cond).eqns))
    if merges:
        masked = bool(events_and_cotangents_in(params))
    else:
        masked = bool(events_in(params)) and any(predicates_of_backward_loop(params))
    if not masked:
        return batch_inner_jaxprs(rule, axis_data, args, dims, **params)
    counts = params["cond_nconsts"], params["body_nconsts"]

    def make() -> Any:
        carry = body.in_avals[counts[1] :]
        consts = [*cond.in_avals[: counts[0]], *body.in_avals[: counts[1]]]
        return mask_events(
            jaxprs.trace(
                lambda *args: primitives.while_p.bind(*args, **params),
                [*consts, *carry],
                body,
            )[0]
        )

    loop = cached(body, ("batched", weakref.ref(cond), counts), make)
    return batching.batch(loop, axis_data, args, dims)


def events_with_merged_lanes(params: dict[str, Any]) -> tuple[Event, ...]:
    """The events of an equation that may need masks: it reduces over lanes inside.

    These include the events that reverse mode would add.
    """
    return events_and_cotangents_in(params) if merges_lanes_in(params) else ()


def may_log_with_merged_lanes(params: dict[str, Any]) -> bool:
    """Whether there are such events, or derivative rules inside, which may log."""
    return may_log(params) and merges_lanes_in(params)
