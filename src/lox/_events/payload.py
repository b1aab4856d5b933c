"""Events with one pytree for one sink: used by loggers and `lox.save`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._jax import array_types
from lox._source import user_source

from .event import Call, Event, Route, Sink
from .log import operand
from .primitive import log_p

PAYLOAD = "payload"


def send_payload(
    payload: Any,
    sink: Sink,
    caller: str,
    with_device: Callable[[Event, Sequence[Any]], tuple[Event, Sequence[Any]]]
    | None = None,
) -> None:
    """Adds an event to the program whose only value is `payload`.

    Args:
        payload: a pytree of arrays.
        sink: the sink, which receives it under the key `PAYLOAD`, in program order
            where JAX supports that.
        caller: the calling function, for messages.
        with_device: adds the number of the device to an event in a `shard_map`.
    """
    leaves, tree = jax.tree.flatten(payload)
    source = user_source()
    operands: Sequence[Any]
    operands = [operand(leaf, "a value", f"{caller} at {source}") for leaf in leaves]
    route = Route(sink=sink, ordered=not array_types.partly_manual())
    event = Event(Call((PAYLOAD,), (tree,), (), source), route=route)
    if with_device is not None:
        event, operands = with_device(event, operands)
    log_p.bind(*operands, event=event)
