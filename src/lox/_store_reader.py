"""Reading a run, also while it is written; only what is looked at leaves the disk."""

import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from ._errors import StoreError
from ._events import matches
from ._key import Key, KeyInfo
from ._logdict import logdict
from ._schema import Schema
from ._store import PLACE, RUN_FILE, SEGMENT, WRITER, build_tree, npy_header, read_json


class _Segment:
    """The records of one schema that a writer has written so far."""

    def __init__(self, path: pathlib.Path) -> None:
        content = read_json(path)
        try:
            self.schema = Schema.from_json(content["schema"])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} does not describe records: {error!r}.") from None
        self._path = path
        self._dtype = self.schema.dtype
        self._header = len(npy_header(self._dtype, 0))

    def records(self) -> Any:
        """All whole records; read from disk only where they are looked at."""
        path = self._path.with_suffix(".npy")
        try:
            size = path.stat().st_size - self._header
        except FileNotFoundError:
            size = 0
        count = max(size, 0) // self._dtype.itemsize
        if not count:
            return np.empty(0, self._dtype)
        return np.memmap(path, self._dtype, "r", self._header, (count,))

    def numbers(self, count: int) -> Any:
        """For each record, the number of its event in the writer."""
        try:
            raw = self._path.with_suffix(".places").read_bytes()
        except FileNotFoundError:
            raw = b""
        places = np.frombuffer(
            raw[: len(raw) // PLACE.itemsize * PLACE.itemsize], PLACE
        )
        places = places[places["row"] < count]
        rows = np.arange(count, dtype=np.uint64)
        which = np.searchsorted(places["row"], rows, side="right") - 1
        return places["number"][which] + rows - places["row"][which]


class _Part:
    """What one segment has of one key."""

    def __init__(self, segment: _Segment, writer: int, name: str) -> None:
        self.segment = segment
        self.writer = writer
        schema = segment.schema
        self.records = segment.records()
        self.key = next(key for key in schema.keys if key.name == name)
        names: tuple[str, ...] = self.records.dtype.names or ()
        start = 0
        for key in schema.keys:
            if key is self.key:
                break
            start += len(key.columns)
        self._fields = names[start : start + len(self.key.columns)]
        values = sum(len(key.columns) for key in schema.keys)
        self._steps = names[values : values + len(schema.steps)]
        self._mask = None if schema.mask is None else names[-1]

    def leaves(self) -> list[Any]:
        pairs = zip(self.key.columns, self._fields, strict=True)
        return [column.decode(_plain(self.records[f])) for column, f in pairs]

    def steps(self) -> dict[str, Any]:
        pairs = zip(self.segment.schema.steps, self._steps, strict=True)
        return {
            name: column.decode(_plain(self.records[field]))
            for (name, column), field in pairs
        }

    def mask(self) -> Any:
        if self._mask is None:
            return None
        return _plain(self.records[self._mask]).astype(bool)


def _plain(column: Any) -> Any:
    """In memory, and without the records around it."""
    return np.ascontiguousarray(column).view(np.ndarray)


class Run:
    """A run in a store.

    Attributes:
        path: its directory.
        name: its name.
        key: the PRNG key that it was made with, as its data; None if there was none.
        config: what its logger was given.
        started: when, in seconds since 1970.
        versions: of the packages that wrote it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        try:
            about = read_json(self.path / RUN_FILE)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(
                f"{self.path} is no run: it has no {RUN_FILE!r}."
            ) from None
        self.name: str = about["name"]
        key = about["key"]
        self.key = None if key is None else np.array(key, np.uint32)
        self.config: dict[str, Any] = about["config"]
        self.started: float = about["started"]
        self.versions: dict[str, str] = about["versions"]

    def __repr__(self) -> str:
        return f"<lox run {self.name!r} at {str(self.path)!r}>"

    def load(self, argnames: str | Iterable[str] | None = None) -> logdict:
        """What was logged, as NumPy arrays; of the keys that match, if any are given.

        A key that was written once, without a time axis, has none; all others do. Other
        keys are not read from disk.
        """
        patterns = [argnames] if isinstance(argnames, str) else argnames
        chosen = None if patterns is None else list(patterns)
        parts: dict[str, list[_Part]] = {}
        for number, writer in _numbered(self.path, WRITER):
            for _, path in _numbered(writer, SEGMENT):
                segment = _Segment(path)
                for key in segment.schema.keys:
                    if chosen is None or any(matches(key.name, p) for p in chosen):
                        part = _Part(segment, number, key.name)
                        if len(part.records):
                            parts.setdefault(key.name, []).append(part)
        keys = ((name, _joined(name, found)) for name, found in parts.items())
        return logdict()._with(keys)


def _numbered(
    directory: pathlib.Path, pattern: re.Pattern[str]
) -> list[tuple[int, pathlib.Path]]:
    found = [(pattern.match(path.name), path) for path in directory.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def _joined(name: str, parts: list[_Part]) -> Key:
    """One key from all its segments, in the order in which it was written."""
    first = parts[0]
    for other in parts[1:]:
        if _form(other) != _form(first):
            raise StoreError(
                f"{name!r} was written in two forms: {_form(first)} in "
                f"{first.segment._path} and {_form(other)} in {other.segment._path}."
            )
    leaves = [part.leaves() for part in parts]
    steps = [part.steps() for part in parts]
    masks = [part.mask() for part in parts]
    count = sum(len(part.records) for part in parts)
    if len(parts) == 1:
        order = None
    else:
        writers = [np.full(len(p.records), p.writer, np.uint64) for p in parts]
        numbers = [p.segment.numbers(len(p.records)) for p in parts]
        order = np.lexsort([np.concatenate(numbers), np.concatenate(writers)])

    def join(arrays: Sequence[Any]) -> Any:
        if order is None:
            return arrays[0]
        module = jax.numpy if isinstance(arrays[0], jax.Array) else np
        return module.concatenate(arrays)[order]

    stacked = count > 1 or first.segment.schema.stacked
    outer, lanes = first.key.outer, first.key.lanes
    ndims = tuple(
        len(column.shape) - lanes - outer - (column.impl is not None)
        for column in first.key.columns
    )
    value = build_tree(
        first.key.tree, [join(column) for column in zip(*leaves, strict=True)]
    )
    mask = None if masks[0] is None else join(masks)
    key = Key(
        value,
        {step: join([one[step] for one in steps]) for step in steps[0]},
        mask,
        KeyInfo(True, lanes, ndims),
    )
    key = key._replace(info=KeyInfo(True, lanes + outer, ndims))
    if outer:
        key = key.arrays(lambda x, axis: _module(x).moveaxis(x, 0, outer))
        key = key._replace(info=KeyInfo(True, lanes, ndims))
    if not stacked:
        key = key.arrays(lambda x, axis: _module(x).squeeze(x, axis))
        key = key._replace(info=KeyInfo(False, lanes, ndims))
    return key


def _form(part: _Part) -> Any:
    columns = [(c.dtype, c.shape, c.impl) for c in part.key.columns]
    steps = sorted(name for name, _ in part.segment.schema.steps)
    return part.key.tree, columns, part.key.outer, part.key.lanes, steps


def _module(x: Any) -> Any:
    return jax.numpy if isinstance(x, jax.Array) else np
