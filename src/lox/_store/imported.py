"""Runs that were recorded by other programs."""

import contextlib
import os
import pathlib
import secrets
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lox._errors import StoreError
from lox._logs.logdict import logdict

from .creating import create_run
from .format import RUN_FILE, TEMPORARY, read_json, write_json
from .writer import Writer


class Curve(NamedTuple):
    """The rows of one key.

    Attributes:
        steps: the step of each row.
        values: the value of each row.
        step_name: the name of the step.
    """

    steps: list[int | float]
    values: list[int | float]
    step_name: str = "step"


class ImportedRun(NamedTuple):
    """A run to write to a store.

    Attributes:
        name: its name.
        config: its config.
        started: when it was started, in seconds since 1970.
        ended: when it has ended.
        status: how it has ended.
        curves: the rows of each key.
    """

    name: str
    config: Mapping[str, Any]
    started: float
    ended: float
    status: str
    curves: Mapping[str, Curve]


def write_imported(run: ImportedRun, store: pathlib.Path, replace: bool) -> None:
    """Writes a run to a store; readers see all of it, or nothing.

    Args:
        run: the run.
        store: the directory of the store.
        replace: whether to replace a run of the same name; otherwise it raises.
    """
    target = store / run.name
    if os.path.lexists(target) and not replace:
        raise StoreError(f"a run already exists at {target}; `--force` replaces it.")
    if os.path.lexists(target) and not os.path.lexists(target / RUN_FILE):
        raise StoreError(f"{target} exists, but is not a run.")
    new = store / f".{run.name}.{secrets.token_hex(4)}{TEMPORARY}"
    try:
        _write(run, new)
        old = None
        if os.path.lexists(target):
            old = store / f".{run.name}.{secrets.token_hex(4)}{TEMPORARY}"
            os.rename(target, old)
        os.rename(new, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(new)
        raise
    if old is not None:
        old.unlink() if old.is_symlink() else shutil.rmtree(old)


def _write(run: ImportedRun, path: pathlib.Path) -> None:
    create_run(path, "x", config=run.config)
    description = read_json(path / RUN_FILE)
    known = {"name": run.name, "started": run.started}
    write_json(path / RUN_FILE, {**description, **known})
    writer = Writer(path, timed=False)  # the times of its rows are not known
    if run.curves:
        values = {name: _array(curve.values) for name, curve in run.curves.items()}
        steps: dict[str, dict[str, Any]] = {}
        for name, curve in run.curves.items():
            steps.setdefault(curve.step_name, {})[name] = _array(curve.steps)
        writer.write(logdict(values, steps, stacked=True))
    writer.finish()
    writer.close()
    if run.curves:
        listed = writer.directory.with_suffix(".json")
        ending = {"ended": run.ended, "status": run.status}
        write_json(listed, {**read_json(listed), **ending})


def _array(values: list[int | float]) -> Any:
    array = np.array(values)
    # integers beyond 64 bits
    return array if array.dtype.kind in "biuf" else array.astype(np.float64)
