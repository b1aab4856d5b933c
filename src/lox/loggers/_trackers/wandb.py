"""`WandbLogger`: runs in Weights & Biases."""

import inspect
import os
import secrets
import sys
import time
import typing
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from lox._errors import LoxValueError, check_choice
from lox._images import to_uint8
from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo
from lox.loggers._runs.exit import fatal_error
from lox.loggers._runs.open_runs import Full
from lox.loggers._tables import Array, unique_name

from .columns import columns_of
from .tracker import Names, Tracker, check_options

# 64 runs would print ten lines each, and each would record the program's output
_QUIET = {"silent": True, "console": "off"}
# The setting that saves the list of installed packages, which takes most of the time of
# `wandb.init`. Only the first run of a logger saves it.
_SAVE_PACKAGES = "x_save_requirements"
# W&B adds these to every row itself, and refuses the empty name
_RESERVED = ("_step", "_timestamp", "_runtime", "_wandb", "")
_LOCAL_MODES = ("offline", "dryrun", "disabled")
# After a failure that took longer than `_LONG_WAIT` seconds, no run tries again for
# `_RETRY_AFTER` seconds, so that 64 runs do not time out one after the other.
_LONG_WAIT, _RETRY_AFTER = 5.0, 60.0


class _WandbRun:
    def __init__(self, run: Any) -> None:
        self.run = run
        # the metrics whose x-axis is defined
        self.defined: set[str] = set()


class WandbLogger(Tracker):
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
        super().__init__(config, step, histograms, images, full, processes)
        self._wandb = require("wandb", "wandb", "`WandbLogger`")
        check_options(options, self._wandb.init, "WandbLogger", "wandb.init")
        self._check_mode(options.get("mode"))
        if self._images:
            self._pillow = require("PIL.Image", "wandb", "`images` of `WandbLogger`")
        # whether the next run is the first one, with our own settings
        self._is_first = "settings" not in options
        self._group = f"lox-{secrets.token_hex(4)}" if group is None else group
        self._options = {
            "project": project,
            "group": self._group,
            "settings": dict(_QUIET),
            **options,
        }
        self._login_checked = False
        # the error of the last attempt to reach the server, and when to try again
        self._failure: tuple[Exception, float] | None = None

    def _check_mode(self, mode: Any) -> None:
        field = self._wandb.Settings.model_fields.get("mode")
        modes = typing.get_args(field and field.annotation)
        if mode is not None and modes:
            check_choice(mode, modes, "`mode` of `WandbLogger`")

    def open(self, run: RunInfo) -> _WandbRun:
        start = time.monotonic()
        if self._failure is not None and start < self._failure[1]:
            raise self._failure[0]
        options = {"name": run.name, "config": dict(run.config), **self._options}
        if "resume" in options:
            options.setdefault("id", run.name)
        try:
            if not self._login_checked:
                self._check_login()
                self._login_checked = True
            opened = self._wandb.init(reinit="create_new", **options)
        except Exception as error:
            now = time.monotonic()
            if now - start > _LONG_WAIT:
                self._failure = error, now + _RETRY_AFTER
            raise
        if self._is_first:
            self._is_first = False
            self._after_first(opened)
        return _WandbRun(opened)

    def _set_config(self, run: _WandbRun, info: RunInfo) -> bool:
        run.run.config.update(dict(info.config))
        return True

    def write(self, run: _WandbRun, logs: logdict) -> None:
        for table in self.tables(logs):
            columns = columns_of(table, self._wandb.Histogram, self._image)
            if not columns:
                continue
            taken = set(_RESERVED)
            steps = {name: unique_name(name, taken) for name in table.steps}
            names = [unique_name(name, taken) for name in columns]
            x_axis = self.step_of(table)
            if x_axis is not None:
                self._define_x_axis(run, names, steps[x_axis[0]])
            names += steps.values()
            numbers = [column.tolist() for column in table.steps.values()]
            for row in zip(*columns.values(), *numbers, strict=True):
                run.run.log(dict(zip(names, row, strict=True)))

    def close(self, run: _WandbRun) -> None:
        error = fatal_error()
        interrupted = isinstance(error, KeyboardInterrupt)
        # W&B's own exit codes
        run.run.finish(exit_code=0 if error is None else 255 if interrupted else 1)

    def _image(self, pixels: Array) -> Any:
        # not an array: W&B drops its axes of length 1
        pixels = to_uint8(pixels)
        squeezed = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        return self._wandb.Image(self._pillow.fromarray(squeezed))

    def _define_x_axis(self, run: _WandbRun, names: Iterable[str], step: str) -> None:
        for name in names:
            # W&B would treat a name with a star as a pattern
            if name not in run.defined and "*" not in name:
                run.run.define_metric(name, step_metric=step, step_sync=False)
            run.defined.add(name)

    def _check_login(self) -> None:
        """Raises if `wandb.init` would prompt for an API key."""
        wandb, given = self._wandb, self._options["settings"] or {}
        if not isinstance(given, Mapping):
            given = given.model_dump(include=given.model_fields_set)
        session = wandb.setup().settings
        mode = self._options.get("mode") or given.get("mode") or session.mode
        api_key = given.get("api_key") or os.environ.get("WANDB_API_KEY")
        if mode in _LOCAL_MODES or api_key:
            return
        if wandb.run is not None:  # a run that the user has started
            has_key = not wandb.run.offline
        else:
            has_key = session.mode not in _LOCAL_MODES and _has_key(wandb)
        if not has_key:
            raise LoxValueError(
                "there is no API key for W&B. Log in with `wandb login`, set "
                '`WANDB_API_KEY`, or write the runs to disk with `mode="offline"`.'
            )

    def _after_first(self, run: Any) -> None:
        if _SAVE_PACKAGES in self._wandb.Settings.model_fields:
            self._options["settings"][_SAVE_PACKAGES] = False
        if not run.offline and run.project_url:
            # one line for all runs: W&B itself prints nothing
            group = urllib.parse.quote(self._group, safe="")
            print(f"wandb: {run.project_url}/groups/{group}", file=sys.stderr)


def _has_key(wandb: Any) -> bool:
    if "prompt" in inspect.signature(wandb.login).parameters:
        return wandb.login(prompt=False, verify=False)
    return wandb.api.api_key is not None  # before 0.30
