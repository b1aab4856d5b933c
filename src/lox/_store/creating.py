"""Making a run's directory, or finding it, or replacing what is there."""

import contextlib
import os
import pathlib
import platform
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox._arrays import imported_jax
from lox._errors import StoreError
from lox._version import __version__

from .format import FINISHED, RUN_FILE, TEMPORARY, VERSION, WRITER, shown, write_json
from .reader import Run
from .writer import Writer

_REMEDY = '`mode="a"` appends, `mode="w"` replaces it'


def check_run(path: pathlib.Path, mode: str, remedy: str = _REMEDY) -> list[str]:
    """Raises if a run is refused; gives the names of what is in its directory."""
    try:
        if mode == "w" and path.is_symlink():
            raise StoreError(
                f"{shown(path)} is a symbolic link: to replace the run would remove "
                f"the rows in {os.readlink(path)}. Give the path of the run itself, or "
                "remove the link."
            )
        names = _names_in(path)
    except OSError as error:
        raise _cannot_make(path, error) from error
    if RUN_FILE not in names and not all(map(_is_of_a_run, names)):
        raise StoreError(f"{shown(path)} is there already, and is no run of lox's.")
    if mode == "x" and _is_there(names):
        raise StoreError(
            f"there is a run at {shown(path)} already. Choose another place or key, "
            f"or say what to do with it: {remedy}."
        )
    if mode == "a" and RUN_FILE in names:
        Run(path)  # nothing is added to what could not be read afterwards
    return names


def create_run(
    path: pathlib.Path,
    mode: str,
    key: Any = None,
    config: Mapping[str, Any] | None = None,
    remedy: str = _REMEDY,
) -> pathlib.Path:
    """Makes a run's directory, or finds it, as the mode says."""
    if mode == "w":
        _overwrite(path, key, config).close()
        return path
    names = check_run(path, mode, remedy)
    if mode == "a" and RUN_FILE in names:
        return path
    try:
        path.mkdir(parents=True, exist_ok=True)
        # never in place of another's, who may have begun to write
        with contextlib.suppress(FileExistsError):
            write_json(path / RUN_FILE, _about(path, key, config), new=True)
            return path
    except OSError as error:
        raise _cannot_make(path, error) from error
    check_run(path, mode, remedy)  # another process was quicker
    return path


def open_run(
    path: pathlib.Path,
    mode: str,
    key: Any = None,
    config: Mapping[str, Any] | None = None,
    remedy: str = _REMEDY,
) -> Writer:
    """Makes a run, or finds it, and begins to write to it."""
    if mode == "w":
        return _overwrite(path, key, config)
    return Writer(create_run(path, mode, key, config, remedy))


def _overwrite(
    path: pathlib.Path, key: Any, config: Mapping[str, Any] | None
) -> Writer:
    """Makes a run in place of whatever there is.

    Of several that do so at once, the one whose writer has the highest number keeps
    the run; the others find their directories removed.
    """
    while True:
        replaces = _is_there(check_run(path, "w"))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_make(path, error) from error
        writer = Writer(path, replaces)
        try:
            writer.begin_run(_about(path, key, config))
            _remove_rows(path, before=writer.number)
            return writer
        except BaseException as error:
            writer.close()
            if isinstance(error, FileExistsError):  # another process was quicker
                continue
            if isinstance(error, OSError):
                raise _cannot_make(path, error) from error
            raise


def _cannot_make(path: pathlib.Path, error: OSError) -> StoreError:
    return StoreError(f"cannot make a run at {shown(path)}: {error}.")


def _is_there(names: list[str]) -> bool:
    """Whether there is a run; what was killed may have left rows, or nothing."""
    return any(name == RUN_FILE or WRITER.fullmatch(name) for name in names)


def _names_in(path: pathlib.Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        if path.exists():
            raise StoreError(
                f"{shown(path)} is there already, and is no run of lox's."
            ) from None
        raise


def _is_of_a_run(name: str) -> bool:
    temporary = name.startswith(RUN_FILE) and name.endswith(TEMPORARY)
    return temporary or any(kind.fullmatch(name) for kind in (WRITER, FINISHED))


def _remove_rows(path: pathlib.Path, before: int) -> None:
    """Removes what writers of lower numbers have written, and nothing else.

    What is killed meanwhile leaves files that are no part of the run.
    """
    for name in os.listdir(path):
        match = WRITER.fullmatch(name) or FINISHED.fullmatch(name)
        if match is None or int(match[1]) >= before:
            continue
        found = path / name
        if found.is_symlink() or not found.is_dir():
            found.unlink(missing_ok=True)  # and not what is at the end of a link
            continue
        # others may be removing it, too
        with contextlib.suppress(FileNotFoundError):
            for file in found.iterdir():
                if _IN_A_WRITER.fullmatch(file.name):
                    file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            found.rmdir()


_IN_A_WRITER = re.compile(r"\d{4,}\.(npy|places|json(\..*~)?)")


def _about(path: pathlib.Path, key: Any, config: Mapping[str, Any] | None) -> Any:
    jax = imported_jax()
    return {
        "version": VERSION,
        "name": path.name,
        "key": None if key is None else np.asarray(key).tolist(),
        "config": dict(config or {}),
        "started": time.time(),
        "versions": {
            "lox": __version__,
            **({} if jax is None else {"jax": jax.__version__}),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
