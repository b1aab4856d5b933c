"""From logs to records: which keys share one, and what it looks like."""

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from lox._arrays import is_typed_key, leaves_of, namespace
from lox._errors import LoxTypeError
from lox._logs.key import Key, equal
from lox._logs.logdict import logdict

from .format import describe_tree
from .schema import Column, KeySchema, Schema


def records_of(logs: logdict) -> Iterable[tuple[Schema, list[Any]]]:
    """The rows of logs, for each group of keys that can share a record."""
    for name, value in logs.items():
        if not leaves_of(value):
            raise LoxTypeError(
                f"{name!r} is {value!r}, which holds no array, and cannot be saved. "
                "Leave the key out."
            )
    compact = logs.compact()
    for names in _groups(compact):
        if not compact._key(names[0]).length():
            continue
        stacked = _in_time(compact._key(names[0]))
        keys = [compact._key(name).stacked() for name in names]
        outer = [key.outer_lanes() for key in keys]
        keys = [key.arrays(_time_first) for key in keys]
        leaves = [leaves_of(key.value) for key in keys]
        steps, mask = keys[0].steps, keys[0].mask
        schema = Schema(
            keys=tuple(
                KeySchema(
                    name,
                    describe_tree(key.value),
                    tuple(map(Column.of, arrays)),
                    count,
                    key.info.lanes,
                    key.info.tags,
                )
                for name, key, arrays, count in zip(
                    names, keys, leaves, outer, strict=True
                )
            ),
            steps=tuple((name, Column.of(step)) for name, step in steps.items()),
            stacked=stacked,
            mask=None if mask is None else Column.of(mask),
        )
        arrays = [leaf for key_leaves in leaves for leaf in key_leaves]
        yield schema, [*arrays, *steps.values(), *([] if mask is None else [mask])]


def _time_first(x: Any, axis: int) -> Any:
    if is_typed_key(x):
        return namespace(x).moveaxis(x, axis, 0)
    return np.moveaxis(np.asarray(x), axis, 0)


def _groups(logs: logdict) -> list[list[str]]:
    groups: list[tuple[Key, list[str]]] = []
    for name in logs:
        key = logs._key(name)
        for first, names in groups:
            if _together(first, key):
                names.append(name)
                break
        else:
            groups.append((key, [name]))
    return [names for _, names in groups]


def _together(first: Key, other: Key) -> bool:
    return (
        first.info.stacked == other.info.stacked
        and _in_time(first) == _in_time(other)
        and first.info.lanes == other.info.lanes
        and first.outer_lanes() == other.outer_lanes()
        and first.length() == other.length()
        and equal(first.steps, other.steps)
        and (first.mask is other.mask or equal(first.mask, other.mask))
    )


def _in_time(key: Key) -> bool:
    """Whether a single row of it is to be loaded with a time axis."""
    several = key.info.several
    return key.info.stacked if several is None else several


def _is_stored_as_it_is(x: Any) -> bool:
    return (
        isinstance(x, np.ndarray | np.generic)
        and x.dtype.kind in "biufc"
        and x.dtype.isnative
        and not hasattr(ml_dtypes, x.dtype.name)
    )


def _alike(x: Any, y: Any) -> bool:
    """Whether two are the same array, to the bit; only if that is quick to tell."""
    return (
        isinstance(x, np.ndarray | np.generic)
        and isinstance(y, np.ndarray | np.generic)
        and x.dtype == y.dtype
        and x.shape == y.shape
        and x.tobytes() == y.tobytes()
    )


class Plan:
    """How logs like these were written, so that the next need no second thought."""

    def __init__(self, logs: logdict, segment: Any) -> None:
        self.segment = segment
        self.info = logs._info
        self._names = tuple(logs)
        self._steps = tuple(logs._steps)
        self.stacked = logs._key(self._names[0]).info.stacked
        steps = [of[self._names[0]] for of in logs._steps.values()]
        start = int(self.stacked)
        self._form = [(x.dtype, x.shape[start:]) for x in (*logs.values(), *steps)]

    @staticmethod
    def form_of(logs: logdict) -> Any:
        """By which those that may be alike are told."""
        return tuple(logs), tuple(logs._steps), tuple(logs._info.items())

    def has_names_of(self, logs: logdict) -> bool:
        return tuple(logs) == self._names and tuple(logs._steps) == self._steps

    @staticmethod
    def serves(logs: logdict) -> bool:
        return (
            not logs._mask
            and len(logs) == len(logs._info)
            and all(map(_is_stored_as_it_is, logs.values()))
            and not any(logs._key(name).outer_lanes() for name in logs)
            and all(
                _is_stored_as_it_is(of.get(name))
                for of in logs._steps.values()
                for name in logs
            )
        )

    def arrays(self, logs: logdict) -> list[Any] | None:
        """What to write of logs like these; None if they are not."""
        if logs._mask or len(logs._info) != len(logs):
            return None
        first, *others = self._names
        arrays = list(logs.values())
        for of in logs._steps.values():
            step = of.get(first)
            for other in others:
                if of.get(other) is not step and not _alike(of.get(other), step):
                    return None
            arrays.append(step)
        try:
            length = arrays[0].shape[:1] if self.stacked else ()
            for array, (dtype, shape) in zip(arrays, self._form, strict=True):
                # NumPy takes long to compare two dtypes, which mostly are the same one
                if array.dtype is not dtype and array.dtype != dtype:
                    return None
                if array.shape != (length + shape if length else shape):
                    return None
        except AttributeError:  # of a number of Python's own
            return None
        return arrays
