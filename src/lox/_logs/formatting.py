"""How values are printed: as Python literals, short enough for a line."""

from typing import Any

import numpy as np

from lox._arrays import imported_jax, is_jax_array, is_tracer, is_typed_key, to_numpy

# Longer arrays show their first and last few elements, as NumPy does.
_MOST = 20
_EDGE = 3


def format_value(value: Any) -> str:
    """A value, which may be any pytree, on one line."""
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
        if is_tracer(value.array):
            return format_value(value.array)
        return _format_array(value.array, to_numpy(value.mask))
    if is_tracer(value):
        return imported_jax().typeof(value).str_short()
    if isinstance(value, np.generic):  # the fast way for what a callback gets
        return str(value)
    if isinstance(value, np.ndarray) or is_jax_array(value):
        return _format_array(value)
    return repr(value)


class Masked:
    """An array of rows of which some did not happen; these show as a dash."""

    def __init__(self, array: Any, mask: Any) -> None:
        self.array = array
        self.mask = mask


def _format_array(array: Any, mask: Any = None) -> str:
    if is_jax_array(array):
        if is_typed_key(array):
            data = to_numpy(imported_jax().random.key_data(array))
            return f"{array.dtype}({_format_array(data, mask)})"
        if not array.is_fully_addressable:
            return imported_jax().typeof(array).str_short()
        array = to_numpy(array)
    return _format_rows(array, _EDGE if array.size > _MOST else None, mask)


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
