"""The primitive that a `lox.log` call becomes, and how JAX's transformations treat it.

`log_p` has no results. Its one parameter is the `Event`; its operands are the event's
values, steps, mask and anchors (see `Event`).

Its effect descends from the one of `jax.debug.callback`, so that JAX allows it
everywhere and never removes it. There is no rule for `partial_eval_jaxpr_custom` on
purpose: such a rule is what makes `jax.debug.callback` run twice under `checkpoint`.
"""

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._arrays import to_numpy
from lox._errors import LoxWarning
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

from .event import Event, default
from .not_traced import check_early


class LogEffect(effects.DebugEffect):
    """The effect of an event that no transformation has taken, or that has no order."""

    def __str__(self) -> str:
        return "Log"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash("lox.LogEffect")


class OrderedLogEffect(effects.OrderedEffect):
    """The effect of an event that is delivered in program order."""

    def __str__(self) -> str:
        return "OrderedLog"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash("lox.OrderedLogEffect")


LOG_EFFECT = LogEffect()
ORDERED_LOG_EFFECT = OrderedLogEffect()


_capturing = threading.local()


@contextlib.contextmanager
def captured_events() -> Iterator[list[tuple[Event, Sequence[Any]]]]:
    """The events that are bound inside, with their operands; no program gets them."""
    before = getattr(_capturing, "events", None)
    events = _capturing.events = []
    try:
        yield events
    finally:
        _capturing.events = before


class _LogPrimitive(primitives.Primitive):
    def bind(self, *operands: Any, **params: Any) -> Any:
        """Adds the event to the program that is traced, constants included."""
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
    del avals
    return [], {ORDERED_LOG_EFFECT if event.route.ordered else LOG_EFFECT}


@log_p.def_impl
def _impl(*operands: Any, event: Event) -> list[Any]:
    if not event.route.quiet:
        real = operands[: len(operands) - event.layout.anchors]
        (event.route.sink or default.sink).deliver(event, list(map(to_host, real)))
    return []


def to_host(x: Any) -> Any:
    """`x` as NumPy; typed PRNG keys, which NumPy does not have, as their data."""
    if is_key(x):
        x = jax.random.key_data(x)
    return to_numpy(x)


def is_key(x: Any) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jax.dtypes.prng_key)


def _lowering(ctx: Any, *operands: Any, event: Event) -> list[Any]:
    if event.route.quiet:
        return []
    if event.call.early and event.route.sink is None:
        check_early(event.call.keys, event.call.source)
    sink = event.route.sink or default.sink
    count = len(operands) - event.layout.anchors
    operands = operands[:count]
    avals = [array_types.physical_aval(aval) for aval in ctx.avals_in[:count]]
    effect = ORDERED_LOG_EFFECT if event.route.ordered else None
    devices, per_device = callbacks.devices_of(ctx)
    event = event.with_route(devices=devices, per_device=per_device)
    callbacks.emit_callback(ctx, sink.receiver(event), operands, avals, effect)
    return []


rule_tables.register_lowering(log_p, _lowering)
patches.add(*lowering.patches_for(ORDERED_LOG_EFFECT))


def _batch(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, event: Event
) -> tuple[list[Any], list[Any]]:
    # The rule is called even when no operand is mapped, so that a constant logged
    # under `vmap` is logged in every lane.
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
    lanes, event = with_lanes(axis_data, operands, dims, event)
    return log_p.bind(*lanes, event=event), []


def with_lanes(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], event: Event
) -> tuple[list[Any], Event]:
    """The operands with one more axis of lanes in front, and their event."""
    count = len(operands) - event.layout.anchors
    lanes = []
    for x, dim in zip(operands[:count], dims[:count], strict=True):
        x = jnp.asarray(x)  # literals arrive as Python numbers
        if dim is None:
            lanes.append(batching.broadcast_lanes(x, axis_data))
        else:
            lanes.append(jnp.moveaxis(x, dim, 0))
    event = event.with_layout(lanes=event.layout.lanes + 1)
    return [*lanes, *operands[count:]], event


rule_tables.register_batching(log_p, _batch)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, event: Event
) -> tuple[list[Any], list[Any]]:
    del tangents
    return log_p.bind(*primals, event=event), []


_leaving_out = threading.local()


@contextlib.contextmanager
def left_out_quietly() -> Iterator[None]:
    """For code whose events are to be removed: no warning where one is left out."""
    before = getattr(_leaving_out, "quietly", False)
    _leaving_out.quietly = True
    try:
        yield
    finally:
        _leaving_out.quietly = before


def _transpose(cotangents: Any, *operands: Any, event: Event) -> list[None]:
    del cotangents
    if getattr(_leaving_out, "quietly", False):
        return [None] * len(operands)
    warnings.warn_explicit(
        f"{event.call.description}, is or goes "
        "with a tangent, which reverse mode never computes: the event is left out. Log "
        "it under `jax.jvp`, or log values that are no tangents apart from it.",
        LoxWarning,
        event.call.source.file,
        event.call.source.line,
    )
    return [None] * len(operands)


rule_tables.register_jvp(log_p, _jvp)
rule_tables.register_transpose(log_p, _transpose)
rule_tables.register_jet(log_p, lambda *operands, event: [])
