"""Files of stores on this machine."""

import contextlib
import importlib
import io
import os
import pathlib
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from lox._errors import StoreError

from .locations import Ends, Entry

TEMPORARY = "~"  # the suffix of files that are not complete yet
_MAX_READ_BYTES = 2**16  # larger arrays of records are memory-mapped
# Windows has no `fcntl` locks
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
T = TypeVar("T")
S = TypeVar("S")


class LocalLocation:
    """A local file or directory; see `Location`."""

    is_remote = False
    can_patch = True
    __slots__ = ("_name",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = str(pathlib.Path(path))

    @property
    def path(self) -> pathlib.Path:
        return pathlib.Path(self._name)

    @property
    def name(self) -> str:
        return os.path.basename(self._name)

    def __str__(self) -> str:
        return self._name

    def __truediv__(self, name: str) -> "LocalLocation":
        # on strings, since there are many locations: `pathlib` takes ten times as long
        return _location(
            name if self._name == os.curdir else os.path.join(self._name, name)
        )

    def with_suffix(self, suffix: str) -> "LocalLocation":
        return _location(os.path.splitext(self._name)[0] + suffix)

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        return [function(item) for item in items]

    # --- reading

    def names(self) -> list[str]:
        return os.listdir(self._name)

    def entries(self) -> dict[str, Entry]:
        found = {}
        with os.scandir(self._name) as listed:
            for entry in listed:
                with contextlib.suppress(FileNotFoundError):  # removed
                    status = entry.stat(follow_symlinks=False)
                    found[entry.name] = Entry(_kind(status.st_mode), status.st_size)
        return found

    def exists(self) -> bool:
        return os.path.lexists(self._name)

    def is_directory(self) -> bool:
        return os.path.isdir(self._name)

    def is_link(self) -> bool:
        return os.path.islink(self._name)

    def size(self) -> int:
        """The size of a regular file: a link could lead anywhere, a pipe never ends."""
        status = os.lstat(self._name)
        if not stat.S_ISREG(status.st_mode):
            raise self._not_regular()
        return status.st_size

    def read(self, start: int, count: int) -> bytes:
        descriptor, status = self._opened_to_read()
        try:
            return _read(descriptor, start, min(count, status.st_size - start))
        finally:
            os.close(descriptor)

    def read_and_size(self, count: int) -> tuple[bytes, int]:
        ends = self.ends(count, record=0)
        return ends.head, ends.size

    def ends(self, start: int, record: int) -> Ends:
        descriptor, _ = self._opened_to_read()
        try:
            head = _read(descriptor, 0, start)
            # later: the head of a growing file may tell the size when it was closed
            status = os.fstat(descriptor)
            last = b""
            count = (status.st_size - start) // record if record else 0
            if count > 0:
                last = _read(descriptor, start + (count - 1) * record, record)
        finally:
            os.close(descriptor)
        return Ends(head, status.st_size, last, status.st_mtime)

    def _opened_to_read(self) -> tuple[int, os.stat_result]:
        """Opens a regular file; its descriptor and status.

        A store may have thousands of small files, and Python's own files take four
        times as many system calls.
        """
        if not _CAN_REFUSE_LINKS:
            self.size()  # raises if it is not a regular file
        try:
            descriptor = os.open(self._name, _READ_ONLY)
        except OSError:
            self.size()  # raises another error if it is not a regular file
            raise
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise self._not_regular()
        return descriptor, status

    def _not_regular(self) -> StoreError:
        return StoreError(f"{self} is not a regular file, so it is not read.")

    def modified(self) -> float:
        try:
            return os.lstat(self._name).st_mtime
        except OSError:
            return 0.0

    def records(self, dtype: np.dtype[Any], start: int, count: int) -> Any:
        size = count * dtype.itemsize
        if size > _MAX_READ_BYTES:
            return np.memmap(self._name, dtype, "r", start, (count,))
        with open(self._name, "rb") as file:  # faster than mapping it
            file.seek(start)
            return np.frombuffer(file.read(size), dtype, count)

    def bytes_on_disk(self) -> int | None:
        status = os.lstat(self._name)
        if not hasattr(status, "st_blocks"):  # on Windows
            return None
        return status.st_blocks * 512

    # --- writing

    def make_directory(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def replace(self, data: bytes) -> None:
        temporary = temporary_name(self._name)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, self._name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def write(self, chunks: Iterable[bytes], start: int) -> None:
        with self._opened(os.O_CREAT) as file:
            file.seek(start)
            for chunk in chunks:
                file.write(chunk)

    def truncate(self, size: int) -> None:
        with self._opened() as file:
            file.truncate(size)

    def _opened(self, flags: int = 0) -> Any:
        """Opens a file for writing, but not the target of a link, or a pipe."""
        how = os.O_RDWR | flags | _SAFE | _BINARY
        descriptor = os.open(self._name, how, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreError(f"{self} is not a regular file, so it is not written.")
        return os.fdopen(descriptor, "r+b")

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name)

    def remove_directory(self) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self._name)


_CAN_REFUSE_LINKS = hasattr(os, "O_NOFOLLOW")
# a link could lead anywhere, and a pipe would wait for a writer
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_READ_ONLY = os.O_RDONLY | _SAFE | _BINARY


def _read(descriptor: int, start: int, count: int) -> bytes:
    """At most `count` bytes of an open file; fewer at its end."""
    if count <= 0:
        return b""
    if start:
        os.lseek(descriptor, start, os.SEEK_SET)
    data = os.read(descriptor, count)
    while 0 < len(data) < count:  # interrupted by a signal, or more than 2 GB
        more = os.read(descriptor, count - len(data))
        if not more:
            break
        data += more
    return data


def _location(name: str) -> LocalLocation:
    location = LocalLocation.__new__(LocalLocation)
    location._name = name
    return location


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
    """Locks a directory against other writers that lock it; see `locked_file`."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with locked_file(descriptor):
            yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_file(file: int | io.FileIO) -> Iterator[None]:
    """Locks a file against other threads and processes that lock it.

    The lock ends with the process. Where files cannot be locked, as on Windows and on
    some network file systems, this does nothing.
    """
    if fcntl is None:
        yield
        return
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        # explicitly: a process that was forked in between has the file open, too
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def append_whole(file: io.FileIO, data: bytes) -> None:
    """Appends all of the data to an open file, or nothing."""
    rest = memoryview(data)
    end = file.seek(0, os.SEEK_END)
    try:
        while rest:
            rest = rest[file.write(rest) or 0 :]
        if os.fstat(file.fileno()).st_nlink == 0:
            raise removed_error(file)
    except BaseException:
        file.truncate(end)
        raise


def removed_error(file: io.FileIO) -> FileNotFoundError:
    path = os.fsdecode(file.name)
    return FileNotFoundError(f"{path} was removed while it was being written")


def temporary_name(name: str) -> str:
    """A name for a file that is not complete yet, which no other thread uses."""
    return f"{name}.{os.getpid()}.{threading.get_ident()}{TEMPORARY}"


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"
