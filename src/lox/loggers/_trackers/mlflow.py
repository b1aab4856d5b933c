"""`MLflowLogger`: runs in MLflow, in batches."""

import math
import re
import time
from collections.abc import Mapping
from typing import Any

from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo
from lox.loggers._runs.config import flat_config
from lox.loggers._runs.exit import fatal_error

from .tables import python_numbers
from .tracker import StepCounts, Tracker

# what MLflow takes at a time
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM, _LONGEST_NAME = 1000, 100, 6000, 250


class _MLflowRun:
    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.counts = StepCounts()
        self.metrics: list[Any] = []
        self.names: dict[str, str] = {}
        self.last_time = 0
        self.at_last_time: set[tuple[str, float | None, int]] = set()

    def name(self, key: str) -> str:
        """A name that MLflow takes, and that no other key has."""
        found = self.names.get(key)
        if found is None:
            plain = re.sub(r"[^/\w.\- ]", "_", key)
            parts = ["_" if p in ("", ".", "..") else p for p in plain.split("/")]
            plain = found = "/".join(parts)[:_LONGEST_NAME]
            number = 0
            while found in self.names.values():
                number += 1
                found = f"{plain[: _LONGEST_NAME - 9]}_{number}"
            self.names[key] = found
        return found

    def time(self, name: str, value: float, step: int) -> int:
        """A time in milliseconds, at which there is no such number yet.

        MLflow takes two alike for one.
        """
        now = int(time.time() * 1000)
        if now > self.last_time:
            self.last_time = now
            self.at_last_time.clear()
        # NaN is not like itself, but it is to MLflow
        number = (name, None if math.isnan(value) else value, step)
        if number in self.at_last_time:
            self.last_time += 1
            self.at_last_time.clear()
        self.at_last_time.add(number)
        return self.last_time


class MLflowLogger(Tracker):
    """Sends runs to [MLflow](https://mlflow.org), many numbers at a time.

    Needs `pip install 'jax-lox[mlflow]'`. Offline, MLflow keeps runs in a database of
    SQLite's: `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows them.

    Args:
        experiment: the name of MLflow's experiment, which is made if it is not there.
        config: what to remember of the runs: MLflow's parameters.
        tracking_uri: where MLflow keeps runs; by default where `mlflow` does.
        step: the name of the step to draw over; by default `step`, else the first.
            MLflow knows one step only.
    """

    def __init__(
        self,
        experiment: str = "Default",
        config: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
        step: str | None = None,
    ) -> None:
        super().__init__(config, step)
        self._mlflow = require("mlflow", "mlflow", "`MLflowLogger`")
        self._experiment = experiment
        self._uri = tracking_uri
        self._client: Any = None
        self._experiment_id = ""

    def open(self, run: RunInfo) -> _MLflowRun:
        if self._client is None:
            client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            found = client.get_experiment_by_name(self._experiment)
            self._experiment_id = (
                client.create_experiment(self._experiment)
                if found is None
                else found.experiment_id
            )
            self._client = client
        made = self._client.create_run(self._experiment_id, run_name=run.name)
        opened = _MLflowRun(made.info.run_id)
        param = self._mlflow.entities.Param
        params = [
            param(opened.name(key), str(value)[:_LONGEST_PARAM])
            for key, value in flat_config(run.config).items()
        ]
        opened.names.clear()  # which are those of metrics from now on
        for i in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(opened.id, params=params[i : i + _MOST_PARAMS])
        return opened

    def write(self, run: _MLflowRun, logs: logdict) -> None:
        metric = self._mlflow.entities.Metric
        for table in self.tables(logs):
            steps = run.counts.steps(self, table).tolist()
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
            self._client.log_batch(run.id, metrics=run.metrics[:_MOST_METRICS])
            del run.metrics[:_MOST_METRICS]

    def close(self, run: _MLflowRun) -> None:
        error = fatal_error()
        by_hand = isinstance(error, KeyboardInterrupt)
        status = "FINISHED" if error is None else "KILLED" if by_hand else "FAILED"
        self._client.set_terminated(run.id, status)

    def _remedy(self, name: str, is_real: bool) -> str:
        return super()._remedy(name, is_real=False)
