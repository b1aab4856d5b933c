"""What loggers for trackers share: a tracker draws curves of numbers."""

import dataclasses
import difflib
import inspect
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lox._errors import LoxTypeError, LoxWarning
from lox._logs.logdict import logdict
from lox._patterns import matches
from lox._source import user_line
from lox.loggers._base import Logger

from .tables import Array, Columns, tables

Names = str | Iterable[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows that were logged together.

    Attributes:
        length: how many there are.
        steps: their step numbers by name.
        scalars: columns of numbers, by name.
        histograms: columns of arrays that are to be shown as histograms.
        images: columns of arrays that are to be shown as images.
    """

    length: int
    steps: dict[str, Array]
    scalars: dict[str, Array]
    histograms: dict[str, Array]
    images: dict[str, Array]


class Tracker(Logger):
    """The base of loggers for trackers.

    Args:
        config: what to remember of the runs, such as hyperparameters.
        step: the name of the step to draw curves over; by default the one called
            `step`, else the first.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the same for images.
    """

    background = True

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
    ) -> None:
        super().__init__(config)
        # the line that warnings name: what they speak of is asked for there
        self._line = user_line()
        self._warned: set[str] = set()
        self._step = step
        self._histograms = _patterns(histograms)
        self._images = _patterns(images)
        # what a name turned out to be, which is found out once
        self._kinds: dict[Any, str] = {}
        # descriptions of logs that are one table of numbers, by their identity: logs
        # that come again and again share theirs
        self._simple: dict[int, Any] = {}

    def tables(self, logs: logdict) -> list[Table]:
        """The logs of one run, by what was logged together."""
        info = logs._info
        if self._simple.get(id(info)) is info:
            simple = _simple_table(logs)
            if simple is not None:
                return [simple]
        found = [self._table(columns) for columns in tables(logs)]
        if len(found) == 1 and _is_simple(logs, found[0]):
            if len(self._simple) > _MOST_SIMPLE:
                self._simple.clear()
            self._simple[id(info)] = info
        return found

    def step_of(self, table: Table) -> tuple[str, Array] | None:
        """The name and the numbers of the step to draw curves over, if there is one."""
        steps = table.steps
        if self._step is not None and self._step in steps:
            return self._step, steps[self._step]
        found = "step" if "step" in steps else next(iter(steps), None)
        if found is None:
            return None
        if self._step is not None:
            names = ", ".join(map(repr, (*table.scalars, *table.histograms)))
            self.warn_once(
                f"{type(self).__name__} draws {names} over {found!r}: it has no step "
                f"{self._step!r}."
            )
        return found, steps[found]

    def _table(self, columns: Columns) -> Table:
        table = Table(columns.length, columns.steps, {}, {}, {})
        for name, column in columns.values.items():
            kind = self._kind_of(name, column)
            if kind == "scalar":
                table.scalars[name] = column.reshape(columns.length)
            elif kind != "other":
                getattr(table, kind)[name] = column
        return table

    def _kind_of(self, name: str, column: Array) -> str:
        form = name, column.shape[1:], column.dtype.kind
        known = self._kinds.get(form)
        if known is None:
            known = self._kinds[form] = self._find_kind(name, column)
        return known

    def _find_kind(self, name: str, column: Array) -> str:
        if column.dtype.kind in "biuf":
            if column.ndim == 1:
                return "scalar"
            if any(matches(name, pattern) for pattern in self._histograms):
                return "histograms"
            if any(matches(name, pattern) for pattern in self._images):
                return self._image(name, column.shape[1:])
            if math.prod(column.shape[1:]) == 1:
                return "scalar"
        what = f"{column.dtype} of shape {column.shape[1:]}"
        self.warn_once(
            f"{type(self).__name__} leaves out {name!r}, which is {what}: it draws "
            f"real numbers. {self._remedy(name, column.dtype.kind in 'biuf')}"
        )
        return "other"

    def _image(self, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) == 2 or (len(shape) == 3 and 1 <= shape[2] <= 4):
            return "images"
        self.warn_once(
            f"{type(self).__name__} leaves out {name!r}, which is asked for as an "
            "image: one has the shape (height, width) or (height, width, channels), "
            f"not {shape}."
        )
        return "other"

    def warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            try:
                warnings.warn_explicit(message, LoxWarning, *self._line)
            except LoxWarning as error:  # no reason for a run to fail
                self._runs.raise_later(error)

    def _remedy(self, name: str, is_real: bool) -> str:
        ask = (
            f"Ask for `histograms={name!r}` or `images={name!r}`, log"
            if is_real
            else "Log"
        )
        return f"{ask} a number made of it, or keep it with a `SaveLogger`."


_MOST_SIMPLE = 1000


def _is_simple(logs: logdict, table: Table) -> bool:
    """Whether logs are one event, or a buffer of it, and numbers alone."""
    return (
        list(table.scalars) == list(logs)
        and all(info.ndims == (0,) for info in logs._info.values())
        and all(
            len(of) == len(logs) and len({id(step) for step in of.values()}) == 1
            for of in logs._steps.values()
        )
        and _simple_table(logs) is not None
    )


def _simple_table(logs: logdict) -> Table | None:
    """The one table that such logs are; None if they are none after all."""
    values = logs.values()
    if logs._mask or len(logs) != len(logs._info):
        return None
    for value in values:
        if not isinstance(value, np.ndarray | np.generic):
            return None
        if value.ndim > 1 or value.dtype.kind not in "biuf":
            return None
    scalars = {key: value.reshape(-1) for key, value in logs.items()}
    steps = {
        name: np.asarray(next(iter(of.values()))).reshape(-1)
        for name, of in logs._steps.items()
    }
    lengths = {len(column) for column in (*scalars.values(), *steps.values())}
    return None if len(lengths) > 1 else Table(lengths.pop(), steps, scalars, {}, {})


class StepCounts:
    """Numbers for the rows of a run, for trackers whose steps are whole numbers.

    Rows without a step are counted, each key by itself.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        # the steps that turned out not to be whole
        self._uncounted: set[str] = set()

    def steps(self, tracker: Tracker, table: Table) -> Array:
        found = tracker.step_of(table)
        if found is not None:
            name, numbers = found
            if numbers.dtype.kind in "bi":
                return numbers
            if name not in self._uncounted:
                with np.errstate(invalid="ignore"):
                    whole = numbers.astype(np.int64)
                if np.array_equal(whole, numbers):
                    self._count(table)
                    return whole
                self._uncounted.add(name)
                tracker.warn_once(
                    f"{type(tracker).__name__} counts the rows instead of {name!r}, "
                    "since its steps are whole numbers of 64 bits. `step` chooses "
                    "another."
                )
        first = self._count(table)
        return np.arange(first, first + table.length)

    def _count(self, table: Table) -> int:
        """How many rows of these keys there were before."""
        names = [*table.scalars, *table.histograms, *table.images]
        first = max((self._counts.get(name, 0) for name in names), default=0)
        self._counts |= dict.fromkeys(names, first + table.length)
        return first


def check_options(
    options: Mapping[str, Any], function: Any, logger: str, name: str
) -> None:
    """Raises if a logger is given what the function of its client does not take."""
    known = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            meant = f" Do you mean {close[0]!r}?" if close else ""
            raise LoxTypeError(
                f"`{logger}` has no option {option!r}, and `{name}` has none either."
                f"{meant}"
            )


def _patterns(names: Names) -> tuple[str, ...]:
    patterns = (names,) if isinstance(names, str) else tuple(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise LoxTypeError(
                f"a logger takes names or patterns of keys, not {pattern!r}."
            )
    return patterns
