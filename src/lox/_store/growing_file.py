"""Files that are only appended to, with a limited number of them open.

A store of many runs may have more files than a process may open. If there are too many,
the files that were opened first are closed, and reopened when they are needed.
"""

import collections
import errno
import importlib
import io
import os
import pathlib
import threading
from typing import Any

# Windows does not have it. It is not imported on use: if a process is forked while
# another thread imports it, the child would wait for that import forever.
resource: Any = importlib.import_module("resource") if os.name == "posix" else None
_MAX_OPEN = 512


class GrowingFile:
    """A new file to append to.

    It must not exist yet: an existing file belongs to another writer. It is unbuffered,
    so that written data survives if the process is killed.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.in_use = True  # so that no other thread closes it
        self.handle: io.FileIO | None = None
        self._open("xb")
        self._identity = self._inode()
        self.in_use = False

    def append(self, data: Any) -> None:
        """Writes all data; raises `FileNotFoundError` if the file was removed."""
        try:
            handle = self.acquire()
            written = handle.write(data)
            while written < len(data):
                written += handle.write(memoryview(data)[written:])
            self.check_linked(handle)
        finally:
            self.in_use = False

    def check_linked(self, handle: io.FileIO) -> None:
        """Raises `FileNotFoundError` if the file, open as `handle`, was removed."""
        if os.fstat(handle.fileno()).st_nlink == 0:
            raise removed_error(self.path)

    def acquire(self) -> io.FileIO:
        """Opens the file, until the caller sets `in_use` to False."""
        with _open_files.lock:  # so that no other thread closes it
            self.in_use = True
            handle = self.handle
        return self._reopen() if handle is None else handle

    def _reopen(self) -> io.FileIO:
        try:
            handle = self._open("r+b")
            if self._inode() != self._identity:
                self.close()
                raise FileNotFoundError(f"{self.path} was removed")
            handle.seek(0, os.SEEK_END)
        except BaseException:
            self.in_use = False
            raise
        return handle

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
            _open_files.make_room(limit=0)  # other code has reached the limit
            self.handle = io.FileIO(self.path, mode)
        _open_files.add(self)
        return self.handle

    def _inode(self) -> tuple[int, int]:
        assert self.handle is not None
        status = os.fstat(self.handle.fileno())
        return status.st_dev, status.st_ino


def removed_error(path: pathlib.Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} was removed while it was being written: another writer has replaced "
        "the run, or it was deleted"
    )


class _OpenFiles:
    """The open files of this process, in the order in which they were opened."""

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

    def make_room(self, limit: int | None = None) -> None:
        """Closes files that are not used, so that fewer than `limit` are open."""
        with self.lock:
            limit = _max_open() if limit is None else limit
            if len(self._files) < max(limit, 1):
                return
            for file in list(self._files):
                if not file.in_use:
                    file.close()
                if len(self._files) < max(limit, 1):
                    return

    def reset(self) -> None:
        """Forgets all files in a forked process, which must not close them."""
        self._files = collections.OrderedDict()
        self.lock = threading.RLock()


def _max_open() -> int:
    """At most a quarter of the system's limit: other code opens files, too."""
    if resource is None:
        return _MAX_OPEN // 4
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MAX_OPEN
    return max(8, min(_MAX_OPEN, allowed // 4))


_open_files = _OpenFiles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_files.reset)
