"""Reading a run, also while it is written; only what is looked at leaves the disk."""

import functools
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from ._errors import LoxWarning, StoreError
from ._events import matches, user_line
from ._key import Key, KeyInfo, all_tags
from ._logdict import logdict
from ._schema import Column, Schema
from ._store import (
    RUN_FILE,
    SEGMENT,
    WRITER,
    build_tree,
    file_size,
    leaf_order,
    npy_header,
    read_json,
    read_places,
)

# A column of up to so many bytes is read at once. A larger one stays on disk, of which
# only what is looked at is read.
_READ_AT_ONCE = 2**24


class _Segment:
    """The records of one schema that a writer has written so far."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file = path.with_suffix(".npy")
        self._places = path.with_suffix(".places")
        try:
            content = read_json(path)
        except FileNotFoundError:
            raise StoreError(f"{path} was removed while it was read.") from None
        try:
            self.schema = Schema.from_json(content["schema"])
            self._dtype = self.schema.dtype
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = error if isinstance(error, StoreError) else repr(error)
            raise StoreError(f"{path} does not describe records: {what}.") from None
        self._header = npy_header(self._dtype, 0)
        self.count = self._whole_records()

    def __str__(self) -> str:
        return str(self._path)

    def _whole_records(self) -> int:
        try:
            # before the size, since both may be growing
            begun = read_places(self._places, last=True)["row"].tolist()
        except StoreError:
            begun = []  # which says so if somebody needs them
        try:
            size = file_size(self._file) - len(self._header)
            with open(self._file, "rb") as file:
                header = file.read(len(self._header))
        except FileNotFoundError:
            size = -1
        except OSError as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        count = max(size, 0) // self._dtype.itemsize
        if begun and (size < 0 or count < begun[0]):
            warnings.warn_explicit(
                f"{self._file} has lost records: there are {count} of more than "
                f"{begun[0]}.",
                LoxWarning,
                *user_line(),
            )
        if count and _without_length(header) != _without_length(self._header):
            raise StoreError(f"{self._file} is damaged: its head does not fit.")
        return count

    def column(self, index: int) -> Any:
        """One column of all records."""
        start, shape = len(self._header), (self.count,)
        try:
            records = np.memmap(self._file, self._dtype, "r", start, shape)
            rows = records[f"c{index}"].view(np.ndarray)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        return rows.copy() if rows.nbytes <= _READ_AT_ONCE else rows

    def next_number(self) -> int | None:
        """The number of the event of the first record that was not there before."""
        count, now = self.count, self._whole_records()
        if now <= count:
            return None
        self.count = now
        rows, numbers, _ = self.places()
        self.count = count
        last = int(np.searchsorted(rows, count, side="right")) - 1
        return int(numbers[last]) + count - int(rows[last])

    def places(self) -> Any:
        """Where in the writer's order the records are: position, number and length."""
        places = read_places(self._places)
        rows, numbers = places["row"], places["number"]
        if not len(rows) or rows[0] != 0:
            raise StoreError(
                f"{self._places} is damaged: nobody can tell the order of the records."
            )
        known = rows < self.count
        lengths = np.diff(np.append(rows[known], np.uint64(self.count)))
        return rows[known], numbers[known], lengths


def _without_length(header: bytes) -> tuple[bytes, bytes]:
    """The head of a `.npy` file without the part that changes."""
    before, _, after = header.rpartition(b"(")
    return before, after[after.find(b",") :]


