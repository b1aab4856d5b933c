"""Creating, finding or replacing the directory of a run."""

import contextlib
import os
import pathlib
import platform
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox._arrays import imported_jax
from lox._errors import StoreError
from lox._version import __version__

from .format import (
    RUN_FILE,
    SEGMENT_FILE,
    TEMPORARY,
    VERSION,
    WRITER,
    WRITER_FILE,
    display_path,
    is_empty,
    write_json,
)
from .local_files import LocalLocation
from .processes import PART, job_of, part_path, parts_of, run_of_part
from .reader import Run
from .writer import Writer

_REMEDY = '`mode="a"` appends, `mode="w"` replaces it'


def check_run(
    path: pathlib.Path, mode: str, remedy: str = _REMEDY, job: str | None = None
) -> list[str]:
    """Raises if a run cannot be opened; returns the names of the files in it.

    Args:
        path: the directory of the run, or of the part of a process.
        mode: the mode of `lox.save`.
        remedy: what to do if it exists, for messages.
        job: the identifier of the job of this process, if there is one.
    """
    try:
        if mode == "w" and path.is_symlink():
            raise StoreError(
                f"{display_path(path)} is a symbolic link: replacing the run would "
                f"remove the rows in {os.readlink(path)}. Pass the path of the run "
                "itself, or remove the link."
            )
        names = _names_in(path)
    except OSError as error:
        raise _cannot_create(path, error) from error
    if RUN_FILE not in names and not all(map(_is_run_file, names)):
        raise _not_a_run(path)
    if mode == "x" and _has_run(names):
        raise _already_exists(path, remedy)
    if mode == "x":
        _check_job(path, remedy, job)
    if mode == "a" and RUN_FILE in names and is_empty(path / RUN_FILE):
        names.remove(RUN_FILE)  # it was lost when the machine crashed: create another
    if mode == "a" and RUN_FILE in names:
        Run(path)  # raises if rows that are appended could not be read
    return names


def _check_job(path: pathlib.Path, remedy: str, job: str | None) -> None:
    """Raises if another job is writing a new run."""
    if job is None:
        return
    run = run_of_part(path)
    if run != path:
        found = [job_of(run)]
    else:
        parts = parts_of(LocalLocation(run)) if run.exists() else {}
        found = [job_of(part) or None for part in parts.values()]  # `lox.save` has none
    if any(other not in (None, job) for other in found):
        raise _already_exists(run, remedy)


def create_run(
    path: pathlib.Path,
    mode: str,
    key: Any = None,
    config: Mapping[str, Any] | None = None,
    remedy: str = _REMEDY,
    job: str | None = None,
) -> pathlib.Path:
    """Creates, finds or replaces the directory of a run, depending on the mode."""
    if mode == "w":
        _overwrite(path, key, config, job).close()
        return path
    names = check_run(path, mode, remedy, job)
    if mode == "a" and RUN_FILE in names:
        return path
    try:
        path.mkdir(parents=True, exist_ok=True)
        description = _description(path, key, config, job)
        # never replaces the file of another process, which may be writing already
        with contextlib.suppress(FileExistsError):
            write_json(path / RUN_FILE, description, new=True)
            if mode == "x":
                _check_still_alone(path, remedy, job)
            return path
    except OSError as error:
        raise _cannot_create(path, error) from error
    check_run(path, mode, remedy, job)  # another process was faster
    return path


def _check_still_alone(path: pathlib.Path, remedy: str, job: str | None) -> None:
    """Checks a new run again: if two jobs begin together, one sees the other."""
    try:
        _check_job(path, remedy, job)
    except StoreError:
        (path / RUN_FILE).unlink(missing_ok=True)
        raise


def open_run(
    path: pathlib.Path,
    mode: str,
    key: Any = None,
    config: Mapping[str, Any] | None = None,
    remedy: str = _REMEDY,
    job: str | None = None,
    tracked: bool = False,
) -> Writer:
    """Creates, finds or replaces a run, depending on the mode, and opens a writer.

    If it is `tracked`, others can tell whether its process is still running.
    """
    if mode == "w":
        return _overwrite(path, key, config, job, tracked)
    return Writer(create_run(path, mode, key, config, remedy, job), tracked=tracked)


def _overwrite(
    path: pathlib.Path,
    key: Any,
    config: Mapping[str, Any] | None,
    job: str | None,
    tracked: bool = False,
) -> Writer:
    """Creates a run, and replaces the one that is there, if any.

    If several processes do so at the same time, the writer with the highest number
    keeps the run; the others find their directories removed.
    """
    while True:
        replaces = _has_run(check_run(path, "w"))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_create(path, error) from error
        writer = Writer(path, replaces, tracked)
        try:
            writer.begin_run(_description(path, key, config, job))
            _remove_rows(path, before=writer.number)
            return writer
        except BaseException as error:
            writer.close()
            if isinstance(error, FileExistsError):  # another process was faster
                continue
            if isinstance(error, OSError):
                raise _cannot_create(path, error) from error
            raise


def _cannot_create(path: pathlib.Path, error: OSError) -> StoreError:
    return StoreError(f"cannot create a run at {display_path(path)}: {error}.")


def _already_exists(path: pathlib.Path, remedy: str) -> StoreError:
    return StoreError(
        f"a run already exists at {display_path(path)}. Choose another path or key, or "
        f"say what to do with it: {remedy}."
    )


def _not_a_run(path: pathlib.Path) -> StoreError:
    return StoreError(
        f"{display_path(path)} already exists and is not a run of lox. Choose another "
        "path."
    )


def _has_run(names: list[str]) -> bool:
    """Whether there is a run; a killed process may have left only a writer."""
    return any(name == RUN_FILE or WRITER.fullmatch(name) for name in names)


def _names_in(path: pathlib.Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        if path.exists():
            raise _not_a_run(path) from None
        raise


def _is_run_file(name: str) -> bool:
    temporary = name.startswith(RUN_FILE) and name.endswith(TEMPORARY)
    return bool(temporary or WRITER_FILE.fullmatch(name) or PART.fullmatch(name))


def _remove_rows(path: pathlib.Path, before: int) -> None:
    """Removes the files of writers with lower numbers, and nothing else.

    If the process is killed before the end, files remain that are not part of the run.
    """
    for name in os.listdir(path):
        match = WRITER_FILE.fullmatch(name)
        if match is None or int(match[1]) >= before:
            continue
        found = path / name
        if found.is_symlink() or not found.is_dir():
            found.unlink(missing_ok=True)  # the link itself, not its target
            continue
        # another process may be removing it, too
        with contextlib.suppress(FileNotFoundError):
            for file in found.iterdir():
                if SEGMENT_FILE.fullmatch(file.name):
                    file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            found.rmdir()


def remove_parts(path: pathlib.Path, first: int) -> None:
    """Removes the parts of the process `first` and later ones, of a replaced run."""
    for process in parts_of(LocalLocation(path)):
        if process >= first:
            part = part_path(path, process)
            _remove_rows(part, before=2**63)
            with contextlib.suppress(OSError):
                (part / RUN_FILE).unlink(missing_ok=True)
                part.rmdir()


def _description(
    path: pathlib.Path, key: Any, config: Mapping[str, Any] | None, job: str | None
) -> Any:
    """The content of `run.json`."""
    jax = imported_jax()
    return {
        "version": VERSION,
        "name": run_of_part(path).name,
        "key": None if key is None else np.asarray(key).tolist(),
        "config": dict(config or {}),
        "started": time.time(),
        **({} if job is None else {"job": job}),
        "versions": {
            "lox": __version__,
            **({} if jax is None else {"jax": jax.__version__}),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
