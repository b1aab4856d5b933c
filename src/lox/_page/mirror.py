"""A local copy of a store at a URL, which the page reads as it reads any other store.

Runs are copied as by `lox sync`: only new data of a growing run is fetched. To find
changes, all files of the store are listed, without reading them.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
import threading
import time
from typing import Any

from lox._errors import LoxError, StoreError
from lox._store.copy_run import RunCopy
from lox._store.copy_store import is_plain
from lox._store.format import WRITER_FILE
from lox._store.local_files import TEMPORARY, LocalLocation
from lox._store.locations import Location
from lox._store.remote_files import open_url
from lox._store.runs import is_run

# The pause between two updates: at least this many seconds, and at least this many
# times the duration of the last update.
_MIN_SECONDS, _PAUSE = 5.0, 4.0
_STORE = "/"  # the key of problems that do not belong to a run


class Mirror:
    """A copy of a store, or of one run, in a temporary directory.

    Args:
        url: the URL of the store or run.

    Attributes:
        path: the directory of the copy.
        problems: why runs could not be copied, by their names.
    """

    def __init__(self, url: str) -> None:
        self._source = open_url(url)
        if not self._source.is_directory():
            raise StoreError(f"there is no store at {url}.")
        name = self._source.name
        self._is_single = is_run(self._source)
        self._directory = tempfile.TemporaryDirectory(prefix="lox-page-")
        self.path = pathlib.Path(self._directory.name) / (
            name if is_plain(name) else "store"
        )
        self.path.mkdir()
        self.problems: dict[str, str] = {}
        self._copies: dict[str, RunCopy] = {}
        self._listed: dict[str, Any] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self.update()
        except BaseException:
            self.close()
            raise

    def update(self) -> None:
        """Fetches what has changed since the last time."""
        listed = self._list()
        changed = [name for name in listed if listed[name] != self._listed.get(name)]
        failures = dict(
            zip(changed, self._source.map(self._copy, changed), strict=True)
        )
        kept = {k: x for k, x in self.problems.items() if k in listed}
        self.problems = {k: x for k, x in (kept | failures).items() if x is not None}
        # a run that could not be copied is tried again
        self._listed = {k: x for k, x in listed.items() if failures.get(k) is None}
        for name in self._copies.keys() - listed.keys():
            shutil.rmtree(self._target(name), ignore_errors=True)
            del self._copies[name]

    def _list(self) -> dict[str, dict[str, str]]:
        """The files of each run, with data that shows whether they have changed.

        A single run has no name.
        """
        if self._is_single:
            return {"": self._source.files()}
        found: dict[str, dict[str, str]] = {}
        for path, state in self._source.files().items():
            name, _, rest = path.partition("/")
            if rest and is_plain(name) and not name.endswith(TEMPORARY):
                found.setdefault(name, {})[rest] = state
        return found

    def _target(self, name: str) -> pathlib.Path:
        return self.path / name if name else self.path

    def _copy(self, name: str) -> str | None:
        """Copies what is new in a run; returns what went wrong."""
        source = self._source / name if name else self._source
        target = self._target(name)
        try:
            if not is_run(source):
                return None
            copy = self._copies.get(name)
            if copy is None:
                copy = RunCopy(source, LocalLocation(target), True, follows=False)
                self._copies[name] = copy
            copy.update(target.exists())
            _set_times(source, target)
        except (OSError, LoxError) as error:
            return str(error)
        return None

    def follow(self) -> None:
        """Keeps the copy up to date, in a thread, until `close`."""
        self._thread = threading.Thread(
            target=self._follow, name="lox-mirror", daemon=True
        )
        self._thread.start()

    def _follow(self) -> None:
        pause = _MIN_SECONDS
        while not self._stop.wait(pause):
            start = time.monotonic()
            try:
                self.update()
            except (OSError, LoxError) as error:
                self.problems = {**self.problems, _STORE: str(error)}
            pause = max(_MIN_SECONDS, _PAUSE * (time.monotonic() - start))

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._directory.cleanup()


def _set_times(source: Location, target: pathlib.Path) -> None:
    """Sets the modification times of the files of open writers, to detect stale runs.

    The process that writes them usually belongs to another machine.
    """
    for owner in target.rglob("*.open.json"):
        if not WRITER_FILE.fullmatch(owner.name):
            continue
        writer = owner.with_name(owner.name.removesuffix(".open.json"))
        for file in writer.glob("*.npy"):
            location = source
            for name in file.relative_to(target).parts:
                location = location / name
            modified = location.modified()
            if modified:
                with contextlib.suppress(OSError):
                    os.utime(file, (modified, modified))
