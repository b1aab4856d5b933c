"""trackio."""

import collections
import contextlib
import contextvars
import importlib
import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox._errors import LoxError
from lox._images import to_uint8
from lox._logs.exports import require
from lox._logs.logdict import logdict
from lox._logs.tables import Array, Table, unique_name

from .backend import CommandOptions, TrackerBackend, check_options
from .columns import columns_of
from .runs import ClientRun, Ending, Resumed, RunInfo

# options to remember with logs that were not sent; others may contain secrets
_KEPT = ("bucket_id", "dataset_id", "name", "private")


class TrackioBackend(TrackerBackend):
    """Sends runs to trackio.

    Args:
        project: the name of the trackio project.
        group: a group name for the runs.
        options: other options of `trackio.init`.
        **shown: the options of the base class.
    """

    command_name = "trackio"
    unused_options = ("tags",)

    def __init__(
        self, project: str, group: str | None, options: Mapping[str, Any], **shown: Any
    ) -> None:
        super().__init__(**shown)
        self.project = project
        self._trackio = require("trackio", "trackio", self.caller)
        check_options(options, self._trackio.init, type(self).__name__, "trackio.init")
        quiet = {"auto_log_cpu": False, "auto_log_gpu": False, "embed": False}
        self._announced = False
        self._options = {"project": project, "group": group, **quiet, **options}

    @classmethod
    def for_command(cls, options: CommandOptions) -> "TrackioBackend":
        project = options.project or options.label
        return cls(project, options.group or options.label, {}, **options.shown())

    def open(self, run: RunInfo, resumed: Resumed | None = None) -> ClientRun:
        # trackio ends a run when another one starts in its context: one context per run
        context = contextvars.Context()
        if self._announced:  # every new context prints the project
            with contextlib.suppress(AttributeError):
                project = self._trackio.context_vars.current_project
                context.run(project.set, self._options["project"])
        self._announced = True
        options = {"name": run.name, "config": dict(run.config), **self._options}
        opened = context.run(lambda: self._trackio.init(**options))
        handle = ClientRun(opened)
        if resumed is not None:
            # `resume` of trackio would find a run by its name, which others may have
            opened.id = resumed.id
            handle.resume(resumed, self._stored(handle))
        return handle

    def _stored(self, run: ClientRun) -> int | None:
        """How many rows of a run trackio has; None if it cannot tell."""
        if not getattr(run.run, "_is_local", False):
            return None
        storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        try:
            found: int = storage.get_log_count(run.run.project, run_id=run.run.id)
        except (AttributeError, TypeError):  # other versions of trackio
            return None
        return found

    def write(self, run: ClientRun, logs: logdict) -> None:
        for table in self.tables(logs):
            steps = run.integer_steps.of(self, table).tolist()
            columns = self._columns(table)
            known = run.add_items(table.length if columns else 0)
            # trackio takes one row at a time; `map` is faster than a Python loop
            names = itertools.repeat(tuple(columns))
            rows = map(dict, map(zip, names, zip(*columns.values(), strict=True)))
            unknown = (itertools.islice(x, known, None) for x in (rows, steps))
            collections.deque(map(run.run.log, *unknown), maxlen=0)
        run.confirm()

    def _columns(self, table: Table) -> dict[str, list[Any]]:
        """The columns to log, by name: one value per row."""
        columns = columns_of(table, self._trackio.Histogram, self._image)
        x_axis = self.step_of(table)
        if not columns or x_axis is None:
            return columns
        taken: set[str] = {x_axis[0]}
        steps = [name for name in table.steps if name != x_axis[0]]
        others = {
            unique_name(name, taken): table.steps[name].tolist() for name in steps
        }
        return others | {unique_name(name, taken): x for name, x in columns.items()}

    def _image(self, pixels: Array) -> Any:
        image = to_uint8(pixels)
        if image.shape[2] == 1:  # trackio drops images of one channel
            image = np.repeat(image, 3, axis=2)
        return self._trackio.Image(image)

    def end(self, run: ClientRun, ending: Ending, at: float | None = None) -> None:
        run.run.finish()
        thread = getattr(run.run, "_local_sender_thread", None)
        if run.resumed is not None and thread is not None:
            thread.join()  # `finish` waits for 30 seconds
        stored = None if run.resumed is None else self._stored(run)
        if stored is not None and stored < run.before + run.items:
            raise LoxError(
                f"trackio has stored {stored - run.before} of {run.items} rows of "
                f"{run.run.name}."
            )

    def destination(self) -> str:
        utils: Any = importlib.import_module("trackio.utils")
        remote = self._remote()
        place = next(filter(None, remote.values()), str(utils.TRACKIO_DIR))
        return f"{place} {self._options['project']}"

    def _remote(self) -> dict[str, str | None]:
        """The options of a remote destination, which may be environment variables."""
        names = {"space_id": "TRACKIO_SPACE_ID", "server_url": "TRACKIO_SERVER_URL"}
        found = {
            name: self._options.get(name) or os.environ.get(variable)
            for name, variable in names.items()
        }
        # the URL of a server may contain a token
        return {name: x and x.partition("?")[0] for name, x in found.items()}

    def settings(self) -> dict[str, Any]:
        kept = {name: self._options.get(name) for name in _KEPT} | self._remote()
        return {
            **super().settings(),
            "project": self._options["project"],
            "group": self._options["group"],
            "options": {k: v for k, v in kept.items() if v is not None},
        }
