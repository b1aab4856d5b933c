"""`TensorBoardLogger`: event files that TensorBoard shows."""

import contextlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from lox._errors import StoreError
from lox._logs.logdict import logdict
from lox.loggers._base import RunInfo
from lox.loggers._runs.config import flat_config
from lox.loggers._trackers.tracker import Names, StepCounts, Tracker

from .event_file import EventFile


class _TensorBoardRun:
    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.has_config = False
        self.counts = StepCounts()


class TensorBoardLogger(Tracker):
    """Writes event files for TensorBoard, a directory a run.

    Needs nothing installed but lox; `tensorboard --logdir path` shows them. As soon as
    a row was handed over it is in the file. A run that is there already gets another
    file, which TensorBoard puts after those before.

    Args:
        path: the directory that TensorBoard is given.
        config: the hyperparameters, for TensorBoard's table of them.
        step: the name of the step to draw over; by default `step`, else the first.
            TensorBoard knows one step only.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys whose arrays of height, width and perhaps channels to show as
            images: numbers from 0 to 1, or bytes.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> logger = lox.loggers.TensorBoardLogger(path, config={"lr": 0.1})
        >>> state = logger.init(jax.random.key(0))
        >>> def f(x):
        ...     lox.log({"x": x}, step=0)
        ...     return x
        >>> _ = logger.tap(f, state)(1.0)
        >>> logger.finish(state)
    """

    background = False  # a file is quick enough

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
    ) -> None:
        super().__init__(config, step, histograms, images)
        self._given = pathlib.Path(path)
        # where it is now, wherever the process may go
        self._path = self._given.absolute()

    def open(self, run: RunInfo) -> _TensorBoardRun:
        try:
            opened = _TensorBoardRun(EventFile(self._path / run.name))
        except OSError as error:
            given = self._given / run.name
            raise StoreError(f"cannot create a run at {given}: {error}.") from error
        if run.config:
            opened.has_config = True
            opened.file.hparams(flat_config(run.config), run.name)
        return opened

    def write(self, run: _TensorBoardRun, logs: logdict) -> None:
        for table in self.tables(logs):
            steps = run.counts.steps(self, table)
            if table.scalars:
                run.file.scalars(table.scalars, steps)
            if table.histograms:
                run.file.histograms(table.histograms, steps)
            if table.images:
                run.file.images(table.images, steps)

    def close(self, run: _TensorBoardRun) -> None:
        try:
            # of rows that a run has lost since it was removed, `write` has told
            with contextlib.suppress(FileNotFoundError):
                if run.has_config:
                    run.file.hparams_end()
        finally:
            run.file.close()
