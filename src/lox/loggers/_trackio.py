"""`TrackioLogger`: runs in trackio."""

import contextlib
import contextvars
from collections.abc import Mapping
from typing import Any

from lox._logdict import logdict
from lox._views import require

from ._base import RunInfo
from ._event_file import as_bytes
from ._tracker import Names, StepCounts, Tracker


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
            numbers = run.counts.steps(self, table).tolist()
            drawn_over = self.step_of(table)
            if drawn_over is not None:
                table.steps.pop(drawn_over[0])
            for i, (step, (row, steps)) in enumerate(
                zip(numbers, table.rows(), strict=True)
            ):
                for name, column in table.histograms.items():
                    row[name] = self._trackio.Histogram(column[i].ravel().tolist())
                for name, column in table.images.items():
                    row[name] = self._trackio.Image(as_bytes(column[i]))
                if row:
                    run.run.log(steps | row, step=step)

    def close(self, run: _TrackioRun) -> None:
        run.run.finish()
