"""The data of one chart: statistics over the runs of each group, and single runs."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lox._errors import StoreError

from .chart_requests import ALL, AUTO, KEY, ROW, TIME, TIMES, CannotExtendError, Request
from .grouping import Group, differing_keys, group_runs, is_seed
from .lane_table import Array, Lane, LaneTable
from .signals import CLOCK, SCALAR, Signal, as_numbers, read_rows
from .source import RunSource, StoreSource


def grouping(source: StoreSource, by: Sequence[str]) -> list[Group]:
    """The groups of the runs of a store."""
    configs = {number: run.config for number, run in source.runs.items()}
    keys = list(by)
    if keys == [AUTO]:
        keys = [k for k in differing_keys(configs.values()) if not is_seed(k)]
    elif keys == [ALL]:
        keys = []
    return group_runs(configs, keys)


def chart(source: StoreSource, request: Request) -> dict[str, Any]:
    """The data of a chart, to be packed."""
    return next(charts(source, request, [request.by]))[1]


def charts(
    source: StoreSource, request: Request, groupings: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """The data of one chart for several groupings; reads the runs once."""
    after = request.after
    if after is not None and request.x in TIMES:
        # the times of the last rows are not final
        raise CannotExtendError
    lanes, axes, problems = _lanes(source, request)
    if after is not None and any(_is_unordered(lane, after) for lane in lanes):
        raise CannotExtendError
    lanes = [
        lane if source.common_steps.has(lane.x) else _ascending(lane) for lane in lanes
    ]
    full = [lane for lane in lanes if len(lane.x)]
    extent = [
        min((float(lane.x[0]) for lane in full), default=None),
        max((float(lane.x[-1]) for lane in full), default=None),
    ]
    if request.after is None:
        lanes = [_between(lane, request) for lane in full]
        lanes = [lane for lane in lanes if len(lane.x)]
    else:  # the page must see new runs, even those without rows in this range
        lanes = [_between(lane, request) for lane in lanes]
    table = LaneTable(lanes, request)
    common = {
        "key": request.key,
        "axes": axes,
        "extent": extent,
        "width": table.width,
        "binned": table.binned,
        "from": table.from_x,
        "to": table.to_x,
        "lanes": table.curves(),
        "problems": problems,
    }
    for by in groupings:
        groups = [
            {"label": group.label, "runs": group.runs, **found}
            for group in grouping(source, by)
            if (found := table.summary(group, request.bands)) is not None
        ]
        yield by, {**common, "groups": groups}


# --- rows --------------------------------------------------------------------


def _lanes(
    source: StoreSource, request: Request
) -> tuple[list[Lane], list[str], list[str]]:
    """The lanes of all runs, the names of their x-axes, and what cannot be read."""
    lanes: list[Lane] = []
    axes: dict[str, None] = {}
    problems: list[str] = []
    untimed_runs = untimed_rows = 0
    for number, run in source.runs.items():
        signal = run.signals.get(request.key)
        selected = request.runs is None or number in request.runs
        if signal is None or signal.kind != SCALAR or not selected:
            continue
        if request.x in TIMES and not signal.has_times:
            untimed_runs += 1
            continue
        try:
            axis, found = _rows(source, run, signal, request)
        except (StoreError, OSError, ValueError) as error:
            problems.append(f"{run.run.name}: {error}")
            continue
        axes[axis] = None
        lanes += [Lane(number, lane, x, values) for lane, x, values in found]
        if request.x in TIMES:
            untimed_rows += sum(int(np.isnan(x).sum()) for _, x, _ in found)
    for count, what in ((untimed_rows, "row"), (untimed_runs, "run")):
        if count:
            have = f"{what} has" if count == 1 else f"{what}s have"
            problems.insert(0, f"{count:,} {have} no times, and cannot be shown")
    return lanes, list(axes), problems


def _rows(
    source: StoreSource, run: RunSource, signal: Signal, request: Request
) -> tuple[str, list[tuple[str | None, Array, Array]]]:
    """The name of the x-axis; and for each lane its name, `x` and values."""
    axis, across = request.x, None
    if axis.startswith(KEY):
        other = run.signals.get(axis.removeprefix(KEY))
        if other is None or other.kind != SCALAR or not signal.shares_rows(other):
            axis = ""
        else:
            across = other.leaves
    if axis in TIMES:
        start = run.run.started if axis == TIME else 0.0
        rows = read_rows(signal.leaves, CLOCK)
        return axis, [(one.lane, one.x - start, as_numbers(one.values)) for one in rows]
    if across is None and axis != ROW and axis not in signal.steps:
        axis = next(iter(signal.steps), ROW)
    step = None if axis == ROW or across is not None else axis
    if step is not None and request.after is None and len(signal.leaves) == 1:
        (leaf,) = signal.leaves
        common = source.common_steps.of(leaf, step)
        if common is not None:
            values = leaf.read(leaf.position, leaf.column, 0)
            return axis, [(None, common, as_numbers(values))]
    found = []
    for lane in read_rows(signal.leaves, step, across, request.after):
        x = np.asarray(lane.x, np.float64)
        if request.after is None and across is None:
            x = source.common_steps.shared(x)
        found.append((lane.lane, x, as_numbers(lane.values)))
    return axis.removeprefix(KEY), found


def _is_unordered(lane: Lane, after: float) -> bool:
    """Whether rows that were logged late belong before the end of a chart."""
    new = lane.x[int(np.argmax(lane.x >= after)) :] if len(lane.x) else lane.x
    return bool(len(new)) and new[0] >= after and bool((np.diff(new) < 0).any())


def _ascending(lane: Lane) -> Lane:
    """Sorts rows by `x`; rows with the same `x` keep their order."""
    x, values = lane.x, lane.values
    known = np.isfinite(x)
    if not known.all():
        x, values = x[known], values[known]
    if (np.diff(x) < 0).any():
        order = np.argsort(x, kind="stable")
        x, values = x[order], values[order]
    return lane._replace(x=x, values=values)


def _between(lane: Lane, request: Request) -> Lane:
    """The rows in the requested range, and one more on each side."""
    start, end = 0, len(lane.x)
    if request.low is not None:
        start = max(int(np.searchsorted(lane.x, request.low)) - 1, 0)
    if request.high is not None:
        end = int(np.searchsorted(lane.x, request.high, side="right")) + 1
    if request.after is not None:
        start = int(np.searchsorted(lane.x, request.after))
    if start == 0 and end >= len(lane.x):
        return lane
    return lane._replace(x=lane.x[start:end], values=lane.values[start:end])
