"""`TrackioLogger`: runs in trackio."""

import collections
import contextlib
import contextvars
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo

from .histogram import Array, binned
from .images import as_bytes
from .tables import free, python_numbers
from .tracker import Names, StepCounts, Table, Tracker, check_options

_BINS = 64


class _TrackioRun:
    def __init__(self, run: Any) -> None:
        self.run = run
        self.counts = StepCounts()


class TrackioLogger(Tracker):
    """Sends runs to [trackio](https://github.com/gradio-app/trackio), local by default.

    Needs `pip install 'jax-lox[trackio]'`. `trackio show` shows them.

    Args:
        project: the name of trackio's project.
        config: what to remember of the runs, such as hyperparameters.
        group: a name for the runs of this logger.
        step: the name of the step to draw over; by default `step`, else the first.
            The others are logged like values.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys whose arrays of height, width and perhaps channels to show as
            images: numbers from 0 to 1, or bytes.
        **options: what else `trackio.init` takes, such as `space_id`. Nothing of the
            machine itself is logged, unless `auto_log_cpu` or `auto_log_gpu` say so.
    """

    def __init__(
        self,
        project: str,
        config: Mapping[str, Any] | None = None,
        group: str | None = None,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
        **options: Any,
    ) -> None:
        super().__init__(config, step, histograms, images)
        self._trackio = require("trackio", "trackio", "`TrackioLogger`")
        check_options(options, self._trackio.init, "TrackioLogger", "trackio.init")
        quiet = {"auto_log_cpu": False, "auto_log_gpu": False, "embed": False}
        self._announced = False
        self._options = {"project": project, "group": group, **quiet, **options}

    def open(self, run: RunInfo) -> _TrackioRun:
        # trackio ends a run when its context begins another: each gets its own
        context = contextvars.Context()
        if self._announced:  # the project, which trackio does in every new context
            with contextlib.suppress(AttributeError):
                project = self._trackio.context_vars.current_project
                context.run(project.set, self._options["project"])
        self._announced = True
        options = {"name": run.name, "config": dict(run.config), **self._options}
        return _TrackioRun(context.run(lambda: self._trackio.init(**options)))

    def write(self, run: _TrackioRun, logs: logdict) -> None:
        for table in self.tables(logs):
            steps = run.counts.steps(self, table).tolist()
            columns = self._columns(table)
            # trackio takes a row at a time: without a loop in Python, as fast as it can
            named = itertools.repeat(tuple(columns))
            rows = map(dict, map(zip, named, zip(*columns.values(), strict=True)))
            collections.deque(map(run.run.log, rows, steps), maxlen=0)

    def _columns(self, table: Table) -> dict[str, list[Any]]:
        """What trackio is given, by name: a value for each row."""
        trackio = self._trackio
        columns = {name: python_numbers(x) for name, x in table.scalars.items()}
        for name, column in table.histograms.items():
            columns[name] = [
                trackio.Histogram(np_histogram=binned(values, _BINS))
                for values in column
            ]
        for name, column in table.images.items():
            columns[name] = [trackio.Image(_in_colour(pixels)) for pixels in column]
        drawn_over = self.step_of(table)
        if not columns or drawn_over is None:
            return columns
        taken: set[str] = {drawn_over[0]}
        steps = [name for name in table.steps if name != drawn_over[0]]
        others = {free(name, taken): table.steps[name].tolist() for name in steps}
        return others | {free(name, taken): x for name, x in columns.items()}

    def close(self, run: _TrackioRun) -> None:
        run.run.finish()


def _in_colour(pixels: Array) -> Array:
    """An image as trackio takes it, which leaves out those of one channel."""
    found = as_bytes(pixels)
    return np.repeat(found, 3, axis=2) if found.shape[2] == 1 else found
