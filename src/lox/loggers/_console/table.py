"""The live table of `ConsoleLogger`, drawn with rich, which is imported on use."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from lox._terminal import is_terminal
from lox._text_curves import shorten, sparkline

from .view import Progress, Row, View

_GAP = 2  # between columns
_MIN_SPARKLINE, _MAX_SPARKLINE = 8, 24
_RUN_WIDTH = 12  # of a run's column, if there is one per run
_FRAME_HEIGHT = 6  # lines that are not rows


class Table:
    """The table of one logger. All tables in one terminal share one live display."""

    def __init__(self, view: Callable[[], View], console: Any) -> None:
        self._view = view
        self._screen = _join_screen(self, console)

    def refresh(self) -> None:
        self._screen.refresh()

    def stop(self) -> None:
        """Leaves the final table on the screen."""
        _leave_screen(self, self._screen)

    def draw(self, height: int | None, width: int) -> Any:
        """Renders the table, with as many rows as fit into `height`."""
        from rich.console import Group
        from rich.text import Text

        view = self._view()
        rows = view.rows
        if height is not None:
            row_height = 2 if _is_per_run(rows) else 1
            rows = rows[: max(1, (height - _FRAME_HEIGHT) // row_height)]
        parts: list[Any] = []
        if rows:
            parts.append(_grid(view, rows, width))
        if len(rows) < len(view.rows):
            parts.append(Text(f"and {len(view.rows) - len(rows)} more keys"))
        if view.progress:
            parts.append(_progress_bar(view.progress, width))
        if view.waiting:
            parts.append(Text(view.waiting))
        return Group(*parts)


class _Column(NamedTuple):
    title: str
    cells: list[str]
    width: int
    justify: Literal["left", "right"] = "left"


def _grid(view: View, rows: Sequence[Row], width: int) -> Any:
    from rich.table import Table as RichTable
    from rich.text import Text

    count = len(view.runs)
    title = Text(f"{count} runs", "italic") if count > 1 else None
    grid = RichTable(box=None, pad_edge=False, title=title, title_justify="left")
    columns = _columns(view, rows, width)
    for column in columns:
        grid.add_column(
            Text(column.title),
            width=column.width,
            justify=column.justify,
            no_wrap=True,
            overflow="ellipsis",
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        # `Text` is not parsed for markup: a key may be called "[red]"
        grid.add_row(*map(Text, cells))
    return grid


def _columns(view: View, rows: Sequence[Row], width: int) -> list[_Column]:
    """Lays out columns: steps and rates get the width they need, keys up to a third."""
    max_width = max(width // 3, 3)
    names = [shorten(row.name, max_width) for row in rows]
    key = _Column("key", names, min(_natural_width("key", names), max_width))
    right = [
        _Column(title, cells, _natural_width(title, cells), "right")
        for title, cells in (
            ("step", [row.step for row in rows]),
            ("rows/s", [row.rate for row in rows]),
        )
    ]
    room = width - sum(column.width + _GAP for column in (key, *right))
    if not _is_per_run(rows):
        values = [row.values[0] for row in rows]
        max_last = max(room - _GAP - _MIN_SPARKLINE, _MIN_SPARKLINE)
        last = min(_natural_width("last", values), max_last)
        curve = max(min(room - _GAP - last, _MAX_SPARKLINE), 1)
        curves = [sparkline(row.histories[0].mean, curve) for row in rows]
        middle = [_Column("last", values, last), _Column("recent", curves, curve)]
        return [key, *middle, *right]
    # as many runs as fit, each with its sparkline below its value
    shown = max(1, min(len(view.runs), room // (_RUN_WIDTH + _GAP)))
    middle = []
    for i, name in enumerate(view.runs[:shown]):
        curves = [sparkline(row.histories[i].mean, _RUN_WIDTH) for row in rows]
        pairs = zip(rows, curves, strict=True)
        cells = [f"{row.values[i]}\n{curve}" for row, curve in pairs]
        middle.append(_Column(name, cells, _RUN_WIDTH))
    if shown < len(view.runs):
        more = f"+{len(view.runs) - shown}"
        middle.append(_Column(more, [""] * len(rows), len(more)))
    return [key, *middle, *right]


def _is_per_run(rows: Sequence[Row]) -> bool:
    return bool(rows) and len(rows[0].values) > 1


def _natural_width(title: str, cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, (title, *cells)))


def _progress_bar(progress: Progress, width: int) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table as RichTable
    from rich.text import Text

    line = RichTable.grid(padding=(0, 1))
    bar = ProgressBar(progress.total, progress.done, width=min(40, width // 3))
    line.add_row(bar, Text(str(progress)))
    return line


# --- the shared live display -------------------------------------------------


class _Screen:
    """The live display of one output file, shared by its tables."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self.key = id(console.file)
        self._console = console
        self.tables: tuple[Table, ...] = ()
        self._stopping = False
        self._live = Live(
            console=console,
            auto_refresh=False,
            get_renderable=self._draw,
            # output that is redirected to a file still goes there
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )

    def start(self) -> None:
        self._live.start()
        # rich hides the cursor, and a killed process could not show it again
        self._console.show_cursor(True)

    def refresh(self) -> None:
        if self._live.is_started:
            self._live.refresh()

    def stop(self) -> None:
        self._stopping = True
        try:
            self._live.stop()
        finally:
            self._console.show_cursor(True)

    def print_above(self, table: Table) -> None:
        """Prints a final table above the tables that are still live."""
        self._console.print(table.draw(None, self._width()))

    def _width(self) -> int:
        # leaves room for the `^C` that a terminal echoes, which must not wrap
        return max(self._console.width - 3, 1)

    def _draw(self) -> Any:
        from rich.console import Group

        height = None if self._stopping else self._console.height
        if height is not None:
            height //= len(self.tables) or 1
        width = self._width()
        return Group(*(table.draw(height, width) for table in self.tables))


_lock = threading.RLock()
# by the identity of the output file
_screens: dict[int, _Screen] = {}


def _join_screen(table: Table, console: Any) -> _Screen:
    with _lock:
        screen = _screens.get(id(console.file))
        if screen is None:
            screen = _Screen(console)
            screen.start()
            _screens[screen.key] = screen
        screen.tables += (table,)
        return screen


def _leave_screen(table: Table, screen: _Screen) -> None:
    with _lock:
        others = tuple(other for other in screen.tables if other is not table)
        if others:
            screen.tables = others
            screen.print_above(table)
        else:
            _screens.pop(screen.key, None)
            screen.stop()
