"""Compares what a contender has logged with the values that were returned by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Values = Mapping[str, Any]

# Two compiled programs may round differently.
_TOLERANCE = 1e-3


def problem(found: Values, expected: Values, ordered: bool = True) -> str | None:
    """What is wrong with logged values, in a few words; None if they are right.

    Args:
        found: the values of each key.
        expected: those of the program that returns them by hand.
        ordered: whether their order matters. That of lanes differs between contenders.
    """
    for key in expected:
        wanted = np.ravel(np.asarray(expected[key]))
        if key not in found:
            return f"nothing of `{key}`"
        given = np.ravel(np.asarray(found[key]))
        if given.size != wanted.size:
            return f"{given.size:,} values of `{key}` instead of {wanted.size:,}"
        if not _close(np.sort(given), np.sort(wanted)):
            return f"other values of `{key}`"
        if ordered and not _close(given, wanted):
            return f"values of `{key}` in another order"
    unexpected = sorted(found.keys() - expected.keys())
    return f"also `{unexpected[0]}`" if unexpected else None


def _close(a: Any, b: Any) -> bool:
    scale = max(1e-6, float(np.max(np.abs(b), initial=0)))
    return bool(np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale * 0.1))


def joined(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of each key, from what a host function has received, in its order."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in row.items():
            columns.setdefault(key, []).append(np.ravel(np.asarray(value)))
    return {key: np.concatenate(parts) for key, parts in columns.items()}
