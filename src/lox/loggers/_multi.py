"""`MultiLogger`: sends runs to multiple loggers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lox._errors import LoxError, LoxTypeError
from lox._logs.access import with_key_data
from lox._logs.logdict import RowToLogs, logdict
from lox._serialized import call_all

from ._base import Logger, RunInfo
from ._runs.backend import RowWriter, Words
from ._runs.processes import ALL


class MultiLogger(Logger):
    """Sends runs to multiple loggers.

    A logger that fails stops neither the program nor the other loggers.

    Args:
        *loggers: the loggers; this one opens and closes their runs. Without any,
            nothing is logged.
    """

    _accepts_typed_keys = True

    def __init__(self, *loggers: Logger) -> None:
        super().__init__(processes=ALL)  # each of the loggers decides
        for logger in loggers:
            if not isinstance(logger, Logger):
                raise LoxTypeError(
                    f"`MultiLogger` takes loggers, not {logger!r:.80}. To pass a list, "
                    "write `MultiLogger(*loggers)`."
                )
        self.loggers = loggers

    def _check(self, run: RunInfo) -> None:
        for logger in self.loggers:
            logger._runs.check(run.key)

    def _open_run(self, words: Words, config: Mapping[str, Any], late: bool) -> Words:
        opened: list[Logger] = []
        for logger in self.loggers:
            try:
                logger._runs.open(words, late=late, config=config)
            except LoxError as error:
                if late:  # the program is running: the other loggers get its logs
                    self._runs.raise_later(error)
                    continue
                for other in opened:  # open the run in every logger, or in none
                    other._runs.close(words)
                raise
            opened.append(logger)
        return words

    def _set_config(self, run: Words, info: RunInfo) -> bool:
        call_all(
            partial(logger._runs.set_config, run, info.config)
            for logger in self.loggers
        )
        return True

    def open(self, run: RunInfo) -> Words:
        return self._open_run(run.key, run.config, late=False)

    def write(self, run: Words, logs: logdict) -> None:
        plain = with_key_data(logs)
        call_all(
            partial(
                logger._runs.write, run, logs if logger._accepts_typed_keys else plain
            )
            for logger in self.loggers
        )

    def _row_writer(self) -> RowWriter | None:
        overridden = type(self).write is not MultiLogger.write
        return None if overridden else self._write_row

    def _write_row(self, run: Words, to_logs: RowToLogs, arrays: Sequence[Any]) -> None:
        # rows of programs contain the data of PRNG keys, which all loggers accept
        call_all(
            partial(logger._runs.write_row, run, to_logs, arrays)
            for logger in self.loggers
        )

    def close(self, run: Any) -> None:
        call_all(partial(logger._runs.close, run) for logger in self.loggers)

    def _wait(self) -> None:
        call_all(logger._wait for logger in self.loggers)
