"""Converts the NumPy operands of an event to logdicts.

The functions here return a function of the operands. A program may call that function a
million times, so everything that can be done once is done beforehand.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from lox._events.event import Event, Operands
from lox._logs.access import metadata_of, with_info, with_lane
from lox._logs.key import KeyInfo
from lox._logs.lane_step import DTYPE as LANE_DTYPE, LANE
from lox._logs.logdict import RowToLogs, logdict, make_logdict
from lox._logs.metadata import Metadata
from lox._logs.row_maker import row_maker

EventToLogs = Callable[[Sequence[Any]], Iterable[logdict]]
_ARRAY = jax.tree.structure(0)  # the structure of a value that is a single array


def lane_converter(event: Event) -> EventToLogs:
    """Converts an event to one logdict per lane, in order; empty if it was not logged.

    A logdict has several rows if the event is a buffer or has elements. If the event
    has lanes, the rows have the step `lane`.
    """
    if event.layout.masked or event.layout.buffered:
        convert = per_lane_converter(event)
        if not names_lanes(event):
            return convert
        return lambda operands: (
            with_lane(logs, number) for number, logs in enumerate(convert(operands))
        )
    if not names_lanes(event):
        to_logs = row_converter(event.with_layout(lanes=0))
        if not event.layout.lanes:
            return lambda operands: (to_logs(operands),)
        return lambda operands: map(to_logs, each_lane(operands, event.layout.lanes))
    lane_to_logs = lane_row_converter(event)

    def convert_lanes(operands: Sequence[Any]) -> Iterable[logdict]:
        lanes = operands[0].shape[: event.layout.lanes]
        numbers = np.arange(math.prod(lanes), dtype=LANE_DTYPE).reshape(lanes)
        rows = each_lane((*operands, numbers), event.layout.lanes)
        return map(lane_to_logs, rows)

    return convert_lanes


def names_lanes(event: Event) -> bool:
    """Whether rows of the event get the step `lane`; a step of this name is kept."""
    return event.layout.lanes > 0 and LANE not in event.call.steps


def with_outer_lanes(
    event: Event, operands: Sequence[Any], numbers: Any = None
) -> Sequence[Any]:
    """Numbers the lanes of a `vmap` around an event whose devices are numbered.

    Args:
        event: the event.
        operands: its operands; there may be more of them.
        numbers: the numbers of the outer lanes; by default their positions.
    """
    if event.layout.device_lanes is None:
        return operands
    devices, inner = event.layout.device_lanes
    outer = event.layout.lanes - inner
    if not outer:
        return operands
    lanes = operands[0].shape[: event.layout.lanes]
    if numbers is None:
        numbers = np.arange(math.prod(lanes[:outer]), dtype=LANE_DTYPE)
    count = devices * math.prod(lanes[outer:])
    at = sum(tree.num_leaves for tree in event.call.trees)
    at += event.call.steps.index(LANE)
    lane = operands[at]
    before = numbers.reshape(*lanes[:outer], *[1] * (lane.ndim - outer)) * count
    return (*operands[:at], lane + before, *operands[at + 1 :])


def per_lane_converter(event: Event) -> EventToLogs:
    """As `lane_converter`, for buffered or masked events, without the step `lane`."""
    if event.layout.buffered:
        return _buffer_converter(event)

    def convert_lanes(operands: Sequence[Any]) -> Iterable[logdict]:
        sizes = operands[0].shape[: event.layout.lanes]
        return _lanes(_event_logdict(event, operands), sizes)

    return convert_lanes


def lane_row_converter(event: Event) -> RowToLogs:
    """Converts one lane of an event without a mask; its last array is the lane."""
    steps = (*event.call.steps, LANE)
    return row_converter(event.with_layout(lanes=0).with_call(steps=steps))


def batch_converter(event: Event) -> EventToLogs:
    """Converts an event to one logdict with all lanes; empty if none was logged."""
    if event.layout.buffered:
        return _batched_buffer_converter(event)
    return lambda operands: (_event_logdict(event, operands).compact(),)


def each_lane(operands: Sequence[Any], lanes: int) -> Iterable[Sequence[Any]]:
    """The operands of each lane of an event without a mask."""
    count = math.prod(operands[0].shape[:lanes])
    return zip(*(x.reshape(count, *x.shape[lanes:]) for x in operands), strict=True)


def row_converter(event: Event) -> RowToLogs:
    """Converts an event without lanes or mask, whose shapes do not change.

    There may be more operands after those of the event.
    """
    if not all(tree == _ARRAY for tree in event.call.trees):
        return lambda operands: _event_logdict(event, operands)
    keys, count = event.call.keys, len(event.call.keys)

    def describe(operands: Sequence[Any]) -> dict[str, KeyInfo]:
        multi_rows = event.route.multi_row or (None,) * count
        return {
            key: KeyInfo(False, 0, (np.ndim(x),), event.call.tags, multi_row)
            for key, x, multi_row in zip(
                keys, operands[:count], multi_rows, strict=True
            )
        }

    return row_maker(keys, event.call.steps, describe)


def _event_logdict(event: Event, operands: Sequence[Any]) -> logdict:
    """The logdict of one event, with its elements and lanes as leading axes."""
    lanes, elements = event.layout.lanes, event.layout.elements
    if elements:
        operands = [np.moveaxis(x, lanes, 0) for x in operands]
    parts = event.split(operands)
    return _logdict(event, parts, elements, lanes, parts.mask)


def _lanes(logs: logdict, sizes: tuple[int, ...]) -> list[logdict]:
    if not sizes:
        return [logs.compact()]
    if not logs:  # an outer lane in which nothing was logged has inner lanes, too
        return [logs] * math.prod(sizes)
    return [inner for lane in logs.lanes() for inner in _lanes(lane, sizes[1:])]


# --- buffers, whose rows are an axis after the lanes -------------------------


def _buffer_converter(event: Event) -> EventToLogs:
    plain = event.with_layout(masked=False, buffered=False)
    # one object for all logdicts: receivers compare it to see that nothing has changed
    info: dict[str, KeyInfo] = {}

    def convert_lanes(operands: Sequence[Any]) -> Iterable[logdict]:
        parts = event.split(operands)
        filled = _filled(parts)
        arrays = (*_leaves(parts), *parts.steps)
        for lane in np.ndindex(filled.shape):
            count = filled[lane]
            if not count:
                yield logdict()
                continue
            logs = _stacked(plain, [x[lane][:count] for x in arrays], 0, None)
            if not info:
                info.update(metadata_of(logs).info)
            yield with_info(logs, info)

    return convert_lanes


def _batched_buffer_converter(event: Event) -> EventToLogs:
    lanes = event.layout.lanes
    plain = event.with_layout(masked=False, buffered=False)

    def convert_all_lanes(operands: Sequence[Any]) -> Iterable[logdict]:
        parts = event.split(operands)
        filled = _filled(parts)
        longest = filled.max()
        if longest:
            arrays = (*_leaves(parts), *parts.steps)
            moved = [np.moveaxis(x, lanes, 0)[:longest] for x in arrays]
            mask = np.arange(longest).reshape(-1, *[1] * lanes) < filled
            yield _stacked(plain, moved, lanes, None if mask.all() else mask)

    return convert_all_lanes


def _leaves(parts: Operands) -> list[Any]:
    return [leaf for value in parts.values for leaf in value]


def _filled(parts: Operands) -> Any:
    """The number of rows per lane."""
    if parts.mask is None:
        return np.asarray(parts.filled)
    return np.where(parts.mask, parts.filled, 0)


def _stacked(event: Event, arrays: list[Any], lanes: int, mask: Any) -> logdict:
    return _logdict(event, event.split(arrays), True, lanes, mask)


def _logdict(
    event: Event, parts: Operands, stacked: bool, lanes: int, mask: Any
) -> logdict:
    data: dict[str, Any] = {}
    info: dict[str, KeyInfo] = {}
    multi_row = dict(zip(event.call.keys, event.route.multi_row, strict=False))
    for key, tree, leaves in zip(
        event.call.keys, event.call.trees, parts.values, strict=True
    ):
        data[key] = tree.unflatten(leaves)
        ndims = tuple(np.ndim(leaf) - stacked - lanes for leaf in leaves)
        info[key] = KeyInfo(stacked, lanes, ndims, event.call.tags, multi_row.get(key))
    steps = {
        name: dict.fromkeys(event.call.keys, value)
        for name, value in zip(event.call.steps, parts.steps, strict=True)
    }
    masks = {} if mask is None else dict.fromkeys(event.call.keys, mask)
    return make_logdict(data, Metadata(steps, masks, info))
