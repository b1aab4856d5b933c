"""TensorBoard's event files: records of protocol buffers, with checksums.

Written by hand, since the two libraries that could do it cost more than they give:
TensorFlow's is half a gigabyte, and tensorboardX's takes one number at a time. The part
of the format that is needed has not changed since 2016: it is the page below. A column
of a thousand rows is made of a few operations on arrays, which is what makes a logger
faster than the tool itself. The tests read all of it back with TensorBoard.
"""

import itertools
import os
import pathlib
import platform
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lox.loggers._trackers.histogram import Array, binned
from lox.loggers._trackers.images import as_bytes, png

# --- checksums ---------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()
_TABLE_ARRAY = np.array(_TABLE, np.uint32)


def masked_crc(data: bytes | bytearray) -> int:
    """The checksum of a record: CRC-32C, turned and moved, as the format has it."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crcs(rows: Array) -> Array:
    """The same for each row of bytes."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for byte in np.ascontiguousarray(rows.T):
        crc = _TABLE_ARRAY[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    turned = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return turned + np.uint32(0xA282EAD8)


def record(data: bytes) -> bytes:
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
    """A field, by the Python type of its value; a float is a double."""
    if isinstance(value, bool | int):
        return _varint(number << 3) + _varint(int(value))
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, str):
        value = value.encode()
    elif isinstance(value, np.ndarray):  # many doubles
        value = value.astype("<f8").tobytes()
    return _varint(number << 3 | 2) + _varint(len(value)) + bytes(value)


