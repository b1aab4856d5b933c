"""What every reduction has: a form for loops, and one for rows that are stacked."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Leaves = Sequence[Any]


class ValueType(NamedTuple):
    """The type of one key's value, before a program runs.

    Attributes:
        tree: the structure of the value.
        types: the types of its leaves.
        lanes: how many lane axes they have in front.
        where: the key and its line, for errors.
    """

    tree: Any
    types: Leaves
    lanes: int
    where: str


class StackedRows(NamedTuple):
    """The rows of one key, in arrays with a time axis.

    Attributes:
        key: whose rows these are.
        tree: the structure of the value.
        leaves: its leaves, of shape `(*outer_lanes, time, *lanes, *own)`.
        axes: the time axis of each leaf.
        ndims: how many axes each leaf has of its own.
        lanes: how many lane axes come after the time axis.
        mask: which rows happened, of shape `(*outer_lanes, time, *lanes)`; None for
            all. What a reduction of no rows gives has no meaning then.
    """

    key: str
    tree: Any
    leaves: Leaves
    axes: Sequence[int]
    ndims: Sequence[int]
    lanes: int
    mask: Any


class Accumulator(NamedTuple):
    """A reduction in a loop, made for the type of one key's value.

    Attributes:
        tree: the structure of the reduced value.
        init: gives what is carried before the first event.
        restart: gives the same, from what is carried at the end of a window.
        update: gives what is carried after an event, from what was before it, the
            leaves of its value, and how many events came before.
        finish: gives the leaves of the reduced value, from what is carried and the
            number of events.
        counts: whether `update` needs to know how many events came before.
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

    # whether it leaves all rows as they are
    keeps_rows = False
    # whose step the reduced row has: that of the "first" event, or of the "last"
    step = "last"

    def in_loop(self, value: ValueType) -> Accumulator:
        """The form that takes one event after the other."""
        raise NotImplementedError

    def stacked(self, rows: StackedRows) -> tuple[Leaves, Any]:
        """The leaves of the reduced value, and its structure."""
        raise NotImplementedError
