"""The step `lane`, which says from which lane of a `vmap` a row on the host comes."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import is_tracer

from .key import Key

LANE = "lane"
# the lane of a row that was logged outside any `vmap`
NO_LANE = -1
DTYPE = np.dtype(np.int32)
# the step that says which process has logged a row, if there are several
PROCESS = "process"


def inner_lane(key: Key, count: int, number: int) -> Key:
    """Adds the step `lane` to the rows of one of the `count` lanes of an axis.

    The lanes of nested axes, and of rows that already name a lane, are numbered
    consecutively, in C order.
    """
    outer = key.steps.get(LANE, np.zeros(key.row_shape(), DTYPE))
    return key._replace(steps={**key.steps, LANE: outer * count + number})


class Lane(NamedTuple):
    """A lane that rows name: each process of a job may number its own from 0."""

    number: int
    process: int

    def is_of(self, steps: Mapping[str, Any]) -> Any:
        """Which rows belong to this lane, given their steps."""
        found = np.asarray(steps[LANE]) == self.number
        if PROCESS in steps:
            return found & (np.asarray(steps[PROCESS]) == self.process)
        return found & (self.process == 0)

    def name(self, several: bool) -> str:
        """The name of the lane; with its process, if there are several."""
        name = "no lane" if self.number == NO_LANE else f"lane {self.number}"
        return f"{name} of process {self.process}" if several else name


def named_lanes(keys: Iterable[Key]) -> list[Lane]:
    """All lanes that the rows of these keys name; those with `NO_LANE` come last."""
    return lanes_in(key.steps for key in keys)


def lanes_in(every: Iterable[Mapping[str, Any]]) -> list[Lane]:
    """All lanes that rows name, given their steps; those with `NO_LANE` come last."""
    found: set[Lane] = set()
    for steps in every:
        lane, process = steps.get(LANE), steps.get(PROCESS, 0)
        if lane is not None and not (is_tracer(lane) or is_tracer(process)):
            pairs = np.broadcast_arrays(np.asarray(lane), np.asarray(process))
            columns = np.stack([x.reshape(-1) for x in pairs])
            found |= {Lane(*pair) for pair in np.unique(columns, axis=1).T.tolist()}
    return sorted(found, key=lambda lane: (lane.number == NO_LANE, lane))


def have_several_processes(lanes: Iterable[Lane]) -> bool:
    return len({lane.process for lane in lanes}) > 1


def rows_of_lane(key: Key, lane: Lane) -> Key | None:
    """The rows of one lane, without the step; None if there are none.

    A key whose rows name no lane belongs to every lane.
    """
    if LANE not in key.steps:
        return key
    found = lane.is_of(key.steps)
    key = key._replace(steps={k: x for k, x in key.steps.items() if k != LANE})
    if not key.info.stacked:
        return key if found.all() else None
    # if rows also have lane axes, they are the same lane along all of them
    by_row = np.moveaxis(found, key.info.time_axis(found, 0), 0)
    (rows,) = np.nonzero(by_row.reshape(len(by_row), -1)[:, 0])
    if len(rows) == len(by_row):
        return key
    return key.taken(rows) if len(rows) else None
