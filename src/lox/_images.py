"""Conversion of arrays to images."""

import struct
import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def to_uint8(pixels: Array) -> Array:
    """Converts an image to bytes of shape (height, width, channels)."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.dtype.kind == "f":  # between 0 and 1
        pixels = np.nan_to_num(np.clip(pixels, 0, 1)) * 255 + 0.5
    elif pixels.dtype.kind == "b":
        pixels = pixels * np.uint8(255)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def encode_png(pixels: Array) -> bytes:
    """Encodes bytes of shape (height, width, channels) as a PNG file."""
    height, width, channels = pixels.shape
    color_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    # each line starts with its filter type: 0, no filter
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(lines.tobytes())),
            chunk(b"IEND", b""),
        )
    )
