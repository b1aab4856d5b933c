"""`lox.runs` and `lox.load`, which need NumPy but not JAX."""

from collections.abc import Iterable
from typing import Any

from lox._errors import StoreError
from lox._logs.logdict import logdict
from lox._source import warn

from .format import RUN_FILE, TEMPORARY, WRITER
from .keys import key_data, run_name
from .locations import Location, Path, location_of
from .processes import is_part
from .reader import Run
from .run_set import Runs


def runs(path: Path) -> Runs:
    """Lists the runs of a store, oldest first.

    Args:
        path: the directory of the store, or of a single run, or a URL that `fsspec`
            opens.

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
    store = location_of(path)
    found = _intact(store.map(_open_run, run_directories(store)))
    found = found or _intact([_open_run(store)])
    return Runs(sorted(found, key=lambda run: (run.started, run.name)))


def _intact(opened: Iterable[Run | StoreError | None]) -> list[Run]:
    """The runs among the results of `_open_run`; warns about damaged ones."""
    found = []
    for run in opened:
        if isinstance(run, Run):
            found.append(run)
        elif run is not None:
            warn(f"a run is left out: {run}")
    return found


def run_directories(store: Location) -> list[Location]:
    """The directories of a store that may be runs."""
    if not store.is_directory():
        raise StoreError(
            f"there is no store at {store}. A store is a directory that a `SaveLogger` "
            "or `lox.save` has written."
        )
    try:
        names = store.names()
    except OSError as error:
        raise StoreError(f"the store at {store} cannot be read: {error}.") from error
    return [store / name for name in names if not name.endswith(TEMPORARY)]


def _open_run(path: Location) -> Run | StoreError | None:
    """Opens a run; returns an error if it is damaged, and None if it is not a run."""
    try:
        return Run(path)  # first: most are runs, and need not be listed
    except StoreError:
        if not is_run(path):
            return None
    try:
        return Run(path)  # again: it may have been created since
    except StoreError as error:
        return error


def is_run(path: Location) -> bool:
    """Whether a directory may contain rows, even if its `run.json` is missing."""
    try:
        names = path.names()
    except OSError:
        return False
    if RUN_FILE in names:
        return True
    # the directory of a process that has written nothing yet is empty
    return any(
        (is_part(name) or WRITER.fullmatch(name)) and not _is_empty(path / name)
        for name in names
    )


def _is_empty(directory: Location) -> bool:
    try:
        return not directory.names()
    except FileNotFoundError:  # removed
        return True
    except OSError:
        return False


def load(
    path: Path,
    argnames: str | Iterable[str] | None = None,
    key: Any = None,
    process: int | None = None,
) -> logdict:
    """Loads one run as a `lox.logdict` of NumPy arrays.

    Args:
        path: a run, a store with a single run, or a store together with a `key`; a
            directory, or a URL that `fsspec` opens.
        argnames: the keys to read, by name or pattern; all by default. Other keys are
            not read from disk.
        key: the key that the run was created with, to select a run of a store.
        process: load only the rows of this process of a job; those of all by default.
    """
    where = location_of(path)
    if key is not None:
        name = run_name(key_data(key))
        if not is_run(where / name):
            raise StoreError(
                f"the store at {where} has no run with the key {key!r}, whose name "
                f"would be {name}. `lox.runs` lists its runs."
            )
        return Run(where / name).load(argnames, process)
    if is_run(where):
        return Run(where).load(argnames, process)
    found = runs(path)
    if len(found) != 1:
        names = ", ".join(run.name for run in found) or "none"
        raise StoreError(
            f"{where} is not a run, but a store of {len(found)} runs ({names}). Pass "
            "the path of a run, or its `key`; `lox.runs` lists them."
        )
    return found[0].load(argnames, process)
