"""The state of `ConsoleLogger` per run: a few numbers per key, not every row."""

import collections
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lox._logs.access import key_of, metadata_of
from lox._logs.key import Key, KeyInfo
from lox._logs.lane_step import LANE
from lox._logs.logdict import logdict
from lox._logs.tables import Array, named_leaves

_NUMPY = np.ndarray, np.generic
_NUMBERS = bool, int, float, complex
RECENT = 256  # rows of history in a sparkline


class Summary(NamedTuple):
    """Statistics of the finite values of an array; of the magnitude, if complex."""

    shape: tuple[int, ...]
    mean: float
    low: float
    high: float
    nonfinite: int  # how many values are not finite


class Curve:
    """The last value and the recent history of one row of the table.

    Attributes:
        last: a Python number, the `Summary` of an array, or text for anything else.
        steps: the last step numbers, by name.
        count: the number of rows logged.
    """

    __slots__ = ("_recent", "_written", "count", "last", "steps")

    def __init__(self) -> None:
        self.last: Any = ""
        self.steps: dict[str, Any] = {}
        self.count = 0
        # a ring buffer, and how many numbers were written to it
        self._recent: Array = np.empty(RECENT)
        self._written = 0

    def add_value(self, value: Any) -> None:
        """Adds a row with a Python number, or with text, which has no history."""
        if isinstance(value, _NUMBERS):
            self.last = value
            if isinstance(value, complex):
                value = math.hypot(value.real, value.imag)
            try:
                self._append(value)
            except OverflowError:  # an integer too large for a float
                self.last = math.inf if value > 0 else -math.inf
                self._append(self.last)
        else:
            self.last = str(value)

    def add_array(self, array: Array) -> None:
        """Adds a row with an array of any shape, behind a lane axis."""
        numbers = as_floats(array)
        if numbers is None:
            self.last = _type_text(array.dtype, array.shape[1:])
            return
        finite = np.isfinite(numbers)
        nonfinite = numbers.size - int(np.count_nonzero(finite))
        if nonfinite:
            numbers = numbers[finite]
        mean = low = high = math.nan
        if numbers.size:
            mean = float(numbers.mean(dtype=np.float64))
            low, high = float(numbers.min()), float(numbers.max())
            self._append(mean)
        self.last = Summary(array.shape[1:], mean, low, high, nonfinite)

    def _append(self, number: float) -> None:
        self._recent[self._written % RECENT] = number
        self._written += 1

    def extend_history(self, numbers: Array) -> None:
        numbers = numbers[-RECENT:]
        start = self._written % RECENT
        room = RECENT - start
        self._recent[start : start + len(numbers)] = numbers[:room]
        if len(numbers) > room:
            self._recent[: len(numbers) - room] = numbers[room:]
        self._written += len(numbers)

    def recent(self) -> Array:
        """The history, oldest first."""
        if self._written < RECENT:
            return self._recent[: self._written].copy()
        start = self._written % RECENT
        return np.concatenate([self._recent[start:], self._recent[:start]])


