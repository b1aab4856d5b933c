"""Reads the new rows of a run while it is being written."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import leaves_with_names
from lox._errors import StoreError
from lox._logs.lane_step import PROCESS
from lox._patterns import matches_any

from .format import build_tree
from .reader import Run, writers_of
from .schema import Column
from .segments import Segment, WrittenSegments


class Row(NamedTuple):
    """One event.

    Attributes:
        steps: its step numbers, by name; if several processes have written the run,
            with the index of the process.
        values: its values, by key; leaves of a tree by key and path. PRNG keys are
            represented by their data.
        mask: in which lanes it happened; None if in all, or if there are no lanes.
    """

    steps: dict[str, Any]
    values: dict[str, Any]
    mask: Any


class NewRows:
    """Reads a run from time to time, and returns what is new.

    Args:
        run: the run.
        keys: names or patterns of keys: only rows that have one of them are returned.
            None for all rows.

    Attributes:
        run: the run.
        prng_keys: the implementations of PRNG keys, by the names of their values.
    """

    def __init__(self, run: Run, keys: Sequence[str] | None = None) -> None:
        self.run = run
        self.prng_keys: dict[str, str] = {}
        self._patterns = keys
        # the names of the values that are selected
        self._selected: set[str] = set()
        # the number of records that were read of each segment
        self._read: dict[tuple[int, int, str], int] = {}

    def select(self, row: Row) -> dict[str, Any]:
        """The values of a row that are selected."""
        return {k: value for k, value in row.values.items() if k in self._selected}

    def read(self, limit: int | None = None) -> list[Row]:
        """Returns the rows since the last call, in the order of each writer.

        Args:
            limit: the maximum number of rows to return, counted from the end; None for
                all.
        """
        before = dict(self._read)
        try:
            return self._rows(limit)
        except (OSError, StoreError):
            self._read = before  # the rows are read again
            raise

    def _rows(self, limit: int | None) -> list[Row]:
        rows: list[Row] = []
        writers = writers_of(self.run)
        several = any(writer.process for writer in writers)
        for writer in writers:
            found = self._of_writer(writer, limit)
            if several:
                step = {PROCESS: np.int32(writer.process)}
                found = [row._replace(steps={**row.steps, **step}) for row in found]
            rows += found
        return rows if limit is None else rows[len(rows) - min(limit, len(rows)) :]

    def _of_writer(self, writer: WrittenSegments, limit: int | None) -> list[Row]:
        numbered: list[tuple[int, Row]] = []
        segments = [segment for segment in writer.segments if self._has_keys(segment)]
        alone = len(segments) == 1
        for segment in segments:
            place = writer.process, writer.number, str(segment)
            start, stop = self._read.get(place, 0), segment.count
            self._read[place] = max(start, stop)
            if limit is not None:
                start = max(start, stop - limit)
            if start < stop:
                numbers = range(start, stop)
                if not alone:
                    numbers = segment.numbers(start, stop).tolist()
                numbered += zip(numbers, _rows(segment, start, stop), strict=True)
        if not alone:
            numbered.sort(key=lambda pair: pair[0])
        return [row for _, row in numbered]

    def _has_keys(self, segment: Segment) -> bool:
        """Whether the rows of a segment have selected values."""
        patterns, names = self._patterns, set()
        for key, name, column in _columns_of(segment):
            if patterns is None or any(matches_any(x, patterns) for x in (key, name)):
                names.add(name)
            if column.impl is not None:
                self.prng_keys[name] = column.impl
        self._selected |= names
        return patterns is None or bool(names)


def _columns_of(segment: Segment) -> Iterator[tuple[str, str, Column]]:
    """The columns of the values of each row, with the keys, and with their names."""
    for key, _ in segment.keys.values():
        tree = build_tree(key.tree, list(key.columns))
        for path, column in leaves_with_names(tree):
            yield key.name, key.name + path, column


def _rows(segment: Segment, start: int, stop: int) -> Iterator[Row]:
    schema = segment.schema
    columns = [
        (column, segment.column(i, start)[: stop - start])
        for i, column in enumerate(schema.columns)
    ]
    # PRNG keys are not decoded, since that needs JAX
    arrays = [x if column.impl else column.decode(x) for column, x in columns]
    step_names = (name for name, _ in schema.steps)
    steps = list(zip(step_names, arrays[segment.first_step :], strict=False))
    mask = None if schema.mask is None else arrays[-1].astype(bool)
    values: list[tuple[str, Any]] = []
    for key, first in segment.keys.values():
        tree = build_tree(key.tree, arrays[first : first + len(key.columns)])
        values += [(key.name + path, leaf) for path, leaf in leaves_with_names(tree)]
    for i in range(stop - start):
        yield Row(
            {name: column[i] for name, column in steps},
            {name: column[i] for name, column in values},
            None if mask is None else mask[i],
        )
