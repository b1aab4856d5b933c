"""Reads the history and config of W&B's `.wandb` files, which offline runs leave.

A file is a log of records, in blocks of 32 KiB: a record that does not fit a block is
split into several parts. Each part has a checksum, its length and its kind. A record is
a protocol buffer.
"""

import io
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from lox._errors import LoxError

from .opening import open_regular
from .protobuf import UNEXPECTED, grouped, to_float, to_signed, to_text

_HEADER = b":W&B"
_BLOCK, _PART_HEADER = 32768, 7
_TYPE = "_type"  # in the dicts that describe media
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandbFileError(LoxError, ValueError):
    """A file that is not a `.wandb` file, or is damaged."""


class Row(NamedTuple):
    """The numbers of one row of the history, and W&B's own step."""

    step: int
    numbers: dict[str, int | float | bool]


class WandbRun:
    """What a `.wandb` file contains.

    Args:
        path: the file.

    Attributes:
        run_id: the identifier of the run.
        name: its name in W&B, which may be empty.
        config: its config.
        rows: its history.
        step_metrics: for names of metrics, or patterns of names, the metric that
            `define_metric` has made their x-axis.
        skipped: how many values of the history were not numbers.
        started, ended: when it was started and last written, or None.
        exit_code: its exit code; None if it has not ended.
        damage: why the rest of the file was not read; empty if all of it was.
    """

    def __init__(self, path: str) -> None:
        self.run_id = self.name = self.damage = ""
        self.config: dict[str, Any] = {}
        self.rows: list[Row] = []
        self.step_metrics: dict[str, str] = {}
        self.skipped = 0
        self.started: float | None = None
        self.ended: float | None = None
        self.exit_code: int | None = None
        with _open(path) as file:
            try:
                for record in _records(file):
                    self._add(grouped(record))
            except UNEXPECTED as error:
                self.damage = str(error) or type(error).__name__
        if not self.run_id:
            raise WandbFileError(
                f"{path} does not describe a run{': ' if self.damage else ''}"
                f"{self.damage}."
            )

    def _add(self, record: dict[int, Any]) -> None:
        for history in record.get(2, ()):
            self._add_history(grouped(history))
        for config in record.get(5, ()):
            self._add_config(grouped(config))
        for metric in map(grouped, record.get(12, ())):
            if 4 in metric:
                name = (metric.get(1) or metric.get(2, [b""]))[0]
                self.step_metrics[to_text(name)] = to_text(metric[4][0])
        for run in record.get(17, ()):
            self._add_run(grouped(run))
        for end in record.get(18, ()):
            self.exit_code = to_signed(grouped(end).get(1, [0])[0])

    def _add_run(self, run: dict[int, Any]) -> None:
        if 1 in run:
            self.run_id = to_text(run[1][0])
        if 8 in run:
            self.name = to_text(run[8][0])
        for config in run.get(4, ()):
            self._add_config(grouped(config))
        for start in run.get(17, ()):
            time = grouped(start)
            self.started = time.get(1, [0])[0] + time.get(2, [0])[0] * 1e-9

    def _add_config(self, config: dict[int, Any]) -> None:
        for item in config.get(1, ()):
            fields = grouped(item)
            path = _path_of(fields)
            value = json.loads(to_text(fields.get(16, [b"null"])[0]))
            if path[:1] == ["_wandb"]:  # about W&B itself
                continue
            inner = self.config
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = value

    def _add_history(self, history: dict[int, Any]) -> None:
        items = [
            (_path_of(fields), _value_of(fields))
            for fields in map(grouped, history.get(1, ()))
        ]
        values: dict[str, Any] = {}
        media = {
            tuple(path[:-1]) for path, _ in items if path[1:] and path[-1] == _TYPE
        }
        for path, value in items:
            outer = (tuple(path[:i]) for i in range(1, len(path)))
            # such as an image, which is one value
            inside = next((part for part in outer if part in media), None)
            if inside is not None:
                values["/".join(inside)] = None
            else:
                _flatten("/".join(path), value, values)
        step = values.pop("_step", None)
        for message in history.get(2, ()):
            step = to_signed(grouped(message).get(1, [0])[0])
        time = values.pop("_timestamp", None)
        if isinstance(time, int | float):
            self.ended = time
        values.pop("_runtime", None)
        numbers = {k: x for k, x in values.items() if isinstance(x, int | float)}
        self.skipped += len(values) - len(numbers)
        self.rows.append(Row(int(step or 0), numbers))


def run_identity(path: str) -> tuple[str, str, str] | None:
    """The entity, the project and the identifier of the run of a `.wandb` file.

    Reads only the beginning of the file. None if the file is damaged; raises if it is
    not a `.wandb` file.
    """
    with _open(path) as file:
        try:
            for record in _records(file):
                for run in map(grouped, grouped(record).get(17, ())):
                    entity, project, run_id = (
                        to_text(run.get(field, [b""])[0]) for field in (2, 3, 1)
                    )
                    return entity, project, run_id
        except UNEXPECTED:
            pass
    return None


def _open(path: str) -> io.BufferedReader:
    file = open_regular(path)
    if not file.peek(len(_HEADER)).startswith(_HEADER):
        file.close()
        raise WandbFileError(f"{path} is not a file of an offline run of W&B.")
    return file


def _path_of(fields: dict[int, Any]) -> list[str]:
    nested = [to_text(part) for part in fields.get(2, ())]
    return nested or [to_text(fields.get(1, [b""])[0])]


def _value_of(fields: dict[int, Any]) -> Any:
    """The value of an item, which has a field for its kind, or is JSON."""
    if 4 in fields:
        return bool(fields[4][0])
    if 5 in fields:
        return to_signed(fields[5][0])
    if 6 in fields:
        return to_float(fields[6][0])
    if 7 in fields:
        return to_text(fields[7][0])
    for number in (8, 16):
        if number in fields:
            try:
                return json.loads(to_text(fields[number][0]))
            except ValueError:
                return None
    return None


def _flatten(name: str, value: Any, into: dict[str, Any]) -> None:
    """Adds the values of nested dicts; media, such as images, are one value."""
    if isinstance(value, dict) and _TYPE not in value:
        for key, inner in value.items():
            _flatten(f"{name}/{key}", inner, into)
    else:
        into[name] = value


def _records(file: BinaryIO) -> Iterator[bytes]:
    parts: list[bytes] = []
    at = _PART_HEADER  # the header of the file has the same size
    while block := file.read(_BLOCK):
        # the rest of a block is filled with zeros
        while at < len(block) and at <= _BLOCK - _PART_HEADER:
            if at + _PART_HEADER > len(block):
                raise WandbFileError("its last record is incomplete")
            checksum, size, kind = struct.unpack_from("<IHB", block, at)
            part = block[at + _PART_HEADER : at + _PART_HEADER + size]
            if len(part) < size:
                raise WandbFileError("its last record is incomplete")
            if kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
                raise WandbFileError(f"a record has the unknown kind {kind}")
            if zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
                raise WandbFileError("a record does not match its checksum")
            parts = [part] if kind in (_FULL, _FIRST) else [*parts, part]
            if kind in (_FULL, _LAST):
                yield b"".join(parts)
                parts = []
            at += _PART_HEADER + size
        at = 0
