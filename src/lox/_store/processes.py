"""Runs of several processes: each process but the first writes a separate part.

A part is a directory inside the run, with the files of a run. No process ever writes to
the directory of another, so they need not coordinate.
"""

import pathlib
import re

from lox._errors import StoreError

from .format import RUN_FILE, numbered, read_json, reading
from .locations import Location

PART = re.compile(r"process-([1-9]\d{0,8})")


def part_path(run: pathlib.Path, process: int) -> pathlib.Path:
    """The directory that a process writes to: the first one, to the run itself."""
    return run / f"process-{process}" if process else run


def parts_of(run: Location) -> dict[int, Location]:
    """The parts of all processes but the first, by the index of the process."""
    with reading(run):
        found = {number: run / name for number, name in numbered(run.names(), PART)}
    for path in found.values():
        if path.is_link():  # a link could lead anywhere
            raise StoreError(f"{path} is a symbolic link, so it is not read.")
    return found


def is_part(name: str) -> re.Match[str] | None:
    return PART.fullmatch(name)


def run_of_part(path: pathlib.Path) -> pathlib.Path:
    """The directory of the run that a part, or the run itself, belongs to."""
    return path.parent if is_part(path.name) else path


def first_writer(directory: Location) -> int:
    """The first writer of a process that is part of the run; others were replaced."""
    try:
        first = read_json(directory / RUN_FILE).get("first_writer", 0)
    except FileNotFoundError:  # a killed process may have left it without rows
        return 0
    return first if type(first) is int else 0


def job_of(path: pathlib.Path | Location) -> str | None:
    """The job that has created a run or a part; empty if it is unknown.

    None if there is no run or part yet.
    """
    try:
        found = read_json(path / RUN_FILE).get("job", "")
    except (OSError, StoreError):
        return None
    return found if isinstance(found, str) else ""
