"""The runs of lanes.

If lanes share a run, the step `lane` distinguishes their rows.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lox._errors import LoxValueError
from lox._events.event import Event
from lox._events.payload import PAYLOAD
from lox._host.logdicts import lane_converter, names_lanes, with_outer_lanes
from lox._logs.access import with_lane
from lox._logs.lane_step import DTYPE
from lox._logs.logdict import logdict


class LanesInRuns:
    """The number of each lane of an event within its run.

    Consecutive events usually have the same runs, so the last answer is remembered.
    """

    def __init__(self, event: Event) -> None:
        self._named = names_lanes(event)
        self._words = b""
        self._lanes: Any = None

    def __call__(self, words: Any) -> Any:
        """The numbers as an array; None if no lanes share a run, or none are named.

        Args:
            words: the words of the run of each lane, of shape `(*lanes, words)`.
        """
        if not self._named:
            return None
        content = words.tobytes()
        if content != self._words:
            self._words, self._lanes = content, _lanes_of_runs(words)
        return self._lanes


def with_lanes_of_runs(event: Event, operands: Sequence[Any]) -> Sequence[Any]:
    """Numbers the lanes around an event whose devices are numbered, in each run.

    Args:
        event: the event.
        operands: its operands, and then the words of its runs.
    """
    if event.layout.device_lanes is None:
        return operands
    words, (_, inner) = operands[-1], event.layout.device_lanes
    outer = event.layout.lanes - inner
    words = words[(slice(None),) * outer + (0,) * inner]
    return with_outer_lanes(event, operands, _outer_lanes(words))


def _outer_lanes(words: Any) -> Any:
    """The number of each lane within its run, given the words of their runs."""
    numbers = _lanes_of_runs(words)
    if numbers is None:  # each of these lanes is a separate run
        return np.zeros(words.shape[:-1], DTYPE)
    return numbers


def _lanes_of_runs(words: Any) -> Any:
    runs = list(map(tuple, words.reshape(-1, words.shape[-1]).tolist()))
    if len(set(runs)) == len(runs):
        return None
    counts: Counter[tuple[int, ...]] = Counter()
    numbers = np.empty(len(runs), DTYPE)
    for i, run in enumerate(runs):
        numbers[i] = counts[run]
        counts[run] += 1
    return numbers


def run_logs_converter(
    event: Event,
) -> Callable[[Sequence[Any]], Iterator[tuple[Any, logdict]]]:
    """Converts a payload of the words of runs and logs to one such pair per lane.

    The words may be None, if the logs contain an array: without any array, the lanes
    of an event are unknown. In a `shard_map`, the number of the device follows, and
    rows have the step `lane`.
    """
    convert = lane_converter(event)
    lanes_in_runs = LanesInRuns(event)

    def convert_lanes(operands: Sequence[Any]) -> Iterator[tuple[Any, logdict]]:
        # the words come first; without them, all logs are of one run
        has_words = event.call.trees[0].children()[0].num_leaves > 0
        shape = operands[0].shape[: event.layout.lanes]
        words = operands[0].reshape(*shape, -1) if has_words else np.zeros((*shape, 1))
        lanes = lanes_in_runs(words)
        for i, payload in enumerate(convert(operands)):
            if payload:
                run, logs, *device = payload[PAYLOAD]
                lane = None if lanes is None else lanes[i]
                if device:  # devices are the outermost lanes
                    # not the number of lanes in the run, which differs between devices
                    count = 1 if lanes is None else len(lanes)
                    lane = int(device[0]) * count + (lane or 0)
                yield run, logs if lane is None else with_lane(logs, lane)

    return convert_lanes


def split_by_run(
    words: Any, logs: logdict, mismatch: Callable[[int, int], str]
) -> Iterator[tuple[Any, logdict]]:
    """Splits logs by their lanes: yields the words and the logs of each run.

    Args:
        words: the words of the run, or of the run of each lane; None for one run
            without words.
        logs: the logs, with the lanes of `words`.
        mismatch: the error message for numbers of runs and lanes that differ.
    """
    if words is None or np.ndim(words) < 2:
        yield words, logs
        return
    # an outer lane in which nothing was logged has lost the axes of its inner lanes
    lanes = logs.lanes() if logs else [logs] * len(words)
    if len(lanes) != len(words):
        raise LoxValueError(mismatch(len(words), len(lanes)))
    for of_lane, lane in zip(words, lanes, strict=True):
        yield from split_by_run(of_lane, lane, mismatch)
