"""The run of an event: the data of its PRNG key, as one more operand.

The operand follows those of the event (see `Event`) and precedes the anchors. Only the
sinks of loggers know about it; JAX batches it like all other operands.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lox._errors import LoxValueError
from lox._events.event import Event


def with_run(event: Event, operands: Sequence[Any], run: Any) -> list[Any]:
    """Adds the run to the operands of an event.

    Args:
        event: the event.
        operands: its operands.
        run: the key data, of shape `(*lanes, words)`. The lanes are the outermost lanes
            of the event, each of which is a separate run.
    """
    end = len(operands) - event.layout.anchors
    lanes = jnp.shape(operands[0])[: event.layout.lanes]
    own = jnp.shape(run)[:-1]
    if own != lanes[: len(own)]:
        raise LoxValueError(
            f"{event.call.keys[0]!r}, logged at {event.call.source}, has {lanes} "
            f"lanes, but the state of the logger has {own} runs. Create one run per "
            "lane with `jax.vmap(logger.init)(keys)`, or one run for all lanes."
        )
    words = jnp.shape(run)[-1]
    run = jnp.reshape(run, (*own, *[1] * (len(lanes) - len(own)), words))
    run = jnp.broadcast_to(run, (*lanes, words))
    return [*operands[:end], run, *operands[end:]]


def split_run(operands: Sequence[Any]) -> tuple[Sequence[Any], Any]:
    """The operands of an event on the host, where there are no anchors, and its run."""
    return operands[:-1], operands[-1]
