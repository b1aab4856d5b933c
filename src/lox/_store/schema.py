"""The schema of the records of one segment of a store.

A schema is plain JSON that names dtypes and describes tree structures: reading one
never runs code from the file.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Collection
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lox._arrays import imported_jax, is_typed_key
from lox._errors import StoreError
from lox._logs.lane_step import LANE

from .format import leaf_order

_MAX_BYTES = 2**31 - 1  # per record, and per dimension: the limit of NumPy's dtypes
_NUMERIC = re.compile(r"bool|(u?int|float|complex)[0-9]{1,3}")


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One array of a record.

    Attributes:
        dtype: the name of its dtype, which may be one that NumPy itself lacks.
        shape: its shape, with the lanes in front.
        impl: for typed PRNG keys, their implementation; the column holds the key data.
    """

    dtype: str
    shape: tuple[int, ...]
    impl: str | None = None

    @classmethod
    def of(cls, rows: Any) -> "Column":
        """The column of an array of rows."""
        if is_typed_key(rows):
            jax = imported_jax()
            data = np.asarray(jax.random.key_data(rows))
            impl = str(jax.random.key_impl(rows))
            return cls(data.dtype.name, data.shape[1:], impl)
        return cls(np.dtype(rows.dtype).name, tuple(rows.shape[1:]))

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in the file: unsigned integers for dtypes that NumPy lacks."""
        return _dtypes(self.dtype)[1]

    def encode(self, rows: Any) -> Any:
        if self.impl is not None:
            rows = imported_jax().random.key_data(rows)
        array = np.asarray(rows)
        if array.dtype == self.stored_dtype:
            return array
        if array.dtype.newbyteorder("<") == self.stored_dtype:
            return array.astype(self.stored_dtype)
        return array.view(self.stored_dtype)

    def decode(self, rows: Any) -> Any:
        dtype, _ = _dtypes(self.dtype)
        array = rows if rows.dtype == dtype else rows.view(dtype)
        if self.impl is None:
            return array
        import jax  # only JAX has typed keys

        try:
            return jax.random.wrap_key_data(array, impl=self.impl)
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"this version of JAX has no {self.impl!r} keys with data of shape "
                f"{self.shape}: {error}"
            ) from None

    def joins(self, other: "Column") -> bool:
        """Whether rows of both can be joined: typed PRNG keys also with their data."""
        if self.shape != other.shape:
            return False
        if self.impl == other.impl:
            return True
        return None in (self.impl, other.impl) and self.dtype == other.dtype

    def to_json(self) -> Any:
        return [self.dtype, list(self.shape), self.impl]

    @classmethod
    def from_json(cls, data: Any) -> "Column":
        dtype, shape, impl = data
        if type(dtype) is not str or _dtypes(dtype)[0].name != dtype:
            raise StoreError(f"{dtype!r:.80} is not the name of a dtype")
        if not all(type(n) is int and 0 <= n <= _MAX_BYTES for n in shape):
            raise StoreError(f"{shape!r:.80} is not a valid shape")
        if not (impl is None or type(impl) is str):
            raise StoreError(f"{impl!r:.80} is not an implementation of PRNG keys")
        return cls(dtype, tuple(shape), impl)


@functools.lru_cache(256)
def _dtypes(name: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype of this name, and the one in the file."""
    extended = getattr(ml_dtypes, name, None)
    if isinstance(extended, type) and issubclass(extended, np.generic):
        dtype = np.dtype(extended)
        return dtype, np.dtype(f"<u{dtype.itemsize}")
    # NumPy itself would also parse aliases, some of them with a warning, and structures
    if not _NUMERIC.fullmatch(name):
        raise StoreError(f"{name!r:.80} is not a numeric dtype")
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise StoreError(f"{name!r:.80} is not a known dtype") from None
    return dtype, dtype.newbyteorder("<")


