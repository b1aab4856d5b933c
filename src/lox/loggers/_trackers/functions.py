"""`init`, `log` and `finish` of a tracker, as functions: `lox.wandb`, `lox.neptune`.

One logger is behind the functions of a module, so that a state is a plain pytree, which
goes into a `jit` that was compiled for another run. What a run was begun with is looked
up when it is opened.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from lox._logs.logdict import logdict
from lox.loggers._base import Logger, LoggerState, RunInfo, words_of
from lox.loggers._runs.config import split_config
from lox.loggers._runs.open_runs import OpenRuns, Words
from lox.loggers._runs.sinks import Opens

from .tracker import Tracker


class Functions(Logger):
    """The logger behind the functions: hands each run to a tracker of its own.

    Args:
        tracker: the class of the trackers, which takes what `init` is given.
        module: the one that has the functions.
    """

    background = True

    def __init__(self, tracker: type[Tracker], module: str) -> None:
        super().__init__()
        self._tracker = tracker
        self._module = module
        # for the runs that are about to be opened
        self._given: dict[Words, Tracker] = {}
        self._runs.name = tracker.__name__  # which warnings speak of

    def init(
        self, key: Any = None, config: Mapping[str, Any] | None = None, **options: Any
    ) -> LoggerState:
        static, traced = split_config(config)
        # made here, where a package that is missing can be told of
        tracker = self._tracker(**options)
        words = words_of(key)

        def opens(runs: OpenRuns, shared: int) -> "_OpensFor":
            return _OpensFor(runs, shared, static, self._given, tracker)

        self._hand_over((words, traced), opens)
        return LoggerState(jnp.array(words), self._kind)

    @property
    def _kind(self) -> str:
        return self._module

    def open(self, run: RunInfo) -> Any:
        # a state can come from a process that is gone, and its options with it
        tracker = self._given.pop(run.key, None) or self._tracker()
        return tracker, tracker.open(run)

    def write(self, run: Any, logs: logdict) -> None:
        tracker, opened = run
        tracker.write(opened, logs)

    def close(self, run: Any) -> None:
        tracker, opened = run
        tracker.close(opened)


class _OpensFor(Opens):
    """Opens runs for one tracker."""

    def __init__(
        self,
        runs: OpenRuns,
        shared: int,
        config: str,
        given: dict[Words, Tracker],
        tracker: Tracker,
    ) -> None:
        super().__init__(runs, shared, config)
        self._given, self._tracker = given, tracker

    def open(self, words: Words, late: bool, config: dict[str, Any]) -> None:
        if words not in self.runs._open:  # which is about to be refused
            self._given[words] = self._tracker
        super().open(words, late, config)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _OpensFor) and other._tracker is self._tracker
        return same and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((super().__hash__(), id(self._tracker)))
