"""Arrays as pictures."""

import struct
import zlib

import numpy as np

from .histogram import Array


def as_bytes(pixels: Array) -> Array:
    """An image of height, width and channels, whose numbers are bytes."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.dtype.kind == "f":  # from 0 to 1
        pixels = np.nan_to_num(np.clip(pixels, 0, 1)) * 255 + 0.5
    elif pixels.dtype.kind == "b":
        pixels = pixels * np.uint8(255)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def png(pixels: Array) -> bytes:
    """An image as a file; pixels are bytes of height, width and channels."""
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    # a filter, of which there is none, in front of each line
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        ends = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + ends

    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", head),
            chunk(b"IDAT", zlib.compress(lines.tobytes())),
            chunk(b"IEND", b""),
        )
    )
