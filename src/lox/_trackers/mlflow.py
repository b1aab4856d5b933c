"""MLflow; metrics are sent in batches."""

import math
import os
import re
import time
from typing import Any

from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox._logs.tables import python_numbers
from lox._store.configs import text_config

from .backend import CommandOptions, TrackerBackend
from .runs import Ending, Resumed, RunInfo, TrackerRun

# MLflow's limits per request, and of lengths
_MAX_METRICS, _MAX_PARAMS = 1000, 100
_MAX_PARAM_LENGTH, _MAX_NAME_LENGTH = 6000, 250


# The tag that identifies runs which `lox sync` has created. MLflow chooses the
# identifier of a run itself, and a process may be killed before it is known.
_TAG = "lox.run"


class _MLflowRun(TrackerRun):
    def __init__(self, run_id: str, resumed: Resumed | None) -> None:
        super().__init__()
        self.id = run_id
        self.metrics: list[Any] = []
        self.names: dict[str, str] = {}
        if resumed is not None:
            self.resume(resumed, found=None)
            self.names |= resumed.names
        self.last_time = 0
        self.at_last_time: set[tuple[str, float | None, int]] = set()
        # whether MLflow may have metrics that it has not confirmed
        self.may_have_more = False
        # timestamps and steps of the metrics that MLflow has, by name
        self.found: dict[str, set[tuple[int, int]]] = {}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "id": self.id, "names": self.names}

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

    def time(self, name: str, value: float, step: int, number: int) -> int:
        """A timestamp in milliseconds that no equal metric has.

        MLflow drops metrics that are equal in name, value, step and timestamp. If a run
        is continued, a metric that is sent twice has the same timestamp.
        """
        if self.resumed is not None:
            return int(self.resumed.started * 1000) + number
        now = int(time.time() * 1000)
        if now > self.last_time:
            self.last_time = now
            self.at_last_time.clear()
        # NaN is not equal to itself, but MLflow treats it as equal
        metric = (name, None if math.isnan(value) else value, step)
        if metric in self.at_last_time:
            self.last_time += 1
            self.at_last_time.clear()
        self.at_last_time.add(metric)
        return self.last_time


class MLflowBackend(TrackerBackend):
    """Sends runs to MLflow.

    Args:
        experiment: the name of the MLflow experiment, which is created if needed.
        tracking_uri: where to store the runs; by default the tracking URI of `mlflow`.
        **shown: the options of the base class.
    """

    command_name = "mlflow"
    unused_options = "group", "tags", "histograms", "images"
    shows_histograms = False

    def __init__(
        self, experiment: str, tracking_uri: str | None = None, **shown: Any
    ) -> None:
        super().__init__(**shown)
        self._mlflow = require("mlflow", "mlflow", self.caller)
        self.project = self._experiment = experiment
        self._uri = tracking_uri
        self._client: Any = None
        self._experiment_id = ""

    @classmethod
    def for_command(cls, options: CommandOptions) -> "MLflowBackend":
        named = options.project or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        return cls(named or "Default", **options.shown())

    def open(self, run: RunInfo, resumed: Resumed | None = None) -> _MLflowRun:
        if self._client is None:
            client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            experiment = client.get_experiment_by_name(self._experiment)
            self._experiment_id = (
                client.create_experiment(self._experiment)
                if experiment is None
                else experiment.experiment_id
            )
            self._client = client
        found = None if resumed is None else self._find(resumed)
        opened = _MLflowRun(found or self._create(run, resumed), resumed)
        if resumed is not None and found is not None:
            opened.may_have_more = resumed.interrupted
        if resumed is None or not resumed.is_given:
            self._log_params(opened.id, run)
        return opened

    def _find(self, resumed: Resumed) -> str | None:
        """The identifier of a run that may exist."""
        if resumed.is_given:
            return resumed.id
        found = self._client.search_runs(
            [self._experiment_id], f"tags.`{_TAG}` = '{resumed.id}'"
        )
        return found[0].info.run_id if found else None

    def _create(self, run: RunInfo, resumed: Resumed | None) -> str:
        options: dict[str, Any] = {}
        if resumed is not None:
            options["start_time"] = int(resumed.started * 1000)
            options["tags"] = {_TAG: resumed.id}
        created = self._client.create_run(
            self._experiment_id, run_name=run.name, **options
        )
        identifier: str = created.info.run_id
        return identifier

    def _log_params(self, run_id: str, run: RunInfo) -> None:
        names = _MLflowRun(run_id, None)  # metrics have their own names
        param = self._mlflow.entities.Param
        params = [
            param(names.name(key), str(value)[:_MAX_PARAM_LENGTH])
            for key, value in text_config(run.config).items()
        ]
        for i in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(run_id, params=params[i : i + _MAX_PARAMS])

    def write(self, run: _MLflowRun, logs: logdict) -> None:
        for table in self.tables(logs):
            steps = run.integer_steps.of(self, table).tolist()
            if not table.scalars:
                continue
            names = [run.name(key) for key in table.scalars]
            columns = (map(float, python_numbers(x)) for x in table.scalars.values())
            # row by row, so that the order does not depend on how many there are
            rows = zip(steps, zip(*columns, strict=True), strict=True)
            items = [
                (name, value, step)
                for step, row in rows
                for name, value in zip(names, row, strict=True)
            ]
            first = run.items
            known = run.add_items(len(items))
            run.metrics += self._metrics(run, items[known:], first + known)

    def _metrics(
        self, run: _MLflowRun, items: list[tuple[str, float, int]], first: int
    ) -> list[Any]:
        """Metrics with timestamps, without those that MLflow has.

        Args:
            run: the run.
            items: names, values and steps.
            first: the number of the first item in the run.
        """
        metric = self._mlflow.entities.Metric
        metrics = [
            metric(name, value, run.time(name, value, step, first + i), step)
            for i, (name, value, step) in enumerate(items)
        ]
        if not run.may_have_more:
            return metrics
        for name in {name for name, _, _ in items} - run.found.keys():
            history = self._client.get_metric_history(run.id, name)
            run.found[name] = {(x.timestamp, x.step) for x in history}
        return [x for x in metrics if (x.timestamp, x.step) not in run.found[x.key]]

    def flush(self, run: _MLflowRun) -> None:
        while run.metrics:
            self._client.log_batch(run.id, metrics=run.metrics[:_MAX_METRICS])
            run.accepted += len(run.metrics[:_MAX_METRICS])
            del run.metrics[:_MAX_METRICS]
        run.confirm()

    def end(self, run: _MLflowRun, ending: Ending, at: float | None = None) -> None:
        if ending != "running":
            end_time = None if at is None else int(at * 1000)
            self._client.set_terminated(run.id, ending.upper(), end_time)

    def destination(self) -> str:
        return f"{self._place()} {self._experiment}"

    def settings(self) -> dict[str, Any]:
        return {
            **super().settings(),
            "experiment": self._experiment,
            "tracking_uri": self._place(),
        }

    def _place(self) -> str:
        """The tracking URI without a password."""
        uri: str = self._uri or self._mlflow.get_tracking_uri()
        return re.sub(r"//[^/@]*@", "//", uri)

    def _remedy(self, name: str, is_real: bool) -> str:
        return super()._remedy(name, is_real=False)
