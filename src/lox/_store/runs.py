"""`lox.runs` and `lox.load`, which need NumPy but not JAX."""

import os
import pathlib
import warnings
from collections.abc import Iterable
from typing import Any

from lox._errors import LoxWarning, StoreError
from lox._logs.logdict import logdict
from lox._source import user_line

from .format import RUN_FILE, TEMPORARY, WRITER
from .keys import key_data, run_name
from .processes import is_part
from .reader import Run
from .run_set import Runs

Path = str | os.PathLike[str]


def runs(path: Path) -> Runs:
    """Lists the runs of a store, oldest first.

    Returns:
        A sequence of runs, which can be selected, grouped, loaded together and plotted.

    Example:
        >>> import tempfile
        >>> store = tempfile.mkdtemp()
        >>> for seed in range(2):
        ...     lox.save({"loss": seed / 2}, store, key=seed)
        >>> [run.name for run in lox.runs(store)]
        ['00000000-00000000', '00000000-00000001']
        >>> lox.runs(store)[1].load()
        {'loss': 0.5}
    """
    store = pathlib.Path(path)
    if not os.path.isdir(store):
        raise StoreError(f"there is no store at {store}.")
    found = []
    for directory in store.iterdir():
        if _is_run(directory) and not directory.name.endswith(TEMPORARY):
            try:
                found.append(Run(directory))
            except StoreError as error:
                if not _is_run(directory):  # it was removed meanwhile
                    continue
                warnings.warn_explicit(
                    f"a run is left out: {error}", LoxWarning, *user_line()
                )
    return Runs(sorted(found, key=lambda run: (run.started, run.name)))


def _is_run(path: pathlib.Path) -> bool:
    """Whether a directory may contain rows, even if its `run.json` is missing."""
    if os.path.lexists(path / RUN_FILE):
        return True
    try:
        names = os.listdir(path)
        return any(WRITER.fullmatch(name) or is_part(name) for name in names)
    except OSError:
        return False


def load(
    path: Path, argnames: str | Iterable[str] | None = None, key: Any = None
) -> logdict:
    """Loads one run as a `lox.logdict` of NumPy arrays.

    Args:
        path: a run, a store with a single run, or a store together with a `key`.
        argnames: the keys to read, by name or pattern; all by default. Other keys are
            not read from disk.
        key: the key that the run was created with, to select a run of a store.
    """
    where = pathlib.Path(path)
    if key is not None:
        name = run_name(key_data(key))
        if not _is_run(where / name):
            raise StoreError(
                f"the store at {where} has no run with the key {name}. `lox.runs` "
                "lists its runs."
            )
        return Run(where / name).load(argnames)
    if _is_run(where):
        return Run(where).load(argnames)
    found = runs(where)
    if len(found) != 1:
        names = ", ".join(run.name for run in found) or "none"
        raise StoreError(
            f"{where} is not a run, but a store of {len(found)} runs ({names}). Pass "
            "the path of a run, or its `key`; `lox.runs` lists them."
        )
    return found[0].load(argnames)
