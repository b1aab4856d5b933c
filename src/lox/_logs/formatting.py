"""How values are printed: as Python literals on one line."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox._arrays import (
    imported_jax,
    is_jax_array,
    is_spread,
    is_tracer,
    is_typed_key,
    map_leaves,
    to_numpy,
)

# Larger arrays show only the first and last elements of each axis, as in NumPy.
_MAX_SIZE = 20
_EDGE = 3


def format_value(value: Any) -> str:
    """Formats a value, which may be any pytree, on one line."""
    if isinstance(value, dict):
        items = (f"{key!r}: {format_value(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        items = (f"{name}={format_value(item)}" for name, item in pairs)
        return f"{type(value).__name__}({', '.join(items)})"
    if isinstance(value, tuple | list):
        inside = ", ".join(map(format_value, value))
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, Masked):
        if is_tracer(value.array) or is_spread(value.array) or is_spread(value.mask):
            return format_value(value.array)
        return _format_array(value.array, to_numpy(value.mask))
    if is_tracer(value):
        return imported_jax().typeof(value).str_short()
    if isinstance(value, np.generic):  # a fast path for values in callbacks
        return str(value)
    if isinstance(value, np.ndarray) or is_jax_array(value):
        return _format_array(value)
    if isinstance(value, int | float | complex) and hasattr(value, "dtype"):
        return str(np.asarray(value, value.dtype))  # created by JAX in a derivative
    return repr(value)


def mark_masked(data: Mapping[str, Any], masks: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares values for printing, given the masks of some of them."""
    marked = dict(data)
    for key, mask in masks.items():
        marked[key] = map_leaves(functools.partial(Masked, mask=mask), marked[key])
    return marked


class Masked:
    """An array with rows that did not happen, which are printed as a dash."""

    def __init__(self, array: Any, mask: Any) -> None:
        self.array = array
        self.mask = mask


def _format_array(array: Any, mask: Any = None) -> str:
    if is_jax_array(array):
        if is_typed_key(array):
            data = to_numpy(imported_jax().random.key_data(array))
            return f"{array.dtype}({_format_array(data, mask)})"
        if is_spread(array):
            return imported_jax().typeof(array).str_short()
        array = to_numpy(array)
    return _format_rows(array, _EDGE if array.size > _MAX_SIZE else None, mask)


def _format_rows(array: Any, edge: int | None, mask: Any = None) -> str:
    if mask is not None and mask.ndim == 0:
        if not mask:
            return "-"
        mask = None
    if array.ndim == 0:
        return str(array[()])

    def rows(part: slice) -> list[str]:
        inside = [None] * len(array[part]) if mask is None else mask[part]
        return [
            _format_rows(row, edge, m)
            for row, m in zip(array[part], inside, strict=True)
        ]

    if edge is None or len(array) <= 2 * edge:
        shown = rows(slice(None))
    else:
        shown = [*rows(slice(edge)), "...", *rows(slice(-edge, None))]
    return f"[{', '.join(shown)}]"
