"""The leaves of a logdict as columns, for exports and plots."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lox._arrays import leaves_with_names

from .key import Key

if TYPE_CHECKING:
    from .logdict import logdict


class Column(NamedTuple):
    """One leaf of a key.

    Attributes:
        name: the key, and the path of the leaf.
        array: the leaf, as a NumPy array.
        own: the number of axes of the value itself; the axes before are lanes and time.
        key: the key.
        of: the key's steps, mask and axes.
    """

    name: str
    array: np.ndarray[Any, Any]
    own: int
    key: str
    of: Key

    @property
    def stacked(self) -> bool:
        return self.of.info.stacked

    @property
    def time_axis(self) -> int:
        return self.of.info.time_axis(self.array, self.own)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of time and lanes."""
        return self.array.shape[: self.array.ndim - self.own]

    def axis_names(self) -> list[str]:
        """The names of time and lanes."""
        outer = self.time_axis
        names = [f"lane_{i}" for i in range(outer)]
        names += ["row"] if self.stacked else []
        return names + [f"lane_{outer + i}" for i in range(self.of.info.lanes)]


def columns_of(logs: "logdict") -> list[Column]:
    return [
        Column(name + path, np.asarray(leaf), own, name, key)
        # typed PRNG keys, which NumPy does not have, by their data
        for name, key in ((n, x.with_key_data()) for n, x in logs._keys().items())
        for (path, leaf), own in zip(
            leaves_with_names(key.value), key.info.ndims, strict=True
        )
    ]