@dataclasses.dataclass(frozen=True, slots=True)
class KeySchema:
    """The part of a record that belongs to one key.

    Attributes:
        name: the key.
        tree: its tree structure, in the JSON of `describe_tree`.
        columns: its leaves.
        outer: the number of lane axes before the time axis.
        lanes: the number of lane axes after the time axis.
        tags: the tags it was logged with.
    """

    name: str
    tree: str
    columns: tuple[Column, ...]
    outer: int
    lanes: int
    tags: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Any) -> "KeySchema":
        name, tree, outer, lanes = (data[x] for x in ("name", "tree", "outer", "lanes"))
        columns = tuple(map(Column.from_json, data["columns"]))
        if type(name) is not str or type(tree) is not str:
            raise StoreError(f"{name!r:.80} is not the name of a key")
        leaf_order(tree, len(columns))
        if not all(type(n) is int and n >= 0 for n in (outer, lanes)) or not columns:
            raise StoreError(f"{name!r:.80} has an invalid number of lanes or columns")
        if any(len(c.shape) < outer + lanes + (c.impl is not None) for c in columns):
            raise StoreError(f"{name!r:.80} has more lanes than axes")
        tags = data.get("tags", [])
        if type(tags) is not list or not all(type(tag) is str for tag in tags):
            raise StoreError(f"{name!r:.80} has invalid tags")
        return cls(name, tree, columns, outer, lanes, tuple(tags))

    def with_key_data(self, indices: Collection[int]) -> "KeySchema":
        """The same key, with the data of typed PRNG keys in some of its columns."""
        columns = (
            dataclasses.replace(column, impl=None) if i in indices else column
            for i, column in enumerate(self.columns)
        )
        return dataclasses.replace(self, columns=tuple(columns))

    def to_json(self) -> Any:
        return {
            "name": self.name,
            "tree": self.tree,
            "outer": self.outer,
            "lanes": self.lanes,
            "columns": [column.to_json() for column in self.columns],
            **({"tags": list(self.tags)} if self.tags else {}),
        }


class Form(NamedTuple):
    """What all rows of a key must have in common.

    Attributes:
        key: the schema of the key.
        steps: the names of its steps; rows inside and outside a `vmap` may be mixed, so
            `lane` is not one of them.
    """

    key: KeySchema
    steps: tuple[str, ...]

    def joins(self, other: "Form") -> bool:
        """Whether rows of both forms can be loaded together."""
        key, of_other = self.key, other.key
        return (
            (key.tree, key.outer, key.lanes, self.steps)
            == (of_other.tree, of_other.outer, of_other.lanes, other.steps)
            and len(key.columns) == len(of_other.columns)
            and all(map(Column.joins, key.columns, of_other.columns))
        )

    def __str__(self) -> str:  # for messages
        key = self.key
        shapes = ", ".join(str(column.shape) for column in key.columns)
        lanes = f", lanes {key.outer}+{key.lanes}" if key.outer or key.lanes else ""
        impls = ", ".join(column.impl or "none" for column in key.columns)
        is_typed = any(column.impl is not None for column in key.columns)
        prng = f"; PRNG keys: {impls}" if is_typed else ""
        steps = ", ".join(self.steps) or "none"
        return f"the shape {shapes} (structure {key.tree}{lanes}{prng}; steps: {steps})"


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """A record: keys that were logged together, and their steps.

    Attributes:
        keys: the keys.
        steps: the columns of the steps, by name.
        stacked: whether a single row is loaded with a time axis.
        mask: the column that says in which lanes the row happened; None if in all.
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

    def form(self, key: KeySchema) -> Form:
        """The form of the rows of a key."""
        steps = sorted(name for name, _ in self.steps if name != LANE)
        return Form(key, tuple(steps))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The structured dtype of the records."""
        columns = self.columns
        size = sum(math.prod(c.shape) * c.stored_dtype.itemsize for c in columns)
        if size > _MAX_BYTES:
            raise StoreError(
                f"a record of {', '.join(key.name for key in self.keys):.80} has "
                f"{size} bytes, but at most {_MAX_BYTES} can be stored. Save its keys "
                "one by one."
            )
        fields = [(f"c{i}", c.stored_dtype, c.shape) for i, c in enumerate(columns)]
        if size == 0:  # the number of records follows from the file size
            fields.append(("padding", np.dtype("u1"), ()))
        return np.dtype(fields)

    def to_json(self) -> Any:
        return {
            "keys": [key.to_json() for key in self.keys],
            "steps": [[name, column.to_json()] for name, column in self.steps],
            "stacked": self.stacked,
            "mask": None if self.mask is None else self.mask.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Schema":
        schema = cls(
            keys=tuple(map(KeySchema.from_json, data["keys"])),
            steps=tuple((str(n), Column.from_json(c)) for n, c in data["steps"]),
            stacked=bool(data["stacked"]),
            mask=None if data["mask"] is None else Column.from_json(data["mask"]),
        )
        axes = max((key.outer + key.lanes for key in schema.keys), default=0)
        mask = [] if schema.mask is None else [schema.mask]
        for column in (*(column for _, column in schema.steps), *mask):
            if len(column.shape) < axes or column.impl is not None:
                raise StoreError("its steps or its mask lack the lane axes of its keys")
        return schema
