"""`ConsoleLogger`: a live table in a terminal or notebook, or lines of text."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from lox._errors import LoxTypeError, LoxValueError, check_choice
from lox._logs.logdict import logdict
from lox._terminal import live_display, write_line
from lox.loggers._base import Logger, RunInfo

from .curves import Curves
from .notebook import CellOutput, in_notebook
from .table import Table
from .view import View, Viewer

_RUNS = "together", "apart"
# seconds between two updates
_TABLE_INTERVAL = 0.25
_CELL_INTERVAL = 0.5
_LINES_INTERVAL = 1.0
_NAME_LENGTH = 8  # characters of a run's name


class ConsoleLogger(Logger):
    """Shows runs live: a table in a terminal or notebook, lines of text elsewhere.

    The table has one row per key, with its last value, a sparkline of its recent
    values, its step, and its rows per second. In a terminal, it needs rich
    (`pip install 'jax-lox[console]'`). In a notebook, it is one output of the cell in
    which the run begins, and stays in the saved notebook. Without rich, or if the
    output is a file, a line of text is printed every second. A separate thread draws
    at its own pace, however much is logged.

    Args:
        total: the total number of steps, for a progress bar. Counts the step called
            `step` if there is one, else rows.
        runs: how to show several open runs: `"together"`, as the mean and standard
            deviation of their last values, or `"apart"`, with one column per run.
        every: seconds between two updates; by default 0.25 for the table in a terminal,
            0.5 in a notebook, and 1 for lines.
        file: where to write; by default the output of the cell in a notebook, and
            `sys.stdout` elsewhere.
        processes: which processes of a job write: `"first"` or `"all"`.

    Example:
        >>> import lox.loggers
        >>> logger = lox.loggers.ConsoleLogger(total=100, every=60)
        >>> def train(key):
        ...     def step(w, i):
        ...         lox.log({"w": w}, step=i)
        ...         return 0.9 * w, None
        ...     return jax.lax.scan(step, 1.0, jnp.arange(100))[0]
        >>> def run(key):
        ...     state = logger.init(key)
        ...     w = logger.tap(train, state)(key)
        ...     logger.finish(state)
        ...     return w
        >>> _ = jax.vmap(run)(jax.random.split(jax.random.key(0), 64))
        100%  step 99  w 2.951e-05 ± 0  (64 runs, ... rows/s)
    """

    _accepts_typed_keys = True

    def __init__(
        self,
        *,
        total: int | None = None,
        runs: str = "together",
        every: float | None = None,
        file: TextIO | None = None,
        processes: str = "first",
    ) -> None:
        super().__init__(processes=processes)
        check_choice(runs, _RUNS, "`runs` of `ConsoleLogger`")
        for name, number in (("total", total), ("every", every)):
            if number is not None and not (
                isinstance(number, int | float) and number > 0
            ):
                raise LoxValueError(
                    f"`{name}` of `ConsoleLogger` is {number!r}; it must be positive."
                )
        if file is not None and not hasattr(file, "write"):
            raise LoxTypeError(
                f"`file` of `ConsoleLogger` must be an open file, not {file!r}. Pass "
                "`open(path, 'w')`."
            )
        self._total = total
        self._per_run = runs == "apart"
        self._every = every
        self._file = file
        # the open runs, and those that have just ended
        self._shown: list[Curves] = []
        self._lock = threading.RLock()
        self._any_ended = False
        self._last_refresh = 0.0
        self._display: _Display | None = None
        self._timer: _Timer | None = None

    def open(self, run: RunInfo) -> Curves:
        self._drop_ended()
        if self._display is None:
            self._start()
        elif isinstance(self._display, CellOutput):
            self._display.appear_in_this_cell()
        curves = Curves(run.name[-_NAME_LENGTH:])
        with self._lock:
            self._shown.append(curves)
        return curves

    def write(self, run: Curves, logs: logdict) -> None:
        if self._any_ended:
            self._drop_ended()
        with self._lock:
            run.add(logs)

    def close(self, run: Curves) -> None:
        # ended runs stay until another run opens or logs, so that of 64 runs that end
        # together, all remain on the screen
        run.ended = self._any_ended = True
        if all(other.ended for other in self._shown):
            self._stop()

    def _drop_ended(self) -> None:
        display, now = self._display, time.monotonic()
        due = now - self._last_refresh > _TABLE_INTERVAL
        # draw ended runs one last time, but not so often that open runs slow down
        if self._any_ended and display is not None and due:
            self._last_refresh = now
            display.refresh()
        with self._lock:
            self._shown = [run for run in self._shown if not run.ended]
        self._any_ended = False

    def _start(self) -> None:
        viewer = Viewer(self._total, self._per_run)

        def view() -> View:
            with self._lock:
                return viewer.view(self._shown)

        def table(console: Any) -> _Display:
            return Table(view, console)

        display: _Display | None
        if self._file is None and in_notebook():
            display, every = CellOutput(view), _CELL_INTERVAL
        elif (display := live_display(self._file, table)) is not None:
            every = _TABLE_INTERVAL
        else:
            display, every = _Lines(view, self._file), _LINES_INTERVAL
        self._display = display
        self._timer = _Timer(display.refresh, self._every or every)

    def _stop(self) -> None:
        display, timer = self._display, self._timer
        self._display = self._timer = None
        try:
            if timer is not None:
                timer.stop()
            if display is not None:
                display.stop()
        finally:
            self._drop_ended()


class _Display(Protocol):
    def refresh(self) -> None: ...

    def stop(self) -> None: ...


class _Lines:
    """Prints a line of text whenever something has changed."""

    def __init__(self, view: Callable[[], View], file: TextIO | None) -> None:
        self._view = view
        self._file = file
        self._lock = threading.RLock()
        self._last: Any = None

    def refresh(self) -> None:
        with self._lock:
            view = self._view()
            if view.rows and view.content != self._last:
                self._last = view.content
                file = sys.stdout if self._file is None else self._file
                write_line(file, view.line())

    stop = refresh


class _Timer:
    """Calls a function periodically, on a daemon thread."""

    def __init__(self, call: Callable[[], None], every: float) -> None:
        self._call = call
        self._every = every
        self._stopped = threading.Event()
        thread = threading.Thread(target=self._run, name="lox-console", daemon=True)
        # while Python exits, no thread can start; the final state is drawn anyway
        with contextlib.suppress(RuntimeError):
            thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        pause = self._every
        while not self._stopped.wait(pause):
            start = time.monotonic()
            self._call()
            # drawing takes at most a tenth of the time, even with many keys and runs
            pause = max(self._every, 9 * (time.monotonic() - start))
