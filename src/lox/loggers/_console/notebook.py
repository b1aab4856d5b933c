"""The table of `ConsoleLogger` as one output of a notebook cell.

The output is HTML without scripts, and everything that comes from logs is escaped.
"""

import contextlib
import html
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lox._logs.html_table import curve_svg, html_table
from lox._text_curves import printable

from .view import History, Progress, Row, View

# An output has a few kilobytes per curve. Jupyter servers drop the outputs of a cell
# that sends more than a megabyte per second.
_MAX_CURVES, _MAX_FINAL_CURVES = 50, 300
_MAX_RUNS = 12  # if there is one column per run
_MAX_SEGMENTS = 60  # per curve


def in_notebook() -> bool:
    return _shell() is not None


def _shell() -> Any:
    """The shell of this Jupyter kernel; None in a terminal or a plain program."""
    # where there is a kernel, IPython is imported
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_ipython is None else get_ipython()
    # IPython in a terminal has a shell without a kernel
    return None if getattr(shell, "kernel", None) is None else shell


class CellOutput:
    """An output of the current cell, which is replaced by each update.

    The updates name the output by its id, so it does not matter which thread sends
    them, or which cell runs by then.
    """

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view
        self._id = f"lox-{uuid.uuid4().hex}"
        self._lock = threading.RLock()
        self._last: Any = None
        self._stopped = False
        self._cell: Any = object()
        self.appear_in_this_cell()

    def appear_in_this_cell(self) -> None:
        """Adds the output to the cell that runs now, if it is not there."""
        with self._lock:
            cell = getattr(_shell(), "execution_count", None)
            if self._cell != cell:
                self._cell = cell
                view = self._view()
                self._last = view.content
                self._publish(view, update=False)

    def refresh(self) -> None:
        with self._lock:
            view = self._view()
            # the timer may call once more after the end
            if not self._stopped and view.content != self._last:
                self._last = view.content
                self._publish(view, update=True)

    def stop(self) -> None:
        """Leaves the final table in the notebook."""
        with self._lock:
            self._stopped = True
            self._publish(self._view(), update=True)

    def _publish(self, view: View, update: bool) -> None:
        from IPython.display import display, update_display

        content = {
            "text/html": to_html(view, self._stopped),
            "text/plain": view.line() if view.rows else _without_rows(self._stopped),
        }
        # logging goes on if the kernel cannot send, as while it shuts down
        with contextlib.suppress(Exception):
            show = update_display if update else display
            show(content, raw=True, display_id=self._id)


# --- HTML --------------------------------------------------------------------


def to_html(view: View, ended: bool) -> str:
    """The table, the progress bar and notes."""
    parts = []
    if len(view.runs) > 1:
        parts.append(f"<div><em>{len(view.runs)} runs</em></div>")
    if view.rows:
        per_run = len(view.rows[0].values)
        curves = _MAX_FINAL_CURVES if ended else _MAX_CURVES
        rows = view.rows[: max(1, curves // min(per_run, _MAX_RUNS))]
        parts.append(_table(view, rows))
        if len(rows) < len(view.rows):
            parts.append(f"<div>and {len(view.rows) - len(rows)} more keys</div>")
        if per_run > _MAX_RUNS:
            parts.append(f"<div>and {per_run - _MAX_RUNS} more runs</div>")
    else:
        parts.append(f"<div>{_without_rows(ended)}</div>")
    if view.progress:
        parts.append(_progress_bar(view.progress))
    if view.waiting:
        parts.append(f"<div>{_escape(view.waiting)}</div>")
    return f"<div>{''.join(parts)}</div>"


def _without_rows(ended: bool) -> str:
    return "no rows were logged" if ended else "no rows yet"


def _table(view: View, rows: Sequence[Row]) -> str:
    if len(rows[0].values) > 1:
        titles = [printable(name) for name in view.runs[:_MAX_RUNS]]
    else:
        titles = ["last"]
    lines = []
    for row in rows:
        values = [_escape(value) for value in row.values[:_MAX_RUNS]]
        curves = [_curve(history) for history in row.histories[:_MAX_RUNS]]
        if len(values) > 1:
            pairs = zip(values, curves, strict=True)
            cells = [f"{value}<br>{curve}" for value, curve in pairs]
        else:
            cells = values + curves
        key = f"<code>{_escape(row.name)}</code>"
        lines.append([key, *cells, _escape(row.step), _escape(row.rate)])
    recent = [] if len(rows[0].values) > 1 else ["recent"]
    return html_table(["key", *titles, *recent, "step", "rows/s"], lines)


def _curve(history: History) -> str:
    """A curve of the recent values, with a band of one standard deviation over runs."""
    note = f" ({history.nonfinite} not finite)" if history.nonfinite else ""
    values = history.mean[np.isfinite(history.mean)]
    if not len(values):
        return note
    what = "mean ± std: " if history.std is not None else ""
    title = f"{what}{values.min():.4g} to {values.max():.4g}{note}"
    return curve_svg(history.mean, history.std, title, _MAX_SEGMENTS) + note


def _progress_bar(progress: Progress) -> str:
    done = min(max(progress.done / progress.total, 0), 1)
    return (
        f'<div><progress value="{done:.4f}" max="1"></progress> '
        f"{_escape(str(progress))}</div>"
    )


def _escape(text: str) -> str:
    return html.escape(printable(text))
