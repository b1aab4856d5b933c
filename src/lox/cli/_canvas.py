"""Curves drawn with braille characters, which have two by four dots each."""

import itertools
from typing import Any

import numpy as np

from ._terminal import styled

_EMPTY = 0x2800
# the bits of the dots of a character, by row and column
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)

Array = np.ndarray[Any, Any]


class Canvas:
    """Draws curves into a grid of characters.

    Args:
        width, height: the size in characters.
        x, y: the ranges of the axes.
    """

    def __init__(
        self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]
    ) -> None:
        self._columns, self._rows = 2 * width, 4 * height
        self._x, self._y = x, y
        self._dots = np.zeros((self._rows, self._columns), bool)
        # which curve a character belongs to; 0 if it is empty
        self._owners = np.zeros((height, width), np.int16)
        self._marks: dict[tuple[int, int], tuple[str, int]] = {}

    def line(self, x: Array, y: Array, owner: int) -> None:
        """Draws a curve, with all its extremes, in the order of `x`.

        Points that are not finite are gaps.
        """
        order = np.argsort(x, kind="stable")
        columns, rows = self._column_of(x[order]), self._row_of(y[order])
        finite = np.isfinite(columns) & np.isfinite(rows)
        at = np.nonzero(finite)[0]
        for piece in np.split(at, np.nonzero(np.diff(at) > 1)[0] + 1):
            if len(piece):
                self._piece(columns[piece], rows[piece], owner)

    def _piece(self, columns: Array, rows: Array, owner: int) -> None:
        at = np.clip(np.rint(columns), 0, self._columns - 1).astype(int)
        starts = np.nonzero(np.append(True, at[1:] != at[:-1]))[0]
        ends = np.append(starts[1:], len(at)) - 1
        low, high = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
        for i, (first, last) in enumerate(zip(starts, ends, strict=True)):
            self._span(at[first], low[i], high[i], owner)
            if i + 1 < len(starts):
                self._join(at[last], rows[last], at[ends[i] + 1], rows[last + 1], owner)

    def _join(self, x0: int, y0: float, x1: int, y1: float, owner: int) -> None:
        """Draws a line from one column to a later one, without its last dot."""
        rows = np.rint(y0 + (y1 - y0) * np.arange(x1 - x0 + 1) / (x1 - x0))
        for i, (row, following) in enumerate(itertools.pairwise(rows.tolist())):
            # up to the row before the next one, so that there is no gap
            edge = following + np.sign(row - following) if row != following else row
            self._span(x0 + i, min(row, edge), max(row, edge), owner)

    def _span(self, column: int, low: float, high: float, owner: int) -> None:
        top, bottom = (
            int(np.clip(np.rint(edge), -1, self._rows)) for edge in (low, high)
        )
        top, bottom = max(top, 0), min(bottom, self._rows - 1)
        if top <= bottom:
            self._dots[top : bottom + 1, column] = True
            self._owners[top // 4 : bottom // 4 + 1, column // 2] = owner

    def band(self, x: Array, low: Array, high: Array, owner: int) -> None:
        """Fills the space between two curves with every eighth dot."""
        columns = self._column_of(x)
        tops, bottoms = self._row_of(high), self._row_of(low)
        finite = np.isfinite(columns) & np.isfinite(tops) & np.isfinite(bottoms)
        if finite.sum() < 2:
            return
        order = np.argsort(columns[finite], kind="stable")
        at = columns[finite][order]
        every = np.arange(0, self._columns)
        every = every[(every >= at[0]) & (every <= at[-1])]
        every = every[every % 2 == 0]
        tops, bottoms = tops[finite][order], bottoms[finite][order]
        top, bottom = np.interp(every, at, tops), np.interp(every, at, bottoms)
        # everything in a column, and in the next one, which has no dots
        first = np.searchsorted(at, every - 0.5)
        after = np.searchsorted(at, every + 1.5)
        for i in np.nonzero(after > first)[0]:
            inside = slice(first[i], after[i])
            top[i] = min(top[i], tops[inside].min())
            bottom[i] = max(bottom[i], bottoms[inside].max())
        rows = np.arange(self._rows)
        for column, a, b in zip(every, top, bottom, strict=True):
            pattern = (rows + column) % 4 == 0
            inside = pattern & (rows >= a) & (rows <= b)
            self._dots[inside, column] = True
            characters = np.unique(rows[inside] // 4)
            owners = self._owners[characters, column // 2]
            self._owners[characters, column // 2] = np.where(owners, owners, owner)

    def mark(self, x: float, y: float, text: str, owner: int) -> None:
        """Writes a letter at a point, such as at the end of a curve."""
        column, row = self._column_of(np.array([x]))[0], self._row_of(np.array([y]))[0]
        if np.isfinite(column) and np.isfinite(row):
            height, width = self._owners.shape
            place = (
                int(np.clip(row // 4, 0, height - 1)),
                int(np.clip(column // 2, 0, width - 1)),
            )
            while place in self._marks and place[1] > 0:  # taken by another curve
                place = place[0], place[1] - 1
            self._marks[place] = text, owner

    def lines(self, styles: list[str]) -> list[str]:
        """The lines of text.

        Args:
            styles: the style of each curve.
        """
        height, width = self._owners.shape
        blocks = self._dots.reshape(height, 4, width, 2)
        codes = (blocks * _BITS[None, :, None, :]).sum((1, 3)) + _EMPTY
        lines = []
        for row in range(height):
            text = ""
            for column in range(width):
                character = chr(int(codes[row, column]))
                owner = int(self._owners[row, column])
                if (row, column) in self._marks:
                    character, owner = self._marks[row, column]
                elif codes[row, column] == _EMPTY:
                    character, owner = " ", 0
                text += styled(character, styles[owner - 1]) if owner else character
            lines.append(text.rstrip())
        return lines

    def _column_of(self, x: Array) -> Array:
        return _scaled(x, *self._x) * (self._columns - 1)

    def _row_of(self, y: Array) -> Array:
        return (1 - _scaled(y, *self._y)) * (self._rows - 1)


def _scaled(values: Array, low: float, high: float) -> Array:
    values = values.astype(np.float64)
    if high == low:
        return np.where(np.isfinite(values), 0.5, np.nan)
    with np.errstate(all="ignore"):
        # halved, so that the difference of large numbers is finite
        return (values / 2 - low / 2) / (high / 2 - low / 2)
