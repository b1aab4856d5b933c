"""Events with one pytree for one sink: used by loggers and `lox.save`."""

from collections.abc import Iterable
from typing import Any

import jax

from lox._jax import array_types
from lox._source import user_source

from .event import Call, Event, Route, Sink
from .primitive import log_p
from .values import operand

PAYLOAD = "payload"


def send_payload(
    payload: tuple[Any, ...],
    sink: Sink,
    caller: str,
    over: tuple[str, ...] = (),
    names_device: bool = False,
    names: Iterable[str] = (),
) -> None:
    """Adds an event to the program whose only value is `payload`.

    Args:
        payload: a pytree of arrays.
        sink: the sink, which receives it under the key `PAYLOAD`, in program order
            where JAX supports that.
        caller: the calling function, for messages.
        over: the mesh axes along which the first device sends for all.
        names_device: whether the number of the device is added to the payload, in a
            `shard_map`.
        names: the user's names of the values, for messages.
    """
    device = array_types.device_in_shard_map(over) if names_device else None
    if device is not None:
        payload = (*payload, device[0])
    leaves, tree = jax.tree.flatten(payload)
    source = user_source()
    operands = [operand(leaf, "a value", f"{caller} at {source}") for leaf in leaves]
    route = Route(sink=sink, ordered=not array_types.partly_manual())
    call = Call((PAYLOAD,), (tree,), (), source, over=over, names=tuple(names))
    log_p.bind(*operands, event=Event(call, route=route))
