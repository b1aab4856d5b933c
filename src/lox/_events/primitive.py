"""`log_p`, the primitive of `lox.log`, and its rules for JAX's transformations.

`log_p` has no results. Its one parameter is the `Event`; its operands are the event's
values, steps, mask and anchors (see `Event`).

Its effect is a subclass of the effect of `jax.debug.callback`, so JAX allows it
everywhere and never removes it. It has no `partial_eval_jaxpr_custom` rule on purpose:
that rule is why `jax.debug.callback` runs twice under `checkpoint`.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._arrays import is_typed_key, to_numpy
from lox._errors import LoxValueError
from lox._flag import Flag
from lox._jax import (
    array_types,
    batching,
    callbacks,
    compat,
    effects,
    lowering,
    patches,
    primitives,
    rule_tables,
)
from lox._jax.early_patches import JACFWD, called_by_jacfwd
from lox._source import warn

from .event import Event, default
from .missed import warn_if_missed
from .not_traced import warn_if_early


class _ComparedByType:
    """All effects of one class are the same."""

    def __str__(self) -> str:  # as printed in a jaxpr
        return type(self).__name__.removesuffix("Effect")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self).__name__)


class LogEffect(_ComparedByType, effects.DebugEffect):
    """The effect of an event that is not collected yet, or not ordered."""


class OrderedLogEffect(_ComparedByType, effects.OrderedEffect):
    """The effect of an event that is delivered in program order."""


LOG_EFFECT = LogEffect()
ORDERED_LOG_EFFECT = OrderedLogEffect()


_capturing = threading.local()


@contextlib.contextmanager
def captured_events() -> Iterator[list[tuple[Event, Sequence[Any]]]]:
    """Captures the events bound inside, with their operands; none enters a program."""
    before = getattr(_capturing, "events", None)
    events = _capturing.events = []
    try:
        yield events
    finally:
        _capturing.events = before


class _LogPrimitive(primitives.Primitive):
    def bind(self, *operands: Any, **params: Any) -> Any:
        """Adds the event to the traced program, even if all operands are constants."""
        captured = getattr(_capturing, "events", None)
        if captured is not None:
            captured.append((params["event"], operands))
            return []
        if not patches.installed:
            patches.install()
        if not compat.folds_constants():
            return super().bind(*operands, **params)
        with compat.without_folding():
            return super().bind(*operands, **params)


log_p: Any = _LogPrimitive("lox_log")
log_p.multiple_results = True


@log_p.def_effectful_abstract_eval
def _abstract_eval(*avals: Any, event: Event) -> tuple[list[Any], set[Any]]:
    return [], {ORDERED_LOG_EFFECT if event.route.ordered else LOG_EFFECT}


@log_p.def_impl
def _impl(*operands: Any, event: Event) -> list[Any]:
    check(event)
    if event.route.missed:
        warn_if_missed(event)
    if not event.route.quiet:
        count = len(operands) - event.layout.anchors
        sink = event.route.sink or default.sink
        sink.deliver(event, list(map(to_host, operands[:count])))
    return []


def to_host(x: Any) -> Any:
    """Converts to NumPy; typed PRNG keys, which NumPy does not have, to their data."""
    if is_typed_key(x):
        x = jax.random.key_data(x)
    return to_numpy(x)


def check(event: Event) -> None:
    """Raises the error of an event that has one, and has not been removed."""
    if event.layout.problem:
        raise LoxValueError(event.layout.problem)


def _lowering(ctx: Any, *operands: Any, event: Event) -> list[Any]:
    check(event)
    if event.route.missed:
        warn_if_missed(event)
    if event.route.quiet:
        return []
    if event.call.early and event.route.sink is None:
        warn_if_early(event.call.keys, event.call.source)
    if event.call.over:
        from_first = functools.partial(_bind_on_first_device, event=event)
        rule_tables.lower_as(ctx, from_first, operands)
        return []
    sink = event.route.sink or default.sink
    count = len(operands) - event.layout.anchors
    operands = operands[:count]
    avals = [array_types.physical_aval(aval) for aval in ctx.avals_in[:count]]
    effect = ORDERED_LOG_EFFECT if event.route.ordered else None
    devices, local_devices = callbacks.devices_of(ctx)
    event = event.with_route(devices=devices, local_devices=local_devices)
    callbacks.emit_callback(ctx, sink.receiver(event), operands, avals, effect)
    return []


def _bind_on_first_device(*operands: Any, event: Event) -> list[Any]:
    """Binds an event on one of the devices that log it together."""
    event, is_first = event.with_call(over=()), array_types.is_first(event.call.over)

    def body(again: Any) -> Any:
        log_p.bind(*operands, event=event)
        return jnp.zeros_like(again)

    # on CPUs, a loop of at most one iteration takes a fifth of the time of a `cond`
    jax.lax.while_loop(lambda again: again, body, is_first)
    return []


rule_tables.register_lowering(log_p, _lowering)
patches.add(*lowering.patches_for(ORDERED_LOG_EFFECT))


def batch(
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    event: Event,
    at: int = 0,
) -> tuple[list[Any], list[Any]]:
    """The batching rule of an event.

    JAX calls it even if no operand is mapped, so a constant is logged in every lane.
    The lanes become axis `at`.
    """
    if event.layout.once:
        batched = any(dim is not None for dim in dims)
        mark, event = event.layout.once, event.with_layout(once="")
        if mark == "value" or not batched:  # all lanes are the same
            one = [
                x if dim is None else jax.lax.index_in_dim(x, 0, dim, keepdims=False)
                for x, dim in zip(operands, dims, strict=True)
            ]
            return log_p.bind(*one, event=event), []
    elif patches.is_missing(JACFWD) and called_by_jacfwd():
        raise patches.error(JACFWD, event.call.description)
    lanes, event = with_lanes(axis_data, operands, dims, event, at)
    return log_p.bind(*lanes, event=event), []


def with_lanes(
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    event: Event,
    at: int = 0,
) -> tuple[list[Any], Event]:
    """The operands with one more axis of lanes, and their event."""
    count = len(operands) - event.layout.anchors
    lanes = []
    for x, dim in zip(operands[:count], dims[:count], strict=True):
        x = jnp.asarray(x)  # literals arrive as Python numbers
        if dim is None:
            x, dim = batching.broadcast_lanes(x, axis_data), 0
        lanes.append(x if dim == at else jnp.moveaxis(x, dim, at))
    event = event.with_layout(lanes=event.layout.lanes + 1)
    return [*lanes, *operands[count:]], event


rule_tables.register_batching(log_p, batch)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, event: Event
) -> tuple[list[Any], list[Any]]:
    return log_p.bind(*primals, event=event), []


# suppresses warnings about tangents, for code whose events are removed anyway
without_transpose_warnings = Flag()


def _transpose(cotangents: Any, *operands: Any, event: Event) -> list[None]:
    if not without_transpose_warnings:
        warn(
            f"{event.call.description}, contains a tangent, which reverse mode never "
            "computes: the event is removed. Log it under `jax.jvp`, or log the other "
            "values in a separate call.",
            event.call.source,
        )
    return [None] * len(operands)


rule_tables.register_jvp(log_p, _jvp)
rule_tables.register_transpose(log_p, _transpose)
rule_tables.register_jet(log_p, lambda *operands, event: [])
