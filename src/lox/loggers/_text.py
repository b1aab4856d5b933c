"""`CSVLogger` and `JSONLinesLogger`: runs as text."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from lox._errors import StoreError
from lox._logdict import logdict

from ._base import Logger, RunInfo
from ._save import REMEDY, mode_of
from ._tables import Array, free, tables


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
        self._path = pathlib.Path(path)
        self._mode = mode_of(exists, type(self).__name__)

    def _path_of(self, run: RunInfo) -> pathlib.Path:
        return self._path / f"{run.name}{self.suffix}"

    def _check(self, run: RunInfo) -> None:
        path = self._path_of(run)
        if self._mode == "x" and path.exists():
            raise StoreError(
                f"there is a run at {path} already. Choose another place or key, or "
                f"say what to do with it: {REMEDY}."
            )

    def open_file(self, run: RunInfo) -> io.FileIO:
        """The run's file, at its end; beside it goes what the run was made with."""
        path = self._path_of(run)
        try:
            self._check(run)
            return self._open_file(run, path)
        except OSError as error:
            raise StoreError(f"cannot make a run at {path}: {error}.") from error

    def _open_file(self, run: RunInfo, path: pathlib.Path) -> io.FileIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        config = path.with_suffix(".config.json")
        if self._mode == "w":
            path.unlink(missing_ok=True)
            config.unlink(missing_ok=True)
        elif path.exists():
            _cut_torn_line(path)
        if run.config and not config.exists():  # which a resumed run keeps
            config.write_text(json.dumps(run.config, indent=2) + "\n")
        # unbuffered: what a call has written is there, whatever happens to the process
        return io.FileIO(path, "a+")


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
    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.path = pathlib.Path(os.fsdecode(file.name))
        self._read_header()

    def _read_header(self) -> None:
        with self.path.open(newline="", encoding="utf-8") as found:
            self._columns = next(csv.reader(found), [])

    def write(self, rows: list[dict[str, Any]]) -> None:
        self._follow()
        columns = dict.fromkeys(self._columns)
        for row in rows:
            columns |= dict.fromkeys(row)
        if len(columns) > len(self._columns):
            self._widen(list(columns))
        _append(self.file, self._text(rows))

    def _follow(self) -> None:
        """Another writer of the same run may have put a wider file in its place."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path} was removed while it was written"
            ) from None
        if not os.path.samestat(there, os.fstat(self.file.fileno())):
            self.file.close()
            self.file = io.FileIO(self.path, "a+")
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
        """The same rows with more columns, in a new file that replaces the old one."""
        more = "," * (len(columns) - len(self._columns)) + "\n"
        other = self.path.with_suffix(".csv.new")
        try:
            with (
                self.path.open(newline="", encoding="utf-8") as old,
                other.open("w", newline="", encoding="utf-8") as new,
            ):
                new.write(_header(columns))
                old.seek(len(_header(self._columns).encode()))
                for line in old:  # rows have no line breaks in them
                    new.write(line.rstrip("\n") + more)
            self.file.close()
            other.replace(self.path)
        except BaseException:
            other.unlink(missing_ok=True)
            raise
        self._columns = columns
        self.file = io.FileIO(self.path, "a+")


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
        return column.astype(str).astype(float).tolist()
    if column.dtype.kind in "cO":
        return column.astype(str).tolist()
    return column.tolist()


def _append(file: io.FileIO, text: str) -> None:
    """All of it, or nothing."""
    view = memoryview(text.encode())
    end = file.seek(0, os.SEEK_END)
    try:
        while view:
            view = view[file.write(view) or 0 :]
    except BaseException:
        file.truncate(end)
        raise


def _cut_torn_line(path: pathlib.Path) -> None:
    """Removes the beginning of a line that a killed process left."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        file.truncate(end)
