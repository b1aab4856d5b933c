"""`TensorBoardLogger`: event files for TensorBoard."""

import contextlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from lox._errors import StoreError
from lox._event_files.event_file import EventFile
from lox._logs.logdict import logdict
from lox._store.configs import text_config
from lox._trackers.runs import IntegerSteps
from lox.loggers._base import RunInfo
from lox.loggers._trackers.tracker import Names, Tracker


class _TensorBoardRun:
    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.has_config = False
        self.integer_steps = IntegerSteps()


class TensorBoardLogger(Tracker):
    """Writes event files for TensorBoard, one directory per run.

    Needs no package besides lox; `tensorboard --logdir path` shows the runs. Rows are
    written to the file immediately. If the run already exists, a file is added to it,
    which TensorBoard reads after the previous ones.

    Args:
        path: the log directory of TensorBoard.
        config: the hyperparameters, shown in TensorBoard's HParams table.
        step: the name of the step to use as the x-axis; by default `step`, else the
            first. TensorBoard supports one step only.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys, by name or pattern, whose arrays to show as images. The shape
            is (height, width) or (height, width, channels); the values are floats
            between 0 and 1, or bytes.
        processes: which processes of a job log: `"first"`, or `"all"`, each to a run of
            its own.

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

    background = False  # writing to a file is fast enough

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
        processes: str = "first",
    ) -> None:
        super().__init__(config, step, histograms, images, processes=processes)
        self._given_path = pathlib.Path(path)
        # absolute, since the process may change its working directory
        self._path = self._given_path.absolute()

    def open(self, run: RunInfo) -> _TensorBoardRun:
        try:
            opened = _TensorBoardRun(EventFile(self._path / run.name))
        except OSError as error:
            given = self._given_path / run.name
            raise StoreError(f"cannot create a run at {given}: {error}.") from error
        if run.config:
            opened.has_config = True
            opened.file.hparams(text_config(run.config), run.name)
        return opened

    def write(self, run: _TensorBoardRun, logs: logdict) -> None:
        for table in self.tables(logs):
            steps = run.integer_steps.of(self, table)
            if table.scalars:
                run.file.scalars(table.scalars, steps)
            if table.histograms:
                run.file.histograms(table.histograms, steps)
            if table.binned:
                run.file.binned_histograms(table.binned, steps)
            if table.images:
                run.file.images(table.images, steps)

    def close(self, run: _TensorBoardRun) -> None:
        try:
            # if the file was removed, `write` has reported it
            with contextlib.suppress(FileNotFoundError):
                if run.has_config:
                    run.file.hparams_end()
        finally:
            run.file.close()
