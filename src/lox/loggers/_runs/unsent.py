"""Logs that could not be sent to a backend, saved on disk."""

import contextlib
import time
from typing import Any

from lox._errors import LoxError, StoreError
from lox._jax import host
from lox._logs.logdict import logdict
from lox._store.creating import open_run
from lox._store.keys import run_name
from lox._store.writer import Writer
from lox._trackers.unsent import UNSENT as UNSENT, Origin


class UnsentRuns:
    """Creates runs for the unsent logs of one run.

    They are named by logger, run and time, and by process, except in the first one.

    Args:
        name: the name of the logger.
        words: the words of the run's key.
        config: the config of the run.
        origin: where the first of them belong, if `lox sync` can send them.
    """

    def __init__(
        self, name: str, words: tuple[int, ...], config: Any, origin: Origin | None
    ) -> None:
        process = host.known_process_index()
        of_process = f"-process-{process}" if process else ""
        started = time.strftime("%Y%m%d-%H%M%S")
        self._name = f"{name}-{run_name(words)}{of_process}-{started}"
        self._words = words
        self._config = config
        self._origin = origin
        self._number = 0

    def new_writer(self) -> Writer:
        while True:
            number = self._number
            path = UNSENT / (f"{self._name}-{number}" if number else self._name)
            try:
                writer = open_run(path, "x", self._words, self._config, tracked=True)
            except StoreError as error:
                # the problem is not an existing run but, for example, a full disk
                if isinstance(error.__cause__, OSError) or not path.exists():
                    raise
                self._number += 1
            else:
                self._number += 1
                if self._origin is not None:
                    with contextlib.suppress(Exception):  # the logs are kept without it
                        self._origin.write(path)
                    self._origin = self._origin.following()
                return writer


class Unsent:
    """The unsent logs of one run.

    Args:
        runs: creates the runs that they are written to.
    """

    def __init__(self, runs: UnsentRuns) -> None:
        self._runs = runs
        self._writer = self._runs.new_writer()

    def write(self, logs: logdict) -> None:
        try:
            self._writer.write(logs)
        except LoxError:  # cannot be stored in one run with the previous logs
            self._writer.close()
            self._writer = self._runs.new_writer()
            self._writer.write(logs)

    def close(self) -> None:
        self._writer.close()
