"""Values of runs as JSON, and as text for tables."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """Converts arrays and configs to JSON.

    Floats that are not finite, which JSON lacks, become the strings `"NaN"`,
    `"Infinity"` and `"-Infinity"`; complex numbers become strings.
    """
    if isinstance(value, np.ndarray | np.generic):
        return to_json(_python_numbers(np.asarray(value)))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)


def masked_json(value: Any, mask: Any) -> Any:
    """A value of a row as JSON, with null for lanes in which it did not happen.

    Args:
        value: the value.
        mask: in which lanes it happened; None if in all, or if there are none.
    """
    plain = to_json(value)
    return plain if mask is None else _masked(plain, mask.tolist())


def _masked(value: Any, mask: Any) -> Any:
    if isinstance(mask, bool):
        return value if mask else None
    return [_masked(x, happened) for x, happened in zip(value, mask, strict=True)]


def _python_numbers(array: Any) -> Any:
    if array.dtype.kind in "biu":
        return array.tolist()
    if array.dtype.kind == "f":
        # the shortest digits that identify a narrow float
        if array.dtype.itemsize < 8:
            return array.astype(str).astype(float).tolist()
        return array.tolist()
    if array.dtype.kind in "cO":
        return array.astype(str).tolist()
    name = array.dtype.name  # a dtype of `ml_dtypes`
    if name.startswith(("int", "uint")):
        return array.astype(np.int64).tolist()
    return array.astype(np.float64).tolist()


def to_text(value: Any, digits: int = 4) -> str:
    """Formats a value for a cell of a table; `-` if there is none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, float | np.floating):  # also `np.float64`
        return f"{float(value):.{digits}g}"
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.ndim:
            return f"{array.dtype}[{','.join(map(str, array.shape))}]"
        return to_text(_python_numbers(array), digits)
    return str(value)
