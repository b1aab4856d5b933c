"""Logs of eager calls, as compiled programs return them."""

import threading
from collections.abc import Callable
from typing import Any

from .layout import Layout, children_of, layout_of
from .logdict import logdict

# A program has one layout for each set of keys that it logs.
_MAX_LAYOUTS = 8
_RESULT_AND_VALUES = 2


class Packing:
    """Packs the logs that a compiled program returns.

    JAX creates the results of a program in C++, except for logdicts, for which it calls
    Python. That takes longer than creating the logdict afterwards. So the program
    returns its result, a dict of the values, and a number of `None`s, so that the
    length of this tuple identifies the layout of the logs. If there are steps, there is
    a tuple of the values and the steps instead of the values.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the length of the tuple: the metadata, if there are no steps; the keys in
        # order, if they are not sorted, as JAX sorts those of a dict; and the layout.
        self._layouts: list[Any] = [None] * _RESULT_AND_VALUES

    def pack(self, result: Any, logs: logdict) -> tuple[Any, ...]:
        """The tuple that a program returns for its result and its logs.

        Logs with rows that may not have happened are not packed, because an eager call
        removes such rows. Nor are those of a program with many layouts.
        """
        layout = layout_of(logs)
        keys, _, masks, *_, totals = layout
        length = None if masks or totals else self._length(layout)
        if length is None:
            return result, logs
        values: Any = dict(logs)
        if layout.plain is None:
            values = values, tuple(children_of(logs, layout)[len(keys) :])
        return result, values, *[None] * (length - _RESULT_AND_VALUES)

    def _length(self, layout: Layout) -> int | None:
        with self._lock:
            for length, entry in enumerate(self._layouts):
                if entry is not None and entry[-1] == layout:
                    return length
            length = len(self._layouts)
            if length == _RESULT_AND_VALUES + _MAX_LAYOUTS:
                return None
            keys = layout[0]
            order = None if sorted(keys) == list(keys) else dict.fromkeys(keys)
            self._layouts.append((layout.plain, order, layout))
            return length

    def unpacker(
        self, otherwise: Callable[[tuple[Any, ...]], tuple[Any, logdict]]
    ) -> Callable[[tuple[Any, ...]], tuple[Any, logdict]]:
        """A function from what the program returns to its result and its logs.

        Args:
            otherwise: the function for logs that are not packed. Their rows that did
                not happen are removed.
        """
        layouts, new, update = self._layouts, dict.__new__, dict.update

        def unpack(out: tuple[Any, ...]) -> tuple[Any, logdict]:
            values = out[1]
            if type(values) is logdict:
                result, logs = otherwise(out)
                return result, logs.compact()
            metadata, order, layout = layouts[len(out)]
            if metadata is None:
                values, rest = values
                metadata = layout.metadata(rest)
            logs = new(logdict)
            if order is not None:
                update(logs, order)
            update(logs, values)
            logs._metadata = metadata
            return out[0], logs

        return unpack
