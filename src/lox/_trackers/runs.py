"""Runs that are sent to a tracker, and the state that is needed to send more later."""

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lox._logs.tables import Array, Table

if TYPE_CHECKING:
    from .tables import TrackerTables

# how a run has ended, or that it has not
Ending = Literal["finished", "failed", "killed", "running"]


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """A run for a backend to open.

    Attributes:
        key: the words of the PRNG key that identifies the run.
        name: the name of the run, derived from these words.
        config: the config of the logger and of the run.
    """

    key: tuple[int, ...]
    name: str
    config: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Resumed:
    """How to open a run of a tracker that may exist, to send logs that it lacks.

    Items are what a tracker counts: the rows of W&B and trackio, the metrics of MLflow.

    Attributes:
        id: the identifier of the tracker's run.
        started: the time when the run started, in seconds since 1970.
        is_given: whether the tracker itself has chosen the identifier.
        before: how many items the tracker's run had before the first of these logs.
        asks: whether to ask the tracker for `before`, if it can tell.
        sent: how many items of these logs the tracker has confirmed.
        interrupted: whether it may have more than these.
        counts: how many rows each key had before, for `IntegerSteps`.
        names: the names that keys have in the tracker's run, if it changes some.
    """

    id: str
    started: float
    is_given: bool = False
    before: int = 0
    asks: bool = False
    sent: int = 0
    interrupted: bool = False
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)


def identifier(name: str, suffix: str) -> str:
    """An identifier for a tracker's run, of characters that all trackers allow."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', name)[:60]}-{suffix}"


class TrackerRun:
    """An open run of a tracker.

    Attributes:
        resumed: how it was opened; None for a new run.
        before: how many items the tracker's run had before the first logs.
        items: how many items the logs so far have, sent or not.
        accepted: how many items the tracker has accepted since `confirm`.
        integer_steps: the steps of its rows, for a tracker that takes integers.
    """

    def __init__(self) -> None:
        self.resumed: Resumed | None = None
        self.before = self.items = self.accepted = 0
        self.integer_steps = IntegerSteps()
        # what `confirm` has found
        self._confirmed = 0
        self._counts: dict[str, int] = {}
        # how many items to leave out, because the tracker has them
        self._known = 0

    def resume(self, resumed: Resumed, found: int | None) -> None:
        """Continues a run.

        Args:
            resumed: what is known about it.
            found: how many items it has; None if the tracker cannot tell.
        """
        self.resumed = resumed
        self.integer_steps = IntegerSteps(resumed.counts)
        self.before = resumed.before
        if found is None:
            self._known = resumed.sent
            return
        if resumed.asks:
            self.before = max(found - resumed.sent, 0)
        self._known = max(found - self.before, 0)

    def add_items(self, count: int) -> int:
        """Counts the next items; returns how many of them the tracker has already."""
        known = min(max(self._known - self.items, 0), count)
        self.items += count
        return known

    def confirm(self) -> None:
        """Called when the tracker has accepted all logs so far."""
        self.accepted, self._confirmed = 0, self.items
        self._counts = dict(self.integer_steps.counts)

    def state(self) -> dict[str, Any]:
        """The state that is needed to send logs from the first unconfirmed one on."""
        return {
            "before": self.before + self._confirmed,
            "sent": self.accepted,
            "counts": self._counts,
        }


class ClientRun(TrackerRun):
    """A run that the tracker's client represents by an object with an `id`."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def state(self) -> dict[str, Any]:
        return {**super().state(), "id": self.run.id}


class IntegerSteps:
    """Steps of the rows of a run, for trackers that take integer steps only.

    Rows without an integer step are counted per key.

    Attributes:
        counts: how many rows of each key were counted.
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts: dict[str, int] = dict(counts or {})
        # the names of steps that are not integers
        self._non_integer: set[str] = set()

    def of(self, tracker: "TrackerTables", table: Table) -> Array:
        """The steps of the rows of a table."""
        x_axis = tracker.step_of(table)
        if x_axis is not None:
            name, numbers = x_axis
            if numbers.dtype.kind in "bi":
                return numbers
            if name not in self._non_integer:
                with np.errstate(invalid="ignore"):
                    integers = numbers.astype(np.int64)
                if np.array_equal(integers, numbers):
                    self._count(table)
                    return integers
                self._non_integer.add(name)
                tracker.warn_once(
                    f"{tracker.caller} counts rows instead of using the step {name!r}, "
                    "because it takes only steps that are 64-bit integers. Choose "
                    f"another step with `{tracker.option('step')}`."
                )
        first = self._count(table)
        return np.arange(first, first + table.length)

    def _count(self, table: Table) -> int:
        """Counts the rows of these keys; returns how many there were before."""
        names = table.shown
        first = max((self.counts.get(name, 0) for name in names), default=0)
        self.counts |= dict.fromkeys(names, first + table.length)
        return first
