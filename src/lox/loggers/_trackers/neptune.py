"""`NeptuneLogger`: Neptune runs, written to local files."""

import contextlib
import json
import logging
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox._images import encode_png, to_uint8
from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox._logs.tables import Array, Table, python_numbers
from lox._trackers.columns import histograms_of
from lox.loggers._base import RunInfo
from lox.loggers._runs.open_runs import Full

from .tracker import Names, Tracker

# do not record the process itself, for each of its runs
_NO_MONITORING = {
    "capture_stdout": False,
    "capture_stderr": False,
    "capture_traceback": False,
    "capture_hardware_metrics": False,
    "source_files": [],
    "git_ref": False,
}
# fields that Neptune or this logger writes itself
_RESERVED = ("sys", "monitoring", "source_code", "parameters")
_BINS = 30  # so that a histogram fits into Neptune's strings of 1000 characters


class _NeptuneRun:
    """A run, and the path of each of its series.

    To Neptune, a name with a slash is in a folder, and a folder cannot be a series.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        self._paths: dict[tuple[str, str], str] = {}

    def series(self, kind: str, name: str) -> Any:
        path = self._paths.get((kind, name))
        if path is None:
            path = self._paths[kind, name] = self._unused_path(name)
        return self.run[path]

    def _unused_path(self, name: str) -> str:
        path = "/".join(filter(None, name.split("/"))) or "value"
        if not self._is_unused(path):
            path = path.replace("/", ".")
        while not self._is_unused(path):
            path += "_value"
        return path

    def _is_unused(self, path: str) -> bool:
        return not any(
            f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
            for other in (*_RESERVED, *self._paths.values())
        )


class NeptuneLogger(Tracker):
    """Logs to Neptune, one Neptune run per run.

    Neptune's hosted service was closed in March 2026. Its client still works, and
    writes runs to `.neptune/offline`.

    Neptune's series hold finite numbers only. Other numbers are logged to a separate
    series of strings, such as `loss_not_finite`. Histograms are strings, too: JSON with
    the lowest and the highest number and the counts in between.

    Args:
        project: the project of the runs.
        config: the hyperparameters, logged under `parameters`.
        group: a group tag for the runs; by default a unique name per logger.
        step: the name of the step to use as the x-axis; by default `step`, else the
            first. Other steps are logged as series.
        histograms: the keys, by name or pattern, whose arrays to log as histograms.
        images: the keys, by name or pattern, whose arrays to log as images. The shape
            is (height, width) or (height, width, channels); the values are floats
            between 0 and 1, or bytes.
        full: what happens if the queue is full because the tracker is slow: with
            `"wait"`, the program waits; with `"spill"`, logs wait on disk.
        processes: which processes of a job log: `"first"`, or `"all"`, each to a run of
            its own.
        **options: options of `neptune.init_run`. `mode` is `"offline"` by default, or
            the value of `NEPTUNE_MODE`: `"debug"` writes nothing, `"async"` sends to a
            self-hosted server.
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
        super().__init__(config, step, histograms, images, full, processes)
        with warnings.catch_warnings():  # raised by packages that Neptune imports
            warnings.simplefilter("ignore", DeprecationWarning)
            self._neptune = require("neptune", "neptune", "`NeptuneLogger`")
            self._types = require("neptune.types", "neptune", "`NeptuneLogger`")
            self._utils = require("neptune.utils", "neptune", "`NeptuneLogger`")
        self._group = f"lox-{secrets.token_hex(4)}" if group is None else group
        self._options = {
            "project": project,
            "mode": os.environ.get("NEPTUNE_MODE", "offline"),
            **_NO_MONITORING,
            **options,
        }

    def open(self, run: RunInfo) -> _NeptuneRun:
        with _quiet():
            opened = self._neptune.init_run(**{"name": run.name, **self._options})
        opened["sys/group_tags"].add(self._group)
        created = _NeptuneRun(opened)
        if run.config:
            self._set_config(created, run)
        return created

    def _set_config(self, run: _NeptuneRun, info: RunInfo) -> bool:
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
        x_axis = self.step_of(table)
        steps = None if x_axis is None else x_axis[1].tolist()
        for name, column in table.scalars.items():
            self._write_numbers(run, name, column, steps)
        for name, rows in histograms_of(table, _BINS):
            texts = [_histogram_text(counts, edges) for counts, edges in rows]
            run.series("text", name).extend(texts, steps=steps)
        for name, column in table.images.items():
            files = [self._image_file(pixels) for pixels in column]
            run.series("image", name).extend(files, steps=steps)
        for name, column in table.steps.items():
            if x_axis is not None and name != x_axis[0]:
                self._write_numbers(run, name, column, steps)

    def _write_numbers(
        self, run: _NeptuneRun, name: str, column: Array, steps: Sequence[float] | None
    ) -> None:
        finite = np.isfinite(column)
        if finite.all():
            run.series("number", name).extend(python_numbers(column), steps=steps)
            return
        for rows, kind in ((finite, "number"), (~finite, "text")):
            if rows.any():
                values = python_numbers(column[rows])
                at = None if steps is None else np.asarray(steps)[rows].tolist()
                if kind == "text":
                    name, values = f"{name}_not_finite", [str(x) for x in values]
                run.series(kind, name).extend(values, steps=at)

    def _image_file(self, pixels: Array) -> Any:
        content = encode_png(to_uint8(pixels))
        return self._types.File.from_content(content, extension="png")


def _histogram_text(counts: Array, edges: Array) -> str:
    content = {
        "lowest": float(edges[0]),
        "highest": float(edges[-1]),
        "counts": counts.tolist(),
    }
    even = np.linspace(edges[0], edges[-1], len(edges))
    if not np.allclose(edges, even, rtol=0, atol=1e-3 * abs(even[1] - even[0])):
        content["edges"] = edges.tolist()
    return json.dumps(content)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the three lines that Neptune prints per run."""
    logger = logging.getLogger("neptune")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)
