"""Converts logs to records: which keys share a record, and its schema."""

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from lox._arrays import is_typed_key, leaves_of, namespace
from lox._errors import LoxTypeError
from lox._logs.access import keys_of, metadata_of
from lox._logs.grouping import group_keys
from lox._logs.key import Key, equal
from lox._logs.logdict import logdict

from .format import describe_tree
from .schema import Column, KeySchema, Schema


def records_of(logs: logdict) -> Iterable[tuple[Schema, list[Any]]]:
    """Yields the rows of logs, for each group of keys that can share a record."""
    for name, value in logs.items():
        if not leaves_of(value):
            raise LoxTypeError(
                f"{name!r} is {value!r}, which contains no array, and cannot be saved. "
                "Leave the key out."
            )
    keys = keys_of(logs.compact())
    groups = group_keys(
        keys,
        lambda name: _record_form(keys[name]),
        lambda first, name: _same_rows(keys[first], keys[name]),
    )
    for names in groups:
        if keys[names[0]].length():
            yield _records({name: keys[name] for name in names})


def _record_form(key: Key) -> Any:
    """What keys that share a record have in common, besides steps and mask."""
    info = key.info
    return info.stacked, info.lanes, _has_time(key), key.outer_lanes(), key.length()


def _same_rows(first: Key, other: Key) -> bool:
    return equal(first.steps, other.steps) and (
        first.mask is other.mask or equal(first.mask, other.mask)
    )


def _records(keys: dict[str, Key]) -> tuple[Schema, list[Any]]:
    """The rows of keys that share a record: its schema, and an array per column."""
    rows = {name: key.stacked().arrays(_time_first) for name, key in keys.items()}
    leaves = {name: leaves_of(key.value) for name, key in rows.items()}
    schemas = tuple(
        KeySchema(
            name,
            describe_tree(key.value),
            tuple(map(Column.of, leaves[name])),
            keys[name].outer_lanes(),
            key.info.lanes,
            key.info.tags,
        )
        for name, key in rows.items()
    )
    arrays = [leaf for of_key in leaves.values() for leaf in of_key]
    first = next(iter(rows.values()))  # steps and mask are the same for all keys
    steps = tuple((step, Column.of(x)) for step, x in first.steps.items())
    mask = None if first.mask is None else Column.of(first.mask)
    arrays += [*first.steps.values(), *([] if mask is None else [first.mask])]
    stacked = _has_time(next(iter(keys.values())))
    return Schema(schemas, steps, stacked, mask), arrays


def _time_first(x: Any, axis: int) -> Any:
    if is_typed_key(x):
        return namespace(x).moveaxis(x, axis, 0)
    return np.moveaxis(np.asarray(x), axis, 0)


def _has_time(key: Key) -> bool:
    """Whether a single row of the key is loaded with a time axis."""
    multi_row = key.info.multi_row
    return key.info.stacked if multi_row is None else multi_row


def _is_stored_unchanged(x: Any) -> bool:
    return (
        isinstance(x, np.ndarray | np.generic)
        and x.dtype.kind in "biufc"
        and x.dtype.isnative
        and not hasattr(ml_dtypes, x.dtype.name)
    )


def _same_bytes(x: Any, y: Any) -> bool:
    """Whether two NumPy arrays are equal to the bit; False for anything else."""
    return (
        isinstance(x, np.ndarray | np.generic)
        and isinstance(y, np.ndarray | np.generic)
        and x.dtype == y.dtype
        and x.shape == y.shape
        and x.tobytes() == y.tobytes()
    )


class Plan:
    """How logs were written, so that similar logs can be written without analysis.

    Attributes:
        segment: where the logs were written.
        info: the axes and tags of their keys, by identity: events of one `lox.log` call
            share it.
        stacked: whether they have a time axis.
    """

    def __init__(self, logs: logdict, segment: Any) -> None:
        metadata = metadata_of(logs)
        self.segment = segment
        self.info = metadata.info
        self._names = tuple(logs)
        self._steps = tuple(metadata.steps)
        first = self._names[0]
        self.stacked = metadata.info[first].stacked
        steps = [by_key[first] for by_key in metadata.steps.values()]
        start = int(self.stacked)
        self._types = [(x.dtype, x.shape[start:]) for x in (*logs.values(), *steps)]

    @staticmethod
    def key_of(logs: logdict) -> Any:
        """The key under which to look up the plan for logs."""
        metadata = metadata_of(logs)
        return tuple(logs), tuple(metadata.steps), tuple(metadata.info.items())

    def has_names_of(self, logs: logdict) -> bool:
        steps = metadata_of(logs).steps
        return tuple(logs) == self._names and tuple(steps) == self._steps

    @staticmethod
    def supports(logs: logdict) -> bool:
        metadata = metadata_of(logs)
        return (
            not metadata.mask
            and len(logs) == len(metadata.info)
            and all(map(_is_stored_unchanged, logs.values()))
            and not any(key.outer_lanes() for key in keys_of(logs).values())
            and all(
                _is_stored_unchanged(by_key.get(name))
                for by_key in metadata.steps.values()
                for name in logs
            )
        )

    def arrays(self, logs: logdict) -> list[Any] | None:
        """The arrays to write; None if the logs do not fit the plan."""
        metadata = metadata_of(logs)
        if metadata.mask or len(metadata.info) != len(logs):
            return None
        first, *others = self._names
        arrays = list(logs.values())
        for by_key in metadata.steps.values():
            step = by_key.get(first)
            for other in others:
                other_step = by_key.get(other)
                if other_step is not step and not _same_bytes(other_step, step):
                    return None
            arrays.append(step)
        try:
            length = arrays[0].shape[:1] if self.stacked else ()
            for array, (dtype, shape) in zip(arrays, self._types, strict=True):
                # NumPy compares dtypes slowly, and most are identical
                if array.dtype is not dtype and array.dtype != dtype:
                    return None
                if array.shape != (length + shape if length else shape):
                    return None
        except AttributeError:  # a Python number
            return None
        return arrays
