"""What `ConsoleLogger` remembers of a run: a few numbers a key, however many rows."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lox._logs.key import KeyInfo
from lox._logs.logdict import logdict

Array = np.ndarray[Any, Any]
_NUMPY = np.ndarray, np.generic
_NUMBERS = bool, int, float, complex
RECENT = 256  # rows of history that a sparkline is drawn of


class Summary(NamedTuple):
    """What is shown of an array; complex ones by their magnitude."""

    shape: tuple[int, ...]
    mean: float
    low: float
    high: float
    strange: int  # how many are not finite


class Curve:
    """The last value of one row of the table, and its recent history.

    Attributes:
        last: a Python number, the `Summary` of an array, or text for what is neither.
        steps: the last step numbers, by name.
        count: how many rows there were.
    """

    __slots__ = ("_at", "_recent", "count", "last", "steps")

    def __init__(self) -> None:
        self.last: Any = ""
        self.steps: dict[str, Any] = {}
        self.count = 0
        self._recent: Array = np.empty(RECENT)
        self._at = 0  # how many were put there: the next place, around and around

    def put_last(self, value: Any) -> None:
        """One more row, of a Python number; or of text, which has no history."""
        if isinstance(value, _NUMBERS):
            self.last = value
            if isinstance(value, complex):
                value = math.hypot(value.real, value.imag)
            try:
                self._put(value)
            except OverflowError:  # an integer beyond all floats
                self.last = math.inf if value > 0 else -math.inf
                self._put(self.last)
        else:
            self.last = str(value)

    def put_array(self, array: Array) -> None:
        """One more row, of an array of any shape; its lanes first."""
        numbers = as_floats(array)
        if numbers is None:
            self.last = _text(array.dtype, array.shape[1:])
            return
        good = np.isfinite(numbers)
        strange = numbers.size - int(np.count_nonzero(good))
        if strange:
            numbers = numbers[good]
        mean = low = high = math.nan
        if numbers.size:
            mean, low, high = _statistics(numbers)
            self._put(mean)
        self.last = Summary(array.shape[1:], mean, low, high, strange)

    def _put(self, number: float) -> None:
        self._recent[self._at % RECENT] = number
        self._at += 1

    def put_all(self, numbers: Array) -> None:
        numbers = numbers[-RECENT:]
        start = self._at % RECENT
        room = RECENT - start
        self._recent[start : start + len(numbers)] = numbers[:room]
        if len(numbers) > room:
            self._recent[: len(numbers) - room] = numbers[room:]
        self._at += len(numbers)

    def recent(self) -> Array:
        """The history, the oldest first."""
        if self._at < RECENT:
            return self._recent[: self._at].copy()
        start = self._at % RECENT
        return np.concatenate([self._recent[start:], self._recent[:start]])


class Curves:
    """All that is shown of one run.

    Attributes:
        name: the run's.
        by_name: its curves, by key, or `key/sub` for what is inside a pytree.
        steps: the largest step numbers, by name.
        ended: whether it is closed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_name: dict[str, Curve] = {}
        self.steps: dict[str, Any] = {}
        self.ended = False
        self._names: dict[Any, list[str]] = {}

    @property
    def count(self) -> int:
        """How many rows the key with most of them has."""
        return max((curve.count for curve in self.by_name.values()), default=0)

    def add(self, logs: logdict) -> None:
        masks = logs._mask
        for key, value in logs.items():
            # a number, as a tap sends them: this may happen a million times
            if isinstance(value, _NUMPY) and value.shape == () and key not in masks:
                curve = self.by_name.get(key) or self._new(key)
                curve.count += 1
                curve.put_last(value.item())
                curves = [curve]
            else:
                curves = self._add_rows(key, value, logs)
            for name, of in logs._steps.items():
                if key in of:
                    self._step(curves, name, of[key], masks.get(key))

    def _new(self, name: str) -> Curve:
        curve = self.by_name[name] = Curve()
        return curve

    def _step(self, curves: list[Curve], name: str, step: Any, mask: Any) -> None:
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

    def _add_rows(self, key: str, value: Any, logs: logdict) -> list[Curve]:
        info, mask = logs._info_for(key), logs._mask.get(key)
        leaves, tree = jax.tree.flatten(value)
        names = self._names_of(key, value, tree)
        curves = []
        with np.errstate(all="ignore"):
            for name, leaf, own in zip(names, leaves, info.ndims, strict=True):
                curve = self.by_name.get(name) or self._new(name)
                _put_rows(curve, leaf, own, info, mask)
                curves.append(curve)
        return curves

    def _names_of(self, key: str, value: Any, tree: Any) -> list[str]:
        """The names of a key's leaves, which are made once for each structure."""
        names = self._names.get((key, tree))
        if names is None:
            name = functools.partial(jax.tree_util.keystr, simple=True)
            names = self._names[key, tree] = [
                "/".join([key, *(name((part,)) for part in path)])
                for path, _ in jax.tree_util.tree_leaves_with_path(value)
            ]
        return names


# --- rows --------------------------------------------------------------------


def _put_rows(curve: Curve, leaf: Any, own: int, info: KeyInfo, mask: Any) -> None:
    if not isinstance(leaf, _NUMPY):  # a PRNG key, which only JAX can look into
        front = np.shape(leaf)[: np.ndim(leaf) - own]
        curve.count += math.prod(front)
        curve.last = _text(leaf.dtype, np.shape(leaf)[len(front) :])
        return
    rows = _by_time(np.asarray(leaf), own, info)
    happened = None if mask is None else _by_time(np.asarray(mask), 0, info)
    length, lanes = rows.shape[:2]
    count = length * lanes if happened is None else int(happened.sum())
    if not count:
        return
    curve.count += count
    if happened is not None:
        some = happened.any(1)
        rows, happened = rows[some], happened[some]
    if own:
        curve.put_array(rows[-1] if happened is None else rows[-1][happened[-1]])
        return
    numbers = as_floats(rows[-RECENT:])
    if numbers is None:
        curve.last = str(rows[-1, 0])
    elif lanes == 1:
        curve.put_all(numbers[:, 0])
        curve.last = rows[-1, 0].item()
    else:
        there = True if happened is None else happened[-RECENT:]
        means: Array = numbers.mean(axis=1, dtype=np.float64, where=there)
        curve.put_all(means)
        curve.last = float(means[-1])


def _statistics(numbers: Array) -> tuple[float, float, float]:
    mean = numbers.mean(dtype=np.float64)
    return float(mean), float(numbers.min()), float(numbers.max())


def _by_time(rows: Array, own: int, info: KeyInfo) -> Array:
    """With the shape `(time, lanes, *own)`."""
    axis = info.time_axis(rows, own)
    if not info.stacked:
        rows = rows[None]
    elif axis:
        rows = np.moveaxis(rows, axis, 0)
    front = rows.shape[: rows.ndim - own]
    return rows.reshape(front[0], math.prod(front[1:]), *rows.shape[len(front) :])


def as_floats(array: Array) -> Array | None:
    """Complex numbers by their magnitude; None for what is no number, such as text."""
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


def _text(dtype: Any, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]" if shape else str(dtype)
