"""Decides how much of a store fits into one file; the page says what is left out.

First curves become coarser, then there is only one grouping, then only some of the
single runs are shown (statistics still include all), and finally only some of the keys.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .chart_requests import DEFAULT_BUCKETS, KEY, ROW, TIME, TIMES
from .packing import plain
from .signals import SCALAR
from .source import StoreSource

MIN_BUCKETS = 48
_FEWEST_BUCKETS = 12
_MAX_AXES = 3
# compressed and in Base64; measured with stores of random numbers
_LANE_BYTES, _GROUP_BYTES, _BLOCK_BYTES = 10.5, 75.0, 600.0
# the short buckets near zero add about a third
_MORE_BUCKETS = 1.35
_INDEX_SHARE = 0.35
_DIGITS = 6  # of last values; the table of runs shows four


class Plan(NamedTuple):
    """What a file contains.

    Attributes:
        buckets: the number of points of a curve.
        share: the share of the single runs.
        groupings: how runs are grouped.
        axes: the x-axes besides the steps.
        keys: the number of charts.
    """

    buckets: int
    share: float
    groupings: list[str]
    axes: list[str]
    keys: int


def plans(index: dict[str, Any], axes: list[str]) -> Iterator[Plan]:
    """What a file may contain: first everything, then less and less."""
    groupings = [found["id"] for found in index["groupings"] if found["groups"]]
    keys = len(scalars(index))
    plan = Plan(DEFAULT_BUCKETS, 1.0, groupings, axes, keys)
    if TIME not in axes:  # the time must not take space from other axes
        yield plan._replace(axes=[*axes, TIME])
    for buckets in _fewer(DEFAULT_BUCKETS, 2 * MIN_BUCKETS):
        yield plan._replace(buckets=buckets)
    plan = plan._replace(groupings=groupings[:1])
    for buckets in _fewer(DEFAULT_BUCKETS // 2, MIN_BUCKETS):
        yield plan._replace(buckets=buckets)
    plan = plan._replace(buckets=MIN_BUCKETS)
    for share in (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 0):
        plan = plan._replace(share=share)
        yield plan
    for buckets in (2 * _FEWEST_BUCKETS, _FEWEST_BUCKETS):
        plan = plan._replace(buckets=buckets)
        yield plan
    while keys > 1:
        keys //= 2
        yield plan._replace(keys=keys)


def _fewer(buckets: int, least: int) -> Iterator[int]:
    while buckets > least:
        yield buckets
        buckets = int(buckets * 0.93)
    yield least


def notes_of(plan: Plan, index: dict[str, Any]) -> list[str]:
    """What a file lacks, in words."""
    notes = []
    if plan.buckets < DEFAULT_BUCKETS:
        notes.append(f"curves have about {plan.buckets} points, with all extremes")
    if plan.share < 1:
        some = f"one in {round(1 / plan.share)}" if plan.share else "none"
        notes.append(f"{some} of the single runs is drawn; statistics include all runs")
    if len(plan.groupings) < len([g for g in index["groupings"] if g["groups"]]):
        notes.append('runs can only be grouped by "all but seed"')
    count = len(scalars(index))
    if plan.keys < count:
        notes.append(f"only {plan.keys} of {count} keys have charts")
    return notes


def scalars(index: dict[str, Any]) -> list[dict[str, Any]]:
    return [key for key in index["keys"] if key["kind"] == SCALAR]


def axes_of(key: dict[str, Any], extra: Sequence[str]) -> list[str]:
    steps = key["steps"][:_MAX_AXES] or [ROW]
    own = {KEY + key["name"], *(() if key["times"] else TIMES)}
    return [*steps, *(axis for axis in extra if axis not in own)]


class Estimate:
    """Estimates the size of the charts of a store in a file."""

    def __init__(self, source: StoreSource, index: dict[str, Any]) -> None:
        self._charts = [(key, *_size_of(source, key["name"])) for key in scalars(index)]
        self._groups = {
            found["id"]: (str(found["groups"]), len(found["groups"]))
            for found in index["groupings"]
        }

    def size(self, plan: Plan) -> float:
        """The size in bytes."""
        groups = dict(self._groups[by] for by in plan.groupings)
        total = 0.0
        for key, lanes, rows in self._charts[: plan.keys]:
            points = min(plan.buckets * _MORE_BUCKETS, rows)
            drawn = plan.share * lanes * _LANE_BYTES
            grouped = min(sum(groups.values()), lanes) * _GROUP_BYTES
            chart = points * (drawn + grouped) + _BLOCK_BYTES
            total += chart * len(axes_of(key, plan.axes))
        return total


def _size_of(source: StoreSource, key: str) -> tuple[int, int]:
    """The number of lanes of a key, and the most rows that one has."""
    lanes = rows = 0
    for run in source.runs.values():
        if key in run.signals:
            signal = run.signals[key]
            leaf = signal.leaves[0]
            lanes += math.prod(leaf.column.shape[: leaf.lane_axes])
            rows = max(rows, signal.count)
    return lanes, rows


def fitted_index(
    index: dict[str, Any], max_bytes: int
) -> tuple[dict[str, Any], list[str]]:
    """The index of a file with rounded last values, and what it lacks in words.

    If it is large, only some keys have last values.
    """
    names = [key["name"] for key in scalars(index)]
    limit, kept = _INDEX_SHARE * max_bytes, len(names)
    while True:
        some = set(names[:kept])
        runs = [
            {
                **run,
                "last": {k: _rounded(x) for k, x in run["last"].items() if k in some},
            }
            for run in index["runs"]
        ]
        found = {**index, "runs": runs}
        size = len(json.dumps(plain(found)))
        if size <= limit or not kept:
            break
        kept = min(int(kept * limit / size), kept - 1)
    if kept == len(names):
        return found, []
    return found, [f"the table has last values of {kept} of {len(names)} keys"]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def thinned(data: dict[str, Any], share: float) -> list[int]:
    """Leaves only some lanes in the data of a chart; returns their positions."""
    lanes = data["lanes"]
    count = len(lanes["runs"])
    if share == 1:
        return list(range(count))
    # not every second lane, for example, which may all be in the same group
    shuffled = np.random.default_rng(0).permutation(count)
    kept = np.sort(shuffled[: math.ceil(count * share)]).tolist()
    data["omitted"] = count - len(kept)
    data["lanes"] = {
        "runs": [lanes["runs"][i] for i in kept],
        "names": [lanes["names"][i] for i in kept],
        "first": lanes["first"][kept],
        "second": None if lanes["second"] is None else lanes["second"][kept],
        "bad": lanes["bad"][:, np.isin(lanes["bad"][0], kept)],
    }
    data["lanes"]["bad"][0] = np.searchsorted(kept, data["lanes"]["bad"][0])
    return kept


def thinned_group(
    group: dict[str, Any], runs: list[int], kept: list[int]
) -> dict[str, Any]:
    """A group of a chart of which only some lanes are left.

    Args:
        group: the group.
        runs: the run of each lane of the chart.
        kept: the positions of the lanes that are left.
    """
    at = {lane: i for i, lane in enumerate(kept)}
    return {
        **group,
        "lanes": [at[lane] for lane in group["lanes"] if lane in at],
        "count": len(group["lanes"]),
        "members": sorted({runs[lane] for lane in group["lanes"]}),
    }
