"""`init`, `log` and `finish` of a tracker, as functions: `lox.wandb`, `lox.neptune`.

All functions of a module share one logger. So a state is a plain pytree, which can be
passed to a `jit` that was compiled for another run. The options of a run are looked up
when it is opened.
"""

import functools
from collections.abc import Mapping
from typing import Any

from lox._logs.logdict import logdict
from lox.loggers._base import Logger, LoggerState, RunInfo
from lox.loggers._runs.backend import Words
from lox.loggers._runs.open_runs import Full, OpenRuns
from lox.loggers._runs.sinks import OpenSink

from .tracker import Tracker


class FunctionLogger(Logger):
    """The logger behind the functions of a module: opens each run in its own tracker.

    Args:
        tracker: the class of the trackers, which takes the options of `init`.
        module: the name of the module.
    """

    background = True

    def __init__(self, tracker: type[Tracker], module: str) -> None:
        super().__init__()
        self._tracker = tracker
        self._module = module
        # the trackers of runs that are about to be opened
        self._trackers: dict[Words, Tracker] = {}
        self._runs.backend.name = tracker.__name__  # for warnings

    def init(
        self, key: Any = None, config: Mapping[str, Any] | None = None, **options: Any
    ) -> LoggerState:
        # created here, so that a missing package raises at the user's call
        tracker = self._tracker(**options)
        make_sink = functools.partial(
            _OpenInTracker, trackers=self._trackers, tracker=tracker
        )
        return self._init(key, config, make_sink)

    @property
    def _kind(self) -> str:
        return self._module

    def _full_of(self, words: Words) -> Full:
        tracker = self._trackers.get(words)
        return self.full if tracker is None else tracker.full

    def open(self, run: RunInfo) -> Any:
        # a state from another process comes without the options of its `init`
        tracker = self._trackers.get(run.key) or self._tracker()
        opened = tracker.open(run)
        self._trackers.pop(run.key, None)
        return tracker, opened

    def _origin(self, run: Any, info: RunInfo) -> dict[str, Any] | None:
        if run is not None:
            tracker, opened = run
            return tracker._origin(opened, info)
        # it could not be opened
        tracker = self._trackers.get(info.key) or self._tracker()
        return tracker._origin(None, info)

    def write(self, run: Any, logs: logdict) -> None:
        tracker, opened = run
        tracker.write(opened, logs)

    def close(self, run: Any) -> None:
        tracker, opened = run
        tracker.close(opened)


class _OpenInTracker(OpenSink):
    """Opens runs in one tracker."""

    def __init__(
        self,
        runs: OpenRuns,
        shared: int,
        config: str,
        trackers: dict[Words, Tracker],
        tracker: Tracker,
    ) -> None:
        super().__init__(runs, shared, config)
        self._trackers, self._tracker = trackers, tracker

    def open(self, words: Words, late: bool, config: dict[str, Any]) -> None:
        if not self.runs.is_open(words):  # `super().open` refuses an open one
            self._trackers[words] = self._tracker
        super().open(words, late, config)

    def _identity(self) -> tuple[Any, ...]:
        return *super()._identity(), id(self._tracker)
