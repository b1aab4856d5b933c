"""Runs inside a program: a run is told by its PRNG key, which goes with every event.

The words of the key are one operand, a step whose name nobody else can give. On the
host they become as many steps, since a step of a logdict is a number.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._errors import LoxValueError
from lox._events.event import Event
from lox._logs.access import metadata_of
from lox._logs.logdict import logdict, make_logdict

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
    count = jnp.shape(words)[-1]
    words = jnp.reshape(words, (*own, *[1] * (len(shape) - len(own)), count))
    parts.steps.append(jnp.broadcast_to(words, (*shape, count)))
    event = dataclasses.replace(event, steps=(*event.steps, f"{_WORD}{count}"))
    return event, parts.flat()


def without_run(event: Event) -> Event:
    """The event without the words of its run, which come after its steps."""
    return dataclasses.replace(event, steps=event.steps[:-1])


def with_words(
    event: Event,
) -> tuple[Event, Callable[[Sequence[Any]], list[Any]]]:
    """The event whose steps the words of its run are, and how to get its operands."""
    count = int(event.steps[-1].removeprefix(_WORD))
    place = sum(tree.num_leaves for tree in event.trees) + len(event.steps) - 1
    names = (f"{_WORD}{i}" for i in range(count))
    apart = dataclasses.replace(event, steps=(*event.steps[:-1], *names))

    def operands_of(operands: Sequence[Any]) -> list[Any]:
        words = operands[place]
        each = (words[..., i] for i in range(count))
        return [*operands[:place], *each, *operands[place + 1 :]]

    return apart, operands_of


def take_run(logs: logdict) -> tuple[list[int], logdict]:
    """The words of the run that logs on the host belong to, and the logs without."""
    key, metadata = next(iter(logs)), metadata_of(logs)
    by_name = metadata.steps.items()
    words = [by_key[key] for name, by_key in by_name if name.startswith(_WORD)]
    steps = {name: x for name, x in by_name if not name.startswith(_WORD)}
    own = make_logdict(logs, metadata._replace(steps=steps))
    return [int(np.ravel(word)[0]) for word in words], own
