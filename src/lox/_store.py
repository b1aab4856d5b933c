"""The store: runs on disk that survive anything, and that NumPy can read.

The format is specified in `docs/store.md`. In short: a run is a directory with a JSON
file about it and a directory for each writer. A writer has a segment for each schema:
records of one size that are only ever appended, and a JSON file that says what they
mean, written before the first of them. How many records there are follows from the
file's size. So nothing that was written once can be lost by what comes later, and a
record that was cut off is not counted.
"""

import contextlib
import json
import os
import pathlib
import re
import threading
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from ._errors import StoreError
from ._events import matches
from ._key import Key, KeyInfo, equal
from ._logdict import logdict
from ._schema import Column, KeySchema, Schema

VERSION = 1
RUN_FILE = "run.json"
_WRITER = re.compile(r"writer-(\d{4,})$")
_SEGMENT = re.compile(r"(\d{4,})\.json$")
# a position in a segment, and the number of the event there in its writer
_PLACE = np.dtype([("row", "<u8"), ("number", "<u8")])


# --- files -------------------------------------------------------------------


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes a file that is there as a whole, or not at all."""
    text = json.dumps(content, ensure_ascii=True, sort_keys=True)
    whole = json.dumps({"crc32": zlib.crc32(text.encode()), "content": content})
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}~")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: pathlib.Path) -> Any:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        content, crc = whole["content"], whole["crc32"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged, and cannot be read: {error}.") from None
    text = json.dumps(content, ensure_ascii=True, sort_keys=True)
    if zlib.crc32(text.encode()) != crc:
        raise StoreError(f"{path} is damaged: its checksum does not fit.")
    if content.get("version", 0) > VERSION:
        raise StoreError(
            f"{path} has the format {content['version']}, and this lox knows those up "
            f"to {VERSION}. Update jax-lox to read it."
        )
    return content


# --- structures --------------------------------------------------------------


def describe_tree(value: Any) -> str:
    """The structure of a value as JSON, with the numbers of its leaves.

    Dicts, lists, tuples and None come back as they are; of every other kind of node,
    its children do, by name.
    """
    tree = jax.tree.structure(value)
    return json.dumps(_describe(tree.unflatten(list(range(tree.num_leaves)))))


def _describe(node: Any) -> Any:
    if node is None or type(node) is int:
        return node
    if type(node) is dict:
        return {"dict": [[_name(key), _describe(x)] for key, x in node.items()]}
    if type(node) in (list, tuple):
        return {type(node).__name__: [_describe(x) for x in node]}
    children, _ = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda x: x is not node
    )
    return {"dict": [[_label(path), _describe(child)] for path, child in children]}


def _name(key: Any) -> Any:
    return key if isinstance(key, str | int | float | bool) else str(key)


def _label(path: Any) -> str:
    return jax.tree_util.keystr(path).strip(".[]'\"")


def build_tree(description: str, leaves: Sequence[Any]) -> Any:
    return _build(json.loads(description), leaves)


def _build(node: Any, leaves: Sequence[Any]) -> Any:
    if node is None:
        return None
    if type(node) is int:
        return leaves[node]
    if "dict" in node:
        return {key: _build(x, leaves) for key, x in node["dict"]}
    if "list" in node:
        return [_build(x, leaves) for x in node["list"]]
    return tuple(_build(x, leaves) for x in node["tuple"])


# --- writing -----------------------------------------------------------------


class _SegmentWriter:
    """Appends the records of one schema."""

    def __init__(self, path: pathlib.Path, schema: Schema) -> None:
        self._schema = schema
        self._columns = schema.columns
        self._dtype = schema.dtype
        content = {"version": VERSION, "schema": schema.to_json()}
        write_json(path.with_suffix(".json"), content)
        # unbuffered: what a call has written is there, whatever happens to the process
        self._places = path.with_suffix(".places").open("ab", buffering=0)
        self._file = path.with_suffix(".npy").open("ab", buffering=0)
        self._header = _npy_header(self._dtype, 0)
        self._file.write(self._header)
        self._rows = 0
        self._next = -1
        # the records of the last call, whose memory the next one uses again
        self._records = np.empty(0, self._dtype)
        self._fields: list[Any] = []
        self._bytes = memoryview(b"")

    def append(self, arrays: Sequence[Any], number: int) -> None:
        """Writes rows, which are one event after the other from `number` on."""
        pairs = zip(self._columns, arrays, strict=True)
        self.append_plain(
            [column.encode(rows) for column, rows in pairs], len(arrays[0]), number
        )

    def append_plain(self, arrays: Sequence[Any], length: int, number: int) -> None:
        """The same for arrays that can be written as they are."""
        if len(self._records) != length:
            self._records = np.empty(length, self._dtype)
            names = self._dtype.names or ()
            self._fields = [self._records[name] for name in names]
            self._bytes = self._records.view(np.uint8).data
        for field, rows in zip(self._fields, arrays, strict=True):
            field[...] = rows
        if number != self._next:
            # before the records: a place without any says nothing
            _write_all(self._places, np.array([(self._rows, number)], _PLACE).data)
        try:
            _write_all(self._file, self._bytes)
        except BaseException:
            # what was cut off must not be in the way of what comes after it
            end = len(self._header) + self._rows * self._dtype.itemsize
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise FileNotFoundError(
                f"{self._file.name} was removed while it was written"
            )
        self._rows += length
        self._next = number + length

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        os.fsync(self._places.fileno())

    def close(self) -> None:
        # so that `numpy.load` knows the length, too
        with contextlib.suppress(OSError), open(self._file.name, "r+b") as file:
            file.write(_npy_header(self._dtype, self._rows))
        self._file.close()
        self._places.close()


def _write_all(file: Any, data: Any) -> None:
    written = file.write(data)
    if written != data.nbytes:
        view = memoryview(data).cast("B")[written:]
        while view:
            view = view[file.write(view) :]


def _npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """The head of a `.npy` file, of a size that does not depend on the length."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({length:20d},), }}"
    size = -(-(len(text) + 1 + 12) // 64) * 64
    text = text.ljust(size - 12 - 1) + "\n"
    return b"\x93NUMPY\x02\x00" + (size - 12).to_bytes(4, "little") + text.encode()


class Writer:
    """Appends logs to a run, in a directory of its own, so that many may write."""

    def __init__(self, run: pathlib.Path) -> None:
        self._directory = _new_directory(run, "writer")
        self._segments: dict[Schema, _SegmentWriter] = {}
        self._plans: dict[int, _Plan] = {}
        self._number = 0
        self._lock = threading.Lock()

    def write(self, logs: logdict) -> None:
        """Writes all rows. When it returns, the system has them (see `sync`)."""
        with self._lock:
            plan = self._plans.get(id(logs._info))
            if plan is not None and plan.fits(logs):
                arrays, length = plan.arrays(logs)
                plan.segment.append_plain(arrays, length, self._number)
                self._number += length
                return
            segments = []
            for schema, arrays in _records(logs):
                segment = self._segments.get(schema)
                if segment is None:
                    path = self._directory / f"{len(self._segments):04d}"
                    segment = self._segments[schema] = _SegmentWriter(path, schema)
                segment.append(arrays, self._number)
                self._number += len(arrays[0])
                segments.append(segment)
            if len(segments) == 1 and _Plan.serves(logs):
                if len(self._plans) > _MOST_PLANS:
                    self._plans.clear()
                self._plans[id(logs._info)] = _Plan(logs, segments[0])

    def sync(self) -> None:
        """Makes sure that what was written survives a crash of the whole machine."""
        with self._lock:
            for segment in self._segments.values():
                segment.sync()

    def close(self) -> None:
        with self._lock:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()


_MOST_PLANS = 1000


class _Plan:
    """How logs like these were written, so that the next need no second thought.

    Logs that come again and again share the description of their axes, and so are told
    by its identity.
    """

    def __init__(self, logs: logdict, segment: _SegmentWriter) -> None:
        self.segment = segment
        self._info = logs._info
        self._names = tuple(logs)
        self._steps = tuple(logs._steps)
        self._stacked = logs._key(self._names[0]).info.stacked
        self._form = self._form_of(self._arrays(logs))

    @staticmethod
    def serves(logs: logdict) -> bool:
        return (
            not logs._mask
            and len(logs) == len(logs._info)
            and all(
                type(value) is np.ndarray
                and value.dtype.kind in "biufc"
                and value.dtype.isnative
                and not hasattr(ml_dtypes, value.dtype.name)
                for value in logs.values()
            )
            and not any(logs._key(name).outer_lanes() for name in logs)
            and all(name in of for of in logs._steps.values() for name in logs)
        )

    def fits(self, logs: logdict) -> bool:
        if logs._info is not self._info or logs._mask:
            return False
        for of in logs._steps.values():
            first = of.get(self._names[0])
            if first is None or any(of.get(name) is not first for name in self._names):
                return False
        if tuple(logs._steps) != self._steps:
            return False
        arrays = self._arrays(logs)
        if self._stacked and len({len(x) for x in arrays}) > 1:
            return False
        return self._form_of(arrays) == self._form

    def _arrays(self, logs: logdict) -> list[Any]:
        first = self._names[0]
        return [*logs.values(), *[of[first] for of in logs._steps.values()]]

    def _form_of(self, arrays: list[Any]) -> Any:
        start = int(self._stacked)
        return [(type(x), x.dtype, x.shape[start:]) for x in arrays]

    def arrays(self, logs: logdict) -> tuple[list[Any], int]:
        arrays = self._arrays(logs)
        return arrays, len(arrays[0]) if self._stacked else 1


def _new_directory(parent: pathlib.Path, name: str) -> pathlib.Path:
    number = 0
    while True:
        path = parent / f"{name}-{number:04d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def _records(logs: logdict) -> Iterable[tuple[Schema, list[Any]]]:
    """The rows of logs, for each group of keys that can share a record."""
    compact = logs.compact()
    for names in _groups(compact):
        stacked = compact._key(names[0]).info.stacked
        keys = [compact._key(name).stacked() for name in names]
        outer = [key.outer_lanes() for key in keys]
        keys = [key.arrays(_time_first) for key in keys]
        leaves = [jax.tree.leaves(key.value) for key in keys]
        steps, mask = keys[0].steps, keys[0].mask
        schema = Schema(
            keys=tuple(
                KeySchema(
                    name,
                    describe_tree(key.value),
                    tuple(map(Column.of, arrays)),
                    count,
                    key.info.lanes,
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
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return jax.numpy.moveaxis(x, axis, 0)
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
        and first.info.lanes == other.info.lanes
        and first.outer_lanes() == other.outer_lanes()
        and first.length() == other.length()
        and equal(first.steps, other.steps)
        and (first.mask is other.mask or equal(first.mask, other.mask))
    )


# --- reading -----------------------------------------------------------------


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
        self._header = len(_npy_header(self._dtype, 0))

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
            raw[: len(raw) // _PLACE.itemsize * _PLACE.itemsize], _PLACE
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
        for number, writer in _numbered(self.path, _WRITER):
            for _, path in _numbered(writer, _SEGMENT):
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
