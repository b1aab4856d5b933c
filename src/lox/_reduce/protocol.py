"""The interface of reductions: one form for loops, and one for stacked rows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Leaves = Sequence[Any]


class ValueType(NamedTuple):
    """The type of the value of one key.

    Attributes:
        tree: the structure of the value.
        types: the types of its leaves.
        lanes: the number of leading lane axes.
        where: the key and its line, for messages.
    """

    tree: Any
    types: Leaves
    lanes: int
    where: str


class StackedRows(NamedTuple):
    """The rows of one key, in arrays with a time axis.

    Attributes:
        key: the key.
        tree: the structure of the value.
        leaves: its leaves, of shape `(*outer_lanes, time, *lanes, *own)`.
        axes: the time axis per leaf.
        ndims: the number of axes of the value itself, per leaf.
        lanes: the number of lane axes after the time axis.
        mask: which rows were logged, of shape `(*outer_lanes, time, *lanes)`; None for
            all. Where no rows were logged, the result of a reduction is not used.
    """

    key: str
    tree: Any
    leaves: Leaves
    axes: Sequence[int]
    ndims: Sequence[int]
    lanes: int
    mask: Any


class Accumulator(NamedTuple):
    """A reduction in a loop, for values of one type.

    Attributes:
        tree: the structure of the reduced value.
        init: returns the initial carry.
        restart: returns the initial carry of a window, from the last one of the
            previous window.
        update: returns the carry after an event, from the previous carry, the leaves of
            the event's value, and the number of previous events.
        finish: returns the leaves of the reduced value, from the carry and the number
            of events.
        counts: whether `update` needs the number of previous events.
        starts_anywhere: whether `init` can be called inside any trace.
    """

    tree: Any
    init: Callable[[], Any]
    restart: Callable[[Any], Any]
    update: Callable[[Any, Leaves, Any], Any]
    finish: Callable[[Any, Any], tuple[Any, ...]]
    counts: bool = False
    starts_anywhere: bool = True


class AnyReduction:
    """A reduction over time: a named one (`REDUCTIONS`), or a `lox.Reduction`."""

    # whether it keeps all rows
    keeps_rows = False
    # which event's step a reduced row has: that of the "first" or the "last" event
    step = "last"

    def in_loop(self, value: ValueType) -> Accumulator:
        """The reduction in a loop."""
        raise NotImplementedError

    def stacked(self, rows: StackedRows) -> tuple[Leaves, Any]:
        """Reduces stacked rows; returns the leaves of the result, and its structure."""
        raise NotImplementedError
