"""Moves runs to another store, which is created if necessary, after confirmation."""

import argparse
import contextlib
import errno
import glob
import os
import shutil
from typing import Any

from lox._errors import StoreError

from ._files import ask, remove_directory, temporary_path
from ._find import add_runs, directory_name, find_runs, is_run
from ._terminal import print_path
from .rm import check_movable, described

HELP = "move runs to another store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, "+")
    parser.add_argument("store", metavar="STORE", help="the directory to move them to")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--force", action="store_true", help="also move runs that are running"
    )


def run(arguments: Any) -> int:
    store = arguments.store
    if glob.has_magic(store) and not os.path.lexists(store):
        raise StoreError(
            f"{store} is a pattern, but the last argument is the store to move to: "
            f"lox mv {' '.join(arguments.runs)} '{store}' STORE."
        )
    found = find_runs(arguments.runs, whole_stores=False)
    check_movable(found, arguments.force, "move")
    if is_run(store) or (os.path.lexists(store) and not os.path.isdir(store)):
        raise StoreError(f"{store} is not a store, but a run or a file.")
    targets = {str(one.path): os.path.join(store, directory_name(one)) for one in found}
    for source, target in targets.items():
        if os.path.lexists(target):
            raise StoreError(f"{target} exists, so {source} cannot be moved.")
    if len({*targets.values()}) < len(targets):
        raise StoreError("two of these runs have the same name; move one of them.")
    ask(f"Move {described(found)} to {store}?", arguments.yes)
    os.makedirs(store, exist_ok=True)
    for source, target in targets.items():
        _move(source, target)
        print_path(target)
    return 0


def _move(source: str, target: str) -> None:
    try:
        os.rename(source, target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    # to another file system: complete before it has its name
    copy = temporary_path(target)
    try:
        shutil.copytree(source, copy, symlinks=True)
        os.rename(copy, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(copy)
        raise
    remove_directory(source)
