"""Snapshots of the runs of a `ConsoleLogger`, as text."""

import collections
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox._logs.tables import Array
from lox._text_curves import printable, shorten
from lox.loggers._runs.spill import waiting

from .curves import Curve, Curves, Summary

_WINDOW = 10.0  # seconds over which rates are measured, at least
_WARMUP = 1.0  # seconds after the first row; from then on rates exclude compilation


class History(NamedTuple):
    """The recent values of a key, oldest first."""

    mean: Array  # over runs
    std: Array | None  # over runs, of a sample (with n - 1); None for a single run
    nonfinite: int  # how many values are not finite


class Row(NamedTuple):
    """One key. Has one value and history for all runs together, or one per run."""

    name: str
    values: list[str]
    histories: list[History]
    step: str
    rate: str


class Progress(NamedTuple):
    """The progress of the runs."""

    done: float
    total: int
    time_left: str

    @property
    def percent(self) -> int:
        return math.floor(100 * min(max(self.done / self.total, 0), 1))

    def __str__(self) -> str:
        text = f"{self.percent}%  {self.done:.10g}/{self.total}"
        return f"{text}  {self.time_left} left" if self.time_left else text


class View(NamedTuple):
    """A snapshot of all runs."""

    runs: list[str]
    rows: list[Row]
    steps: str
    rate: str
    progress: Progress | None
    # the rows of other loggers that wait on disk; empty if there are none
    waiting: str = ""

    @property
    def content(self) -> Any:
        """What new rows change; rates also change with time."""
        rows = [(row.name, row.values, row.step) for row in self.rows]
        return rows, self.steps, self.waiting

    def line(self) -> str:
        """Formats the snapshot as one line."""
        parts = [f"{self.progress.percent}%"] if self.progress else []
        parts += [self.steps] if self.steps else []
        parts += [f"{shorten(row.name)} {' | '.join(row.values)}" for row in self.rows]
        notes = [f"{len(self.runs)} runs"] if len(self.runs) > 1 else []
        notes += [f"{self.rate} rows/s"] if self.rate else []
        if self.progress and self.progress.time_left:
            notes.append(f"{self.progress.time_left} left")
        notes += [self.waiting] if self.waiting else []
        return "  ".join([*parts, f"({', '.join(notes)})"] if notes else parts)


class Viewer:
    """Creates views, and measures rates from one view to the next."""

    def __init__(self, total: int | None, per_run: bool) -> None:
        self._total = total
        self._per_run = per_run
        self._start = time.monotonic()
        self._meters: dict[str | None, _Meter] = {}
        self._progress_meter: _Meter | None = None

    def view(self, runs: Sequence[Curves]) -> View:
        now = time.monotonic()
        names = dict.fromkeys(itertools.chain(*(run.by_name for run in runs)))
        return View(
            runs=[run.name for run in runs],
            rows=[self._row(name, runs, now) for name in names],
            steps=_format_steps((run.steps for run in runs), "step "),
            rate=self._rate(None, sum(run.count for run in runs), now),
            progress=self._progress_of(runs, now),
            waiting=str(waiting),
        )

    def _row(self, name: str, runs: Sequence[Curves], now: float) -> Row:
        curves = [run.by_name.get(name) for run in runs]
        present = [curve for curve in curves if curve is not None]
        if self._per_run:
            values = ["" if c is None else format_last(c.last) for c in curves]
            histories = [_history([] if c is None else [c]) for c in curves]
        else:
            values = [format_runs([curve.last for curve in present])]
            histories = [_history(present)]
        return Row(
            name=printable(name),
            values=values,
            histories=histories,
            step=_format_steps((curve.steps for curve in present), ""),
            rate=self._rate(name, sum(curve.count for curve in present), now),
        )

    def _rate(self, name: str | None, count: int, now: float) -> str:
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = _Meter(self._start, 0)
        return format_rate(meter.rate(now, count))

    def _progress_of(self, runs: Sequence[Curves], now: float) -> Progress | None:
        if self._total is None:
            return None
        steps = [run.steps["step"] + 1 for run in runs if "step" in run.steps]
        steps = [step for step in steps if math.isfinite(step)]
        done = max(steps or [run.count for run in runs], default=0)
        if not done:
            return Progress(done, self._total, "")
        if self._progress_meter is None:
            # a resumed run starts at a high step
            start = (now, done) if steps else (self._start, 0)
            self._progress_meter = _Meter(*start)
        rate = self._progress_meter.rate(now, done)
        left = max(self._total - done, 0)
        time_left = format_time(left / rate) if rate and left else ""
        return Progress(done, self._total, time_left)


