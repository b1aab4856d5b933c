"""Removes runs, with all files in their directories, after confirmation."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from lox._errors import StoreError
from lox._store.locations import is_url
from lox._store.reader import Run

from ._files import ask, remove_directory, size_of
from ._find import add_runs, find_runs
from ._output import readable_size
from ._terminal import print_path

HELP = "remove runs"

_MAX_NAMES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, "+")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--force", action="store_true", help="also remove runs that are running"
    )


def run(arguments: Any) -> int:
    found = find_runs(arguments.runs, whole_stores=False)
    check_movable(found, arguments.force, "remove")
    sizes = [size_of(str(one.path)) for one in found]
    files, size = (sum(each) for each in zip(*sizes, strict=True))
    ask(
        f"Remove {described(found)}, {files} files of {readable_size(size)}?",
        arguments.yes,
    )
    for one in found:
        remove_directory(str(one.path))
        print_path(one.path)
    return 0


def described(runs: Sequence[Run]) -> str:
    """The names of runs, for a question."""
    names = ", ".join(str(one.path) for one in runs[:_MAX_NAMES])
    if len(runs) > _MAX_NAMES:
        names += f" and {len(runs) - _MAX_NAMES} more"
    return f"{names} ({len(runs)} runs)" if len(runs) > 1 else names


def check_movable(runs: Sequence[Run], force: bool, verb: str) -> None:
    """Raises if a run is a link, or is running, or is not on this machine."""
    for one in runs:
        if is_url(str(one.path)):
            raise StoreError(f"{one.path} is not in a directory of this machine.")
        if os.path.islink(str(one.path)):
            raise StoreError(
                f"{one.path} is a symbolic link: name the run itself, or {verb} the "
                "link with other tools."
            )
    running = [one.name for one in runs if not force and one.status == "running"]
    if running:
        names = ", ".join(running[:_MAX_NAMES])
        if len(running) > _MAX_NAMES:
            names += f" and {len(running) - _MAX_NAMES} more"
        are, them = ("is", "it") if len(running) == 1 else ("are", "them")
        raise StoreError(f"{names} {are} running; `--force` to {verb} {them} anyway.")
