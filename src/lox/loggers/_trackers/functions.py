"""`init`, `log` and `finish` of a tracker, as functions: `lox.wandb`, `lox.neptune`.

All functions of a module share one logger. So a state is a plain pytree, which can be
passed to a `jit` that was compiled for another run. The options of a run are looked up
when it is opened.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from lox._logs.logdict import logdict
from lox.loggers._base import Logger, LoggerState, RunInfo, words_of
from lox.loggers._runs.backend import Words
from lox.loggers._runs.config import split_config
from lox.loggers._runs.open_runs import Full, OpenRuns
from lox.loggers._runs.sending import send
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
        static, traced = split_config(config)
        # created here, so that a missing package raises at the user's call
        tracker = self._tracker(**options)
        words = words_of(key)

        def make_sink(runs: OpenRuns, shared: int) -> "_OpenInTracker":
            return _OpenInTracker(runs, shared, static, self._trackers, tracker)

        send(self._runs, (words, traced), make_sink)
        return LoggerState(jnp.array(words), self._kind)

    @property
    def _kind(self) -> str:
        return self._module

    def _full_of(self, words: Words) -> Full:
        tracker = self._trackers.get(words)
        return self.full if tracker is None else tracker.full

    def open(self, run: RunInfo) -> Any:
        # a state from another process comes without the options of its `init`
        tracker = self._trackers.pop(run.key, None) or self._tracker()
        return tracker, tracker.open(run)

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

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _OpenInTracker) and other._tracker is self._tracker
        return same and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((super().__hash__(), id(self._tracker)))
