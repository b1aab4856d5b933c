"""Reads logs as they were written: call by call, or in the order of their events."""

import contextlib
import functools
import itertools
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox._errors import StoreError
from lox._logs.key import Key
from lox._logs.lane_step import LANE, PROCESS
from lox._logs.logdict import from_keys, logdict

from .format import TEMPORARY
from .joining import KeyPart, restore_axes, with_step
from .local_files import LocalLocation
from .losses import Finished
from .segments import Segment, WrittenSegments

_MAX_ROWS = 10_000  # to read at a time


class Call(NamedTuple):
    """One call of `Writer.write`.

    Attributes:
        first: the number of its first event in the writer's order.
        rows: the number of its events.
        stacked: the keys that have a time axis.
    """

    first: int
    rows: int
    stacked: frozenset[str]


class Replay:
    """The logs of a writer, by the numbers of their events. Reads all into memory.

    Args:
        directory: the directory of the writer.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        writer = WrittenSegments(0, LocalLocation(directory), Finished({}))
        written = [segment for segment in writer.segments if segment.count]
        self._segments = [_Rows(writer, segment) for segment in written]

    def logs_of(self, call: Call) -> logdict:
        """The logs of a call; raises if some are missing."""
        keys: dict[str, Key] = {}
        steps: dict[str, None] = {}
        found = 0
        for rows in self._segments:
            start, stop = rows.between(call.first, call.first + call.rows)
            if start < stop:
                found += stop - start
                keys |= rows.keys(start, stop, call.stacked)
                steps |= dict.fromkeys(name for name, _ in rows.schema.steps)
        if found != call.rows:
            raise StoreError(
                f"{self._directory} has lost {call.rows - found} of {call.rows} rows."
            )
        return from_keys(keys.items(), steps)


class WriterLogs:
    """The logs that a writer has written so far, in the order of their events.

    They are read without JAX: PRNG keys are represented by their data.

    Args:
        writer: the writer.
        names_process: whether to add the index of its process to all rows, as a step.

    Attributes:
        count: the number of events.
    """

    def __init__(self, writer: WrittenSegments, names_process: bool) -> None:
        self._process = writer.process if names_process else None
        written = [segment for segment in writer.segments if segment.count]
        self.count = sum(segment.count for segment in written)
        self._writer, self._written = writer, written

    @functools.cached_property
    def _segments(self) -> "list[_Rows]":
        return [_Rows(self._writer, segment, False) for segment in self._written]

    @functools.cached_property
    def _owners(self) -> Any:
        """The index of the segment of each event."""
        counts = [segment.count for segment in self._written]
        owners = np.repeat(np.arange(len(counts)), counts)
        if len(counts) < 2:
            return owners
        numbers = np.concatenate([rows.numbers for rows in self._segments])
        return owners[np.argsort(numbers, kind="stable")]

    def between(self, start: int, stop: int) -> Iterator[logdict]:
        """Yields logs of events, by their position.

        Events that follow each other in one segment and lane are in the same logs.
        """
        at = np.bincount(self._owners[:start], minlength=len(self._written)).tolist()
        owners = self._owners[start:stop]
        edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        for begin, end in itertools.pairwise(edges):
            if begin < end:
                owner = int(owners[begin])
                first, at[owner] = at[owner], at[owner] + end - begin
                rows = self._segments[owner]
                for i, j in itertools.pairwise(rows.cuts(first, at[owner])):
                    yield self._logs_of(rows, i, j)

    def _logs_of(self, rows: "_Rows", start: int, stop: int) -> logdict:
        keys = rows.keys(start, stop, frozenset(rows.names))
        if self._process is not None:
            number = self._process
            keys = {name: with_step(x, PROCESS, number) for name, x in keys.items()}
        steps = [name for name, _ in rows.schema.steps]
        return from_keys(keys.items(), dict.fromkeys(steps))


class _Rows:
    """The records of one segment."""

    def __init__(
        self, writer: WrittenSegments, segment: Segment, typed_keys: bool = True
    ) -> None:
        self.schema = segment.schema
        self.names = list(segment.keys)
        masked = segment.schema.mask is not None
        parts = {name: KeyPart(writer, segment, name) for name in segment.keys}
        self._by_name = {
            name: part.rows(masked, typed_keys) for name, part in parts.items()
        }
        self._place = writer, segment

    @functools.cached_property
    def numbers(self) -> Any:
        """The numbers of the events of the records."""
        writer, segment = self._place
        return writer.numbers(segment).astype(np.int64)

    def cuts(self, start: int, stop: int) -> list[int]:
        """Where to cut rows, with both ends: between lanes, and if there are many."""
        found = [start]
        lanes = next(iter(self._by_name.values())).steps.get(LANE)
        if lanes is not None:
            changes = np.flatnonzero(np.diff(lanes[start:stop])) + 1
            found += (start + changes).tolist()
        found.append(stop)
        return [
            row
            for begin, end in itertools.pairwise(found)
            for row in range(begin, end, _MAX_ROWS)
        ] + [stop]

    def between(self, first: int, end: int) -> tuple[int, int]:
        """The rows of the events from number `first` to `end`, which are in order."""
        start, stop = np.searchsorted(self.numbers, (first, end))
        return int(start), int(stop)

    def keys(self, start: int, stop: int, stacked: frozenset[str]) -> dict[str, Key]:
        found = {}
        for key in self.schema.keys:
            rows = self._by_name[key.name].arrays(lambda x, axis: x[start:stop])
            restored = restore_axes(rows, key, key.name in stacked)
            # a program that logs several rows of a key sends them one by one
            if self.schema.stacked != restored.info.stacked:
                info = restored.info._replace(multi_row=self.schema.stacked)
                restored = restored._replace(info=info)
            found[key.name] = restored
        return found


def split_calls(calls: Sequence[tuple[Call, int]], start: int) -> Iterator[Call]:
    """Yields the calls of a run-length encoded list, without the first `start`.

    Args:
        calls: calls, and how many times each is repeated with the next numbers.
        start: the number of calls to leave out.
    """
    for call, repeats in calls:
        for i in range(min(start, repeats), repeats):
            yield call._replace(first=call.first + i * call.rows)
        start = max(start - repeats, 0)


def remove_replayed(run: pathlib.Path) -> None:
    """Removes the directory of a run whose logs were sent."""
    # renamed first, so that `lox.runs` lists all of it or nothing
    removed = run.with_name(run.name + TEMPORARY)
    with contextlib.suppress(FileNotFoundError):
        run.rename(removed)
        shutil.rmtree(removed)
