"""The step `lane`, which says from which lane of a `vmap` a row on the host comes."""

from collections.abc import Mapping

import numpy as np

from lox._arrays import is_tracer

from .key import Key

LANE = "lane"
# the lane of a row that was logged outside of any `vmap`
NO_LANE = -1
DTYPE = np.dtype(np.int32)
# the step that says which process has logged a row, if there are several
PROCESS = "process"


def inner_lane(key: Key, count: int, number: int) -> Key:
    """Names the lane of the rows of a key, one of `count` lanes of an axis.

    The lanes of nested axes, and of rows that name a lane already, are numbered
    through, in C order.
    """
    outer = key.steps.get(LANE, np.zeros(key.row_shape(), DTYPE))
    return key._replace(steps={**key.steps, LANE: outer * count + number})


def lane_numbers(keys: Mapping[str, Key]) -> list[int]:
    """All lanes that the rows of these keys name; `NO_LANE` is the last one."""
    steps = [key.steps[LANE] for key in keys.values() if LANE in key.steps]
    found = [np.unique(step) for step in steps if not is_tracer(step)]
    if not found:
        return []
    numbers: list[int] = np.unique(np.concatenate(found)).tolist()
    return sorted(numbers, key=lambda number: (number == NO_LANE, number))


def rows_of_lane(key: Key, number: int) -> Key | None:
    """The rows of one lane, without the step; None if there are none.

    A key whose rows name no lane belongs to every lane.
    """
    if LANE not in key.steps:
        return key
    lane = np.asarray(key.steps[LANE])
    key = key._replace(steps={k: x for k, x in key.steps.items() if k != LANE})
    if not key.info.stacked:
        return key if (lane == number).all() else None
    # rows that have lane axes as well are the same lane in all of these
    by_row = np.moveaxis(lane, key.info.time_axis(lane, 0), 0)
    (rows,) = np.nonzero(by_row.reshape(len(by_row), -1)[:, 0] == number)
    if len(rows) == len(by_row):
        return key
    return key.taken(rows) if len(rows) else None
