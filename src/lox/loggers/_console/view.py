"""What `ConsoleLogger` shows of its runs at one moment, as text."""

import collections
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .curves import RECENT, Array, Curve, Curves, Summary

_WINDOW = 10.0  # seconds that rates are measured over, at least
_SOON = 1.0  # after so many, rates are those of the rows that came since the first
_LONGEST_NAME = 48
_BLOCKS = "▁▂▃▄▅▆▇█"
_STRANGE = "!"


class Row(NamedTuple):
    """One key. Values and histories are one, or one a run if these are apart."""

    name: str
    values: list[str]
    histories: list[Array]
    step: str
    rate: str


class Progress(NamedTuple):
    """How far the runs are."""

    done: float
    total: int
    left: str  # the time that the rest will take

    @property
    def percent(self) -> int:
        return math.floor(100 * min(max(self.done / self.total, 0), 1))


class View(NamedTuple):
    """All that is shown at one moment."""

    runs: list[str]
    rows: list[Row]
    steps: str
    rate: str
    progress: Progress | None

    def line(self) -> str:
        """On one line."""
        parts = [f"{self.progress.percent}%"] if self.progress else []
        parts += [self.steps] if self.steps else []
        parts += [
            f"{shortened(row.name)} {' | '.join(row.values)}" for row in self.rows
        ]
        notes = [f"{len(self.runs)} runs"] if len(self.runs) > 1 else []
        notes += [f"{self.rate} rows/s"] if self.rate else []
        if self.progress and self.progress.left:
            notes.append(f"{self.progress.left} left")
        return "  ".join([*parts, f"({', '.join(notes)})"] if notes else parts)


class Viewer:
    """Makes views, and knows from the earlier ones how fast things go."""

    def __init__(self, total: int | None, apart: bool) -> None:
        self._total = total
        self._apart = apart
        self._began = time.monotonic()
        self._meters: dict[str | None, _Meter] = {}
        self._progress: _Meter | None = None

    def view(self, runs: Sequence[Curves]) -> View:
        now = time.monotonic()
        names = dict.fromkeys(itertools.chain(*(run.by_name for run in runs)))
        return View(
            runs=[run.name for run in runs],
            rows=[self._row(name, runs, now) for name in names],
            steps=_steps((run.steps for run in runs), "step "),
            rate=self._rate(None, sum(run.count for run in runs), now),
            progress=self._progress_of(runs, now),
        )

    def _row(self, name: str, runs: Sequence[Curves], now: float) -> Row:
        curves = [run.by_name.get(name) for run in runs]
        there = [curve for curve in curves if curve is not None]
        if self._apart:
            values = ["" if c is None else format_last(c.last) for c in curves]
            histories = [np.empty(0) if c is None else c.recent() for c in curves]
        else:
            values = [together([curve.last for curve in there])]
            histories = [_mean_history(there)]
        return Row(
            name=printable(name),
            values=values,
            histories=histories,
            step=_steps((curve.steps for curve in there), ""),
            rate=self._rate(name, sum(curve.count for curve in there), now),
        )

    def _rate(self, name: str | None, count: int, now: float) -> str:
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = _Meter(self._began, 0)
        return format_rate(meter.rate(now, count))

    def _progress_of(self, runs: Sequence[Curves], now: float) -> Progress | None:
        if self._total is None:
            return None
        steps = [run.steps["step"] + 1 for run in runs if "step" in run.steps]
        steps = [step for step in steps if math.isfinite(step)]
        done = max(steps or [run.count for run in runs], default=0)
        if not done:
            return Progress(done, self._total, "")
        if self._progress is None:
            # a run that is resumed begins with a high step
            self._progress = _Meter(now, done) if steps else _Meter(self._began, 0)
        rate = self._progress.rate(now, done)
        left = max(self._total - done, 0)
        eta = format_time(left / rate) if rate and left else ""
        return Progress(done, self._total, eta)


class _Meter:
    """How fast a number grows, lately."""

    def __init__(self, now: float, count: float) -> None:
        self._seen = collections.deque([(now, count)])
        self._has_start = True

    def rate(self, now: float, count: float) -> float | None:
        seen = self._seen
        if count < seen[-1][1]:  # some runs have ended
            seen.clear()
            seen.append((now, count))
        elif count > seen[-1][1]:
            seen.append((now, count))
        if self._has_start and len(seen) > 2 and now - seen[1][0] > _SOON:
            seen.popleft()  # until the first one came, JAX was compiling
            self._has_start = False
        # the last two stay, whenever they were, for what comes once an hour
        while len(seen) > 2 and now - seen[1][0] > _WINDOW:
            seen.popleft()
        then, before = seen[0]
        if count == before or now <= then:
            return None
        return (count - before) / (now - then)


# --- as text -----------------------------------------------------------------


