"""Locations of the files of a store: on this machine, or at a URL.

Everything that reads a run, and everything that copies one, uses a `Location`, so that
it works in both cases. Writers of runs use local paths.
"""

import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from lox._errors import LoxTypeError, StoreError, describe

Path = str | os.PathLike[str]
T = TypeVar("T")
S = TypeVar("S")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(?:|::.*)://", re.DOTALL)


class Entry(NamedTuple):
    """An entry of a directory.

    Attributes:
        kind: `"file"`, `"directory"`, `"link"` or `"other"`.
        size: the size of a file in bytes.
    """

    kind: str
    size: int


class Ends(NamedTuple):
    """The beginning and the end of a file of records, read at one moment.

    Attributes:
        head: its first bytes.
        size: its size in bytes.
        last: its last complete record; empty if there is none, or it was not read.
        modified: when it was last written, in seconds since 1970; 0 if not known.
    """

    head: bytes
    size: int
    last: bytes
    modified: float


class Location(Protocol):
    """A file or directory of a store.

    `FileNotFoundError` and `NotADirectoryError` mean the same everywhere. Any other
    failure is an `OSError` or a `StoreError`. Symbolic links are never followed, except
    by `names`, `entries` and `is_directory`.
    """

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Any:
        """What `lox.load` accepts: a `pathlib.Path`, or a URL as a string."""

    @property
    def is_remote(self) -> bool: ...

    def __str__(self) -> str:
        """The path or URL, for messages."""

    def __truediv__(self, name: str) -> "Location": ...

    def with_suffix(self, suffix: str) -> "Location": ...

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """Calls a function per item, in parallel if each call waits for a server."""

    # --- reading

    def names(self) -> list[str]:
        """The names in a directory."""

    def entries(self) -> dict[str, Entry]:
        """The entries of a directory, by name."""

    def exists(self) -> bool:
        """Whether there is a file, a directory or a link."""

    def is_directory(self) -> bool: ...

    def is_link(self) -> bool: ...

    def size(self) -> int:
        """The size of a regular file. Raises `StoreError` for anything else."""

    def read(self, start: int, count: int) -> bytes:
        """At most `count` bytes of a regular file; fewer at its end."""

    def read_and_size(self, count: int) -> tuple[bytes, int]:
        """The first bytes of a regular file, and then its size, as it may grow."""

    def ends(self, start: int, record: int) -> Ends:
        """The first bytes of a regular file, and the last of the records after them.

        Args:
            start: the number of bytes before the first record.
            record: the size of a record; 0 if the last one is not needed.
        """

    def modified(self) -> float:
        """When it was last changed, in seconds since 1970; 0 if that is not known."""

    def records(self, dtype: np.dtype[Any], start: int, count: int) -> Any:
        """Records of a regular file, memory-mapped if they are many."""

    def bytes_on_disk(self) -> int | None:
        """The space that a file takes up, without holes; None if it is not known."""

    # --- writing

    @property
    def can_patch(self) -> bool:
        """Whether a part of a file can be written; if not, `write` starts at 0."""

    def make_directory(self) -> None:
        """Creates a directory and its parents, unless it exists."""

    def replace(self, data: bytes) -> None:
        """Writes a small file, or replaces it: readers see the old or the new one."""

    def write(self, chunks: Iterable[bytes], start: int) -> None:
        """Writes to a file, which is created if needed, from the byte `start` on.

        If files cannot be patched, the chunks become the whole content, at once.
        """

    def truncate(self, size: int) -> None: ...

    def remove(self) -> None:
        """Removes a file or a link, if it exists."""

    def remove_directory(self) -> None:
        """Removes a directory, if it exists and is empty."""


def location_of(path: Path | Location) -> Location:
    """The location of a path or URL."""
    if isinstance(path, str) and is_url(path):
        from .remote_files import open_url

        return open_url(path)
    if isinstance(path, str | os.PathLike):
        from .local_files import LocalLocation

        return LocalLocation(path)
    if not hasattr(path, "is_remote"):
        raise LoxTypeError(
            f"a store or a run is a path or a URL, not {describe(path)}."
        )
    return path


def is_url(path: Path) -> bool:
    return isinstance(path, str) and _URL.match(path) is not None


def local_path(path: Path, caller: str) -> pathlib.Path:
    """The path of a directory to write to; raises for URLs."""
    if is_url(path):
        raise StoreError(
            f"`{caller}` writes to local directories, but {path!r} is a URL. Write to "
            "a local directory, and copy it with `lox sync`, also while it grows."
        )
    return pathlib.Path(path)
