"""Files of stores at URLs, such as in a bucket, read and written with `fsspec`.

The bytes that a server sends are as untrusted as those of a local file, and so are the
names and sizes that it claims: a name is used only if it is a plain file name, and
memory is allocated only for bytes that have arrived.
"""

import contextlib
import os
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from lox._errors import StoreError

from .local_files import temporary_name
from .locations import Ends, Entry

T = TypeVar("T")
S = TypeVar("S")

# Larger files are copied to a temporary file instead of memory.
_MAX_IN_MEMORY = 2**24
# Requests wait for the server most of the time.
_MAX_THREADS = 16
# File systems in which a part of a file can be replaced; object stores cannot do so.
_PATCHABLE = {"file", "local", "memory"}


def open_url(url: str) -> "RemoteLocation":
    """The location that a URL names."""
    try:
        import fsspec
    except ImportError as error:
        raise StoreError(
            f"{url} is a URL, and opening it needs fsspec: run "
            "`pip install 'jax-lox[fsspec]'`."
        ) from error
    try:
        files, path = fsspec.core.url_to_fs(url)
    # an unknown protocol, a missing package, invalid options: the message says which
    except Exception as error:
        raise StoreError(f"{url} cannot be opened: {error}.") from error
    return RemoteLocation(files, _directory(path), _Url.of(url, path))


def _directory(path: str) -> str:
    """A path without slashes at its end; the root may be `/` or empty."""
    return path.rstrip("/") or path[:1]


class _Url:
    """A URL, or a chain of them, such as `zip://runs::https://host/runs.zip`.

    Args:
        links: the URLs of the chain.
        place: which of them has the path.
    """

    __slots__ = ("_links", "_place")

    def __init__(self, links: list[str], place: int) -> None:
        self._links = links
        self._place = place

    @classmethod
    def of(cls, url: str, path: str) -> "_Url":
        """The parts of a URL, of which `fsspec` has found the path."""
        path = _directory(path)
        links = url.split("::")
        for place in range(len(links) - 1):
            # the path is in an archive, but not in a cache, which has the same paths
            found = cls(links, place)
            if found._leads_to(path):
                return found
        return cls(links, len(links) - 1)

    def _leads_to(self, path: str) -> bool:
        import fsspec

        try:
            _, found = fsspec.core.url_to_fs(str(self / "x"))
        except Exception:  # whatever it raises, the file system cannot have this path
            return False
        return bool(found.strip("/") == f"{path}/x".strip("/"))

    def __str__(self) -> str:
        return "::".join(self._links)

    def __truediv__(self, name: str) -> "_Url":
        protocol, _, path = self._links[self._place].partition("://")
        return self._replaced(f"{protocol}://{posixpath.join(_directory(path), name)}")

    def with_suffix(self, suffix: str) -> "_Url":
        return self._replaced(posixpath.splitext(self._links[self._place])[0] + suffix)

    def _replaced(self, link: str) -> "_Url":
        links = list(self._links)
        links[self._place] = link
        return _Url(links, self._place)


