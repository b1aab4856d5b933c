"""The writers that `lox.save` keeps open between its calls."""

import atexit
import collections
import contextlib
import os
import pathlib
from typing import Any

from lox._errors import StoreError
from lox._logs.logdict import logdict
from lox._serialized import Turns

from .creating import open_run
from .format import RUN_FILE, shown
from .writer import Writer


class _OpenWriters:
    """The writers of this process, the last used of which stay open."""

    _MOST = 64

    def __init__(self) -> None:
        # those of the process that this one was forked from: not ours to close
        self._inherited: list[Any] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """At the beginning, and in a process that was forked."""
        if hasattr(self, "_open"):
            self._inherited.append(self._open)
        self._turns = Turns()
        self._lock = self._turns.lock
        self._open: collections.OrderedDict[Any, Writer] = collections.OrderedDict()

    def write(self, path: pathlib.Path, mode: str, key: Any, logs: logdict) -> None:
        self._turns.call(self._write, path, mode, key, logs)

    def _write(self, path: pathlib.Path, mode: str, key: Any, logs: logdict) -> None:
        name = path.resolve()
        if mode == "w" or not os.path.exists(path / RUN_FILE):
            self._close(name)  # also if somebody has removed it
        writer = self._open.get(name)
        if writer is None or mode == "x":
            writer = self._open[name] = open_run(path, mode, key)
        self._open.move_to_end(name)
        while len(self._open) > self._MOST:
            self._close(next(iter(self._open)))
        try:
            writer.write(logs)
        except OSError as error:
            self._close(name)
            raise StoreError(f"cannot write to {shown(path)}: {error}.") from error

    def _close(self, name: Any) -> None:
        writer = self._open.pop(name, None)
        if writer is not None:
            with contextlib.suppress(OSError):  # all that was written is there
                writer.close()

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self._close(name)


open_writers = _OpenWriters()
atexit.register(open_writers.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_writers.begin_anew)
