"""The open runs of a logger, on the host; and what becomes of logs that it refuses."""

import atexit
import contextlib
import functools
import os
import pathlib
import threading
import warnings
from typing import TYPE_CHECKING, Any

import jax

from lox._errors import LoxError, LoxValueError, LoxWarning
from lox._events import user_line
from lox._logdict import logdict
from lox._saving import create_run, run_name
from lox._store_writer import Writer

from ._queue import JobQueue

if TYPE_CHECKING:
    from ._base import Logger

Words = tuple[int, ...]
UNSENT = pathlib.Path(".lox") / "unsent"
# what a backend may keep back before it is asked to send it
_MOST_KEPT = 1000


class _OpenRun:
    """A run, and how far its backend has got with it."""

    def __init__(self, words: Words) -> None:
        self.words = words
        # the line that began it, which warnings name
        self.line = user_line()
        self.handle: Any = None
        self.begun = False
        # what the backend has taken, and perhaps not sent yet
        self.kept: list[logdict] = []
        # once the backend has failed, its logs go to the disk
        self.failed = False
        self.hangs = False
        self.unsent: Writer | None = None
        self.loses = False


class OpenRuns:
    """The runs that a logger has open, by the words of their keys.

    A slow backend is called by a worker of its own, so that who logs does not wait.
    """

    def __init__(self, logger: "Logger") -> None:
        self.logger = logger
        self._pid = os.getpid()
        self._name = type(logger).__name__
        self._lock = threading.RLock()
        self._open: dict[Words, _OpenRun] = {}
        self._finished: set[Words] = set()
        self._failures: set[str] = set()
        # of warnings that the user has made errors, in the worker's thread
        self._error: Warning | None = None
        self._queue: JobQueue | None = None
        if logger.background:
            self._queue = JobQueue(self._name, logger.patience, self._flush_all)
        self._keeps = logger._keeps_back()

    # --- for the program -------------------------------------------------------------

    def open(self, words: Words) -> None:
        with self._lock:
            if words in self._open:
                raise LoxValueError(
                    f"{self._name} has a run of the key {run_name(words)} open. Give "
                    "each run a key of its own, or `finish` the other one first."
                )
            self._finished.discard(words)
            self._start(words)

    def _start(self, words: Words) -> _OpenRun:
        run = _OpenRun(words)
        if self._queue is None:
            self._begin(run)
        self._open[words] = run
        _in_use.add(self)
        _close_all_first()
        if self._queue is not None:
            self._put(functools.partial(self._begin, run))
        return run

    def write(self, words: Words, logs: logdict) -> None:
        with self._lock:
            if words in self._finished:
                raise LoxValueError(
                    f"{self._name} got logs for the run {run_name(words)}, which is "
                    "finished. Begin a new one with `init`."
                )
            run = self._open.get(words) or self._start(words)
            if self._queue is None:
                self._write(run, logs)
                return
        self._put(functools.partial(self._write, run, logs), _size(logs))

    def close(self, words: Words) -> None:
        """Ends a run; `wait` tells when it has ended."""
        with self._lock:
            run = self._open.pop(words, None)
            self._finished.add(words)
            if not self._open:
                _in_use.discard(self)
            if run is None:
                return
            if self._queue is None:
                self._close(run)
                return
        self._put(functools.partial(self._close, run))

    def wait(self) -> None:
        """Waits until the backend has all that it was given."""
        if self._queue is not None and not self._queue.join():
            self._give_up()
        self._raise_kept()

    def close_all(self) -> None:
        if os.getpid() != self._pid:  # a forked process must not end its parent's runs
            return
        for words in list(self._open):
            self.close(words)
        self.wait()

    # --- for the backend -------------------------------------------------------------

    def _put(self, job: "functools.partial[None]", size: int = 0) -> None:
        assert self._queue is not None
        self._raise_kept()
        if not self._queue.put(job, size):
            self._give_up()
            self._queue.put(job, size)

    def _give_up(self) -> None:
        """The backend hangs: what it has not taken goes to the disk."""
        assert self._queue is not None
        with self._lock:
            left = self._queue.give_up()
            patience = f"{self.logger.patience:g} s"
            error = TimeoutError(f"it has not answered for {patience}")
            for run in {*(job.args[0] for job in left), *self._open.values()}:
                run.hangs = True
                self._refused(run, error)
            for job in left:  # which only write to the disk now
                job()

    def _begin(self, run: _OpenRun) -> None:
        try:
            if not run.failed:
                run.handle = self.logger._open(run.words)
                run.begun = True
                _close_all_first()
        except LoxError as error:
            if self._queue is None:
                raise  # such as a run that is there: the user has to say what to do
            self._refused(run, error)
        except Exception as error:
            self._refused(run, error)

    def _write(self, run: _OpenRun, logs: logdict) -> None:
        if run.failed:
            self._keep(run, logs)
            return
        try:
            self.logger.write(run.handle, logs)
        except Exception as error:
            self._refused(run, error, logs)
            return
        if self._keeps:
            run.kept.append(logs)
            if len(run.kept) >= _MOST_KEPT:
                self._flush(run)

    def _flush(self, run: _OpenRun) -> None:
        if not run.failed and run.kept:
            try:
                self.logger.flush(run.handle)
                run.kept = []
            except Exception as error:
                self._refused(run, error)

    def _flush_all(self) -> None:
        for run in list(self._open.values()):
            self._flush(run)

    def _close(self, run: _OpenRun) -> None:
        self._flush(run)
        if run.unsent is not None:
            with contextlib.suppress(OSError):
                run.unsent.close()
        if run.begun and not run.hangs:
            try:
                self.logger.close(run.handle)
            except Exception as error:
                name = run_name(run.words)
                self._warn(run, f"could not close the run {name}: {error!r}.")

    # --- for what a backend does not take --------------------------------------------

    def _refused(self, run: _OpenRun, error: Exception, *logs: logdict) -> None:
        """Keeps on disk what the backend does not take, and says so, once."""
        if run.failed:  # a call that hung has come back after all
            return
        path = UNSENT / f"{self._name}-{run_name(run.words)}"
        message = f"it failed with {error!r}. The program goes on; "
        known = repr(error) in self._failures
        self._failures.add(repr(error))
        run.failed = True
        try:
            run.unsent = Writer(create_run(path, "a", run.words))
            message += f"what it does not take is kept in {str(UNSENT)!r} (`lox.runs`)."
        except (LoxError, OSError) as other:
            message += f"what it does not take is lost, since {other}"
        for each in (*run.kept, *logs):
            self._keep(run, each)
        run.kept = []
        if not known:  # 64 runs that fail for one reason say so once
            self._warn(run, message)

    def _keep(self, run: _OpenRun, logs: logdict) -> None:
        if run.unsent is not None:
            try:
                run.unsent.write(logs)
            except Exception as error:  # of the next ones, there may be room for some
                if not run.loses:
                    run.loses = True
                    self._warn(run, f"what it does not take is lost, too: {error!r}")

    def _warn(self, run: _OpenRun, message: str) -> None:
        text = f"{self._name}: {message}"
        try:
            warnings.warn_explicit(text, LoxWarning, *run.line)
        except LoxWarning as error:
            if self._queue is None:
                raise
            self._error = error

    def _raise_kept(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _size(logs: logdict) -> int:
    size = 0
    for value in logs.values():
        leaves = (value,) if hasattr(value, "nbytes") else jax.tree.leaves(value)
        size += sum(getattr(leaf, "nbytes", 8) for leaf in leaves)
    return size


# A run that is open keeps its logger alive, until it is finished or Python exits.
_in_use: set[OpenRuns] = set()


def _close_all() -> None:
    for runs in list(_in_use):
        runs.close_all()


def _close_all_first() -> None:
    """At exit, before a client that is in use by now closes what it has open."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)
