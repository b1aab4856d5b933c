"""The writers that `lox.save` keeps open between its calls."""

import atexit
import collections
import contextlib
import os
import pathlib
from typing import Any

from lox._errors import StoreError
from lox._logs.logdict import logdict
from lox._serialized import SerializedCalls

from .creating import open_run
from .format import RUN_FILE, display_path
from .writer import Writer


class _OpenWriters:
    """The writers of this process; the most recently used ones stay open."""

    _MAX_OPEN = 64

    def __init__(self) -> None:
        # the writers of the parent of a forked process, which the child must not close
        self._inherited: list[Any] = []
        self.reset()

    def reset(self) -> None:
        """Forgets all writers, without closing them; for forked processes."""
        if hasattr(self, "_open"):
            self._inherited.append(self._open)
        self._calls = SerializedCalls()
        self._lock = self._calls.lock
        self._open: collections.OrderedDict[Any, Writer] = collections.OrderedDict()

    def write(self, path: pathlib.Path, mode: str, key: Any, logs: logdict) -> None:
        self._calls.call(self._write, path, mode, key, logs)

    def _write(self, path: pathlib.Path, mode: str, key: Any, logs: logdict) -> None:
        name = path.resolve()
        # the run is replaced, or was removed
        if mode == "w" or not os.path.exists(path / RUN_FILE):
            self._close(name)
        writer = self._open.get(name)
        if writer is None or mode == "x":
            writer = self._open[name] = open_run(path, mode, key)
        self._open.move_to_end(name)
        while len(self._open) > self._MAX_OPEN:
            self._close(next(iter(self._open)))
        try:
            writer.write(logs)
        except OSError as error:
            self._close(name)
            raise StoreError(
                f"cannot write to {display_path(path)}: {error}."
            ) from error

    def _close(self, name: Any) -> None:
        writer = self._open.pop(name, None)
        if writer is not None:
            with contextlib.suppress(OSError):  # all rows are written already
                writer.close()

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self._close(name)


open_writers = _OpenWriters()
atexit.register(open_writers.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_writers.reset)
