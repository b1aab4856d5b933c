"""Reads protocol buffers, field by field, without their definitions."""

import struct
from collections.abc import Iterator
from typing import Any

from lox._errors import LoxError


class MessageError(LoxError, ValueError):
    """Bytes that are not a protocol buffer."""


# The exceptions that reading a malformed message raises.
UNEXPECTED = (
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


def fields_of(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the number and the value of each field.

    A value is an `int` (a varint), the bytes of a field of 4 or 8 bytes, which
    `to_float` converts, or the bytes of a string, a message or packed numbers.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise MessageError(f"a field has the unknown type {kind}")
        if at + size > end:
            raise MessageError("a field is longer than its message")
        yield tag >> 3, message[at : at + size]
        at += size


def grouped(message: bytes) -> dict[int, list[Any]]:
    """The values of each field, by its number."""
    found: dict[int, list[Any]] = {}
    for number, value in fields_of(message):
        found.setdefault(number, []).append(value)
    return found


def to_float(raw: bytes) -> float:
    """The number of a field of 4 or 8 bytes."""
    if len(raw) not in (4, 8):
        raise MessageError(f"a number has {len(raw)} bytes")
    (number,) = struct.unpack("<f" if len(raw) == 4 else "<d", raw)
    return float(number)


def to_signed(number: int) -> int:
    """The value of an `int64`, which is a varint of 64 bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def to_varints(raw: bytes | int) -> list[int]:
    """The numbers of a packed field, or the single one of an unpacked field."""
    if isinstance(raw, int):
        return [raw]
    numbers, at = [], 0
    while at < len(raw):
        number, at = _varint(raw, at)
        numbers.append(number)
    return numbers


def to_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise MessageError("a varint has no end")
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number & (1 << 64) - 1, at
        shift += 7
