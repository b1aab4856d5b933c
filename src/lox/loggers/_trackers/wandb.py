"""`WandbLogger`: runs of Weights & Biases."""

import inspect
import os
import secrets
import sys
import time
import typing
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from lox._errors import LoxValueError
from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo
from lox.loggers._runs.exit import fatal_error

from .histogram import Array, binned
from .images import as_bytes
from .tables import free, python_numbers
from .tracker import Names, Table, Tracker, check_options

# 64 runs would print ten lines each, and each record what the program prints
_QUIET = {"silent": True, "console": "off"}
# the packages that are installed, which take most of the time to begin a run: the first
# run of a logger has them
_PACKAGES = "x_save_requirements"
# W&B writes these into every row itself, and has no empty name
_RESERVED = ("_step", "_timestamp", "_runtime", "_wandb", "")
_BINS = 64
_NOT_SENT = ("offline", "dryrun", "disabled")
# who has waited long for a server in vain leaves it alone for a while, so that 64 runs
# do not wait for it one after the other
_LONG, _PAUSE = 5.0, 60.0


class _WandbRun:
    def __init__(self, run: Any) -> None:
        self.run = run
        # the names that have a step to be drawn over
        self.defined: set[str] = set()


class WandbLogger(Tracker):
    """Logs to Weights & Biases, a run of it for every run.

    Steps are columns beside the values, and the values are drawn over them: W&B's own
    step, which must grow, counts the rows.

    It never asks for an API key: `wandb login` does, or `WANDB_API_KEY` holds it. With
    `mode="offline"` the runs are in `wandb/`, from where `wandb sync` sends them.

    Args:
        project: the project that the runs are in.
        config: the hyperparameters.
        group: what the runs have in common; by default a name made for this logger.
        step: the name of the step to draw over; by default `step`, else the first.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys whose arrays of height, width and perhaps channels to show as
            images: numbers from 0 to 1, or bytes.
        **options: of `wandb.init`, such as `mode`, `entity` or `tags`. With `resume`, a
            run goes on with the run of W&B that has the same key. `settings` replaces
            the ones that keep W&B quiet.
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
        self._wandb = require("wandb", "wandb", "`WandbLogger`")
        check_options(options, self._wandb.init, "WandbLogger", "wandb.init")
        self._check_mode(options.get("mode"))
        if self._images:
            self._pillow = require("PIL.Image", "wandb", "`images` of `WandbLogger`")
        # whether the next run is the first one with settings of ours
        self._is_first = "settings" not in options
        self._group = f"lox-{secrets.token_hex(4)}" if group is None else group
        self._options = {
            "project": project,
            "group": self._group,
            "settings": dict(_QUIET),
            **options,
        }
        self._may_log_in = False
        # why the server could not be reached, and when to try again
        self._failure: tuple[Exception, float] | None = None

    def _check_mode(self, mode: Any) -> None:
        field = self._wandb.Settings.model_fields.get("mode")
        modes = typing.get_args(field and field.annotation)
        if mode is not None and modes and mode not in modes:
            raise LoxValueError(
                f"`mode` of `WandbLogger` is {mode!r}; W&B has "
                f"{', '.join(map(repr, modes))}."
            )

    def open(self, run: RunInfo) -> _WandbRun:
        began = time.monotonic()
        if self._failure is not None and began < self._failure[1]:
            raise self._failure[0]
        options = {"name": run.name, "config": dict(run.config), **self._options}
        if "resume" in options:
            options.setdefault("id", run.name)
        try:
            if not self._may_log_in:
                self._check_login()
                self._may_log_in = True
            opened = self._wandb.init(reinit="create_new", **options)
        except Exception as error:
            now = time.monotonic()
            if now - began > _LONG:
                self._failure = error, now + _PAUSE
            raise
        if self._is_first:
            self._is_first = False
            self._after_first(opened)
        return _WandbRun(opened)

    def _adopt(self, run: _WandbRun, info: RunInfo) -> bool:
        run.run.config.update(dict(info.config))
        return True

    def write(self, run: _WandbRun, logs: logdict) -> None:
        for table in self.tables(logs):
            columns = self._columns(table)
            if not columns:
                continue
            taken = set(_RESERVED)
            steps = {name: free(name, taken) for name in table.steps}
            names = [free(name, taken) for name in columns]
            drawn_over = self.step_of(table)
            if drawn_over is not None:
                self._define(run, names, steps[drawn_over[0]])
            names += steps.values()
            numbers = [column.tolist() for column in table.steps.values()]
            for row in zip(*columns.values(), *numbers, strict=True):
                run.run.log(dict(zip(names, row, strict=True)))

    def close(self, run: _WandbRun) -> None:
        error = fatal_error()
        by_hand = isinstance(error, KeyboardInterrupt)
        # the codes that W&B itself gives to what it sees
        run.run.finish(exit_code=0 if error is None else 255 if by_hand else 1)

    def _columns(self, table: Table) -> dict[str, list[Any]]:
        """What W&B is given, by name: a value for each row."""
        wandb = self._wandb
        columns = {name: python_numbers(x) for name, x in table.scalars.items()}
        for name, column in table.histograms.items():
            columns[name] = [
                wandb.Histogram(np_histogram=binned(values, _BINS)) for values in column
            ]
        for name, column in table.images.items():
            columns[name] = [self._picture(pixels) for pixels in column]
        return columns

    def _picture(self, pixels: Array) -> Any:
        # as a picture, since W&B drops the axes of arrays that have length 1
        pixels = as_bytes(pixels)
        picture = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        return self._wandb.Image(self._pillow.fromarray(picture))

    def _define(self, run: _WandbRun, names: Iterable[str], step: str) -> None:
        for name in names:
            # a name with a star would be a pattern
            if name not in run.defined and "*" not in name:
                run.run.define_metric(name, step_metric=step, step_sync=False)
            run.defined.add(name)

    def _check_login(self) -> None:
        """Raises where `wandb.init` would ask for an API key."""
        wandb, given = self._wandb, self._options["settings"] or {}
        if not isinstance(given, Mapping):
            given = given.model_dump(include=given.model_fields_set)
        session = wandb.setup().settings
        mode = self._options.get("mode") or given.get("mode") or session.mode
        api_key = given.get("api_key") or os.environ.get("WANDB_API_KEY")
        if mode in _NOT_SENT or api_key:
            return
        if wandb.run is not None:  # of the user's own
            has_key = not wandb.run.offline
        else:
            has_key = session.mode not in _NOT_SENT and _has_key(wandb)
        if not has_key:
            raise LoxValueError(
                "there is no API key for W&B. Log in with `wandb login`, set "
                '`WANDB_API_KEY`, or keep the runs here with `mode="offline"`.'
            )

    def _after_first(self, run: Any) -> None:
        if _PACKAGES in self._wandb.Settings.model_fields:
            self._options["settings"][_PACKAGES] = False
        if not run.offline and run.project_url:
            # one line for all the runs, since W&B prints none
            group = urllib.parse.quote(self._group, safe="")
            print(f"wandb: {run.project_url}/groups/{group}", file=sys.stderr)


def _has_key(wandb: Any) -> bool:
    if "prompt" in inspect.signature(wandb.login).parameters:
        return wandb.login(prompt=False, verify=False)
    return wandb.api.api_key is not None  # before 0.30
