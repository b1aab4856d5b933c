"""Runs inside a program: a run is told by its PRNG key, which goes with every event.

The words of the key are one operand, a step whose name nobody else can give. On the
host they become as many steps, since a step of a logdict is a number.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._errors import LoxValueError
from lox._events.event import Event
from lox._logs.logdict import logdict

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
    lanes = jnp.shape(leaf)[: event.layout.lanes]
    own = jnp.shape(words)[:-1]
    if own != lanes[: len(own)]:
        raise LoxValueError(
            f"{event.call.keys[0]!r}, logged at {event.call.source}, has {lanes} "
            f"lanes, and the logger's state is one of {own} runs. Make a run per lane, "
            "by `jax.vmap(logger.init)(keys)`, or one for all."
        )
    # the rows of a buffer share it, so that one for all of them is enough
    shape = (*lanes, 1) if event.layout.buffered else lanes
    count = jnp.shape(words)[-1]
    words = jnp.reshape(words, (*own, *[1] * (len(shape) - len(own)), count))
    parts.steps.append(jnp.broadcast_to(words, (*shape, count)))
    event = event.with_call(steps=(*event.call.steps, f"{_WORD}{count}"))
    return event, parts.flat()


def without_run(event: Event) -> Event:
    """The event without the words of its run, which come after its steps."""
    return event.with_call(steps=event.call.steps[:-1])


def with_words(
    event: Event,
) -> tuple[Event, Callable[[Sequence[Any]], list[Any]]]:
    """The event whose steps the words of its run are, and how to get its operands."""
    count = int(event.call.steps[-1].removeprefix(_WORD))
    place = (
        sum(tree.num_leaves for tree in event.call.trees) + len(event.call.steps) - 1
    )
    names = (f"{_WORD}{i}" for i in range(count))
    apart = event.with_call(steps=(*event.call.steps[:-1], *names))

    def operands_of(operands: Sequence[Any]) -> list[Any]:
        words = operands[place]
        each = (words[..., i] for i in range(count))
        return [*operands[:place], *each, *operands[place + 1 :]]

    return apart, operands_of


def take_run(logs: logdict) -> tuple[list[int], logdict]:
    """The words of the run that logs on the host belong to, and the logs without."""
    key = next(iter(logs))
    steps = {n: of for n, of in logs._steps.items() if not n.startswith(_WORD)}
    words = [of[key] for n, of in logs._steps.items() if n.startswith(_WORD)]
    own = logdict._of(dict(logs), steps, logs._mask, logs._info)
    return [int(np.ravel(word)[0]) for word in words], own
