"""`CSVLogger` and `JSONLinesLogger`: runs as text."""

import contextlib
import csv
import importlib
import io
import json
import os
import pathlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from lox._errors import StoreError
from lox._logs.logdict import logdict

from ._base import Logger, RunInfo
from ._save import REMEDY, mode_of
from ._trackers.tables import Array, exact, free, tables

# Windows has no such locks
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None


class TextLogger(Logger):
    """What the loggers that write text share: a file a run."""

    suffix = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        exists: str = "new",
    ) -> None:
        super().__init__(config)
        self._given = pathlib.Path(path)
        # where it is now, wherever the process may go
        self._path = self._given.absolute()
        self._mode = mode_of(exists, type(self).__name__)

    def _name_of(self, run: RunInfo) -> str:
        return f"{run.name}{self.suffix}"

    def _check(self, run: RunInfo) -> None:
        if self._mode == "x" and (self._path / self._name_of(run)).exists():
            raise self._refusal(run)

    def _refusal(self, run: RunInfo) -> StoreError:
        return StoreError(
            f"a run already exists at {self._given / self._name_of(run)}. Choose "
            f"another path or key, or say what to do with it: {REMEDY}."
        )

    def open_file(self, run: RunInfo) -> io.FileIO:
        """The run's file, at its end; beside it goes what the run was made with."""
        try:
            return self._open_file(run, self._path / self._name_of(run))
        except OSError as error:
            given = self._given / self._name_of(run)
            raise StoreError(f"cannot create a run at {given}: {error}.") from error

    def _adopt(self, run: Any, info: RunInfo) -> bool:
        path = self._path / self._name_of(info)
        _write_config(path.with_suffix(".config.json"), info.config)
        return True

    def _open_file(self, run: RunInfo, path: pathlib.Path) -> io.FileIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        config = path.with_suffix(".config.json")
        if self._mode == "w":
            path.unlink(missing_ok=True)
            config.unlink(missing_ok=True)
        try:
            file = _opened(path, os.O_CREAT | (os.O_EXCL if self._mode == "x" else 0))
        except FileExistsError:
            raise self._refusal(run) from None
        try:
            if self._mode == "a":
                with _locked(file):
                    _cut_torn_line(file)
            if run.config:  # only now: before, it could be the config of another's run
                _write_config(config, run.config)
        except BaseException:
            file.close()
            if self._mode == "x":  # so that one may try again
                path.unlink(missing_ok=True)
            raise
        return file


class JSONLinesLogger(TextLogger):
    """Writes a line of JSON a row, a file a run: `path/<run>.jsonl`.

    Steps come first. Values that are arrays are lists; of a nested value, each leaf
    goes by its path (`net/w`). `NaN` and `Infinity` are as Python's `json` reads them.

    Args:
        path: the directory of the files.
        config: what to remember of the runs, in `path/<run>.config.json`.
        exists: what to do with a run that is there already: `"new"` refuses it,
            `"resume"` appends to it, `"overwrite"` replaces it.

    Example:
        >>> import pathlib, tempfile
        >>> path = tempfile.mkdtemp()
        >>> logger = lox.loggers.JSONLinesLogger(path)
        >>> state = logger.init(jax.random.key(0))
        >>> def f(x):
        ...     lox.log({"x": x, "w": jnp.ones(2)}, step=0)
        >>> logger.tap(f, state)(0.1)
        >>> logger.finish(state)
        >>> print(next(pathlib.Path(path).glob("*.jsonl")).read_text())
        {"step": 0, "x": 0.1, "w": [1.0, 1.0]}
        <BLANKLINE>
    """

    suffix = ".jsonl"

    def open(self, run: RunInfo) -> io.FileIO:
        return self.open_file(run)

    def write(self, run: io.FileIO, logs: logdict) -> None:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(logs)]
        with _locked(run):  # one who resumes the run must not take it for a torn line
            _append(run, "".join(lines))

    def close(self, run: io.FileIO) -> None:
        run.close()


class CSVLogger(TextLogger):
    """Writes a table a run, with a column a key and step: `path/<run>.csv`.

    A row is what was logged together; what was not is empty in it. A key that comes for
    the first time adds a column, for which the file is written anew. Values that are
    arrays are lists, as JSON; of a nested value, each leaf is a column (`net/w`).

    Args:
        path: the directory of the files.
        config: what to remember of the runs, in `path/<run>.config.json`.
        exists: what to do with a run that is there already: `"new"` refuses it,
            `"resume"` appends to it, `"overwrite"` replaces it.

    Example:
        >>> import pathlib, tempfile
        >>> path = tempfile.mkdtemp()
        >>> logger = lox.loggers.CSVLogger(path)
        >>> state = logger.init(jax.random.key(0))
        >>> def f(x):
        ...     lox.log({"x": x, "w": jnp.ones(2)}, step=0)
        >>> logger.tap(f, state)(0.1)
        >>> logger.finish(state)
        >>> print(next(pathlib.Path(path).glob("*.csv")).read_text())
        step,x,w
        0,0.1,"[1.0, 1.0]"
        <BLANKLINE>
    """

    suffix = ".csv"

    def open(self, run: RunInfo) -> "_CSVFile":
        return _CSVFile(self.open_file(run))

    def write(self, run: "_CSVFile", logs: logdict) -> None:
        run.write(list(_rows(logs)))

    def close(self, run: "_CSVFile") -> None:
        run.file.close()


