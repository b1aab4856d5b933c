"""`CSVLogger` and `JSONLinesLogger`: one text file per run."""

import csv
import io
import json
import os
import pathlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from lox._errors import StoreError
from lox._logs.logdict import logdict
from lox._logs.tables import Array, tables, unique_name, widen_subnormals
from lox._store.local_files import append_whole, locked_file, removed_error

from ._base import Logger, RunInfo
from ._save import REMEDY, mode_of


class TextLogger(Logger):
    """Base class of loggers that write one text file per run."""

    suffix = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        exists: str = "new",
        processes: str = "first",
    ) -> None:
        super().__init__(config, processes)
        self._given_path = pathlib.Path(path)
        # absolute, since the process may change its working directory
        self._path = self._given_path.absolute()
        self._mode = mode_of(exists, type(self).__name__)

    def _file_name(self, run: RunInfo) -> str:
        return f"{run.name}{self.suffix}"

    def _check(self, run: RunInfo) -> None:
        if self._mode == "x" and (self._path / self._file_name(run)).exists():
            raise self._already_exists(run)

    def _already_exists(self, run: RunInfo) -> StoreError:
        return StoreError(
            f"a run already exists at {self._given_path / self._file_name(run)}. "
            f"Choose another path or key, or say what to do with it: {REMEDY}."
        )

    def open(self, run: RunInfo) -> Any:
        """Opens the run's file for appending, and writes its config next to it."""
        try:
            return self._open_file(run, self._path / self._file_name(run))
        except OSError as error:
            given = self._given_path / self._file_name(run)
            raise StoreError(f"cannot create a run at {given}: {error}.") from error

    def _set_config(self, run: Any, info: RunInfo) -> bool:
        path = self._path / self._file_name(info)
        _write_config(path.with_suffix(".config.json"), info.config)
        return True

    def _open_file(self, run: RunInfo, path: pathlib.Path) -> io.FileIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        config = path.with_suffix(".config.json")
        if self._mode == "w":
            path.unlink(missing_ok=True)
            config.unlink(missing_ok=True)
        try:
            exclusive = os.O_EXCL if self._mode == "x" else 0
            file = _open_for_append(path, os.O_CREAT | exclusive)
        except FileExistsError:
            raise self._already_exists(run) from None
        try:
            if self._mode == "a":
                with locked_file(file):
                    _cut_torn_line(file)
            # only now that the run is ours: until here, another process could own it
            if run.config:
                _write_config(config, run.config)
        except BaseException:
            file.close()
            if self._mode == "x":  # so that a retry can create it
                path.unlink(missing_ok=True)
            raise
        return file


class JSONLinesLogger(TextLogger):
    """Writes one line of JSON per row, one file per run: `path/<run>.jsonl`.

    Steps come first. Arrays are written as lists. The leaves of a nested value are
    named by their paths (`net/w`). `NaN` and `Infinity` are written as Python's `json`
    reads them.

    Args:
        path: the directory of the files.
        config: the config of the runs, saved as `path/<run>.config.json`.
        exists: what to do if a run already exists: `"new"` raises an error,
            `"resume"` appends to it, `"overwrite"` replaces it.
        processes: which processes of a job write: `"first"`, or `"all"`, each to a file
            of its own.

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

    def write(self, run: io.FileIO, logs: logdict) -> None:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(logs)]
        # locked, so that a process that resumes the run sees no line half written
        with locked_file(run):
            append_whole(run, "".join(lines).encode())

    def close(self, run: io.FileIO) -> None:
        run.close()


class CSVLogger(TextLogger):
    """Writes one table per run, with one column per key and step: `path/<run>.csv`.

    A row holds what was logged together; its other cells are empty. A new key adds a
    column, which rewrites the file. Arrays are written as JSON lists. Each leaf of a
    nested value is a column (`net/w`).

    Args:
        path: the directory of the files.
        config: the config of the runs, saved as `path/<run>.config.json`.
        exists: what to do if a run already exists: `"new"` raises an error,
            `"resume"` appends to it, `"overwrite"` replaces it.
        processes: which processes of a job write: `"first"`, or `"all"`, each to a file
            of its own.

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
        return _CSVFile(super().open(run))

    def write(self, run: "_CSVFile", logs: logdict) -> None:
        run.write(list(_rows(logs)))

    def close(self, run: "_CSVFile") -> None:
        run.file.close()


