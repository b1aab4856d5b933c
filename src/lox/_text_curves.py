"""Names and curves as text, for tables in a terminal."""

import math
from typing import Any

import numpy as np

_MAX_NAME = 48
_BLOCKS = "▁▂▃▄▅▆▇█"
_NONFINITE = "!"

Array = np.ndarray[Any, Any]


def printable(name: str) -> str:
    """Escapes control characters, which would disturb a terminal."""
    if name.isprintable():
        return name
    return "".join(x if x.isprintable() else _escaped(x) for x in name)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def shorten(name: str, max_length: int = _MAX_NAME) -> str:
    """Leaves out the middle of a long name: names differ at either end."""
    if len(name) <= max_length:
        return name
    tail = max_length - max_length // 2 - 1
    return f"{name[: max_length // 2]}…{name[len(name) - tail :]}"


def sparkline(values: Array, width: int) -> str:
    """Draws a curve of at most `width` characters, each the mean of a segment."""
    if not len(values):
        return ""
    length = min(width, len(values))
    starts = np.arange(length) * len(values) // length
    finite = np.isfinite(values)
    with np.errstate(all="ignore"):
        counts = np.add.reduceat(finite.astype(float), starts)
        means = np.add.reduceat(np.where(finite, values, 0), starts) / counts
        finite_means = means[np.isfinite(means)]
        if not len(finite_means):
            return _NONFINITE * length
        low, high = finite_means.min(), finite_means.max()
        heights = (means / 2 - low / 2) / (high / 2 - low / 2) * (len(_BLOCKS) - 1)
    if low == high:
        heights = np.where(np.isfinite(means), len(_BLOCKS) // 2 - 1, np.nan)
    return "".join(
        _BLOCKS[round(height)] if math.isfinite(height) else _NONFINITE
        for height in heights
    )
