"""The base class of loggers for experiment trackers."""

from collections.abc import Mapping
from typing import Any, get_args

from lox._errors import check_choice
from lox._trackers.backend import TrackerBackend
from lox._trackers.runs import Ending, RunInfo
from lox._trackers.tables import Names as Names, TrackerTables
from lox.loggers._base import Logger
from lox.loggers._runs.exit import fatal_error
from lox.loggers._runs.open_runs import Full


class Tracker(TrackerTables, Logger):
    """Base class of loggers for experiment trackers.

    Args:
        config: the config of the runs, such as hyperparameters.
        step: the name of the step to use as the x-axis; by default `step`, else the
            first.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys, by name or pattern, whose arrays to show as images.
        full: what happens if the queue is full: the program waits (`"wait"`), or logs
            wait on disk (`"spill"`).
        processes: which processes of a job log: `"first"` or `"all"`.
    """

    background = True

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
        full: Full = "wait",
        processes: str = "first",
    ) -> None:
        TrackerTables.__init__(self, step, histograms, images)
        Logger.__init__(self, config, processes)
        check_choice(full, get_args(Full), f"`full` of `{type(self).__name__}`")
        self.full = full

    def _raise_later(self, error: Warning) -> None:
        self._runs.raise_later(error)


class BackendTracker(TrackerBackend, Tracker):
    """Base class of loggers whose backend `lox sync` also uses."""

    def close(self, run: Any) -> None:
        self.end(run, _ending())

    def _buffers(self) -> bool:
        return type(self).flush is not TrackerBackend.flush

    def _origin(self, run: Any, info: RunInfo) -> dict[str, Any]:
        return {
            "tracker": self.command_name,
            "name": info.name,
            "settings": self.settings(),
            "run": None if run is None else run.state(),
        }


def _ending() -> Ending:
    """How the process ends, or how a run was finished before that."""
    error = fatal_error()
    if error is None:
        return "finished"
    return "killed" if isinstance(error, KeyboardInterrupt) else "failed"