def printable(name: str) -> str:
    """A name without what would upset a terminal."""
    if name.isprintable():
        return name
    return name.encode("unicode_escape", "backslashreplace").decode()


def shortened(name: str, most: int = _LONGEST_NAME) -> str:
    """A name with its middle left out, since both ends tell names apart."""
    if len(name) <= most:
        return name
    return f"{name[: most // 2]}…{name[len(name) - (most - most // 2 - 1) :]}"


def together(values: Sequence[Any]) -> str:
    """The last values of several runs, as one."""
    if len(values) == 1:
        return format_last(values[0])
    if all(isinstance(value, Summary) for value in values):
        return format_last(_joined(values))
    if any(isinstance(value, Summary | str) for value in values):
        return shortened(" | ".join(dict.fromkeys(map(format_last, values))))
    with np.errstate(all="ignore"):
        numbers = np.array(values, complex if complex in map(type, values) else float)
        good = numbers[np.isfinite(numbers)]
        if not len(good):
            return format_last(values[0])
        mean, spread = good.mean().item(), float(good.std())
    if (good == good[0]).all():  # not a rounding error apart
        mean, spread = good[0].item(), 0.0
    strange = len(numbers) - len(good)
    return f"{_number(mean)} ± {spread:.2g}{_not_finite(strange)}"


def _joined(arrays: Sequence[Summary]) -> Summary:
    means = [x.mean for x in arrays if not math.isnan(x.mean)]
    if not means:
        return arrays[0]
    return Summary(
        arrays[0].shape,
        sum(means) / len(means),
        min(x.low for x in arrays if not math.isnan(x.low)),
        max(x.high for x in arrays if not math.isnan(x.high)),
        sum(x.strange for x in arrays),
    )


def format_last(last: Any) -> str:
    if isinstance(last, Summary):
        shape = str(last.shape).replace(" ", "")
        if math.isnan(last.mean):
            return f"{shape} {'nan' if last.strange else 'empty'}"
        low, high = _number(last.low), _number(last.high)
        mean = _number(last.mean)
        return f"{shape} {mean} [{low}..{high}]{_not_finite(last.strange)}"
    if isinstance(last, str):
        return shortened(printable(last))
    return _number(last)


def _not_finite(strange: int) -> str:
    return f" ({strange} not finite)" if strange else ""


def _number(number: Any) -> str:
    if isinstance(number, int) and abs(number) < 10**9:  # also `True`
        return str(number)
    if isinstance(number, complex):
        return f"{number:.3g}"
    if 1e4 <= abs(number) < 1e7:
        return f"{number:.0f}"
    return f"{number:.4g}"


def _steps(steps: Iterable[dict[str, Any]], before: str) -> str:
    """The largest step numbers: `120`, or `120 epoch 3`."""
    largest: dict[str, Any] = {}
    for of in steps:
        for name, number in of.items():
            largest[name] = max(number, largest.get(name, number))
    return " ".join(
        f"{before if name == 'step' else printable(name) + ' '}{_number(number)}"
        for name, number in largest.items()
    )


def format_rate(rate: float | None) -> str:
    if rate is None:
        return ""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= size:
            return f"{rate / size:.3g}{letter}"
    return f"{rate:.2g}" if rate < 100 else f"{rate:.0f}"


def format_time(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(min(seconds, 1e9)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# --- sparklines --------------------------------------------------------------


def _mean_history(curves: Sequence[Curve]) -> Array:
    """The mean of several histories, which all end now."""
    if len(curves) == 1:
        return curves[0].recent()
    histories = np.full((len(curves), RECENT), np.nan)
    longest = 0
    for row, curve in zip(histories, curves, strict=True):
        recent = curve.recent()
        row[RECENT - len(recent) :] = recent
        longest = max(longest, len(recent))
    good = np.isfinite(histories)
    with np.errstate(all="ignore"):
        means = np.where(good, histories, 0).sum(0) / good.sum(0)
    return means[RECENT - longest :]


def sparkline(values: Array, width: int) -> str:
    """A curve of at most `width` characters, each the mean of a stretch."""
    if not len(values):
        return ""
    places = min(width, len(values))
    starts = np.arange(places) * len(values) // places
    good = np.isfinite(values)
    with np.errstate(all="ignore"):
        many = np.add.reduceat(good.astype(float), starts)
        means = np.add.reduceat(np.where(good, values, 0), starts) / many
        finite = means[np.isfinite(means)]
        if not len(finite):
            return _STRANGE * places
        low, high = finite.min(), finite.max()
        heights = (means / 2 - low / 2) / (high / 2 - low / 2) * (len(_BLOCKS) - 1)
    if low == high:
        heights = np.where(np.isfinite(means), len(_BLOCKS) // 2 - 1, np.nan)
    return "".join(
        _BLOCKS[round(height)] if math.isfinite(height) else _STRANGE
        for height in heights
    )