class _Written:
    """What one writer has written so far."""

    def __init__(self, number: int, path: pathlib.Path) -> None:
        self.number = number
        found = _numbered(path, SEGMENT)
        self.segments = [_Segment(segment) for _, segment in found]
        if len(self.segments) > 1:
            self._cut()

    def _cut(self) -> None:
        """Leaves out what was written after something that is not read.

        Segments that grow were looked at one after the other. What one of them has
        more by now may have come before what another one had by then.
        """
        missing = [segment.next_number() for segment in self.segments]
        first = min((number for number in missing if number is not None), default=None)
        for segment in self.segments if first is not None else ():
            if segment.count:
                _, numbers, lengths = segment.places()
                numbers, lengths = numbers.astype(np.int64), lengths.astype(np.int64)
                before = np.clip(first - numbers, 0, lengths)
                segment.count = int(before.sum())

    @functools.cached_property
    def numbers(self) -> dict[_Segment, Any]:
        """For each record, the number of its event."""
        segments = [segment for segment in self.segments if segment.count]
        places = [segment.places() for segment in segments]
        # if a file has lost its end, what is known of the records reaches too far
        owners = np.repeat(np.arange(len(places)), [len(rows) for rows, _, _ in places])
        starts = np.concatenate([numbers for _, numbers, _ in places])
        lengths = np.concatenate([length for _, _, length in places])
        order = np.argsort(starts, kind="stable")
        ends = (starts + lengths)[order]
        for i in np.nonzero(ends[:-1] > starts[order][1:])[0][:1]:
            first, second = (segments[owners[order[j]]]._places for j in (i, i + 1))
            raise StoreError(
                f"{first} or {second} is damaged: they give two events one number."
            )
        return {
            segment: np.repeat(numbers - rows, length.astype(np.int64))
            + np.arange(segment.count, dtype=np.uint64)
            for segment, (rows, numbers, length) in zip(segments, places, strict=True)
        }


