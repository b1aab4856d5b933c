"""`WandbLogger`: runs in Weights & Biases."""

from collections.abc import Mapping
from typing import Any

from lox._trackers.wandb import WandbBackend
from lox.loggers._base import RunInfo
from lox.loggers._runs.open_runs import Full

from .tracker import BackendTracker, Names


class WandbLogger(WandbBackend, BackendTracker):
    """Logs to Weights & Biases, one W&B run per run.

    Steps are logged as metrics, which W&B uses as the x-axis of the values. W&B's own
    step, which must increase, counts the rows.

    The logger never prompts for an API key: run `wandb login` or set `WANDB_API_KEY`.
    With `mode="offline"`, runs are written to `wandb/`, and `wandb sync` uploads them.

    Args:
        project: the project of the runs.
        config: the hyperparameters.
        group: the group of the runs; by default a unique name per logger.
        step: the name of the step to use as the x-axis; by default `step`, else the
            first.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys, by name or pattern, whose arrays to show as images. The shape
            is (height, width) or (height, width, channels); the values are floats
            between 0 and 1, or bytes.
        full: what happens if the queue is full because the tracker is slow: with
            `"wait"`, the program waits; with `"spill"`, logs wait on disk.
        processes: which processes of a job log: `"first"`, or `"all"`, each to a run of
            its own.
        **options: options of `wandb.init`, such as `mode`, `entity` or `tags`. With
            `resume`, a run resumes the W&B run with the same key. `settings` replaces
            the settings that keep W&B quiet.
    """

    def __init__(
        self,
        project: str | None = None,
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

    def _set_config(self, run: Any, info: RunInfo) -> bool:
        return self.set_config(run, info)
