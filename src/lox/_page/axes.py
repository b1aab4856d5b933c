"""Steps that many runs have in common, read once."""

import weakref
from typing import Any

import numpy as np

from lox._logs.lane_step import LANE
from lox._store.segments import Segment

from .signals import Leaf

Array = np.ndarray[Any, Any]

_MAX_ARRAYS = 8


class CommonSteps:
    """The steps of segments, with one array for all segments that have the same steps.

    All seeds of an experiment usually log at the same steps, and so do all keys of a
    run. The arrays are ascending, without repeats. Only a few are kept, so the memory
    does not grow with the number of runs.
    """

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._of_segment: weakref.WeakKeyDictionary[Segment, dict[str, Array]]
        self._of_segment = weakref.WeakKeyDictionary()

    def of(self, leaf: Leaf, step: str) -> Array | None:
        """The steps of all rows; None if they are not common, or have lanes."""
        known = self._of_segment.get(leaf.segment, {}).get(step)
        if known is not None:
            return known
        schema = leaf.segment.schema
        if leaf.lane_axes or LANE in leaf.steps or schema.mask is not None:
            return None
        steps = leaf.read(*leaf.steps[step], 0).reshape(-1).astype(np.float64)
        shared = self.shared(steps)
        if not self.has(shared):
            return None
        self._of_segment.setdefault(leaf.segment, {})[step] = shared
        return shared

    def shared(self, steps: Array) -> Array:
        """The array of these steps that others have too."""
        for array in self._arrays:
            if len(array) == len(steps) and (array == steps).all():
                return array
        if np.isfinite(steps).all() and (np.diff(steps) > 0).all():
            self._arrays = [steps, *self._arrays[: _MAX_ARRAYS - 1]]
        return steps

    def has(self, x: Array) -> bool:
        """Whether an array is one of those that are shared, which are ascending."""
        return any(x is array for array in self._arrays)

    def forget_unused(self) -> None:
        """Drops the arrays of segments that have grown since."""
        used = {id(x) for found in self._of_segment.values() for x in found.values()}
        self._arrays = [array for array in self._arrays if id(array) in used]
