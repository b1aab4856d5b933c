"""`TrackioLogger`: runs in trackio."""

import collections
import contextlib
import contextvars
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox._images import to_uint8
from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo
from lox.loggers._runs.open_runs import Full
from lox.loggers._tables import Array, Table, unique_name

from .columns import columns_of
from .tracker import IntegerSteps, Names, Tracker, check_options


class _TrackioRun:
    def __init__(self, run: Any) -> None:
        self.run = run
        self.integer_steps = IntegerSteps()


class TrackioLogger(Tracker):
    """Sends runs to [trackio](https://github.com/gradio-app/trackio), local by default.

    Needs `pip install 'jax-lox[trackio]'`. `trackio show` shows the runs.

    Args:
        project: the name of the trackio project.
        config: the config of the runs, such as hyperparameters.
        group: a group name for the runs of this logger.
        step: the name of the step to use as the x-axis; by default `step`, else the
            first. Other steps are logged like values.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys, by name or pattern, whose arrays to show as images. The shape
            is (height, width) or (height, width, channels); the values are floats
            between 0 and 1, or bytes.
        full: what happens if the queue is full because the tracker is slow: with
            `"wait"`, the program waits; with `"spill"`, logs wait on disk.
        processes: which processes of a job log: `"first"`, or `"all"`, each to a run of
            its own.
        **options: other options of `trackio.init`, such as `space_id`. Hardware metrics
            are logged only with `auto_log_cpu` or `auto_log_gpu`.
    """

    def __init__(
        self,
        project: str,
        config: Mapping[str, Any] | None = None,
        group: str | None = None,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
        full: Full = "wait",
        processes: str = "first",
        **options: Any,
    ) -> None:
        super().__init__(config, step, histograms, images, full, processes)
        self._trackio = require("trackio", "trackio", "`TrackioLogger`")
        check_options(options, self._trackio.init, "TrackioLogger", "trackio.init")
        quiet = {"auto_log_cpu": False, "auto_log_gpu": False, "embed": False}
        self._announced = False
        self._options = {"project": project, "group": group, **quiet, **options}

    def open(self, run: RunInfo) -> _TrackioRun:
        # trackio ends a run when another one starts in its context: one context per run
        context = contextvars.Context()
        if self._announced:  # trackio prints about the project in every new context
            with contextlib.suppress(AttributeError):
                project = self._trackio.context_vars.current_project
                context.run(project.set, self._options["project"])
        self._announced = True
        options = {"name": run.name, "config": dict(run.config), **self._options}
        return _TrackioRun(context.run(lambda: self._trackio.init(**options)))

    def write(self, run: _TrackioRun, logs: logdict) -> None:
        for table in self.tables(logs):
            steps = run.integer_steps.of(self, table).tolist()
            columns = self._columns(table)
            # trackio takes one row at a time; `map` is faster than a Python loop
            names = itertools.repeat(tuple(columns))
            rows = map(dict, map(zip, names, zip(*columns.values(), strict=True)))
            collections.deque(map(run.run.log, rows, steps), maxlen=0)

    def _columns(self, table: Table) -> dict[str, list[Any]]:
        """The columns to log, by name: one value per row."""
        columns = columns_of(table, self._trackio.Histogram, self._image)
        x_axis = self.step_of(table)
        if not columns or x_axis is None:
            return columns
        taken: set[str] = {x_axis[0]}
        steps = [name for name in table.steps if name != x_axis[0]]
        others = {
            unique_name(name, taken): table.steps[name].tolist() for name in steps
        }
        return others | {unique_name(name, taken): x for name, x in columns.items()}

    def _image(self, pixels: Array) -> Any:
        image = to_uint8(pixels)
        if image.shape[2] == 1:  # trackio drops images of one channel
            image = np.repeat(image, 3, axis=2)
        return self._trackio.Image(image)

    def close(self, run: _TrackioRun) -> None:
        run.run.finish()
