"""How values are printed: as Python literals, short enough for a line."""

from typing import Any

import jax
import numpy as np

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
    if isinstance(value, jax.core.Tracer):
        return jax.typeof(value).str_short()
    if isinstance(value, np.generic):  # the fast way for what a callback gets
        return str(value)
    if isinstance(value, np.ndarray | jax.Array):
        return _format_array(value)
    return repr(value)


def _format_array(array: Any) -> str:
    if isinstance(array, jax.Array):
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
            data = np.asarray(jax.random.key_data(array))
            return f"{array.dtype}({_format_array(data)})"
        if not array.is_fully_addressable:
            return jax.typeof(array).str_short()
        array = np.asarray(array)
    return _format_rows(array, edge=_EDGE if array.size > _MOST else None)


def _format_rows(array: Any, edge: int | None) -> str:
    if array.ndim == 0:
        return str(array[()])
    if edge is None or len(array) <= 2 * edge:
        rows = [_format_rows(row, edge) for row in array]
    else:
        head = [_format_rows(row, edge) for row in array[:edge]]
        tail = [_format_rows(row, edge) for row in array[-edge:]]
        rows = [*head, "...", *tail]
    return f"[{', '.join(rows)}]"
