"""Files and directories that commands write and remove, after confirmation."""

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator

from lox._errors import LoxError, LoxValueError
from lox._terminal import is_terminal
from lox._text_curves import printable

_TEMPORARY = "~"


class RefusedError(LoxError):
    """The user has answered no, or there is no terminal to ask."""


def check_new(path: str, force: bool) -> None:
    """Raises if a file cannot be written, or exists and may not be replaced."""
    if os.path.isdir(path) and not os.path.islink(path):
        raise LoxValueError(f"{path} is a directory; choose another path.")
    if os.path.lexists(path) and not force:
        raise LoxValueError(f"{path} exists; `--force` replaces it.")
    parent = os.path.dirname(path) or os.curdir
    if not os.path.isdir(parent):
        raise LoxValueError(
            f"{path} cannot be written: there is no directory {parent}."
        )


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a new path, whose file is moved to `path` if nothing fails."""
    temporary = temporary_path(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def temporary_path(path: str) -> str:
    """A path next to another one, which is not a run for readers of a store."""
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(parent, f".{name}.{secrets.token_hex(4)}{_TEMPORARY}")


def ask(question: str, yes: bool) -> None:
    """Asks the user for confirmation; raises if it is denied, or without a terminal."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise RefusedError(f"{question} There is no terminal to answer; pass `--yes`.")
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:  # Ctrl-D, which does not end the line
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise RefusedError("nothing was changed.")


def size_of(directory: str) -> tuple[int, int]:
    """The number of files in a directory, and their size in bytes."""
    count = size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(parent, name)).st_size
                count += 1
    return count, size


def remove_directory(path: str) -> None:
    """Removes a directory and all files in it; links are removed, not their targets."""
    # renamed first: others would otherwise see a damaged run
    moved = temporary_path(path)
    os.rename(path, moved)
    shutil.rmtree(moved)
