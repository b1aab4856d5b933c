"""Reads the scalars and hyperparameters of TensorBoard's event files."""

import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from lox._errors import LoxError

from .event_file import masked_crc
from .opening import open_regular
from .protobuf import (
    UNEXPECTED,
    fields_of,
    grouped,
    to_float,
    to_signed,
    to_text,
    to_varints,
)

# Checksums of longer records, such as images, are not verified, because that is slow.
_MAX_CHECKED_BYTES = 4096


class EventFileError(LoxError, ValueError):
    """A file that is not an event file, or is damaged."""


class Scalar(NamedTuple):
    """One number of one tag."""

    tag: str
    step: int
    wall_time: float
    value: float


class Events:
    """What an event file contains.

    Args:
        path: the file.

    Attributes:
        scalars: all numbers, in the order of the file.
        config: the hyperparameters.
        skipped: how many values were not scalars, by their kind.
        times: the lowest and the highest time of an event, if there are any.
        damage: why the rest of the file was not read; empty if all of it was.
    """

    def __init__(self, path: str) -> None:
        self.scalars: list[Scalar] = []
        self.config: dict[str, Any] = {}
        self.skipped: dict[str, int] = {}
        self.times: list[float] = []
        self.damage = ""
        with open_regular(path) as file:
            try:
                for record in _records(file):
                    self._add(record)
            except UNEXPECTED as error:
                self.damage = str(error) or type(error).__name__
        if self.damage and not self.times:
            raise EventFileError(
                f"{path} is not an event file of TensorBoard: {self.damage}."
            )

    def _add(self, record: bytes) -> None:
        event = grouped(record)
        wall_time = to_float(event[1][0]) if 1 in event else 0.0
        self.times = [
            min([*self.times[:1], wall_time]),
            max([*self.times[1:], wall_time]),
        ]
        step = to_signed(event[2][0]) if 2 in event else 0
        for summary in event.get(5, ()):
            for number, value in fields_of(summary):
                if number == 1:
                    self._add_value(grouped(value), step, wall_time)

    def _add_value(self, value: dict[int, Any], step: int, wall_time: float) -> None:
        tag = to_text(value[1][0]) if 1 in value else ""
        if tag.startswith("_hparams_/"):
            self._add_hparams(value)
        elif 2 in value:
            number = to_float(value[2][0])
            self.scalars.append(Scalar(tag, step, wall_time, number))
        elif 8 in value and (found := _tensor_number(value[8][0])) is not None:
            self.scalars.append(Scalar(tag, step, wall_time, found))
        else:
            kind = next((x for n, x in _KINDS.items() if n in value), "other")
            self.skipped[kind] = self.skipped.get(kind, 0) + 1

    def _add_hparams(self, value: dict[int, Any]) -> None:
        for metadata in value.get(9, ()):
            for plugin in grouped(metadata).get(1, ()):
                for content in grouped(plugin).get(2, ()):
                    for start in grouped(content).get(3, ()):
                        for entry in grouped(start).get(1, ()):
                            pair = grouped(entry)
                            if 1 in pair and 2 in pair:
                                name = to_text(pair[1][0])
                                self.config[name] = _plain_value(pair[2][0])


_KINDS = {4: "images", 5: "histograms", 6: "audio", 8: "tensors"}


def is_event_file(name: str) -> bool:
    return "tfevents" in os.path.basename(name)


def _records(file: BinaryIO) -> Iterator[bytes]:
    while head := file.read(12):
        if len(head) < 12:
            raise ValueError("its last record is incomplete")
        (size,) = struct.unpack("<Q", head[:8])
        if masked_crc(head[:8]) != struct.unpack("<I", head[8:])[0]:
            raise ValueError("the length of a record does not match its checksum")
        if size > os.fstat(file.fileno()).st_size:  # before allocating that much memory
            raise ValueError("its last record is incomplete")
        record = file.read(size)
        check = file.read(4)
        if len(record) < size or len(check) < 4:
            raise ValueError("its last record is incomplete")
        is_checked = size <= _MAX_CHECKED_BYTES
        if is_checked and masked_crc(record) != struct.unpack("<I", check)[0]:
            raise ValueError("a record does not match its checksum")
        yield record


# The dtypes of tensors, by their numbers, and the fields that hold their values.
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 6: "i1", 9: "<i8", 10: "?", 19: "<f2"}
_VALUE_FIELDS = {1: 5, 2: 6, 3: 7, 4: 7, 6: 7, 9: 10, 10: 11}


def _tensor_number(tensor: bytes) -> float | None:
    """The number in a tensor; None if it is not a single number."""
    fields = grouped(tensor)
    dtype = fields.get(1, [0])[0]
    if dtype not in _DTYPES:
        return None
    shape = [x for part in fields.get(2, ()) for x in grouped(part).get(2, ())]
    if any(grouped(dim).get(1, [0])[0] != 1 for dim in shape):
        return None
    if fields.get(4):
        values = np.frombuffer(fields[4][0], _DTYPES[dtype])
        return float(values[0]) if len(values) == 1 else None
    for raw in fields.get(_VALUE_FIELDS.get(dtype, -1), ()):
        if dtype in (1, 2):
            return to_float(raw) if len(raw) in (4, 8) else None
        numbers = to_varints(raw)
        return float(to_signed(numbers[0])) if len(numbers) == 1 else None
    return None


def _plain_value(raw: bytes) -> Any:
    """A `google.protobuf.Value`: a number, a string or a bool."""
    for number, value in fields_of(raw):
        if number == 2:
            found = to_float(value)
            return int(found) if found.is_integer() and abs(found) < 2**53 else found
        if number == 3:
            return to_text(value)
        if number == 4:
            return bool(value)
    return None
