"""`SaveLogger`: runs in a store on disk."""

import contextlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from lox._errors import StoreError, check_choice
from lox._jax import host
from lox._logs.logdict import logdict
from lox._store.creating import (
    check_run,
    create_run,
    open_run,
    remove_parts,
)
from lox._store.locations import local_path
from lox._store.processes import job_of, part_path
from lox._store.syncing import flush_to_disk
from lox._store.writer import Writer

from ._base import Logger, RunInfo
from ._runs.backend import RowWriter
from ._runs.exit import fatal_error

_MODES = {"new": "x", "resume": "a", "overwrite": "w"}
REMEDY = '`exists="resume"` appends, `exists="overwrite"` replaces it'


def mode_of(exists: str, logger: str) -> str:
    """Returns the mode in which to open runs, for an `exists` option."""
    check_choice(exists, _MODES, f"`exists` of `{logger}`")
    return _MODES[exists]


class SaveLogger(Logger):
    """Saves each run to a directory of a store, for `lox.load` to read.

    Rows that have been written survive if the process is killed. `finish` also flushes
    them to disk, for all lanes of a `vmap` together, so that they survive a crash of
    the machine.

    Args:
        path: the store's directory.
        config: the config of the runs, saved as JSON.
        exists: what to do if a run already exists: `"new"` raises an error,
            `"resume"` appends to it, `"overwrite"` replaces it.
        processes: in a multi-process job, `"first"` saves rows of the whole
            program once, and rows of the devices of all processes. `"all"` saves all
            rows of all processes.

    Example:
        >>> import tempfile
        >>> import lox.loggers
        >>> store = tempfile.mkdtemp()
        >>> logger = lox.loggers.SaveLogger(store, config={"lr": 0.1})
        >>> def f(seed):
        ...     def step(x, i):
        ...         lox.log({"x": x}, step=i)
        ...         return x / 2, None
        ...     state = logger.init(jax.random.key(seed))
        ...     scan = logger.tap(jax.lax.scan, state, buffer=2, static_argnums=0)
        ...     return scan(step, 1.0 * seed, jnp.arange(3))[0]
        >>> _ = jax.vmap(f)(jnp.arange(2))
        >>> jax.effects_barrier()
        >>> for run in lox.runs(store):
        ...     print(run.name, run.config, run.load())
        00000000-00000000 {'lr': 0.1} {'x': [0.0, 0.0, 0.0]}
        00000000-00000001 {'lr': 0.1} {'x': [1.0, 0.5, 0.25]}
    """

    _accepts_typed_keys = True
    _joins_processes = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        exists: str = "new",
        processes: str = "first",
    ) -> None:
        super().__init__(config, processes)
        # absolute, since the process may change its working directory
        self._path = local_path(path, "SaveLogger").absolute()
        self._mode = mode_of(exists, "SaveLogger")
        # the jobs whose runs this one replaces, by run
        self._replaced: dict[str, str | None] = {}
        # the closed runs that may not be on disk yet
        self._closed: list[Writer] = []

    def _check(self, run: RunInfo) -> None:
        check_run(self._directory(run), self._mode, REMEDY, host.job())

    def _directory(self, run: RunInfo) -> pathlib.Path:
        return part_path(self._path / run.name, host.process_index())

    def open(self, run: RunInfo) -> Writer:
        path = self._directory(run)
        self._check_not_replaced(run)
        job = host.job()
        writer = open_run(
            path, self._mode, run.key, run.config, REMEDY, job, tracked=True
        )
        if self._mode == "w" and not host.process_index():
            remove_parts(path, host.process_count())
        return writer

    def _skip(self, run: RunInfo) -> None:
        self._check(run)
        path, job = self._directory(run), host.job()
        if self._mode == "w":
            self._replaced[run.name] = job_of(self._path / run.name)
            if path.exists():
                create_run(path, "w", run.key, run.config, job=job)
        # Shows that the process has not finished: it may be killed before its first
        # row. If that fails, it is reported with that row.
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)

    def _unskip(self, run: RunInfo) -> None:
        self._replaced.pop(run.name, None)
        with contextlib.suppress(OSError):  # not empty
            self._directory(run).rmdir()

    def _check_not_replaced(self, run: RunInfo) -> None:
        """Raises if another job has replaced the run since `_skip`."""
        if run.name not in self._replaced:
            return
        found = job_of(self._path / run.name)
        if found not in (None, host.job(), self._replaced.pop(run.name)):
            raise StoreError(
                f"another job has replaced the run at {self._path / run.name}. Choose "
                "another path or key."
            )

    def _set_config(self, run: Writer, info: RunInfo) -> bool:
        run.set_config(dict(info.config), before=self.config)
        return True

    def write(self, run: Writer, logs: logdict) -> None:
        run.write(logs)

    def _row_writer(self) -> RowWriter | None:
        overridden = type(self).write is not SaveLogger.write
        return None if overridden else Writer.write_row

    def close(self, run: Writer) -> None:
        try:
            run.finish(fatal_error())
        finally:
            run.close()
            self._closed.append(run)

    def _sync(self) -> None:
        closed, self._closed = self._closed, []
        flush_to_disk(path for run in closed for path in run.paths())