def _message(*fields: tuple[int, Any]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def _event(wall_time: float, step: int, *fields: tuple[int, Any]) -> bytes:
    return record(_message((1, wall_time), (2, step), *fields))


# --- what is shown -----------------------------------------------------------


def histogram(values: Array) -> bytes:
    """A `Summary.Value.histo`. Values that are not finite have no place in it."""
    finite = np.ravel(values).astype(np.float64)
    finite = finite[np.isfinite(finite)]
    counts, edges = binned(finite, 30)
    return _message(
        (1, float(finite.min(initial=edges[-1]))),
        (2, float(finite.max(initial=edges[0]))),
        (3, float(finite.size)),
        (4, float(finite.sum())),
        (5, float(np.square(finite).sum())),
        (6, edges[1:]),
        (7, counts),
    )


def image(pixels: Array) -> bytes:
    """A `Summary.Value.image`."""
    pixels = as_bytes(pixels)
    height, width, channels = pixels.shape
    return _message((1, height), (2, width), (3, channels), (4, png(pixels)))


# --- a file ------------------------------------------------------------------

_numbers = itertools.count()


class EventFile:
    """A file of a run, which only grows. What a call has written is there."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # TensorBoard reads the files of a run by name, from the oldest on
        name = (
            f"events.out.tfevents.{int(now):010d}.{platform.node() or 'host'}."
            f"{os.getpid()}.{next(_numbers)}"
        )
        self._file = (directory / name).open("xb", buffering=0)
        self._end = 0
        self._last = now
        self._templates: dict[tuple[Any, ...], _ScalarTemplate] = {}
        self._write(record(_message((1, now), (3, "brain.Event:2"))))

    def scalars(self, columns: Mapping[str, Array], steps: Array) -> None:
        """An event a row, with a number of each column."""
        # a negative step takes ten bytes, an ordinary one never more than five
        small = bool(np.all((steps >= 0) & (steps < 1 << 35)))
        form = (small, *columns)
        template = self._templates.get(form)
        if template is None:
            template = _ScalarTemplate(columns, 5 if small else 10)
            self._templates[form] = template
        self._write(template.records(columns.values(), steps, self._times(steps)))

    def histograms(self, columns: Mapping[str, Array], steps: Array) -> None:
        self._each(columns, steps, 5, histogram)

    def images(self, columns: Mapping[str, Array], steps: Array) -> None:
        self._each(columns, steps, 4, image)

    def _each(
        self, columns: Mapping[str, Array], steps: Array, field: int, encode: Any
    ) -> None:
        times = self._times(steps)
        for name, column in columns.items():
            for when, step, value in zip(times, steps, column, strict=True):
                shown = _message((1, name), (field, encode(value)))
                summary = _message((1, shown))
                self._write(_event(float(when), int(step), (5, summary)))

    def hparams(self, values: Mapping[str, Any], group: str) -> None:
        """What the run was made with: its line in the table of hyperparameters."""
        entries = [(1, _message((1, k), (2, _value(v)))) for k, v in values.items()]
        start = _message(*entries, (4, group), (5, time.time()))
        self._hparams("_hparams_/session_start_info", _message((1, 0), (3, start)))

    def hparams_end(self) -> None:
        """The run has ended well."""
        end = _message((1, 1), (2, time.time()))
        self._hparams("_hparams_/session_end_info", _message((1, 0), (4, end)))

    def _hparams(self, tag: str, content: bytes) -> None:
        plugin = _message((1, "hparams"), (2, content))
        # a tensor without numbers: there must be one
        nothing = _message((1, 1), (2, _message((2, _message((1, 0))))))
        shown = _message((1, tag), (9, _message((1, plugin))), (8, nothing))
        self._write(_event(time.time(), 0, (5, _message((1, shown)))))

    def _times(self, steps: Array) -> Array:
        """When rows happened, that come together: evenly since the last ones."""
        last, self._last = self._last, time.time()
        if len(steps) == 1:
            return np.array([self._last])
        return np.linspace(last, self._last, len(steps) + 1)[1:]

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
            if os.fstat(self._file.fileno()).st_nlink == 0:
                raise FileNotFoundError(
                    f"{self._file.name} was removed while it was written"
                )
        except BaseException:
            # what was cut off would hide all that comes after it
            self._file.truncate(self._end)
            self._file.seek(self._end)
            raise
        self._end += len(data)

    def close(self) -> None:
        self._file.close()


def _value(value: Any) -> bytes:
    """A `google.protobuf.Value`."""
    if isinstance(value, bool):
        return _message((4, value))
    if isinstance(value, int | float):
        return _message((2, float(value)))
    return _message((3, str(value)))


class _ScalarTemplate:
    """Records of numbers by these names: all alike but for a few bytes.

    The rows of a column must have one length, so that every step takes as many bytes as
    the longest would; readers do not mind.
    """

    def __init__(self, names: Iterable[str], step_bytes: int) -> None:
        values = [_message((1, name)) + b"\x15\0\0\0\0" for name in names]
        shown = [_field(1, value) for value in values]
        front = b"\x09" + bytes(8) + b"\x10" + bytes(step_bytes)
        summary = b"".join(shown)
        start = front + _varint(5 << 3 | 2) + _varint(len(summary))
        data = start + summary
        length = struct.pack("<Q", len(data))
        self._bytes = b"".join(
            (length, struct.pack("<I", masked_crc(length)), data, bytes(4))
        )
        self._time = 12 + 1
        self._step = 12 + 10
        self._step_bytes = step_bytes
        ends = itertools.accumulate(map(len, shown), initial=12 + len(start))
        self._values = [end - 4 for end in itertools.islice(ends, 1, None)]

    def records(self, columns: Iterable[Array], steps: Array, times: Array) -> bytes:
        count = len(steps)
        if count == 1:
            return self._record(columns, int(steps[0]), float(times[0]))
        rows = np.empty((count, len(self._bytes)), np.uint8)
        rows[:] = np.frombuffer(self._bytes, np.uint8)
        _put(rows, self._time, times.astype("<f8"))
        _put(rows, self._step, _padded_varints(steps, self._step_bytes))
        for at, column in zip(self._values, columns, strict=True):
            _put(rows, at, _single(column))
        checksums = masked_crcs(rows[:, 12:-4])
        _put(rows, len(self._bytes) - 4, checksums.astype("<u4"))
        return rows.tobytes()

    def _record(self, columns: Iterable[Array], step: int, time: float) -> bytes:
        """The same for one row, for which arrays are slower."""
        out = bytearray(self._bytes)
        struct.pack_into("<d", out, self._time, time)
        step &= (1 << 64) - 1
        last = self._step + self._step_bytes - 1
        for at in range(self._step, last):
            out[at] = step & 0x7F | 0x80
            step >>= 7
        out[last] = step
        for at, column in zip(self._values, columns, strict=True):
            # not by way of a double: in XLA's threads, that makes tiny numbers zero
            out[at : at + 4] = _single(column).tobytes()
        struct.pack_into("<I", out, len(out) - 4, masked_crc(out[12:-4]))
        return bytes(out)


def _put(rows: Array, at: int, values: Array) -> None:
    """Writes values over the bytes of each row, from a place on."""
    plain = np.ascontiguousarray(values).view(np.uint8).reshape(len(rows), -1)
    rows[:, at : at + plain.shape[1]] = plain


def _single(column: Array) -> Array:
    if column.dtype == np.float32:
        return column.astype("<f4", copy=False)
    with np.errstate(over="ignore"):  # as TensorBoard does: inf
        return column.astype("<f4")


def _padded_varints(numbers: Array, size: int) -> Array:
    """Whole numbers as varints of so many bytes each."""
    rest = numbers.astype(np.int64).view(np.uint64)
    out = np.empty((len(numbers), size), np.uint8)
    for i in range(size):
        more = 0x80 if i < size - 1 else 0
        out[:, i] = (rest & np.uint64(0x7F)) | np.uint64(more)
        rest = rest >> np.uint64(7)
    return out