class RemoteLocation:
    """A file or directory in a file system of `fsspec`; see `Location`."""

    is_remote = True

    def __init__(self, files: Any, path: str, url: _Url) -> None:
        self._files = files
        self._path = path
        self._url = url

    @property
    def path(self) -> str:
        return str(self._url)

    @property
    def name(self) -> str:
        return posixpath.basename(self._path)

    def __str__(self) -> str:
        return self.path

    def __truediv__(self, name: str) -> "RemoteLocation":
        path = posixpath.join(self._path, name)
        return RemoteLocation(self._files, path, self._url / name)

    def with_suffix(self, suffix: str) -> "RemoteLocation":
        path = posixpath.splitext(self._path)[0] + suffix
        return RemoteLocation(self._files, path, self._url.with_suffix(suffix))

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        with ThreadPoolExecutor(_MAX_THREADS, "lox-read") as threads:
            return list(threads.map(function, items))

    # --- reading

    def names(self) -> list[str]:
        return list(self.entries())

    def entries(self) -> dict[str, Entry]:
        with self._errors_named():
            self._files.invalidate_cache(self._path)
            listed = self._files.ls(self._path, detail=True)
        found = {}
        for info in listed:
            path = str(info.get("name") or "").rstrip("/")
            if path.strip("/") == self._path.strip("/"):
                if info.get("type") != "directory":
                    raise NotADirectoryError(f"{self} is not a directory")
                continue  # the marker of an empty directory
            name = posixpath.basename(path)
            if name not in ("", ".", "..") and "\\" not in name and "\0" not in name:
                found[name] = Entry(_kind(info), _size(info) or 0)
        return found

    def files(self) -> dict[str, str]:
        """All files below a directory, by their paths in it.

        The values differ if a file has changed, as far as the file system says so.
        """
        with self._errors_named():
            self._files.invalidate_cache()  # including its subdirectories
            listed = self._files.find(self._path, detail=True)
        start = len(self._path.strip("/"))
        found = {}
        for path, info in sorted(listed.items()):
            name = path.strip("/")[start:].strip("/")
            if _kind(info) == "file" and not {"", ".", ".."} & {*name.split("/")}:
                found[name] = repr(sorted((k, str(x)) for k, x in info.items()))
        return found

    def _info(self) -> Any:
        with self._errors_named():
            # the size may have changed since it was listed
            self._files.invalidate_cache(posixpath.dirname(self._path))
            return self._files.info(self._path)

    def exists(self) -> bool:
        try:
            self._info()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self) -> bool:
        try:
            return bool(self._info().get("type") == "directory")
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_link(self) -> bool:
        try:
            return _kind(self._info()) == "link"
        except (FileNotFoundError, NotADirectoryError):
            return False

    def size(self) -> int:
        info = self._info()
        if _kind(info) != "file":
            raise StoreError(f"{self} is not a regular file, so it is not read.")
        size = _size(info)
        if size is None:
            raise StoreError(f"{self} cannot be read: its size is unknown.")
        return size

    def read(self, start: int, count: int) -> bytes:
        # a range beyond the end is an error on some servers
        return self._range(start, min(count, self.size() - start))

    def read_and_size(self, count: int) -> tuple[bytes, int]:
        return self.read(0, count), self.size()

    def ends(self, start: int, record: int) -> Ends:
        head, size = self.read_and_size(start)
        count = (size - start) // record if record else 0
        last = self._range(start + (count - 1) * record, record) if count > 0 else b""
        return Ends(head, size, last, self.modified())

    def modified(self) -> float:
        try:
            return float(self._files.modified(self._path).timestamp())
        except Exception:  # not all file systems know it
            return 0.0

    def records(self, dtype: np.dtype[Any], start: int, count: int) -> Any:
        size = count * dtype.itemsize
        if size <= _MAX_IN_MEMORY:
            return np.frombuffer(self._range(start, size), dtype, count)
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if size > free:
            raise StoreError(
                f"{self} cannot be read: it has {size} bytes, but only {free} are free "
                f"in {tempfile.gettempdir()}. Set the environment variable `TMPDIR` to "
                "another directory, or load the other keys by their names."
            )
        with tempfile.TemporaryFile(prefix="lox-") as file:
            for position in range(0, size, _MAX_IN_MEMORY):
                length = min(_MAX_IN_MEMORY, size - position)
                file.write(self._range(start + position, length))
            file.flush()
            return np.memmap(file, dtype, "r", 0, (count,))

    def _range(self, start: int, count: int) -> bytes:
        """Exactly this many bytes."""
        if count <= 0:
            return b""
        with self._errors_named():
            # by name: the position of these parameters differs between file systems
            data: bytes = self._files.cat_file(
                self._path, start=start, end=start + count
            )
        if len(data) > count and start == 0:  # a web server that ignores the range
            data = data[:count]
        if len(data) != count:
            raise StoreError(
                f"{self} cannot be read: the server has sent {len(data)} bytes instead "
                f"of {count} from position {start}."
            )
        return data

    def bytes_on_disk(self) -> int | None:
        return None

    # --- writing

    @property
    def can_patch(self) -> bool:
        protocols = self._files.protocol
        names = {protocols} if isinstance(protocols, str) else {*protocols}
        return bool(names & _PATCHABLE)

    def make_directory(self) -> None:
        with self._errors_named("created"):
            self._files.makedirs(self._path, exist_ok=True)

    def replace(self, data: bytes) -> None:
        with self._errors_named("written"):
            if not self._renames:
                self._files.pipe_file(self._path, data)
                return
            temporary = temporary_name(self._path)
            self._files.pipe_file(temporary, data)
            self._files.mv(temporary, self._path)

    @property
    def _renames(self) -> bool:
        """Whether files are renamed by one operation; object stores write at once."""
        import fsspec

        return type(self._files).mv is not fsspec.AbstractFileSystem.mv

    def write(self, chunks: Iterable[bytes], start: int) -> None:
        if not self.can_patch:
            self._put(chunks)
            return
        is_new = not self.exists()
        if not is_new:
            self.size()  # raises if it is a link, or not a file
        with self._errors_named("written"):
            mode = "wb" if is_new else "r+b"
            with self._files.open(self._path, mode) as file:
                file.seek(start)
                for chunk in chunks:
                    file.write(chunk)

    def _put(self, chunks: Iterable[bytes]) -> None:
        # Collected first: if reading the source failed during the upload, the file
        # would be replaced with a shorter one.
        descriptor, name = tempfile.mkstemp(prefix="lox-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            with self._errors_named("written"):
                self._files.put_file(name, self._path)
        finally:
            os.unlink(name)

    def truncate(self, size: int) -> None:
        with (
            self._errors_named("written"),
            self._files.open(self._path, "r+b") as file,
        ):
            file.truncate(size)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError), self._errors_named("removed"):
            self._files.rm_file(self._path)

    def remove_directory(self) -> None:
        with contextlib.suppress(Exception):  # object stores have no directories
            self._files.rmdir(self._path)

    @contextlib.contextmanager
    def _errors_named(self, what: str = "read") -> Iterator[None]:
        """Raises errors that name the URL; file systems raise errors of any type."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, StoreError):
            raise
        except Exception as error:
            message = str(error) or type(error).__name__
            raise StoreError(f"{self} cannot be {what}: {message}.") from error


def _kind(info: Any) -> str:
    if info.get("islink"):
        return "link"
    kind = info.get("type")
    return kind if kind in ("file", "directory", "link") else "other"


def _size(info: Any) -> int | None:
    """None if the size is unknown: some web servers do not say."""
    size = info.get("size")
    return size if type(size) is int and size >= 0 else None
