"""Reads the new rows of a run while it is being written."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import leaves_with_names
from lox._logs.lane_step import PROCESS

from .format import build_tree
from .reader import Run, writers_of
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
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        # the number of records that were read of each segment
        self._read: dict[tuple[int, int, str], int] = {}

    def read(self, limit: int | None = None) -> list[Row]:
        """Returns the rows since the last call, in the order of each writer.

        Args:
            limit: the maximum number of rows to return, counted from the end; None for
                all.
        """
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
        alone = len(writer.segments) == 1
        for segment in writer.segments:
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
