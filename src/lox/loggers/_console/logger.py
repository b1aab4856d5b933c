"""`ConsoleLogger`: a live table in a terminal, or lines of text elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from lox._errors import LoxTypeError, LoxValueError
from lox._logs.logdict import logdict
from lox.loggers._base import Logger, RunInfo

from .curves import Curves
from .table import Table, terminal
from .view import View, Viewer

_RUNS = "together", "apart"
_TABLE_EVERY = 0.25
_LINES_EVERY = 1.0
_NAME = 8  # characters of a run's name


class ConsoleLogger(Logger):
    """Shows runs as they go: a live table in a terminal, lines of text elsewhere.

    The table has a row a key, with its last value, a sparkline of its last rows, its
    step, and how many rows come in a second. It needs rich, which
    `pip install 'jax-lox[console]'` brings; without it, or when the output is no
    terminal, there is a line of text every second. Both are drawn by a thread of their
    own, at their own pace, however much is logged.

    Args:
        total: how many steps there will be, for a progress bar: those of the step
            called `step`, or else rows.
        runs: whether to show all open runs `"together"`, as the mean and the standard
            deviation of their last values, or `"apart"`, a column a run.
        every: the seconds between two updates; by default 0.25 for the table, and 1
            for lines.
        file: where to write; `sys.stdout` by default.

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

    _takes_keys = True

    def __init__(
        self,
        *,
        total: int | None = None,
        runs: str = "together",
        every: float | None = None,
        file: TextIO | None = None,
    ) -> None:
        super().__init__()
        if runs not in _RUNS:
            known = ", ".join(map(repr, _RUNS))
            raise LoxValueError(
                f"`runs` of `ConsoleLogger` is {runs!r}; there are {known}."
            )
        for name, number in (("total", total), ("every", every)):
            if number is not None and not (
                isinstance(number, int | float) and number > 0
            ):
                raise LoxValueError(
                    f"`{name}` of `ConsoleLogger` is {number!r}; it must be positive."
                )
        if file is not None and not hasattr(file, "write"):
            raise LoxTypeError(
                f"`file` of `ConsoleLogger` is an open file, not {file!r}: "
                "`open(path, 'w')`."
            )
        self._total = total
        self._apart = runs == "apart"
        self._every = every
        self._file = file
        # the runs that are shown: the open ones, and those that ended just now
        self._shown: list[Curves] = []
        self._lock = threading.RLock()
        self._ended = False
        self._looked = 0.0
        self._display: _Display | None = None
        self._clock: _Clock | None = None

    def open(self, run: RunInfo) -> Curves:
        self._forget_ended()
        if self._display is None:
            self._start()
        curves = Curves(run.name[-_NAME:])
        with self._lock:
            self._shown.append(curves)
        return curves

    def write(self, run: Curves, logs: logdict) -> None:
        if self._ended:
            self._forget_ended()
        with self._lock:
            run.add(logs)

    def close(self, run: Curves) -> None:
        # it is shown until others go on, so that what 64 runs that end together leave
        # on the screen is not the last one of them
        run.ended = self._ended = True
        if all(other.ended for other in self._shown):
            self._stop()

    def _forget_ended(self) -> None:
        display, now = self._display, time.monotonic()
        # what ended is seen once more, but not at the price of those that go on
        if self._ended and display is not None and now - self._looked > _TABLE_EVERY:
            self._looked = now
            display.refresh()
        with self._lock:
            self._shown = [run for run in self._shown if not run.ended]
        self._ended = False

    def _start(self) -> None:
        viewer = Viewer(self._total, self._apart)

        def view() -> View:
            with self._lock:
                return viewer.view(self._shown)

        every = self._every or _TABLE_EVERY
        self._display = _table(view, self._file)
        if self._display is None:
            every = self._every or _LINES_EVERY
            self._display = _Lines(view, self._file)
        self._clock = _Clock(self._display.refresh, every)

    def _stop(self) -> None:
        display, clock = self._display, self._clock
        self._display = self._clock = None
        try:
            if clock is not None:
                clock.stop()
            if display is not None:
                display.stop()
        finally:
            self._forget_ended()


class _Display(Protocol):
    def refresh(self) -> None: ...

    def stop(self) -> None: ...


def _table(view: Callable[[], View], file: TextIO | None) -> _Display | None:
    console = terminal(file)
    if console is None:
        return None
    from rich.errors import LiveError

    try:
        return Table(view, console)
    except LiveError:  # older ones know one live display, which is somebody else's
        return None


class _Lines:
    """A line of text, whenever something has changed."""

    def __init__(self, view: Callable[[], View], file: TextIO | None) -> None:
        self._view = view
        self._file = file
        self._lock = threading.RLock()
        self._last: Any = None

    def refresh(self) -> None:
        with self._lock:
            view = self._view()
            now = [(row.name, row.values, row.step) for row in view.rows], view.steps
            if view.rows and now != self._last:
                self._last = now
                self._print(view.line())

    stop = refresh

    def _print(self, line: str) -> None:
        file = sys.stdout if self._file is None else self._file
        if file is None:  # as it is in a window without a console
            return
        encoding = getattr(file, "encoding", None) or "utf-8"
        line = line.encode(encoding, "replace").decode(encoding)
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            file.write(f"{line}\n")  # at once, which `print` does not
            file.flush()


class _Clock:
    """Calls a function every now and then, on a thread that keeps nothing alive."""

    def __init__(self, call: Callable[[], None], every: float) -> None:
        self._call = call
        self._every = every
        self._stopped = threading.Event()
        thread = threading.Thread(target=self._run, name="lox-console", daemon=True)
        with contextlib.suppress(RuntimeError):  # Python exits: the end is shown still
            thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        pause = self._every
        while not self._stopped.wait(pause):
            began = time.monotonic()
            self._call()
            # however many keys and runs there are, most of the time is the program's
            pause = max(self._every, 9 * (time.monotonic() - began))
