"""The lanes of a chart as a table, with statistics and the extremes of its buckets."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .chart_requests import KEY, TIMES, CannotExtendError, Request
from .decimation import bucket_limits, bucket_starts, bucket_width, extremes
from .grouping import Group
from .packing import narrow
from .statistics import Mean, band_of, mean_of

Array = np.ndarray[Any, Any]

MAX_EXACT = 4096  # the maximum length of curves for which all intervals are computed
_MAX_LIMITS = 2**16
_MIN_BINS = 8
_MAX_RESAMPLED = 256  # columns at a time
_MAX_CELLS = 2**26  # of a table whose lanes have few values of `x` in common


class Lane(NamedTuple):
    """The rows of one lane of one run, in ascending order of `x`."""

    run: int
    name: str | None
    x: Array
    values: Array


class LaneTable:
    """Lanes with a common x-axis, split into buckets.

    Its columns are the points of `logs.over_lanes`: if lanes have several rows with the
    same step, their first rows form one point, their second rows another.

    If the lanes have few values of `x` in common, each bucket is one point: the mean of
    a lane's rows in it.

    Attributes:
        width: the width of the buckets; 0 if each row is one.
        binned: whether statistics are computed from means of buckets.
        from_x: the first `x` of each bucket.
        to_x: the last `x` of each bucket.
    """

    def __init__(self, lanes: list[Lane], request: Request) -> None:
        self._lanes = lanes
        every = [lane.x for lane in lanes] or [np.zeros(0)]
        first = every[0]
        same = all(_are_equal(x, first) for x in every[1:])
        x = first if same else _union(every)
        self.binned = _have_little_in_common(every, x)
        if request.x in TIMES:  # no two lanes have the same
            self.binned = len(lanes) > 1
        elif request.x.startswith(KEY) and len(lanes) > 1:
            self.binned |= bool((np.diff(x) == 0).any())
        buckets = request.buckets
        if self.binned:  # most bins have rows of most lanes
            rows = int(np.median([len(lane) for lane in every]))
            buckets = max(min(buckets, rows // 2), _MIN_BINS)
        self.width = 0.0
        starts = np.arange(len(x))
        if request.after is not None and request.width == 0:
            if self.binned or len(x) > 2 * request.buckets:
                raise CannotExtendError
        elif self.binned or len(x) > buckets or request.width:
            low, high = float(x[0]) if len(x) else 0.0, float(x[-1]) if len(x) else 0.0
            if request.width is None:
                # the requested range, without the row on each side of it
                span = (
                    low if request.low is None else max(low, request.low),
                    high if request.high is None else min(high, request.high),
                )
                self.width = bucket_width(*span, buckets)
            else:
                self.width = request.width
                if high - low > self.width * _MAX_LIMITS:
                    raise CannotExtendError
            if self.width and len(x):
                per_octave = 0 if self.binned else request.per_octave
                limits = bucket_limits(low, high, self.width, per_octave)
                starts = bucket_starts(x, limits)
            elif len(x):
                starts = np.zeros(1, np.int64)
        ends = np.append(starts[1:], len(x)) - 1 if len(x) else starts
        self.from_x, self.to_x = x[starts], x[ends]
        self._x, self._starts = x, starts
        self._fill()

    def _fill(self) -> None:
        """Brings all lanes to the same columns: rows or, if `binned`, buckets."""
        lanes, x, starts = self._lanes, self._x, self._starts
        wide = any(lane.values.dtype == np.float64 for lane in lanes)
        dtype = np.float64 if wide else np.float32
        self._bad = np.zeros((len(lanes), len(starts)), np.uint32)
        if self.binned:
            self._values = np.full((len(lanes), len(starts)), np.nan)
            pairs = [np.full((len(lanes), len(starts)), np.nan, dtype) for _ in "ab"]
            for i, lane in enumerate(lanes):
                self._bin_lane(i, lane, pairs)
            self._pairs = pairs
            self._columns = np.arange(len(starts))
        else:
            self._values = np.full((len(lanes), len(x)), np.nan, dtype)
            for i, lane in enumerate(lanes):
                values = lane.values
                bad = ~np.isfinite(values)
                where: Any = slice(None)
                if len(lane.x) != len(x):
                    where = np.searchsorted(x, lane.x) + _nth(lane.x)
                self._values[i, where] = values
                if bad.any():
                    rows = np.arange(len(x))[where][bad]
                    self._values[i, rows] = np.inf
                    buckets = np.searchsorted(starts, rows, side="right") - 1
                    np.add.at(self._bad[i], buckets, 1)
            self._columns = starts
        finite = np.isfinite(self._values)
        self._finite = None if finite.all() else finite
        if not self.binned:
            found = extremes(self._values, self._finite, starts)
            self._pairs = [found.first, found.second]

    def _bin_lane(self, i: int, lane: Lane, pairs: list[Array]) -> None:
        limits = self.from_x
        starts = bucket_starts(lane.x, limits)
        if not len(starts):
            return
        buckets = np.searchsorted(limits, lane.x[starts], side="right") - 1
        finite = np.isfinite(lane.values)
        values = np.where(finite, lane.values, np.inf)[None]
        found = extremes(values, None if finite.all() else finite[None], starts)
        pairs[0][i, buckets], pairs[1][i, buckets] = found.first[0], found.second[0]
        count = np.add.reduceat(finite, starts)
        values = np.where(finite, lane.values, 0)
        total = np.add.reduceat(values, starts, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._values[i, buckets] = np.where(count, total / count, np.inf)
        self._bad[i, buckets] = np.add.reduceat(~finite, starts)

    def curves(self) -> dict[str, Any]:
        """The smallest and largest value of each lane in each bucket.

        `bad` lists the numbers of values that are not finite: lane, bucket, number.
        """
        first, second = self._pairs
        at = np.nonzero(self._bad)
        return {
            "runs": [lane.run for lane in self._lanes],
            "names": [lane.name for lane in self._lanes],
            "first": first,
            "second": None if second is first else second,
            "bad": np.array([*at, self._bad[at]], np.uint32),
        }

    def summary(self, group: Group, bands: Sequence[str]) -> dict[str, Any] | None:
        """Statistics over the lanes of a group; None if it has none."""
        members = set(group.runs)
        rows = [i for i, lane in enumerate(self._lanes) if lane.run in members]
        if not rows:
            return None
        every = len(rows) == len(self._lanes)
        lanes = self._values if every else self._values[rows]
        finite = self._finite
        if finite is not None:
            finite = finite if every else finite[rows]
            finite = None if finite.all() else finite
        mean = mean_of(lanes, finite)
        starts = self._columns
        present = mean.mean
        if finite is not None:
            logged = (~np.isnan(lanes)).any(axis=0)
            empty = np.where(logged, np.inf, np.nan)
            present = np.where(mean.n > 0, mean.mean, empty)
        some = None if finite is None else (mean.n > 0)[None]
        found = extremes(present[None], some, starts)
        if self.binned and len(rows) == 1:  # the curve itself, with its extremes
            pair = [lane[rows[0]] for lane in self._pairs]
            return {**self._shown(rows, mean, *pair), "x": None, "x2": None}
        limits = self._bands(lanes, finite, mean, bands, starts)
        at_first = at_second = second = None  # those of the buckets
        if len(starts) != len(self._x) and not self.binned:
            at_first = self._x[found.first_row[0]]
            at_second = self._x[found.second_row[0]]
            second = found.second[0]
        shown = self._shown(rows, mean, found.first[0], second)
        return {**shown, "x": at_first, "x2": at_second, "bands": limits}

    def _shown(
        self, rows: list[int], mean: Mean, first: Array, second: Array | None
    ) -> dict[str, Any]:
        starts = self._columns
        return {
            "lanes": rows,
            "first": narrow(first),
            "second": None if second is None else narrow(second),
            "average": narrow(_averages(mean, starts)),
            "n": _reduced(np.minimum, mean.n, starts).astype(np.uint32),
            "n2": _reduced(np.maximum, mean.n, starts).astype(np.uint32),
            "bad": self._bad[rows].sum(axis=0).astype(np.uint32),
            "bands": {},
        }

    def _bands(
        self,
        lanes: Array,
        finite: Array | None,
        mean: Mean,
        bands: Sequence[str],
        starts: Array,
    ) -> Mapping[str, Any]:
        """The lowest lower limit and the highest upper limit in each bucket."""
        if len(lanes) < 2:
            return {}
        found = {}
        for name in bands:
            if name == "ci":
                low, high = self._intervals(lanes, finite, mean, starts)
            else:
                low, high = band_of(name, lanes, finite, mean)
                low = _reduced(np.fmin, low, starts)
                high = _reduced(np.fmax, high, starts)
            found[name] = [narrow(low), narrow(high)]
        return found

    def _intervals(
        self, lanes: Array, finite: Array | None, mean: Mean, starts: Array
    ) -> tuple[Array, Array]:
        """The lowest and highest limit of the bootstrap intervals in each bucket.

        Resampling every row of a long curve would take seconds, so each limit is
        computed only where the standard error says that it is most extreme.
        """
        if lanes.shape[1] <= MAX_EXACT:
            low, high = _intervals_of(lanes, finite, mean)
            return _reduced(np.fmin, low, starts), _reduced(np.fmax, high, starts)
        # resampled means vary less than the mean; those of two lanes are between them
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.where(mean.n > 2, 1.96 * np.sqrt(1 - 1 / mean.n), 1.0)
        spread = factors * mean.sem  # NaN for a single lane, which has no interval
        limits = []
        for sign, side in ((-1, 0), (1, 1)):
            values = (mean.mean + sign * spread)[None]
            known = np.isfinite(values)
            found = extremes(values, None if known.all() else known, starts)
            a, b = found.first_row[0], found.second_row[0]
            higher = sign * values[0][a] >= sign * values[0][b]
            columns = np.where(higher | ~known[0][b], a, b)
            part = None if finite is None else finite[:, columns]
            sub = Mean(mean.mean[columns], mean.n[columns], mean.std[columns])
            limits.append(_intervals_of(lanes[:, columns], part, sub)[side])
        return limits[0], limits[1]


def _intervals_of(lanes: Array, finite: Array | None, mean: Mean) -> Any:
    """The bootstrap interval of each column, with little memory."""
    found = np.empty((2, lanes.shape[1]))
    for start in range(0, lanes.shape[1], _MAX_RESAMPLED):
        part = slice(start, start + _MAX_RESAMPLED)
        kept = None if finite is None else finite[:, part]
        sub = Mean(mean.mean[part], mean.n[part], mean.std[part])
        found[:, part] = band_of("ci", lanes[:, part], kept, sub)
    return found


def _union(every: list[Array]) -> Array:
    """The values of all lanes, each as often as in the lane that repeats it most."""
    x = np.unique(np.concatenate(every))
    repeats = np.ones(len(x), np.int64)
    for lane in every:
        if (np.diff(lane) == 0).any():
            values, counts = np.unique(lane, return_counts=True)
            at = np.searchsorted(x, values)
            repeats[at] = np.maximum(repeats[at], counts)
    return np.repeat(x, repeats)


def _nth(x: Array) -> Array:
    """How many equal values come before each; they are in ascending order."""
    return np.arange(len(x)) - np.searchsorted(x, x)


def _have_little_in_common(every: list[Array], x: Array) -> bool:
    """Whether lanes overlap along `x`, but rarely have the same values of `x`.

    Args:
        every: the values of each lane.
        x: all of them, in ascending order.
    """
    if len(x) <= 2 * max(map(len, every)):
        return False
    if len(x) * len(every) > _MAX_CELLS:
        return True
    filled = [lane for lane in every if len(lane)]
    inside = sum(
        int(np.searchsorted(x, lane[-1], side="right") - np.searchsorted(x, lane[0]))
        for lane in filled
    )
    return inside > 2 * sum(map(len, filled))


def _are_equal(x: Array, y: Array) -> bool:
    return x is y or (len(x) == len(y) and bool((x == y).all()))


def _reduced(function: np.ufunc, values: Array, starts: Array) -> Array:
    return function.reduceat(values, starts) if len(starts) else values[:0]


def _averages(mean: Mean, starts: Array) -> Array:
    """The mean of each bucket, for smooth curves; NaN where nothing is finite."""
    known = mean.n > 0
    total = _reduced(np.add, np.where(known, mean.mean, 0), starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        return total / _reduced(np.add, known.astype(np.float64), starts)
