"""Weights & Biases."""

import inspect
import os
import secrets
import sys
import time
import typing
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lox._errors import LoxValueError, check_choice
from lox._images import to_uint8
from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox._logs.tables import Array, unique_name

from .backend import CommandOptions, TrackerBackend, check_options
from .columns import columns_of
from .runs import ClientRun, Ending, Resumed, RunInfo

# 64 runs would print ten lines each, and each would record the program's output
_QUIET = {"silent": True, "console": "off"}
# The setting that saves the list of installed packages, which takes most of the time of
# `wandb.init`. Only the first run of a logger saves it.
_SAVE_PACKAGES = "x_save_requirements"
# W&B adds these to every row itself, and refuses the empty name
_RESERVED = ("_step", "_timestamp", "_runtime", "_wandb", "")
_LOCAL_MODES = ("offline", "dryrun", "disabled")
# options to remember with logs that were not sent; others may contain secrets
_KEPT = ("dir", "entity", "job_type", "mode", "name", "notes", "tags")
# After a failure that took longer than `_LONG_WAIT` seconds, no run tries again for
# `_RETRY_AFTER` seconds, so that 64 runs do not time out one after the other.
_LONG_WAIT, _RETRY_AFTER = 5.0, 60.0


class _WandbRun(ClientRun):
    def __init__(self, run: Any) -> None:
        super().__init__(run)
        # the metrics whose x-axis is defined
        self.defined: set[str] = set()


class WandbBackend(TrackerBackend):
    """Sends runs to Weights & Biases.

    Args:
        project: the project of the runs.
        group: the group of the runs; by default a unique name.
        options: other options of `wandb.init`.
        server: the server of the runs, if another process has opened them.
        **shown: the options of the base class.
    """

    command_name = "wandb"

    def __init__(
        self,
        project: str | None,
        group: str | None,
        options: Mapping[str, Any],
        server: str | None = None,
        **shown: Any,
    ) -> None:
        super().__init__(**shown)
        self.project = project
        self._wandb = require("wandb", "wandb", self.caller)
        check_options(options, self._wandb.init, type(self).__name__, "wandb.init")
        self._check_mode(options.get("mode"))
        if self._images:
            self._pillow = require("PIL.Image", "wandb", f"`images` of {self.caller}")
        # whether the next run is the first one, with our own settings
        self._is_first = "settings" not in options
        self._group = f"lox-{secrets.token_hex(4)}" if group is None else group
        self._options = {
            "project": project,
            "group": self._group,
            "settings": dict(_QUIET),
            **options,
        }
        if server not in (None, self._server()) and self._mode() not in _LOCAL_MODES:
            raise LoxValueError(
                f"these logs belong to a run at {server}, but W&B is set up for "
                f"{self._server()}. Set `WANDB_BASE_URL`."
            )
        self._login_checked = False
        # the error of the last attempt to reach the server, and when to try again
        self._failure: tuple[Exception, float] | None = None

    @classmethod
    def for_command(cls, options: CommandOptions) -> "WandbBackend":
        group = options.group or os.environ.get("WANDB_RUN_GROUP") or options.label
        tags = {"tags": list(options.tags)} if options.tags else {}
        return cls(options.project, group, tags, **options.shown())

    def _check_mode(self, mode: Any) -> None:
        field = self._wandb.Settings.model_fields.get("mode")
        modes = typing.get_args(field and field.annotation)
        if mode is not None and modes:
            check_choice(mode, modes, f"`mode` of {self.caller}")

    def open(self, run: RunInfo, resumed: Resumed | None = None) -> _WandbRun:
        start = time.monotonic()
        if self._failure is not None and start < self._failure[1]:
            raise self._failure[0]
        options = {"name": run.name, "config": dict(run.config), **self._options}
        if resumed is not None:
            options["id"] = resumed.id
            if self._mode() not in _LOCAL_MODES:
                options["resume"] = "allow"
        elif "resume" in options:
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
        handle = _WandbRun(opened)
        if resumed is not None:
            handle.resume(resumed, None if opened.offline else opened.step)
        elif "resume" in options:
            handle.before = opened.starting_step
        return handle

    def set_config(self, run: _WandbRun, info: RunInfo) -> bool:
        """Sets the config of an open run."""
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
            values = zip(*columns.values(), *numbers, strict=True)
            rows = (dict(zip(names, row, strict=True)) for row in values)
            self._log(run, table.length, rows)
        run.confirm()

    def _log(self, run: _WandbRun, count: int, rows: Iterator[dict[str, Any]]) -> None:
        """Logs rows; if a run is continued, only those that it lacks."""
        number = run.before + run.items
        known = run.add_items(count)
        if run.resumed is None:
            for row in rows:
                run.run.log(row)
                run.accepted += 1
            return
        # W&B's own step counts the rows, in a file of offline rows as well
        for i, row in enumerate(rows):
            if i >= known:
                run.run.log(row, step=number + i, commit=True)

    def end(self, run: _WandbRun, ending: Ending, at: float | None = None) -> None:
        # W&B's own exit codes
        run.run.finish(exit_code={"failed": 1, "killed": 255}.get(ending, 0))

    def destination(self) -> str:
        return f"{self._server()} {self._own('entity')} {self._own('project')}"

    def settings(self) -> dict[str, Any]:
        kept = {name: self._options.get(name) for name in _KEPT}
        kept["entity"] = self._own("entity") or None
        return {
            **super().settings(),
            "project": self._own("project") or None,
            "group": self._group,
            "options": {k: v for k, v in kept.items() if v is not None},
            "server": self._server(),
        }

    def _own(self, option: str) -> str:
        """An option, or the setting of W&B, for example from the environment."""
        session = getattr(self._wandb.setup().settings, option)
        return self._options.get(option) or session or ""

    def _server(self) -> str:
        server: str = self._wandb.setup().settings.base_url
        return server

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
        wandb, given = self._wandb, self._given_settings()
        session = wandb.setup().settings
        api_key = given.get("api_key") or os.environ.get("WANDB_API_KEY")
        if self._mode() in _LOCAL_MODES or api_key:
            return
        if wandb.run is not None:  # a run that the user has started
            has_key = not wandb.run.offline
        else:
            has_key = session.mode not in _LOCAL_MODES and _has_key(wandb)
        if not has_key:
            offline = "WANDB_MODE=offline" if self.in_command else 'mode="offline"'
            raise LoxValueError(
                "there is no API key for W&B. Log in with `wandb login`, set "
                f"`WANDB_API_KEY`, or write the runs to disk with `{offline}`."
            )

    def _given_settings(self) -> Mapping[str, Any]:
        given = self._options["settings"] or {}
        if isinstance(given, Mapping):
            return given
        found: dict[str, Any] = given.model_dump(include=given.model_fields_set)
        return found

    def _mode(self) -> str:
        given = self._options.get("mode") or self._given_settings().get("mode")
        return given or self._wandb.setup().settings.mode

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