class _CSVFile:
    """A CSV file that several processes may append to."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.path = pathlib.Path(os.fsdecode(file.name))
        self._read_header()

    def _read_header(self) -> None:
        with self._reader() as lines:
            self._columns = next(csv.reader(lines), [])

    def _reader(self) -> io.TextIOWrapper:
        # by its descriptor, since another file may be at its path by now
        self.file.seek(0)
        return open(self.file.fileno(), newline="", encoding="utf-8", closefd=False)

    def write(self, rows: list[dict[str, Any]]) -> None:
        while not self._try_to_write(rows):
            self._reopen()

    def _try_to_write(self, rows: list[dict[str, Any]]) -> bool:
        """Appends the rows; returns False if a wider file has replaced this one."""
        with locked_file(self.file):
            if not self._is_at_path():  # another writer has added columns
                return False
            columns = dict.fromkeys(self._columns)
            for row in rows:
                columns |= dict.fromkeys(row)
            if len(columns) > len(self._columns):
                self._widen(list(columns))
                return False
            append_whole(self.file, self._format(rows).encode())
            return True

    def _is_at_path(self) -> bool:
        try:
            at_path = os.stat(self.path)
        except FileNotFoundError:
            raise removed_error(self.file) from None
        return os.path.samestat(at_path, os.fstat(self.file.fileno()))

    def _reopen(self) -> None:
        file = _open_for_append(self.path)
        self.file.close()
        self.file = file
        self._read_header()

    def _format(self, rows: list[dict[str, Any]]) -> str:
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
        """Replaces the file with one that has the same rows and more columns."""
        empty_cells = "," * (len(columns) - len(self._columns)) + "\n"
        # a random name: without locks, two processes may widen the file at once
        new_path = self.path.with_suffix(f".csv.{secrets.token_hex(4)}.new")
        try:
            with (
                self._reader() as old,
                new_path.open("x", newline="", encoding="utf-8") as new,
            ):
                new.write(_header(columns))
                old.seek(len(_header(self._columns).encode()))
                for line in old:  # rows contain no line breaks
                    new.write(line.rstrip("\n") + empty_cells)
            if os.name == "nt":  # Windows cannot replace an open file
                self.file.close()
            new_path.replace(self.path)
        except BaseException:
            new_path.unlink(missing_ok=True)
            raise


def _header(columns: list[str]) -> str:
    if not columns:
        return ""
    text = io.StringIO()
    # `csv` quotes line feeds, but not carriage returns, which also end a line
    has_return = any("\r" in column for column in columns)
    quoting: Any = csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator="\n", quoting=quoting).writerow(columns)
    return text.getvalue()


def _rows(logs: logdict) -> Iterator[dict[str, Any]]:
    """Yields the steps and values of each row as Python numbers and lists."""
    for table in tables(logs):
        taken: set[str] = set()
        columns = {
            unique_name(name, taken): _to_python(column)
            for name, column in (*table.steps.items(), *table.values.items())
        }
        for i in range(table.length):
            yield {name: column[i] for name, column in columns.items()}


def _to_python(column: Array) -> list[Any]:
    """Converts a column to Python values, narrow floats without spurious digits."""
    if column.dtype.kind == "f" and column.dtype.itemsize < 8:
        wide = widen_subnormals(column)
        return (column.astype(str).astype(float) if wide is column else wide).tolist()
    if column.dtype.kind in "cO":
        return column.astype(str).tolist()
    return column.tolist()


def _open_for_append(path: pathlib.Path, extra_flags: int = 0) -> io.FileIO:
    """Opens a file for appending; creates it only if `extra_flags` say so.

    The file is unbuffered, so that rows survive if the process is killed.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags & ~os.O_CREAT | extra_flags, 0o666)

    return io.FileIO(path, "a+", opener=opener)


def _cut_torn_line(file: io.FileIO) -> None:
    """Removes the incomplete last line that a killed process has left."""
    with open(file.fileno(), "rb", closefd=False) as reader:
        end = reader.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            reader.seek(start)
            newline = reader.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
    file.truncate(end)


def _write_config(path: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Writes a run's config; a resumed run keeps the one it has."""
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