class _Meter:
    """The recent growth rate of a counter."""

    def __init__(self, now: float, count: float) -> None:
        self._samples = collections.deque([(now, count)])
        self._has_start = True

    def rate(self, now: float, count: float) -> float | None:
        samples = self._samples
        if count < samples[-1][1]:  # some runs have ended
            samples.clear()
            samples.append((now, count))
        elif count > samples[-1][1]:
            samples.append((now, count))
        if self._has_start and len(samples) > 2 and now - samples[1][0] > _WARMUP:
            samples.popleft()  # until the first row, JAX was compiling
            self._has_start = False
        # keep two samples, however old, for keys that are logged once an hour
        while len(samples) > 2 and now - samples[1][0] > _WINDOW:
            samples.popleft()
        then, before = samples[0]
        if count == before or now <= then:
            return None
        return (count - before) / (now - then)


# --- text --------------------------------------------------------------------


def format_runs(values: Sequence[Any]) -> str:
    """Formats the last values of several runs as one text."""
    if len(values) == 1:
        return format_last(values[0])
    if all(isinstance(value, Summary) for value in values):
        return format_last(_merge_summaries(values))
    if any(isinstance(value, Summary | str) for value in values):
        return shorten(" | ".join(dict.fromkeys(map(format_last, values))))
    with np.errstate(all="ignore"):
        numbers = np.array(values, complex if complex in map(type, values) else float)
        finite = numbers[np.isfinite(numbers)]
        if not len(finite):
            return format_last(values[0])
        if (finite == finite[0]).all():  # without rounding errors
            mean, std = finite[0].item(), 0.0
        else:
            mean, std = finite.mean().item(), float(finite.std(ddof=1))
    spread = f" ± {std:.2g}" if len(finite) > 1 else ""
    nonfinite = _format_nonfinite(len(numbers) - len(finite))
    return f"{_format_number(mean)}{spread}{nonfinite}"


def _merge_summaries(arrays: Sequence[Summary]) -> Summary:
    means = [x.mean for x in arrays if not math.isnan(x.mean)]
    if not means:
        return arrays[0]
    return Summary(
        arrays[0].shape,
        sum(means) / len(means),
        min(x.low for x in arrays if not math.isnan(x.low)),
        max(x.high for x in arrays if not math.isnan(x.high)),
        sum(x.nonfinite for x in arrays),
    )


def format_last(last: Any) -> str:
    if isinstance(last, Summary):
        shape = str(last.shape).replace(" ", "")
        if math.isnan(last.mean):
            return f"{shape} {'nan' if last.nonfinite else 'empty'}"
        mean, low, high = map(_format_number, (last.mean, last.low, last.high))
        return f"{shape} {mean} [{low}..{high}]{_format_nonfinite(last.nonfinite)}"
    if isinstance(last, str):
        return shorten(printable(last))
    return _format_number(last)


def _format_nonfinite(count: int) -> str:
    return f" ({count} not finite)" if count else ""


def _format_number(number: Any) -> str:
    if isinstance(number, int) and abs(number) < 10**9:  # also `True`
        return str(number)
    if isinstance(number, complex):
        return f"{number:.3g}"
    if 1e4 <= abs(number) < 1e7:
        return f"{number:.0f}"
    return f"{number:.4g}"


def _format_steps(steps: Iterable[dict[str, Any]], prefix: str) -> str:
    """Formats the largest step numbers: `120`, or `120 epoch 3`.

    Args:
        steps: step numbers by name.
        prefix: what to write before the step called `step`.
    """
    largest: dict[str, Any] = {}
    for by_name in steps:
        for name, number in by_name.items():
            largest[name] = max(number, largest.get(name, number))
    return " ".join(
        f"{prefix if name == 'step' else printable(name) + ' '}{_format_number(number)}"
        for name, number in largest.items()
    )


def format_rate(rate: float | None) -> str:
    if rate is None:
        return ""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= 0.9995 * unit:  # which is rounded to the unit
            return f"{rate / unit:.3g}{letter}"
    return f"{rate:.2g}" if rate < 99.5 else f"{rate:.0f}"


def format_time(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(min(seconds, 1e9)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# --- histories ---------------------------------------------------------------


def _history(curves: Sequence[Curve]) -> History:
    """The histories of several runs, aligned at their ends."""
    recents = [curve.recent() for curve in curves]
    lengths = [len(recent) for recent in recents]
    longest = max(lengths, default=0)
    histories = np.full((len(curves), longest), np.nan)
    for row, recent in zip(histories, recents, strict=True):
        row[longest - len(recent) :] = recent
    finite = np.isfinite(histories)
    nonfinite = sum(lengths) - int(np.count_nonzero(finite))
    if len(curves) == 1:
        return History(histories[0], None, nonfinite)
    with np.errstate(all="ignore"):
        counts = finite.sum(0)
        mean = np.where(finite, histories, 0).sum(0) / counts
        squares = np.where(finite, histories - mean, 0) ** 2
        std = np.sqrt(squares.sum(0) / np.where(counts > 1, counts - 1, np.nan))
        return History(mean, std, nonfinite)
