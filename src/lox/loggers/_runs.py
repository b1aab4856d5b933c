"""The open runs of a logger, on the host; and what becomes of logs that it refuses."""

import atexit
import pathlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

from lox._errors import LoxError, LoxValueError, LoxWarning
from lox._events import user_line
from lox._logdict import logdict
from lox._saving import create_run, run_name
from lox._store_writer import Writer

Words = tuple[int, ...]
UNSENT = pathlib.Path(".lox") / "unsent"


class _OpenRun:
    def __init__(self, handle: Any, begun: bool = True) -> None:
        self.handle = handle
        self.begun = begun
        # once the backend has failed, its logs go here
        self.unsent: Writer | None = None


class OpenRuns:
    """The runs that a logger has open, by the words of their keys."""

    def __init__(self, begin: Callable[[Words], Any], logger: Any) -> None:
        self._begin = begin
        self._logger = logger
        self._name = type(logger).__name__
        self._lock = threading.RLock()
        self._open: dict[Words, _OpenRun] = {}
        self._finished: set[Words] = set()

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
        try:
            run = _OpenRun(self._begin(words))
        except LoxError:
            raise  # such as a run that is there already: the user has to say what to do
        except Exception as error:
            run = _OpenRun(None, begun=False)
            self._refused(run, words, error)
        self._open[words] = run
        _in_use.add(self)
        return run

    def write(self, words: Words, logs: logdict) -> None:
        with self._lock:
            if words in self._finished:
                raise LoxValueError(
                    f"{self._name} got logs for the run {run_name(words)}, which is "
                    "finished. Begin a new one with `init`."
                )
            run = self._open.get(words) or self._start(words)
            if run.unsent is None:
                try:
                    self._logger.write(run.handle, logs)
                    return
                except Exception as error:
                    self._refused(run, words, error)
            if run.unsent is not None:
                try:
                    run.unsent.write(logs)
                except OSError as error:
                    self._warn(f"what it does not take is lost, too: {error!r}")

    def _refused(self, run: _OpenRun, words: Words, error: Exception) -> None:
        """Says so, once, and keeps on disk what the backend does not take."""
        path = UNSENT / f"{self._name}-{run_name(words)}"
        message = f"it failed with {error!r}. The program goes on; "
        try:
            run.unsent = Writer(create_run(path, "a", words))
            message += f"what it does not take is kept in {str(path)!r} (`lox.load`)."
        except (LoxError, OSError) as other:
            message += f"what it does not take is lost, since {other}"
        self._warn(message)

    def _warn(self, message: str) -> None:
        warnings.warn_explicit(f"{self._name}: {message}", LoxWarning, *user_line())

    def close(self, words: Words) -> None:
        with self._lock:
            run = self._open.pop(words, None)
            self._finished.add(words)
            if not self._open:
                _in_use.discard(self)
            if run is None:
                return
            if run.unsent is not None:
                run.unsent.close()
            if run.begun:
                try:
                    self._logger.close(run.handle)
                except Exception as error:
                    self._warn(f"could not close the run {run_name(words)}: {error!r}.")

    def close_all(self) -> None:
        for words in list(self._open):
            self.close(words)


# A run that is open keeps its logger alive, until it is finished or Python exits.
_in_use: set[OpenRuns] = set()


@atexit.register
def _close_all() -> None:
    for runs in list(_in_use):
        runs.close_all()
