"""TensorBoard event files: records of protocol buffers, with checksums.

Implemented here because the alternatives are too expensive: TensorFlow is half a
gigabyte, and tensorboardX takes one number at a time. The part of the format that is
needed has not changed since 2016. A column of a thousand rows is encoded with a few
array operations. The tests read everything back with TensorBoard.
"""

import contextlib
import io
import itertools
import os
import pathlib
import platform
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from lox._images import encode_png, to_uint8
from lox._store.local_files import append_whole

from .histograms import Array, finite_histogram

# --- checksums ---------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()
_CRC_TABLE_ARRAY = np.array(_CRC_TABLE, np.uint32)


def masked_crc(data: bytes | bytearray) -> int:
    """The checksum of a record: CRC-32C, rotated and offset as the format requires."""
    crc = 0xFFFFFFFF
    table = _CRC_TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crcs(rows: Array) -> Array:
    """`masked_crc` of each row of bytes."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for byte in np.ascontiguousarray(rows.T):
        crc = _CRC_TABLE_ARRAY[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(0xA282EAD8)


def record(data: bytes) -> bytes:
    """Frames data as a record: its length and the data, each with a checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_crc(length)),
            data,
            struct.pack("<I", masked_crc(data)),
        )
    )


# --- protocol buffers --------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: Any) -> bytes:
    """Encodes a field by the Python type of its value; a float is a double."""
    if isinstance(value, bool | int):
        return _varint(number << 3) + _varint(int(value))
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, str):
        # a name that was not valid UTF-8 has surrogates, which UTF-8 cannot encode
        value = value.encode("utf-8", "backslashreplace")
    elif isinstance(value, np.ndarray):  # many doubles
        value = value.astype("<f8").tobytes()
    return _varint(number << 3 | 2) + _varint(len(value)) + bytes(value)


