"""`logs.slice[...]`: rows by position."""

from typing import TYPE_CHECKING, Any

import numpy as np

from lox._errors import LoxTypeError, LoxValueError

from .compaction import compacted
from .key import Key, index_axis

if TYPE_CHECKING:
    from .logdict import logdict


class Slicer:
    """What `logs.slice` returns."""

    __slots__ = ("_logs",)

    def __init__(self, logs: "logdict") -> None:
        self._logs = logs

    def __getitem__(self, index: Any) -> "logdict":
        if not isinstance(index, int | np.integer | slice):
            raise LoxTypeError(
                f"`logs.slice[...]` takes an integer or a slice, not {index!r}."
            )
        logs = self._logs.compact() if self._logs.dropped else self._logs
        keys = ((name, _sliced(name, key, index)) for name, key in logs._keys().items())
        return logs._with((name, key) for name, key in keys if key is not None)


def _sliced(name: str, key: Key, index: Any) -> Key | None:
    """Rows by position, among those that happened; None if there are none."""
    if not key.info.stacked:
        return key
    compact = compacted(key)
    if compact is None:
        return None
    if compact.mask is not None:
        raise LoxValueError(
            f"different lanes of {name!r} logged different rows, which have no common "
            "positions. Slice each of `logs.lanes()` instead."
        )
    new = compact.arrays(lambda array, axis: index_axis(array, index, axis))
    if isinstance(index, slice):
        return new
    return new._replace(info=key.info._replace(stacked=False))
