"""What the records of one segment of a store mean.

A schema is JSON and nothing but JSON: it names dtypes and describes structures, and
reading one runs no code of whoever wrote it.
"""

import dataclasses
from typing import Any

import jax
import ml_dtypes
import numpy as np

from ._errors import StoreError


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One array of a record.

    Attributes:
        dtype: the name of its dtype, also of such as NumPy has no files for.
        shape: its shape, with the lanes in front.
        impl: for typed PRNG keys, their implementation; the column has their data.
    """

    dtype: str
    shape: tuple[int, ...]
    impl: str | None = None

    @classmethod
    def of(cls, rows: Any) -> "Column":
        """The column for an array of rows."""
        if jax.dtypes.issubdtype(rows.dtype, jax.dtypes.prng_key):
            data = np.asarray(jax.random.key_data(rows))
            impl = str(jax.random.key_impl(rows))
            return cls(data.dtype.name, data.shape[1:], impl)
        return cls(np.dtype(rows.dtype).name, tuple(rows.shape[1:]))

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype in the file; if NumPy has none, whole numbers as wide."""
        dtype = _dtype(self.dtype)
        if _extended(self.dtype) is not None:
            return np.dtype(f"<u{dtype.itemsize}")
        return dtype.newbyteorder("<")

    def encode(self, rows: Any) -> Any:
        if self.impl is not None:
            rows = jax.random.key_data(rows)
        array = np.asarray(rows)
        return array if array.dtype == self.stored else array.view(self.stored)

    def decode(self, rows: Any) -> Any:
        dtype = _dtype(self.dtype)
        array = rows if rows.dtype == dtype else rows.view(dtype)
        if self.impl is not None:
            return jax.random.wrap_key_data(array, impl=self.impl)
        return array

    def to_json(self) -> Any:
        return [self.dtype, list(self.shape), self.impl]

    @classmethod
    def from_json(cls, data: Any) -> "Column":
        dtype, shape, impl = data
        _dtype(dtype)
        return cls(dtype, tuple(map(int, shape)), impl)


def _extended(name: str) -> Any:
    """The type of that name that NumPy itself does not have, if there is one."""
    found = getattr(ml_dtypes, name, None)
    is_number = isinstance(found, type) and issubclass(found, np.generic)
    return found if is_number else None


def _dtype(name: str) -> np.dtype[Any]:
    extended = _extended(name) if isinstance(name, str) else None
    if extended is not None:
        return np.dtype(extended)
    try:
        dtype = np.dtype(name)
    except (TypeError, SyntaxError, ValueError):
        raise StoreError(f"{name!r} is no dtype that is known here") from None
    if dtype.kind not in "biufc":
        raise StoreError(f"{name!r} is no dtype of numbers")
    return dtype


@dataclasses.dataclass(frozen=True, slots=True)
class KeySchema:
    """The part of a record that belongs to one key.

    Attributes:
        name: the key.
        tree: its structure, as `describe_tree` gives it.
        columns: its leaves.
        outer: how many lane axes were in front of the time axis.
        lanes: how many lane axes were behind it.
    """

    name: str
    tree: str
    columns: tuple[Column, ...]
    outer: int
    lanes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """A record: keys that were logged together, and their steps.

    Attributes:
        keys: the keys.
        steps: the steps by name, each a column.
        stacked: whether the keys had a time axis.
        mask: which lanes happened, as a column; None if all did.
    """

    keys: tuple[KeySchema, ...]
    steps: tuple[tuple[str, Column], ...]
    stacked: bool
    mask: Column | None = None

    @property
    def columns(self) -> list[Column]:
        values = [column for key in self.keys for column in key.columns]
        mask = [] if self.mask is None else [self.mask]
        return [*values, *(column for _, column in self.steps), *mask]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the records."""
        fields = [(f"c{i}", c.stored, c.shape) for i, c in enumerate(self.columns)]
        return np.dtype(fields)

    def to_json(self) -> Any:
        return {
            "keys": [
                {
                    "name": key.name,
                    "tree": key.tree,
                    "outer": key.outer,
                    "lanes": key.lanes,
                    "columns": [column.to_json() for column in key.columns],
                }
                for key in self.keys
            ],
            "steps": [[name, column.to_json()] for name, column in self.steps],
            "stacked": self.stacked,
            "mask": None if self.mask is None else self.mask.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Schema":
        return cls(
            keys=tuple(
                KeySchema(
                    str(key["name"]),
                    str(key["tree"]),
                    tuple(map(Column.from_json, key["columns"])),
                    int(key["outer"]),
                    int(key["lanes"]),
                )
                for key in data["keys"]
            ),
            steps=tuple((str(n), Column.from_json(c)) for n, c in data["steps"]),
            stacked=bool(data["stacked"]),
            mask=None if data["mask"] is None else Column.from_json(data["mask"]),
        )
