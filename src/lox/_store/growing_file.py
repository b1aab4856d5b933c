"""Files that only grow, of which a process has few open at a time.

A store of many runs has more files than a process may have open. So those that were
opened first are closed, and opened again when they are needed.
"""

import collections
import errno
import io
import os
import pathlib
import threading
from typing import Any

_MOST_OPEN = 512


class GrowingFile:
    """A new file, at whose end to write.

    It is never one that is there, which would be somebody else's. And it is unbuffered:
    what a call has written is there, whatever happens to the process.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.in_use = True  # so that nobody closes it before it is known
        self.handle: io.FileIO | None = None
        self._open("xb")
        self._identity = self._found()
        self.in_use = False

    def append(self, data: Any) -> None:
        """Writes all of it, and raises `FileNotFoundError` if the file was removed."""
        try:
            handle = self.acquire()
            written = handle.write(data)
            if written != len(data):  # of bytes
                _write_rest(handle, memoryview(data)[written:])
            self.check_linked(handle)
        finally:
            self.in_use = False

    def check_linked(self, handle: io.FileIO) -> None:
        """Raises `FileNotFoundError` if the file, open as `handle`, was removed."""
        if os.fstat(handle.fileno()).st_nlink == 0:
            raise removed(self.path)

    def acquire(self) -> io.FileIO:
        """The open file, until it is released; of one thread at a time."""
        with _open_files.lock:  # so that nobody closes it meanwhile
            self.in_use = True
            handle = self.handle
        return self._open_again() if handle is None else handle

    def _open_again(self) -> io.FileIO:
        try:
            handle = self._open("r+b")
            if self._found() != self._identity:
                self.close()
                raise FileNotFoundError(f"{self.path} was removed")
            handle.seek(0, os.SEEK_END)
        except BaseException:
            self.in_use = False
            raise
        return handle

    def release(self) -> None:
        self.in_use = False

    def close(self) -> None:
        _open_files.forget(self)
        if self.handle is not None:
            self.handle.close()
            self.handle = None

    def _open(self, mode: str) -> io.FileIO:
        _open_files.make_room()
        try:
            self.handle = io.FileIO(self.path, mode)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            _open_files.make_room(of=0)  # others have taken it
            self.handle = io.FileIO(self.path, mode)
        _open_files.add(self)
        return self.handle

    def _found(self) -> tuple[int, int]:
        assert self.handle is not None
        status = os.fstat(self.handle.fileno())
        return status.st_dev, status.st_ino


def _write_rest(handle: io.FileIO, rest: memoryview) -> None:
    while rest:
        rest = rest[handle.write(rest) :]


def removed(path: pathlib.Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} was removed while it was written: another writer has replaced the "
        "run, or somebody has deleted it"
    )


class _OpenFiles:
    """Those of this process, the ones that were opened first in front."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._files: collections.OrderedDict[GrowingFile, None]
        self._files = collections.OrderedDict()

    def add(self, file: GrowingFile) -> None:
        with self.lock:
            self._files[file] = None

    def forget(self, file: GrowingFile) -> None:
        with self.lock:
            self._files.pop(file, None)

    def make_room(self, of: int | None = None) -> None:
        """Closes what nobody uses just now, so that few files or none are open."""
        with self.lock:
            most = _most_open() if of is None else of
            for file in list(self._files):
                if len(self._files) < max(most, 1):
                    return
                if not file.in_use:
                    file.close()

    def begin_anew(self) -> None:
        """In a process that was forked, where they are not ours to close."""
        self._files = collections.OrderedDict()
        self.lock = threading.RLock()


def _most_open() -> int:
    """A quarter of what the system allows, which others may need as well."""
    try:
        import resource
    except ImportError:  # on Windows
        return _MOST_OPEN // 4
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_OPEN
    return max(8, min(_MOST_OPEN, allowed // 4))


_open_files = _OpenFiles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_files.begin_anew)
