"""The bars of `lox.progress`: live in a terminal, lines of text elsewhere."""

import atexit
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np

from lox._events.event import Event
from lox._jax import host
from lox._terminal import live_display, write_line

from . import interrupts, signals
from .callbacks import Consume, HostSink
from .errors import callback_errors

_LINES = 10  # lines of text for a loop of known length
_SECONDS_BETWEEN_LINES = 0.5  # a line takes as long as ten short iterations of a loop


class Report(NamedTuple):
    """The static part of a progress report.

    Attributes:
        address: the address of the loop.
        label: the name of its bar.
        total: the number of its iterations, if known.
        ends: whether the loop has ended. The operand of such a report is the number of
            iterations, that of others the number of the last iteration, from 0.
    """

    address: str
    label: str
    total: int | None
    ends: bool


class ProgressSink(HostSink):
    """Receives the progress of loops, and shows it.

    Args:
        file: where to write; `sys.stderr` by default.
        clock: returns seconds.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._file = file
        self._clock = clock
        self._bars: dict[str, _Bar] = {}
        self._display: _Display | None = None

    def consumer(self, event: Event) -> Consume:
        report: Report = event.call.api_data
        # in a `shard_map`, each device reports; in a multi-process job, only the first
        # process shows bars
        devices = event.route.local_devices or 1
        if host.known_process_index():
            return lambda operands: None

        def consume(operands: Sequence[Any]) -> None:
            parts = event.split(operands)
            counts = np.asarray(parts.values[0][0])
            if parts.mask is not None:
                counts = counts[np.asarray(parts.mask)]
            if not counts.size:
                return
            count = int(counts.max()) + (not report.ends)
            bar = self._bars.get(report.address)
            # a smaller count: the loop was interrupted and restarted
            if bar is None or (count < bar.count and devices == 1):
                bar = self._bars[report.address] = self._start(report)
            bar.count = max(bar.count, count)
            bar.ends += report.ends
            if bar.ends >= devices:
                self._end(report.address)
            elif not report.ends and self._display is not None:
                self._display.show(bar)

        return consume

    def receiver(self, event: Event) -> Callable[..., tuple[()]]:
        receive = super().receiver(event)
        report: Report = event.call.api_data
        if report.ends or event.layout.lanes or event.layout.masked:
            return receive
        bars, address, deferred = self._bars, report.address, signals.deferred

        # After a long time in compiled code, CPU caches contain none of the code of a
        # callback. So reports that only count, or print a line, execute little else.
        def receive_count(number: Any) -> tuple[()]:
            interrupted = deferred or self.stopping or interrupts.ending
            if not interrupted and signals.in_main_thread():
                bar, count = bars.get(address), int(number) + 1
                if bar is not None and bar.count < count:
                    if count < bar.due:
                        bar.count = count
                        return ()
                    display = self._display
                    if type(display) is _Lines:
                        try:
                            with self._lock:
                                bar.count = count
                                display.show(bar)
                        except Exception as error:  # the file cannot be written
                            callback_errors.keep(self, error)
                        return ()
            return receive(number)

        return receive_count

    def _start(self, report: Report) -> "_Bar":
        if self._display is None:
            self._display = _make_display(self._file)
        return _Bar(report.label, report.total, self._clock)

    def _end(self, address: str) -> None:
        display, bar = self._display, self._bars.pop(address)
        if display is None:
            return
        display.end(bar)
        if not self._bars:
            self.close()

    def close(self) -> None:
        """Stops showing bars, also those of loops that have not ended."""
        with self._lock:
            display, self._display = self._display, None
            self._bars.clear()
            if display is not None:
                display.close()


class _Bar:
    """The progress of one loop.

    Attributes:
        label: its name.
        count: the number of iterations that have ended.
        due: the count at which the display needs an update.
        ends: how many devices have finished the loop.
    """

    def __init__(
        self, label: str, total: int | None, clock: Callable[[], float]
    ) -> None:
        self.label = label
        self.count = 0
        self.due: float = 0
        self.ends = 0
        self._total = total
        self._clock = clock
        self._start = clock()
        self._first: int | None = None

    @property
    def total(self) -> int | None:
        """The number of iterations; None if it is not known, or was too small."""
        if self._total is None or self.count > self._total:
            return None
        return self._total

    def seconds(self) -> float:
        """The time since the first report."""
        return self._clock() - self._start

    def rate(self) -> str:
        """Iterations per second since the first report, as text."""
        if self._first is None:  # the time before it was not measured
            self._first = self.count
        seconds = self.seconds()
        count = self.count - self._first
        return f", {count / seconds:.3g} iterations/s" if count and seconds > 0 else ""

    def line(self) -> str:
        rate = self.rate()
        if self.total is None:
            return f"{self.label}: {self.count}{rate}"
        percent = 100 * self.count // self.total if self.total else 100
        return f"{self.label}: {percent}% ({self.count}/{self.total}){rate}"


class _Display(Protocol):
    def show(self, bar: _Bar) -> None: ...

    def end(self, bar: _Bar) -> None: ...

    def close(self) -> None: ...


def _make_display(file: TextIO | None) -> _Display:
    live = live_display(sys.stderr if file is None else file, _Live)
    return _Lines(file) if live is None else live


class _Lines:
    """Prints a line at every tenth of a loop, or each time its count doubles.

    Fast loops print fewer lines: the first, the last, and lines in between that are at
    least half a second apart.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._printed: dict[_Bar, tuple[int, float]] = {}  # count and time

    def show(self, bar: _Bar) -> None:
        if bar.count >= (bar.due or _next_line(0, bar.total)):
            _, seconds = self._printed.get(bar, (0, -math.inf))
            if bar.seconds() - seconds >= _SECONDS_BETWEEN_LINES:
                self._print(bar)
        bar.due = _next_line(bar.count, bar.total)

    def end(self, bar: _Bar) -> None:
        count, _ = self._printed.get(bar, (None, 0))
        if count != bar.count:
            self._print(bar)
        self._printed.pop(bar, None)

    def close(self) -> None:
        pass

    def _print(self, bar: _Bar) -> None:
        self._printed[bar] = bar.count, bar.seconds()
        write_line(sys.stderr if self._file is None else self._file, bar.line())