def _message(*fields: tuple[int, Any]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def _event(wall_time: float, step: int, *fields: tuple[int, Any]) -> bytes:
    return record(_message((1, wall_time), (2, step), *fields))


# --- summaries ---------------------------------------------------------------


def histogram(values: Array) -> bytes:
    """Encodes a `Summary.Value.histo`, of the finite values."""
    finite = np.ravel(values).astype(np.float64)
    finite = finite[np.isfinite(finite)]
    counts, edges = finite_histogram(finite, 30)
    low, high = finite.min(initial=edges[-1]), finite.max(initial=edges[0])
    return _histogram(low, high, finite.sum(), np.square(finite).sum(), counts, edges)


def binned_histogram(counts: Array, edges: Array) -> bytes:
    """Encodes a `Summary.Value.histo`; its sums are those of the centers of bins."""
    counts, edges = counts.astype(np.float64), edges.astype(np.float64)
    centers = edges[:-1] / 2 + edges[1:] / 2
    with np.errstate(over="ignore"):
        squares = counts @ np.square(centers)
    return _histogram(edges[0], edges[-1], counts @ centers, squares, counts, edges)


def _histogram(
    low: Any, high: Any, total: Any, squares: Any, counts: Array, edges: Array
) -> bytes:
    return _message(
        (1, float(low)),
        (2, float(high)),
        (3, float(counts.sum())),
        (4, float(total)),
        (5, float(squares)),
        (6, edges[1:]),
        (7, counts),
    )


def image(pixels: Array) -> bytes:
    """Encodes a `Summary.Value.image`."""
    pixels = to_uint8(pixels)
    height, width, channels = pixels.shape
    return _message((1, height), (2, width), (3, channels), (4, encode_png(pixels)))


# --- files -------------------------------------------------------------------

_file_numbers = itertools.count()


class EventFile:
    """An event file of a run. Unbuffered: events survive if the process is killed."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # TensorBoard reads the files of a run in the order of their names
        name = (
            f"events.out.tfevents.{int(now):010d}.{platform.node() or 'host'}."
            f"{os.getpid()}.{next(_file_numbers)}"
        )
        self._file = io.FileIO(directory / name, "x")
        self._last_time = now
        self._templates: dict[tuple[Any, ...], _ScalarTemplate] = {}
        self._write(record(_message((1, now), (3, "brain.Event:2"))))

    def scalars(self, columns: Mapping[str, Array], steps: Array) -> None:
        """Writes one event per row, with one number per column."""
        # as a varint, a negative step takes ten bytes, and most others at most five
        is_short = bool(np.all((steps >= 0) & (steps < 1 << 35)))
        template = self._templates.get((is_short, *columns))
        if template is None:
            template = _ScalarTemplate(columns, 5 if is_short else 10)
            self._templates[is_short, *columns] = template
        append_whole(
            self._file, template.records(columns.values(), steps, self._times(steps))
        )

    def histograms(self, columns: Mapping[str, Array], steps: Array) -> None:
        self._write_each(columns, steps, 5, histogram)

    def binned_histograms(
        self, columns: Mapping[str, tuple[Array, Array]], steps: Array
    ) -> None:
        rows = {
            name: list(zip(counts, edges, strict=True))
            for name, (counts, edges) in columns.items()
        }
        self._write_each(rows, steps, 5, lambda row: binned_histogram(*row))

    def images(self, columns: Mapping[str, Array], steps: Array) -> None:
        self._write_each(columns, steps, 4, image)

    def _write_each(
        self,
        columns: Mapping[str, Iterable[Any]],
        steps: Array,
        field: int,
        encode: Callable[[Any], bytes],
    ) -> None:
        """Writes one event per row and column."""
        times = self._times(steps)
        for name, column in columns.items():
            for wall_time, step, value in zip(times, steps, column, strict=True):
                summary_value = _message((1, name), (field, encode(value)))
                summary = _message((1, summary_value))
                append_whole(
                    self._file, _event(float(wall_time), int(step), (5, summary))
                )

    def hparams(self, values: Mapping[str, Any], group: str) -> None:
        """Writes the config of the run, for TensorBoard's table of hyperparameters."""
        entries = [
            (1, _message((1, key), (2, _protobuf_value(value))))
            for key, value in values.items()
        ]
        start = _message(*entries, (4, group), (5, time.time()))
        self._hparams("_hparams_/session_start_info", _message((1, 0), (3, start)))

    def hparams_end(self) -> None:
        """Marks the run as successful in the table of hyperparameters."""
        end = _message((1, 1), (2, time.time()))
        self._hparams("_hparams_/session_end_info", _message((1, 0), (4, end)))

    def _hparams(self, tag: str, content: bytes) -> None:
        plugin = _message((1, "hparams"), (2, content))
        # the format requires a tensor; this one is empty
        tensor = _message((1, 1), (2, _message((2, _message((1, 0))))))
        summary_value = _message((1, tag), (9, _message((1, plugin))), (8, tensor))
        append_whole(
            self._file, _event(time.time(), 0, (5, _message((1, summary_value))))
        )

    def _times(self, steps: Array) -> Array:
        """Wall times for rows that arrive together, spread since the previous rows."""
        last, self._last_time = self._last_time, time.time()
        if len(steps) == 1:
            return np.array([self._last_time])
        return np.linspace(last, self._last_time, len(steps) + 1)[1:]

    def _write(self, data: bytes) -> None:
        # a truncated record would hide all records after it
        append_whole(self._file, data)

    def close(self) -> None:
        self._file.close()


def _protobuf_value(value: Any) -> bytes:
    """Encodes a `google.protobuf.Value`."""
    if isinstance(value, bool):
        return _message((4, value))
    if isinstance(value, int | float):
        with contextlib.suppress(OverflowError):  # too large: stored as text
            return _message((2, float(value)))
    return _message((3, str(value)))


class _ScalarTemplate:
    """The bytes of a record of named numbers, in which only the numbers vary.

    All records must have the same length, so steps are padded to the length of the
    longest varint; readers accept this.
    """

    def __init__(self, names: Iterable[str], step_bytes: int) -> None:
        values = [_message((1, name)) + b"\x15\0\0\0\0" for name in names]
        fields = [_field(1, value) for value in values]
        time_and_step = b"\x09" + bytes(8) + b"\x10" + bytes(step_bytes)
        summary = b"".join(fields)
        start = time_and_step + _varint(5 << 3 | 2) + _varint(len(summary))
        data = start + summary
        self._bytes = record(data)
        # where in the record the time, the step and each number begin
        self._time_at = 12 + 1
        self._step_at = 12 + 10
        self._step_bytes = step_bytes
        ends = itertools.accumulate(map(len, fields), initial=12 + len(start))
        self._values_at = [end - 4 for end in itertools.islice(ends, 1, None)]

    def records(self, columns: Iterable[Array], steps: Array, times: Array) -> bytes:
        count = len(steps)
        if count == 1:
            return self._record(columns, int(steps[0]), float(times[0]))
        rows = np.empty((count, len(self._bytes)), np.uint8)
        rows[:] = np.frombuffer(self._bytes, np.uint8)
        _overwrite(rows, self._time_at, times.astype("<f8"))
        _overwrite(rows, self._step_at, _padded_varints(steps, self._step_bytes))
        for at, column in zip(self._values_at, columns, strict=True):
            _overwrite(rows, at, _to_float32(column))
        checksums = masked_crcs(rows[:, 12:-4])
        _overwrite(rows, len(self._bytes) - 4, checksums.astype("<u4"))
        return rows.tobytes()

    def _record(self, columns: Iterable[Array], step: int, time: float) -> bytes:
        """`records` of one row, for which array operations are slower."""
        out = bytearray(self._bytes)
        struct.pack_into("<d", out, self._time_at, time)
        step &= (1 << 64) - 1
        last = self._step_at + self._step_bytes - 1
        for at in range(self._step_at, last):
            out[at] = step & 0x7F | 0x80
            step >>= 7
        out[last] = step
        for at, column in zip(self._values_at, columns, strict=True):
            # not through a Python float: XLA's threads flush subnormals to zero
            out[at : at + 4] = _to_float32(column).tobytes()
        struct.pack_into("<I", out, len(out) - 4, masked_crc(out[12:-4]))
        return bytes(out)


def _overwrite(rows: Array, at: int, values: Array) -> None:
    """Writes the bytes of each value into its row, from byte `at` on."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(rows), -1)
    rows[:, at : at + raw.shape[1]] = raw


def _to_float32(column: Array) -> Array:
    if column.dtype == np.float32:
        return column.astype("<f4", copy=False)
    with np.errstate(over="ignore"):  # overflows to inf, as in TensorBoard
        return column.astype("<f4")


def _padded_varints(numbers: Array, size: int) -> Array:
    """Encodes integers as varints of `size` bytes each."""
    rest = numbers.astype(np.int64).view(np.uint64)
    out = np.empty((len(numbers), size), np.uint8)
    for i in range(size):
        continues = 0x80 if i < size - 1 else 0
        out[:, i] = (rest & np.uint64(0x7F)) | np.uint64(continues)
        rest = rest >> np.uint64(7)
    return out
