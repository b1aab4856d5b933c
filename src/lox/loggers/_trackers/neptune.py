"""`NeptuneLogger`: runs of Neptune, which are on this machine."""

import contextlib
import json
import logging
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo

from .histogram import Array, binned
from .images import as_bytes, png
from .tables import python_numbers
from .tracker import Names, Table, Tracker

# what Neptune would gather of the process, for each of its runs
_NOTHING_ELSE = {
    "capture_stdout": False,
    "capture_stderr": False,
    "capture_traceback": False,
    "capture_hardware_metrics": False,
    "source_files": [],
    "git_ref": False,
}
# where Neptune writes itself, or we do
_RESERVED = ("sys", "monitoring", "source_code", "parameters")
_BINS = 30  # Neptune cuts strings at 1000 characters


class _NeptuneRun:
    """A run, and where in it each series is.

    To Neptune, a name with a slash is in a folder, and a folder is no series.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        self._paths: dict[tuple[str, str], str] = {}

    def series(self, kind: str, name: str) -> Any:
        path = self._paths.get((kind, name))
        if path is None:
            path = self._paths[kind, name] = self._free(name)
        return self.run[path]

    def _free(self, name: str) -> str:
        path = "/".join(filter(None, name.split("/"))) or "value"
        if not self._is_free(path):
            path = path.replace("/", ".")
        while not self._is_free(path):
            path += "_value"
        return path

    def _is_free(self, path: str) -> bool:
        return not any(
            f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
            for other in (*_RESERVED, *self._paths.values())
        )


class NeptuneLogger(Tracker):
    """Logs to Neptune, a run of it for every run.

    Neptune's hosted service was closed in March 2026. What is left is its client, which
    writes runs to `.neptune/offline`.

    Curves of Neptune's hold finite numbers. Others are in a series of strings beside,
    called `loss_not_finite`. Histograms are strings, too: their lowest and highest
    number, and the counts between, as JSON.

    Args:
        project: the project that the runs are in.
        config: the hyperparameters; they are in `parameters`.
        group: what the runs have in common, as a tag of groups; by default a name made
            for this logger.
        step: the name of the step to draw over; by default `step`, else the first.
            Others are series of their own.
        histograms: the keys, by name or pattern, whose arrays to log as histograms.
        images: the keys whose arrays of height, width and perhaps channels to log as
            images: numbers from 0 to 1, or bytes.
        **options: of `neptune.init_run`. `mode` is `"offline"`, unless it or
            `NEPTUNE_MODE` says otherwise: `"debug"` writes nothing, `"async"` sends to
            a server of one's own.
    """

    def __init__(
        self,
        project: str | None = None,
        config: Mapping[str, Any] | None = None,
        group: str | None = None,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
        **options: Any,
    ) -> None:
        super().__init__(config, step, histograms, images)
        with warnings.catch_warnings():  # of packages that Neptune imports
            warnings.simplefilter("ignore", DeprecationWarning)
            self._neptune = require("neptune", "neptune", "`NeptuneLogger`")
            self._types = require("neptune.types", "neptune", "`NeptuneLogger`")
            self._utils = require("neptune.utils", "neptune", "`NeptuneLogger`")
        self._group = f"lox-{secrets.token_hex(4)}" if group is None else group
        self._options = {
            "project": project,
            "mode": os.environ.get("NEPTUNE_MODE", "offline"),
            **_NOTHING_ELSE,
            **options,
        }

    def open(self, run: RunInfo) -> _NeptuneRun:
        with _quiet():
            opened = self._neptune.init_run(**{"name": run.name, **self._options})
        opened["sys/group_tags"].add(self._group)
        if run.config:
            opened["parameters"] = self._utils.stringify_unsupported(dict(run.config))
        return _NeptuneRun(opened)

    def _adopt(self, run: _NeptuneRun, info: RunInfo) -> bool:
        config = self._utils.stringify_unsupported(dict(info.config))
        run.run["parameters"] = config
        return True

    def write(self, run: _NeptuneRun, logs: logdict) -> None:
        for table in self.tables(logs):
            self._write_table(run, table)

    def close(self, run: _NeptuneRun) -> None:
        with _quiet():
            run.run.stop()

    def _write_table(self, run: _NeptuneRun, table: Table) -> None:
        drawn_over = self.step_of(table)
        steps = None if drawn_over is None else drawn_over[1].tolist()
        for name, column in table.scalars.items():
            self._numbers(run, name, column, steps)
        for name, column in table.histograms.items():
            texts = [_histogram_text(values) for values in column]
            run.series("text", name).extend(texts, steps=steps)
        for name, column in table.images.items():
            files = [self._picture(pixels) for pixels in column]
            run.series("image", name).extend(files, steps=steps)
        for name, column in table.steps.items():
            if drawn_over is not None and name != drawn_over[0]:
                self._numbers(run, name, column, steps)

    def _numbers(
        self, run: _NeptuneRun, name: str, column: Array, steps: Sequence[float] | None
    ) -> None:
        finite = np.isfinite(column)
        if finite.all():
            run.series("number", name).extend(python_numbers(column), steps=steps)
            return
        for chosen, kind in ((finite, "number"), (~finite, "text")):
            if chosen.any():
                values = python_numbers(column[chosen])
                at = None if steps is None else np.asarray(steps)[chosen].tolist()
                if kind == "text":
                    name, values = f"{name}_not_finite", [str(x) for x in values]
                run.series(kind, name).extend(values, steps=at)

    def _picture(self, pixels: Array) -> Any:
        return self._types.File.from_content(png(as_bytes(pixels)), extension="png")


def _histogram_text(values: Array) -> str:
    counts, edges = binned(values, _BINS)
    return json.dumps(
        {
            "lowest": float(edges[0]),
            "highest": float(edges[-1]),
            "counts": counts.tolist(),
        }
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the three lines that Neptune prints for each run."""
    logger = logging.getLogger("neptune")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)
