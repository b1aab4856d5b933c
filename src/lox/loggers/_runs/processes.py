"""Decides which process of a multi-process job logs what.

All processes run the same program. A row of the whole program is logged by the first
process alone, and a row of a device by the process of that device, if the logger can
keep the rows of several processes in one run.
"""

from typing import TYPE_CHECKING

from lox._errors import LoxValueError
from lox._jax import host
from lox._source import delivery

if TYPE_CHECKING:
    from lox.loggers._base import Logger

FIRST, ALL = "first", "all"


def check_processes(processes: str, logger: str) -> str:
    """Returns the option `processes` of a logger, if it is valid."""
    if processes not in (FIRST, ALL):
        raise LoxValueError(
            f"`processes` of `{logger}` is {processes!r}; it must be {FIRST!r} (the "
            f"first process logs) or {ALL!r} (every process logs)."
        )
    return processes


class ProcessFilter:
    """Whether this process logs something.

    The index of the process is read when the first run is opened or written to, so that
    `jax.distributed.initialize` may be called after the logger is created.
    """

    def __init__(self, logger: "Logger") -> None:
        self._logger = logger
        self._index: int | None = None

    @property
    def is_first(self) -> bool:
        if self._index is None:
            self._index = host.process_index()
        return self._index == 0

    def logs(self) -> bool:
        """Whether it logs the event that is being delivered."""
        if self.is_first or self._logger.processes == ALL:
            return True
        return self._logger._joins_processes and getattr(delivery, "per_device", False)