def _next_line(count: int, total: int | None) -> int:
    """The smallest count above `count` at which a line is printed."""
    if total is None:
        return 2 ** max(count, 1).bit_length()
    tenths = _LINES * count // max(total, 1) + 1
    return -(-tenths * total // _LINES)


class _Live:
    """Bars that rich draws, in its own thread, which reads the counts."""

    def __init__(self, console: Any) -> None:
        from rich import progress

        read_counts = self._read_counts

        class Progress(progress.Progress):
            def get_renderables(self) -> Any:
                read_counts()
                return super().get_renderables()

        self._tasks: dict[_Bar, Any] = {}
        self._lock = threading.RLock()
        self._progress = Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(show_speed=True),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
        )
        self._progress.start()
        # the cursor is hidden until then
        atexit.register(self._progress.stop)

    def show(self, bar: _Bar) -> None:
        if bar not in self._tasks:
            task = self._progress.add_task(bar.label, total=bar.total)
            with self._lock:
                self._tasks[bar] = task
        bar.due = math.inf

    def end(self, bar: _Bar) -> None:
        self.show(bar)
        with self._lock:
            task = self._tasks.pop(bar)
            self._progress.update(task, completed=bar.count, total=bar.count)
            self._progress.stop_task(task)

    def close(self) -> None:
        self._progress.stop()
        atexit.unregister(self._progress.stop)

    def _read_counts(self) -> None:
        with self._lock:
            for bar, task in self._tasks.items():
                self._progress.update(task, completed=bar.count, total=bar.total)
