"""`MLflowLogger`: runs in MLflow, sent in batches."""

import math
import re
import time
from collections.abc import Mapping
from typing import Any

from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo
from lox.loggers._runs.config import tracker_config
from lox.loggers._runs.exit import fatal_error
from lox.loggers._runs.open_runs import Full
from lox.loggers._tables import python_numbers

from .tracker import IntegerSteps, Tracker

# MLflow's limits per request, and of lengths
_MAX_METRICS, _MAX_PARAMS = 1000, 100
_MAX_PARAM_LENGTH, _MAX_NAME_LENGTH = 6000, 250


class _MLflowRun:
    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.integer_steps = IntegerSteps()
        self.metrics: list[Any] = []
        self.names: dict[str, str] = {}
        self.last_time = 0
        self.at_last_time: set[tuple[str, float | None, int]] = set()

    def name(self, key: str) -> str:
        """A name that MLflow accepts, different for each key."""
        name = self.names.get(key)
        if name is None:
            valid = re.sub(r"[^/\w.\- ]", "_", key)
            parts = ["_" if p in ("", ".", "..") else p for p in valid.split("/")]
            valid = name = "/".join(parts)[:_MAX_NAME_LENGTH]
            number = 0
            while name in self.names.values():
                number += 1
                name = f"{valid[: _MAX_NAME_LENGTH - 9]}_{number}"
            self.names[key] = name
        return name

    def time(self, name: str, value: float, step: int) -> int:
        """A timestamp in milliseconds that no equal metric has.

        MLflow drops metrics that are equal in name, value, step and timestamp.
        """
        now = int(time.time() * 1000)
        if now > self.last_time:
            self.last_time = now
            self.at_last_time.clear()
        # NaN is not equal to itself, but to MLflow it is
        metric = (name, None if math.isnan(value) else value, step)
        if metric in self.at_last_time:
            self.last_time += 1
            self.at_last_time.clear()
        self.at_last_time.add(metric)
        return self.last_time


class MLflowLogger(Tracker):
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

    shows_histograms = False

    def __init__(
        self,
        experiment: str = "Default",
        config: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
        step: str | None = None,
        full: Full = "wait",
        processes: str = "first",
    ) -> None:
        super().__init__(config, step, full=full, processes=processes)
        self._mlflow = require("mlflow", "mlflow", "`MLflowLogger`")
        self._experiment = experiment
        self._uri = tracking_uri
        self._client: Any = None
        self._experiment_id = ""

    def open(self, run: RunInfo) -> _MLflowRun:
        if self._client is None:
            client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            experiment = client.get_experiment_by_name(self._experiment)
            self._experiment_id = (
                client.create_experiment(self._experiment)
                if experiment is None
                else experiment.experiment_id
            )
            self._client = client
        created = self._client.create_run(self._experiment_id, run_name=run.name)
        opened = _MLflowRun(created.info.run_id)
        param = self._mlflow.entities.Param
        params = [
            param(opened.name(key), str(value)[:_MAX_PARAM_LENGTH])
            for key, value in tracker_config(run.config).items()
        ]
        opened.names.clear()  # metrics have their own names
        for i in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(opened.id, params=params[i : i + _MAX_PARAMS])
        return opened

    def write(self, run: _MLflowRun, logs: logdict) -> None:
        metric = self._mlflow.entities.Metric
        for table in self.tables(logs):
            steps = run.integer_steps.of(self, table).tolist()
            for key, column in table.scalars.items():
                name = run.name(key)
                run.metrics += [
                    metric(name, value, run.time(name, value, step), step)
                    for value, step in zip(
                        map(float, python_numbers(column)), steps, strict=True
                    )
                ]

    def flush(self, run: _MLflowRun) -> None:
        while run.metrics:
            self._client.log_batch(run.id, metrics=run.metrics[:_MAX_METRICS])
            del run.metrics[:_MAX_METRICS]

    def close(self, run: _MLflowRun) -> None:
        error = fatal_error()
        interrupted = isinstance(error, KeyboardInterrupt)
        status = "FINISHED" if error is None else "KILLED" if interrupted else "FAILED"
        self._client.set_terminated(run.id, status)

    def _remedy(self, name: str, is_real: bool) -> str:
        return super()._remedy(name, is_real=False)
