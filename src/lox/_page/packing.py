"""Arrays and JSON in one sequence of bytes, which the page decodes.

The bytes are: the length of the JSON text (4 bytes, little-endian), the JSON text in
ASCII, and the arrays. In the JSON, an array is `{"$": [type, shape, offset]}`. Arrays
are stored by byte planes (all first bytes, all second bytes, ...), which compress
better.
"""

import base64
import json
import math
import zlib
from typing import Any

import numpy as np

_TYPES = {"f4": "f4", "f8": "f8", "u1": "u1", "u2": "u2", "u4": "u4", "i4": "i4"}


def pack(content: Any) -> bytes:
    """Packs nested dicts and lists of JSON values and arrays."""
    arrays: list[bytes] = []
    size = 0

    def encode(node: Any) -> Any:
        nonlocal size
        if isinstance(node, np.ndarray):
            little = np.ascontiguousarray(node, node.dtype.newbyteorder("<"))
            kind = _TYPES[little.dtype.str[1:]]
            planes = little.reshape(-1).view(np.uint8).reshape(-1, little.itemsize)
            raw = planes.T.tobytes()
            reference = {"$": [kind, list(node.shape), size]}
            arrays.append(raw)
            size += len(raw)
            return reference
        if isinstance(node, dict):
            return {key: encode(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [encode(value) for value in node]
        return plain(node)

    text = json.dumps(encode(content), allow_nan=False).encode("ascii")
    return b"".join((len(text).to_bytes(4, "little"), text, *arrays))


def embed(data: bytes) -> str:
    """Packed bytes as text for an HTML file."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def narrow(values: Any) -> Any:
    """Rounds computed numbers to 32 bits, if the difference would not be visible."""
    wide = np.asarray(values, np.float64)
    finite = wide[np.isfinite(wide)]
    if finite.size:
        span = float(finite.max() - finite.min())
        largest = float(np.abs(finite).max())
        if largest > 1e38 or (span and largest > 100 * span) or 0 < largest < 1e-30:
            return wide
    return wide.astype(np.float32)


def plain(value: Any) -> Any:
    """A JSON value for JavaScript; numbers that JSON lacks become strings."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
