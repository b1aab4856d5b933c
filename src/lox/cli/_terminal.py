"""Tables, widths and colors for the terminal."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lox._terminal import is_terminal
from lox._text_curves import printable, shorten

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_STATUSES = {
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "killed": "yellow",
    "stale": "yellow",
    "unreadable": "red",
}
_GAP = 2


def has_colors() -> bool:
    """Whether output is colored: only on a terminal, and not with `NO_COLOR`."""
    return (
        is_terminal(sys.stdout)
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def print_path(path: object) -> None:
    """Prints a path: unchanged for other programs, escaped on a terminal."""
    print(printable(str(path)) if is_terminal(sys.stdout) else path, flush=True)


def styled(text: str, style: str) -> str:
    """Text in a color, if the output is colored."""
    if not style or not has_colors():
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def status_style(status: str) -> str:
    return _STATUSES.get(status, "")


def screen_width() -> int | None:
    """The width of the terminal; None if the output is not cut, such as in a pipe."""
    if not is_terminal(sys.stdout) and not os.environ.get("COLUMNS"):
        return None
    return max(shutil.get_terminal_size().columns, 20)


def screen_height() -> int | None:
    return shutil.get_terminal_size().lines if is_terminal(sys.stdout) else None


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: its title.
        cells: its cells, as plain text.
        right: whether the cells are aligned at the right, as numbers are.
        priority: which columns are shown if there is no room for all: low ones first.
        styles: the styles of cells, by their text.
        max_width: the width at which longer cells are shortened, on a terminal.
    """

    title: str
    cells: list[str]
    right: bool = False
    priority: float = 0.0
    styles: Mapping[str, str] = {}
    max_width: int = 48


def print_table(columns: Iterable[Column]) -> list[str]:
    """Prints a table that fits the terminal; returns the titles that it leaves out."""
    width = screen_width()
    columns = [_cleaned(column, width) for column in columns]
    shown = set(_fitting(columns, width))
    kept = [column for i, column in enumerate(columns) if i in shown]
    if not kept:
        return []
    widths = [max(map(len, (column.title, *column.cells))) for column in kept]
    lines = [[styled(text, "bold") for text in _aligned(kept, widths, None)]]
    for row in range(len(kept[0].cells)):
        cells = _aligned(kept, widths, row)
        lines.append(
            [
                _in_style(text, column, row)
                for text, column in zip(cells, kept, strict=True)
            ]
        )
    print("\n".join((" " * _GAP).join(line).rstrip() for line in lines))
    return [column.title for i, column in enumerate(columns) if i not in shown]


def _cleaned(column: Column, width: int | None) -> Column:
    """The column with printable texts, which are shortened on a terminal."""
    texts = [printable(text) for text in (column.title, *column.cells)]
    if width is not None:
        most = max(min(column.max_width, width // 3), 8)
        texts = [shorten(text, most) for text in texts]
    title, *cells = texts
    return column._replace(title=title, cells=cells)


def _fitting(columns: Sequence[Column], width: int | None) -> list[int]:
    order = sorted(range(len(columns)), key=lambda i: columns[i].priority)
    if width is None:
        return order
    shown: list[int] = []
    used = -_GAP
    for i in order:
        needed = max(map(len, (columns[i].title, *columns[i].cells))) + _GAP
        if used + needed <= width or not shown:
            shown.append(i)
            used += needed
    return shown


def _aligned(
    columns: Sequence[Column], widths: Sequence[int], row: int | None
) -> list[str]:
    texts = [column.title if row is None else column.cells[row] for column in columns]
    return [
        text.rjust(width) if column.right else text.ljust(width)
        for text, column, width in zip(texts, columns, widths, strict=True)
    ]


def _in_style(text: str, column: Column, row: int) -> str:
    return styled(text, column.styles.get(column.cells[row], ""))
