"""The live table of `ConsoleLogger`, drawn by rich, which is imported at use."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TextIO

from .view import Progress, Row, View, shortened, sparkline

_GAP = 2  # between columns
_SHORTEST, _LONGEST = 8, 24  # of sparklines
_RUN = 12  # the width of a run, if they are apart
_FRAME_HEIGHT = 6  # lines that are not rows


def terminal(file: TextIO | None) -> Any:
    """The console of a terminal that can show a live table; None if there is none."""
    try:
        import rich
        import rich.console
        import rich.live
    except ImportError:
        return None
    if not _is_terminal(sys.stdout if file is None else file):
        return None
    # rich's own one, if that is where it writes: then what others print by it comes
    # above the table
    console = rich.get_console() if file is None else rich.console.Console(file=file)
    able = console.is_terminal and console.is_interactive
    able = able and not console.is_dumb_terminal
    return console if able and console.encoding.startswith("utf") else None


class Table:
    """The table of one logger. All that are shown at once share one live display."""

    def __init__(self, view: Callable[[], View], console: Any) -> None:
        self._view = view
        self._screen = _join(self, console)

    def refresh(self) -> None:
        self._screen.refresh()

    def stop(self) -> None:
        """Leaves the last table where it is."""
        _leave(self, self._screen)

    def draw(self, height: int | None, width: int) -> Any:
        """The table, with no more rows than there is height for."""
        from rich.console import Group
        from rich.text import Text

        view = self._view()
        rows = view.rows
        if height is not None:
            lines = 2 if _apart(rows) else 1
            rows = rows[: max(1, (height - _FRAME_HEIGHT) // lines)]
        parts: list[Any] = []
        if rows:
            parts.append(_grid(view, rows, width))
        if len(rows) < len(view.rows):
            parts.append(Text(f"and {len(view.rows) - len(rows)} more keys"))
        if view.progress:
            parts.append(_bar(view.progress, width))
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
        # as `Text`, which has no markup: a key may be called "[red]"
        grid.add_row(*map(Text, cells))
    return grid


def _columns(view: View, rows: Sequence[Row], width: int) -> list[_Column]:
    """Steps and rates get the room that they need, keys up to a third."""
    most = max(width // 3, 3)
    names = [shortened(row.name, most) for row in rows]
    key = _Column("key", names, min(_needed("key", names), most))
    ends = [
        _Column(title, cells, _needed(title, cells), "right")
        for title, cells in (
            ("step", [row.step for row in rows]),
            ("rows/s", [row.rate for row in rows]),
        )
    ]
    room = width - sum(column.width + _GAP for column in (key, *ends))
    if not _apart(rows):
        values = [row.values[0] for row in rows]
        last = min(_needed("last", values), max(room - _GAP - _SHORTEST, _SHORTEST))
        curve = max(min(room - _GAP - last, _LONGEST), 1)
        curves = [sparkline(row.histories[0], curve) for row in rows]
        middle = [_Column("last", values, last), _Column("recent", curves, curve)]
        return [key, *middle, *ends]
    # as many runs as there is room for, each with its curve below its value
    shown = max(1, min(len(view.runs), room // (_RUN + _GAP)))
    middle = [
        _Column(
            name,
            [f"{row.values[i]}\n{sparkline(row.histories[i], _RUN)}" for row in rows],
            _RUN,
        )
        for i, name in enumerate(view.runs[:shown])
    ]
    if shown < len(view.runs):
        more = f"+{len(view.runs) - shown}"
        middle.append(_Column(more, [""] * len(rows), len(more)))
    return [key, *middle, *ends]


def _apart(rows: Sequence[Row]) -> bool:
    return bool(rows) and len(rows[0].values) > 1


def _needed(title: str, cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, (title, *cells)))


def _bar(progress: Progress, width: int) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table as RichTable
    from rich.text import Text

    line = RichTable.grid(padding=(0, 1))
    bar = ProgressBar(progress.total, progress.done, width=min(40, width // 3))
    text = f"{progress.percent}%  {progress.done:.10g}/{progress.total}"
    if progress.left:
        text += f"  {progress.left} left"
    line.add_row(bar, Text(text))
    return line


# --- the display that all share ----------------------------------------------


class _Screen:
    """The one live display of a file."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self.key = id(console.file)
        self._console = console
        self.tables: tuple[Table, ...] = ()
        self._last = False
        self._live = Live(
            console=console,
            auto_refresh=False,
            get_renderable=self._draw,
            # what goes to a file is to go there still
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )

    def start(self) -> None:
        self._live.start()
        # rich hides it, and a process that is killed cannot show it again
        self._console.show_cursor(True)

    def refresh(self) -> None:
        if self._live.is_started:
            self._live.refresh()

    def stop(self) -> None:
        self._last = True
        try:
            self._live.stop()
        finally:
            self._console.show_cursor(True)

    def leave_above(self, table: Table) -> None:
        self._console.print(table.draw(None, self._width()))

    def _width(self) -> int:
        # with room for the `^C` that a terminal writes, which must not begin a line
        return max(self._console.width - 3, 1)

    def _draw(self) -> Any:
        from rich.console import Group

        height = None if self._last else self._console.height
        if height is not None:
            height //= len(self.tables) or 1
        width = self._width()
        return Group(*(table.draw(height, width) for table in self.tables))


def _is_terminal(stream: Any) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # none, somebody's own, or closed
        return False


_lock = threading.RLock()
# by the file that is written to
_screens: dict[int, _Screen] = {}


def _join(table: Table, console: Any) -> _Screen:
    with _lock:
        screen = _screens.get(id(console.file))
        if screen is None:
            screen = _Screen(console)
            screen.start()
            _screens[screen.key] = screen
        screen.tables += (table,)
        return screen


def _leave(table: Table, screen: _Screen) -> None:
    with _lock:
        others = tuple(other for other in screen.tables if other is not table)
        if others:
            screen.tables = others
            screen.leave_above(table)
        else:
            _screens.pop(screen.key, None)
            screen.stop()