class _Part:
    """What one segment has of one key."""

    def __init__(self, writer: _Written, segment: _Segment, name: str) -> None:
        self.writer = writer
        self.segment = segment
        schema = segment.schema
        position = next(i for i, key in enumerate(schema.keys) if key.name == name)
        self.key = schema.keys[position]
        self._first = sum(len(key.columns) for key in schema.keys[:position])
        self._first_step = sum(len(key.columns) for key in schema.keys)

    def leaves(self) -> list[Any]:
        return [
            self._decoded(column, self._first + i)
            for i, column in enumerate(self.key.columns)
        ]

    def steps(self) -> dict[str, Any]:
        return {
            name: self._decoded(column, self._first_step + i)
            for i, (name, column) in enumerate(self.segment.schema.steps)
        }

    def mask(self) -> Any:
        schema = self.segment.schema
        if schema.mask is None:
            return None
        position = self._first_step + len(schema.steps)
        return self._decoded(schema.mask, position).astype(bool)

    def numbers(self) -> Any:
        return self.writer.numbers[self.segment]

    def _decoded(self, column: Column, index: int) -> Any:
        rows = self.segment.column(index)
        try:
            return column.decode(rows)
        except StoreError as error:
            raise StoreError(f"{self.segment} cannot be read: {error}.") from None


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
        except FileNotFoundError:
            raise StoreError(
                f"{self.path} is no run: it has no {RUN_FILE!r}."
            ) from None
        if not _is_about_a_run(about):
            raise StoreError(f"{self.path / RUN_FILE} does not describe a run.")
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

        A key has a time axis if its program logs it in a loop or several times, or if
        there are several rows. Other keys are not read from disk.
        """
        patterns = [argnames] if isinstance(argnames, str) else argnames
        chosen = None if patterns is None else list(patterns)
        parts: dict[str, list[_Part]] = {}
        known: dict[str, None] = {}
        for number, path in _numbered(self.path, WRITER):
            writer = _Written(number, path)
            for segment in writer.segments:
                for key in segment.schema.keys if segment.count else ():
                    known[key.name] = None
                    if chosen is None or any(matches(key.name, p) for p in chosen):
                        part = _Part(writer, segment, key.name)
                        parts.setdefault(key.name, []).append(part)
        for pattern in chosen or ():
            if not any(matches(name, pattern) for name in known):
                names = ", ".join(map(repr, known)) or "none"
                warnings.warn_explicit(
                    f"no key of {self} matches {pattern!r}; it has {names}.",
                    LoxWarning,
                    *user_line(),
                )
        keys = ((name, _joined(name, found)) for name, found in parts.items())
        return logdict()._with(keys)


def _is_about_a_run(about: dict[str, Any]) -> bool:
    key, started = about.get("key"), about.get("started")
    return (
        (key is None or type(key) is list)
        and all(type(word) is int and 0 <= word < 2**32 for word in key or ())
        and isinstance(started, int | float)
        and 0 <= started < 2**63
        and type(about.get("name")) is str
        and type(about.get("config")) is dict
        and type(about.get("versions")) is dict
    )


def _numbered(
    directory: pathlib.Path, pattern: re.Pattern[str]
) -> list[tuple[int, pathlib.Path]]:
    # not through a link, which could lead anywhere
    if directory.is_symlink() and WRITER.fullmatch(directory.name):
        raise StoreError(f"{directory} is no plain directory, and is not read.")
    try:
        paths = list(directory.iterdir())
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error}.") from error
    found = [(pattern.fullmatch(path.name), path) for path in paths]
    return sorted((int(match[1]), path) for match, path in found if match)


def _joined(name: str, parts: list[_Part]) -> Key:
    """One key from all its segments, in the order in which it was written."""
    first = parts[0]
    for other in parts[1:]:
        if _form(other) != _form(first):
            raise StoreError(
                f"{name!r} was written in two forms: with "
                f"{first.segment.schema.form(first.key)} in {first.segment}, and with "
                f"{other.segment.schema.form(other.key)} in {other.segment}. Load the "
                "other keys by their names."
            )
    leaves = [part.leaves() for part in parts]
    steps = [part.steps() for part in parts]
    masks = [part.mask() for part in parts]
    counts = [part.segment.count for part in parts]
    count = sum(counts)
    if len(parts) == 1:
        order = None
    else:
        writers = np.repeat([part.writer.number for part in parts], counts)
        numbers = np.concatenate([part.numbers() for part in parts])
        order = np.lexsort([numbers, writers])

    def join(arrays: Sequence[Any]) -> Any:
        if order is None:
            return arrays[0]
        return _module(arrays[0]).concatenate(_promoted(name, arrays))[order]

    stacked = count > 1 or first.segment.schema.stacked
    outer, lanes = first.key.outer, first.key.lanes
    tags = all_tags(part.key.tags for part in parts)
    columns = first.key.columns
    ndims = tuple(
        len(columns[i].shape) - lanes - outer - (columns[i].impl is not None)
        for i in leaf_order(first.key.tree, len(columns))
    )
    value = build_tree(
        first.key.tree, [join(column) for column in zip(*leaves, strict=True)]
    )
    mask = next((mask for mask in masks if mask is not None), None)
    if mask is not None:  # where there is none, all lanes happened
        lane_shape = mask.shape[1:]
        whole = [np.ones((n, *lane_shape), bool) for n in counts]
        pairs = zip(masks, whole, strict=True)
        mask = join([ones if one is None else one for one, ones in pairs])
    key = Key(
        value,
        {step: join([one[step] for one in steps]) for step in steps[0]},
        mask,
        KeyInfo(True, lanes, ndims, tags),
    )
    key = key._replace(info=KeyInfo(True, lanes + outer, ndims, tags))
    if outer:
        key = key.arrays(lambda x, axis: _module(x).moveaxis(x, 0, outer))
        key = key._replace(info=KeyInfo(True, lanes, ndims, tags))
    if not stacked:
        key = key.arrays(lambda x, axis: _module(x).squeeze(x, axis))
        key = key._replace(info=KeyInfo(False, lanes, ndims, tags))
    return key


def _promoted(name: str, arrays: Sequence[Any]) -> Sequence[Any]:
    """Arrays of one dtype, in which each number is what it was.

    A Python number that was logged outside of a program has more bits than JAX's own.
    """
    if len({array.dtype for array in arrays}) == 1:
        return arrays
    dtypes = ", ".join(sorted({str(array.dtype) for array in arrays}))
    try:
        common = np.result_type(*(array.dtype for array in arrays))
    except TypeError:  # of a type that NumPy does not have
        common = np.dtype(np.float64)
    try:
        promoted = [array.astype(common) for array in arrays]
    except TypeError:
        promoted = []
    for old, new in zip(arrays, promoted, strict=False):
        back = new.astype(old.dtype)
        # NaN is not equal to itself
        if not np.all((back == old) | ((back != back) & (old != old))):
            promoted = []
    if not promoted:
        raise StoreError(
            f"{name!r} was written as {dtypes}, which no dtype holds together. Load "
            "the other keys by their names."
        )
    return promoted


def _form(part: _Part) -> Any:
    columns = [(c.shape, c.impl) for c in part.key.columns]
    steps = sorted((name, c.shape) for name, c in part.segment.schema.steps)
    return part.key.tree, columns, part.key.outer, part.key.lanes, steps


def _module(x: Any) -> Any:
    return jax.numpy if isinstance(x, jax.Array) else np