class _CSVFile:
    """A table, to which other processes may write as well."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.path = pathlib.Path(os.fsdecode(file.name))
        self._read_header()

    def _read_header(self) -> None:
        with self._reader() as found:
            self._columns = next(csv.reader(found), [])

    def _reader(self) -> io.TextIOWrapper:
        # not by its path, where there may be another one by now
        self.file.seek(0)
        return open(self.file.fileno(), newline="", encoding="utf-8", closefd=False)

    def write(self, rows: list[dict[str, Any]]) -> None:
        while not self._try_to_write(rows):
            self._reopen()

    def _try_to_write(self, rows: list[dict[str, Any]]) -> bool:
        """Writes the rows, unless there is another file in the place of this one."""
        with _locked(self.file):
            if not self._is_in_place():  # another writer has put a wider one there
                return False
            columns = dict.fromkeys(self._columns)
            for row in rows:
                columns |= dict.fromkeys(row)
            if len(columns) > len(self._columns):
                self._widen(list(columns))
                return False
            _append(self.file, self._text(rows))
            return True

    def _is_in_place(self) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            raise _removed(self.file) from None
        return os.path.samestat(there, os.fstat(self.file.fileno()))

    def _reopen(self) -> None:
        file = _opened(self.path)
        self.file.close()
        self.file = file
        self._read_header()

    def _text(self, rows: list[dict[str, Any]]) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        for row in rows:
            cells = {
                key: json.dumps(value) if isinstance(value, list) else value
                for key, value in row.items()
            }
            writer.writerow(cells)
        return text.getvalue()

    def _widen(self, columns: list[str]) -> None:
        """Puts a file with the same rows and more columns in the place of this one."""
        more = "," * (len(columns) - len(self._columns)) + "\n"
        # where there are no locks, two may do it at once
        other = self.path.with_suffix(f".csv.{secrets.token_hex(4)}.new")
        try:
            with (
                self._reader() as old,
                other.open("x", newline="", encoding="utf-8") as new,
            ):
                new.write(_header(columns))
                old.seek(len(_header(self._columns).encode()))
                for line in old:  # rows have no line breaks in them
                    new.write(line.rstrip("\n") + more)
            if fcntl is None:  # Windows replaces no file that is open
                self.file.close()
            other.replace(self.path)
        except BaseException:
            other.unlink(missing_ok=True)
            raise


def _header(columns: list[str]) -> str:
    if not columns:
        return ""
    text = io.StringIO()
    # Python quotes a line feed, but not a carriage return, which ends a line, too
    odd = any("\r" in column for column in columns)
    quoting: Any = csv.QUOTE_ALL if odd else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator="\n", quoting=quoting).writerow(columns)
    return text.getvalue()


def _rows(logs: logdict) -> Iterator[dict[str, Any]]:
    """Steps and values of each row, as Python's own numbers and lists."""
    for length, steps, values in tables(logs):
        taken: set[str] = set()
        columns = {free(name, taken): _numbers(x) for name, x in steps.items()}
        columns |= {free(name, taken): _numbers(x) for name, x in values.items()}
        for i in range(length):
            yield {name: column[i] for name, column in columns.items()}


def _numbers(column: Array) -> list[Any]:
    """As Python's own; of those with few bits, no more digits than they have."""
    if column.dtype.kind == "f" and column.dtype.itemsize < 8:
        wide = exact(column)
        return (column.astype(str).astype(float) if wide is column else wide).tolist()
    if column.dtype.kind in "cO":
        return column.astype(str).tolist()
    return column.tolist()


def _opened(path: pathlib.Path, more: int = 0) -> io.FileIO:
    """A file to append to; by itself, this makes none.

    It has no buffer: what a call has written is there, whatever happens to the process.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags & ~os.O_CREAT | more, 0o666)

    return io.FileIO(path, "a+", opener=opener)


@contextlib.contextmanager
def _locked(file: io.FileIO) -> Iterator[None]:
    """Keeps other writers waiting; of who is killed, the system takes the lock back."""
    locked = _lock(file)
    try:
        yield
    finally:
        if locked:
            fcntl.flock(file, fcntl.LOCK_UN)


def _lock(file: io.FileIO) -> bool:
    if fcntl is not None:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
            return True
    return False


def _append(file: io.FileIO, text: str) -> None:
    """All of it, or nothing."""
    view = memoryview(text.encode())
    end = file.seek(0, os.SEEK_END)
    try:
        while view:
            view = view[file.write(view) or 0 :]
        if os.fstat(file.fileno()).st_nlink == 0:
            raise _removed(file)
    except BaseException:
        file.truncate(end)
        raise


def _removed(file: io.FileIO) -> FileNotFoundError:
    path = os.fsdecode(file.name)
    return FileNotFoundError(f"{path} was removed while it was written")


def _cut_torn_line(file: io.FileIO) -> None:
    """Removes the beginning of a line that a killed process left."""
    with open(file.fileno(), "rb", closefd=False) as reader:
        end = reader.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            reader.seek(start)
            found = reader.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
    file.truncate(end)


def _write_config(path: pathlib.Path, config: Mapping[str, Any]) -> None:
    """A run that is resumed keeps the one that it has."""
    try:
        file = path.open("x")
    except FileExistsError:
        return
    try:
        with file:
            file.write(json.dumps(config, indent=2) + "\n")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
