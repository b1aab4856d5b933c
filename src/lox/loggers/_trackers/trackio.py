"""`TrackioLogger`: runs in trackio."""

from collections.abc import Mapping
from typing import Any

from lox._trackers.trackio import TrackioBackend
from lox.loggers._runs.open_runs import Full

from .tracker import BackendTracker, Names


class TrackioLogger(TrackioBackend, BackendTracker):
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
        super().__init__(
            project,
            group,
            options,
            config=config,
            step=step,
            histograms=histograms,
            images=images,
            full=full,
            processes=processes,
        )
