"""Reading a run, also while it is written; only what is looked at leaves the disk."""

import functools
import itertools
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from lox._arrays import namespace
from lox._errors import LoxWarning, StoreError
from lox._logs.key import Key, KeyInfo, all_tags
from lox._logs.logdict import logdict
from lox._patterns import matches
from lox._source import user_line

from .format import (
    FINISHED,
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
from .losses import Begun, Finished, lost_files, lost_records, warn_of
from .schema import Column, KeySchema, Schema

# A column of up to so many bytes is read at once. A larger one stays on disk, of which
# only what is looked at is read.
_READ_AT_ONCE = 2**24
# So is one that is spread over more pages of the file.
_MAX_PAGES = 2**20
_PAGE = 4096
# A file of more bytes that are nearly all missing on disk is not read into memory.
_SPARSE_BYTES, _SPARSE_RATIO = 2**28, 100


class _Segment:
    """The records of one schema that a writer has written so far.

    Attributes:
        schema: what they mean.
        count: how many there are.
    """

    def __init__(self, path: pathlib.Path, finished: int) -> None:
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
        begun = Begun.read(self._places)
        count, closed = self._whole_records()
        self.count = count or 0
        names = [key.name for key in self.schema.keys]
        known = max(closed, finished)
        lost = lost_records(self._file, count, begun, known, names)
        if lost:
            warn_of(lost)

    def __str__(self) -> str:
        return str(self._path)

    @functools.cached_property
    def keys(self) -> dict[str, tuple[KeySchema, int]]:
        """Each key, and which of the columns is its first."""
        keys = self.schema.keys
        ends = itertools.accumulate(len(key.columns) for key in keys)
        return {
            key.name: (key, end - len(key.columns))
            for key, end in zip(keys, ends, strict=True)
        }

    def _whole_records(self) -> tuple[int | None, int]:
        """How many there are, if there is a file; and when it was closed, if it was."""
        try:
            file_size(self._file)  # of which there is none if it is a pipe
            with open(self._file, "rb") as file:
                header = file.read(len(self._header))
                # after its head, since the file may just be growing, and be closed
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None, 0
        except OSError as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        if len(header) < len(self._header):
            return None, 0
        count = max(size - len(self._header), 0) // self._dtype.itemsize
        if count and _without_length(header) != _without_length(self._header):
            raise StoreError(f"{self._file} is damaged: its head does not fit.")
        return count, _length_in(header)

    def column(self, index: int) -> Any:
        """One column of all records."""
        start, shape = len(self._header), (self.count,)
        try:
            records = np.memmap(self._file, self._dtype, "r", start, shape)
            rows = records[f"c{index}"].view(np.ndarray)
        except (OSError, OverflowError, ValueError) as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        pages = min(self.count, self.count * self._dtype.itemsize // _PAGE)
        if rows.nbytes <= _READ_AT_ONCE and pages <= _MAX_PAGES:
            return rows.copy()
        return rows

    def check_not_sparse(self) -> None:
        """Raises if the file is far larger than what is on disk of it.

        Of which memory would be taken for all; lox itself writes no holes.
        """
        try:
            status = self._file.lstat()
        except OSError as error:
            raise StoreError(f"{self._file} cannot be read: {error}.") from error
        if not hasattr(status, "st_blocks"):  # as on Windows
            return
        on_disk = status.st_blocks * 512
        if status.st_size > max(_SPARSE_BYTES, _SPARSE_RATIO * on_disk):
            raise StoreError(
                f"{self._file} is damaged: it claims {status.st_size} bytes, of which "
                f"{on_disk} are on disk. Its keys cannot be read into memory."
            )

    def next_number(self) -> int | None:
        """The number of the event of the first record that was not there before."""
        count, (now, _) = self.count, self._whole_records()
        if now is None or now <= count:
            return None
        self.count = now
        rows, numbers, _ = self.places()
        self.count = count
        last = int(np.searchsorted(rows, count, side="right")) - 1
        return int(numbers[last]) + count - int(rows[last])

    def places(self) -> Any:
        """Where in the writer's order the records are: position, number and length."""
        self.check_not_sparse()
        # each is of another record, but for the last, whose record may be missing
        places = read_places(self._places, limit=self.count + 1)
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


def _length_in(header: bytes) -> int:
    """How many records the head of a `.npy` file speaks of; 0 while it is written."""
    digits = header.rpartition(b"(")[2].partition(b",")[0].strip()
    return int(digits) if re.fullmatch(rb"\d{1,20}", digits) else 0


class _Written:
    """What one writer has written so far."""

    def __init__(self, number: int, path: pathlib.Path, finished: Finished) -> None:
        self.number = number
        found = _numbered(path, SEGMENT)
        for lost in lost_files(path, {n for n, _ in found}, finished):
            warn_of(lost)
        self.segments = [
            _Segment(segment, finished.count(number)) for number, segment in found
        ]
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
                f"{first} and {second} give two events one number: one of them is "
                "damaged, or two writers have shared the directory, as older versions "
                "of lox allowed. Load the keys that are in one segment by their names."
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
        self.key, self._first = segment.keys[name]
        self._first_step = sum(len(key.columns) for key in segment.schema.keys)

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
        self.segment.check_not_sparse()
        position = self._first_step + len(schema.steps)
        return self._decoded(schema.mask, position).astype(bool)

    def numbers(self) -> Any:
        return self.writer.numbers[self.segment]

    def _decoded(self, column: Column, index: int) -> Any:
        if column.impl is not None:  # which are an array of JAX's
            self.segment.check_not_sparse()
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
        self._first_writer: int = about.get("first_writer", 0)

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
        for writer in self._writers():
            for segment in writer.segments:
                for name in segment.keys if segment.count else ():
                    known[name] = None
                    if chosen is None or any(matches(name, p) for p in chosen):
                        part = _Part(writer, segment, name)
                        parts.setdefault(name, []).append(part)
        for pattern in chosen or ():
            if not any(matches(name, pattern) for name in known):
                names = ", ".join(map(repr, known)) or "none"
                warnings.warn_explicit(
                    f"no key of {self} matches {pattern!r}; it has {names}.",
                    LoxWarning,
                    *user_line(),
                )
        keys = ((name, _loaded(name, found)) for name, found in parts.items())
        return logdict()._with(keys)

    def _writers(self) -> Iterator[_Written]:
        """Those that are part of the run; others were replaced."""
        finished = {
            number: Finished.read(path)
            for number, path in _numbered(self.path, FINISHED)
            if number >= self._first_writer
        }
        for number, path in _numbered(self.path, WRITER):
            if number >= self._first_writer:
                yield _Written(number, path, finished.pop(number, Finished({})))
        for number, left in finished.items():
            lost = left.lost_directory(self.path / f"writer-{number:04d}")
            if lost:
                warn_of(lost)


def _is_about_a_run(about: dict[str, Any]) -> bool:
    key, started = about.get("key"), about.get("started")
    first = about.get("first_writer", 0)
    return (
        (key is None or type(key) is list)
        and all(type(word) is int and 0 <= word < 2**32 for word in key or ())
        and isinstance(started, int | float)
        and 0 <= started < 2**63
        and type(about.get("name")) is str
        and type(about.get("config")) is dict
        and type(about.get("versions")) is dict
        and type(first) is int
        and first >= 0
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


def _loaded(name: str, parts: list[_Part]) -> Key:
    try:
        return _joined(name, parts)
    except MemoryError:
        segments = ", ".join(str(part.segment) for part in parts[:3])
        raise StoreError(
            f"{name!r} does not fit into memory, where its {len(parts)} segments are "
            f"joined: {segments}. Load the other keys by their names."
        ) from None


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
        numbers = np.concatenate([part.numbers() for part in parts])
        writers = np.repeat([part.writer.number for part in parts], counts)
        order = np.lexsort([numbers, writers])

    def join(arrays: Sequence[Any]) -> Any:
        if order is None:
            return arrays[0]
        return namespace(arrays[0]).concatenate(_promoted(name, arrays))[order]

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
        key = key.arrays(lambda x, axis: namespace(x).moveaxis(x, 0, outer))
        key = key._replace(info=KeyInfo(True, lanes, ndims, tags))
    if not stacked:
        key = key.arrays(lambda x, axis: namespace(x).squeeze(x, axis))
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
