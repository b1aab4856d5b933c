"""`MLflowLogger`: runs in MLflow, sent in batches."""

from collections.abc import Mapping
from typing import Any

from lox._trackers.mlflow import MLflowBackend
from lox.loggers._runs.open_runs import Full

from .tracker import BackendTracker


class MLflowLogger(MLflowBackend, BackendTracker):
    """Sends runs to [MLflow](https://mlflow.org), in batches.

    Needs `pip install 'jax-lox[mlflow]'`. Offline, MLflow stores runs in a SQLite
    database: `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows them.

    Args:
        experiment: the name of the MLflow experiment, which is created if needed.
        config: the config of the runs, as MLflow parameters.
        tracking_uri: where to store the runs; by default the tracking URI of `mlflow`.
        step: the name of the step to use as the x-axis; by default `step`, else the
            first. MLflow supports one step only.
        full: what happens if the queue is full because the tracker is slow: with
            `"wait"`, the program waits; with `"spill"`, logs wait on disk.
        processes: which processes of a job log: `"first"`, or `"all"`, each to a run of
            its own.
    """

    def __init__(
        self,
        experiment: str = "Default",
        config: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
        step: str | None = None,
        full: Full = "wait",
        processes: str = "first",
    ) -> None:
        super().__init__(
            experiment,
            tracking_uri,
            config=config,
            step=step,
            full=full,
            processes=processes,
        )
