"""Runs inside a program: a run is told by its PRNG key, which goes with every event.

On the host, the words of the key are steps of names that nobody else can give.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._errors import LoxValueError
from ._events import Event
from ._logdict import logdict

_WORD = "\0word"


def with_run(
    event: Event, operands: Sequence[Any], words: Any
) -> tuple[Event, list[Any]]:
    """An event that carries the words of its run's key.

    Args:
        event: the event.
        operands: its operands.
        words: of shape `(*lanes, words)`, for as many of the event's lanes, from the
            outermost on, as are runs of their own.
    """
    parts = event.split(operands)
    leaf = parts.values[0][0]
    lanes = jnp.shape(leaf)[: event.lanes]
    own = jnp.shape(words)[:-1]
    if own != lanes[: len(own)]:
        raise LoxValueError(
            f"{event.keys[0]!r}, logged at {event.source}, has {lanes} lanes, and the "
            f"logger's state is one of {own} runs. Make a run for each lane, by "
            "`jax.vmap(logger.init)(keys)`, or one for all."
        )
    # the rows of a buffer share it, so that one for all of them is enough
    shape = (*lanes, 1) if event.buffered else lanes
    for i in range(jnp.shape(words)[-1]):
        word = words[..., i]
        word = jnp.reshape(word, own + (1,) * (len(shape) - len(own)))
        parts.steps.append(jnp.broadcast_to(word, shape))
    names = tuple(f"{_WORD}{i}" for i in range(jnp.shape(words)[-1]))
    return dataclasses.replace(event, steps=(*event.steps, *names)), parts.flat()


def take_run(logs: logdict) -> tuple[tuple[int, ...], logdict]:
    """The words of the run that logs on the host belong to, and the logs without."""
    key = next(iter(logs))
    steps = {n: of for n, of in logs._steps.items() if not n.startswith(_WORD)}
    words = [of[key] for n, of in logs._steps.items() if n.startswith(_WORD)]
    own = logdict._of(dict(logs), steps, logs._mask, logs._info)
    return tuple(int(np.ravel(word)[0]) for word in words), own