class Curves:
    """The curves of one run.

    Attributes:
        name: the run's name.
        by_name: the curves by key, or by `key/path` for the leaves of a pytree.
        steps: the largest step numbers, by name.
        ended: whether the run is closed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_name: collections.defaultdict[str, Curve]
        self.by_name = collections.defaultdict(Curve)
        self.steps: dict[str, Any] = {}
        self.ended = False
        self._names: dict[Any, list[str]] = {}

    @property
    def count(self) -> int:
        """The number of rows of the longest curve."""
        return max((curve.count for curve in self.by_name.values()), default=0)

    def add(self, logs: logdict) -> None:
        metadata = metadata_of(logs)
        steps, masks = metadata.steps, metadata.mask
        for key, value in logs.items():
            # the fast path: a tap may send a million scalars
            if isinstance(value, _NUMPY) and value.shape == () and key not in masks:
                curve = self.by_name[key]
                curve.count += 1
                curve.add_value(value.item())
                curves = [curve]
            else:
                curves = self._add_rows(key, key_of(logs, key))
            for name, by_key in steps.items():
                if key in by_key and name != LANE:
                    self._set_step(curves, name, by_key[key], masks.get(key))

    def _set_step(self, curves: list[Curve], name: str, step: Any, mask: Any) -> None:
        if step.shape:
            if mask is not None:
                step = step[np.broadcast_to(mask, step.shape)]
            if not step.size:
                return
            step = step.max()
        number = step.item()
        for curve in curves:
            curve.steps[name] = number
        if name not in self.steps or number > self.steps[name]:
            self.steps[name] = number

    def _add_rows(self, key: str, rows: Key) -> list[Curve]:
        leaves, tree = jax.tree.flatten(rows.value)
        names = self._leaf_names(key, rows.value, tree)
        curves = []
        with np.errstate(all="ignore"):
            for name, leaf, ndim in zip(names, leaves, rows.info.ndims, strict=True):
                curve = self.by_name[name]
                _add_rows_to(curve, leaf, ndim, rows.info, rows.mask)
                curves.append(curve)
        return curves

    def _leaf_names(self, key: str, value: Any, tree: Any) -> list[str]:
        """The names of a key's leaves, computed once per tree structure."""
        names = self._names.get((key, tree))
        if names is None:
            names = self._names[key, tree] = [
                name for name, _ in named_leaves(key, value)
            ]
        return names


# --- rows --------------------------------------------------------------------


def _add_rows_to(curve: Curve, leaf: Any, ndim: int, info: KeyInfo, mask: Any) -> None:
    """Adds the rows of a leaf whose values have `ndim` axes."""
    if not isinstance(leaf, _NUMPY):  # a PRNG key, which NumPy cannot read
        leading = np.shape(leaf)[: np.ndim(leaf) - ndim]
        curve.count += math.prod(leading)
        curve.last = _type_text(leaf.dtype, np.shape(leaf)[len(leading) :])
        return
    rows = _time_first(np.asarray(leaf), ndim, info)
    happened = None if mask is None else _time_first(np.asarray(mask), 0, info)
    length, lanes = rows.shape[:2]
    count = length * lanes if happened is None else int(happened.sum())
    if not count:
        return
    curve.count += count
    if happened is not None:
        nonempty = happened.any(1)
        rows, happened = rows[nonempty], happened[nonempty]
    if ndim:
        curve.add_array(rows[-1] if happened is None else rows[-1][happened[-1]])
        return
    numbers = as_floats(rows[-RECENT:])
    if numbers is None:
        curve.last = str(rows[-1, 0])
    elif lanes == 1:
        curve.extend_history(numbers[:, 0])
        curve.last = rows[-1, 0].item()
    else:
        where = True if happened is None else happened[-RECENT:]
        means: Array = numbers.mean(axis=1, dtype=np.float64, where=where)
        curve.extend_history(means)
        curve.last = float(means[-1])


def _time_first(rows: Array, ndim: int, info: KeyInfo) -> Array:
    """Reshapes to `(time, lanes, *value)`, where values have `ndim` axes."""
    axis = info.time_axis(rows, ndim)
    if not info.stacked:
        rows = rows[None]
    elif axis:
        rows = np.moveaxis(rows, axis, 0)
    time, *lanes = rows.shape[: rows.ndim - ndim]
    return rows.reshape(time, math.prod(lanes), *rows.shape[rows.ndim - ndim :])


def as_floats(array: Array) -> Array | None:
    """Converts to floats, complex numbers to their magnitude; None if not numeric."""
    if array.dtype.kind == "c":
        array = np.abs(array)
    if array.dtype.kind in "OSUMm":
        return None
    if array.dtype in (np.float32, np.float64):
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _type_text(dtype: Any, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]" if shape else str(dtype)
