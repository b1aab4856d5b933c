"""Exports the rows of runs to a file: CSV, JSON lines, Parquet or TensorBoard.

A row has the name of its run, its steps, and the values that were logged together.
Arrays are lists; in CSV files, as JSON. For TensorBoard, PATH is a directory, with one
directory per run.
"""

import argparse
import csv
import functools
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import numpy as np

from lox._errors import LoxError, LoxValueError
from lox._event_files.event_file import EventFile
from lox._logs.columns import Column, columns_of
from lox._logs.lane_step import LANE, NO_LANE, PROCESS
from lox._patterns import matches
from lox._store.configs import all_names, flat_config
from lox._store.new_rows import NewRows, Row
from lox._store.run_set import Runs

from ._arguments import add_keys
from ._files import check_new, replacing
from ._find import add_runs, check_keys, directory_name, find_runs
from ._output import say
from ._terminal import print_path
from ._values import masked_json, to_json

HELP = "export runs to a file"

Rows = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--to", required=True, choices=("csv", "jsonl", "parquet", "tensorboard")
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="PATH",
        help="the file or directory; - writes csv and jsonl to stdout",
    )
    add_keys(parser)
    parser.add_argument(
        "--force", action="store_true", help="replace the file if it exists"
    )


def run(arguments: Any) -> int:
    to_stdout = arguments.output == "-"
    if to_stdout and arguments.to not in _TEXT_FORMATS:
        raise LoxValueError(
            "`-o -` is stdout, which is only for csv and jsonl. Choose a path; a file "
            "of this name is ./-."
        )
    found = find_runs(arguments.runs)
    if to_stdout:
        _TEXT_FORMATS[arguments.to](_rows(found, arguments.key), sys.stdout)
        return 0
    if arguments.to == "tensorboard":
        _check_names(found)
        _to_tensorboard(found, arguments)
    else:
        check_new(arguments.output, arguments.force)
        write = _WRITERS[arguments.to]()
        rows = _rows(found, arguments.key)
        with replacing(arguments.output) as path:
            write(rows, path)
    print_path(arguments.output)
    return 0


def _rows(runs: Runs, keys: list[str] | None) -> Rows:
    """All rows, with steps and then values by name, which are NumPy values."""
    rows: Rows = []
    known: dict[str, None] = {}
    for one in runs:
        for row in NewRows(one).read():
            known |= dict.fromkeys(row.values)
            values = {
                name: value
                for name, value in row.values.items()
                if keys is None or any(matches(name, pattern) for pattern in keys)
            }
            if values:
                rows.append(_row_of(one.name, row, values))
    check_keys(keys, known)
    return rows


def _row_of(run: str, row: Row, values: dict[str, Any]) -> dict[str, Any]:
    """One row: the run, the steps and the values, by names that are all different."""
    named: dict[str, Any] = {"run": run}
    for kind, columns in (("step", row.steps), ("value", values)):
        for name, value in columns.items():
            while name in named:  # a key may have the name of a step
                name += f".{kind}"
            named[name] = value if row.mask is None else masked_json(value, row.mask)
    return named


# --- formats -----------------------------------------------------------------


def _text_writer(
    write_to: Callable[[Rows, TextIO], None],
) -> Callable[[Rows, str], None]:
    def write(rows: Rows, path: str) -> None:
        # names may contain line breaks
        with open(path, "x", newline="", encoding="utf-8") as file:
            write_to(rows, file)

    return write


def _write_csv(rows: Rows, file: TextIO) -> None:
    names = _encodable(all_names(rows))
    writer = csv.DictWriter(file, names.values(), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({names[name]: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    plain = to_json(value)
    if isinstance(plain, str):
        return _escaped(plain)
    return json.dumps(plain) if isinstance(plain, list) else plain


def _write_jsonl(rows: Rows, file: TextIO) -> None:
    file.writelines(json.dumps(to_json(row)) + "\n" for row in rows)


_TEXT_FORMATS: dict[str, Callable[[Rows, TextIO], None]] = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}


def _encodable(names: Iterable[str]) -> dict[str, str]:
    """Names that UTF-8 can encode, by the original ones; all are different."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        escaped, number = _escaped(name), 2
        while escaped in taken:
            escaped, number = f"{_escaped(name)}.{number}", number + 1
        found[name] = escaped
        taken.add(escaped)
    return found


def _escaped(text: str) -> str:
    """Text with lone surrogates escaped, as the loggers of text files do."""
    return text.encode("utf-8", "backslashreplace").decode()


def _parquet_writer() -> Callable[[Rows, str], None]:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise LoxError(
            "`--to parquet` needs pyarrow, which is not installed: `pip install "
            "pyarrow`."
        ) from error

    def write(rows: Rows, path: str) -> None:
        columns = {
            escaped: _arrow_column(pyarrow, name, [row.get(name) for row in rows])
            for name, escaped in _encodable(all_names(rows)).items()
        }
        parquet.write_table(pyarrow.table(columns), path)

    return write


def _arrow_column(pyarrow: Any, name: str, values: list[Any]) -> Any:
    """A column with the dtype of its numbers, and nulls where there are none."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present):
        return pyarrow.array([x if x is None else _escaped(x) for x in values])
    if len({np.ndim(value) == 0 for value in present}) > 1:
        raise _not_one_column(name, "it has scalars and arrays")
    dtypes = [getattr(value, "dtype", None) for value in present]  # None: masked lists
    complexes = {x.kind == "c" for x in dtypes if x is not None}
    if len(complexes) > 1:
        raise _not_one_column(name, "it has real and complex numbers")
    if np.ndim(present[0]) == 0 and complexes == {False}:
        plain, dtype = _exact(name, present)
        numbers = iter(plain)
        return pyarrow.array(
            [None if value is None else next(numbers) for value in values],
            pyarrow.from_numpy_dtype(dtype),
        )
    try:
        return pyarrow.array([_plain_list(value) for value in values])
    except (pyarrow.ArrowException, OverflowError) as error:
        raise _not_one_column(name, str(error)) from error


def _exact(name: str, values: list[Any]) -> tuple[list[Any], np.dtype[Any]]:
    """Scalars as Python numbers, and a dtype that represents all of them exactly."""
    arrays = [_builtin(np.asarray(value)) for value in values]
    dtype = np.result_type(*{array.dtype for array in arrays})
    kinds = {array.dtype.kind for array in arrays}
    if dtype.kind == "f" and "f" not in kinds:  # int64 and uint64
        signed = any(array < 0 for array in arrays)
        dtype = np.dtype(np.int64 if signed else np.uint64)
        if all(array <= np.iinfo(np.int64).max for array in arrays):
            dtype = np.dtype(np.int64)
    plain = [array.item() for array in arrays]
    if dtype.kind == "f":
        integers = [x for x in plain if type(x) is int]
        if any(int(dtype.type(x)) != x for x in integers):
            raise _not_one_column(name, "it has integers that a float64 rounds")
        return [dtype.type(x).item() for x in plain], dtype
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if any(not limits.min <= x <= limits.max for x in plain):
            raise _not_one_column(name, "it has integers of no common dtype")
        return [int(x) for x in plain], dtype
    return plain, dtype


def _builtin(array: Any) -> Any:
    """An array of a dtype of NumPy; those of `ml_dtypes` are unknown to Parquet."""
    if array.dtype.isbuiltin == 1:
        return array
    is_integer = array.dtype.name.startswith(("int", "uint"))
    return array.astype(np.int64 if is_integer else np.float64)


_NOT_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


def _plain_list(value: Any) -> Any:
    """Nested lists of numbers, or of complex numbers as text."""
    if isinstance(value, list):  # of a masked row, in JSON
        return [_plain_list(x) for x in value]
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if not hasattr(value, "dtype"):
        return value
    return to_json(value) if value.dtype.kind == "c" else _builtin(value).tolist()


def _not_one_column(name: str, why: str) -> LoxValueError:
    return LoxValueError(
        f"{name!r} cannot be one column of a Parquet file: {why.rstrip('.')}. Export "
        "the runs separately, other keys with `-k`, or to csv or jsonl."
    )


_WRITERS: dict[str, Callable[[], Callable[[Rows, str], None]]] = {
    **{to: functools.partial(_text_writer, f) for to, f in _TEXT_FORMATS.items()},
    "parquet": _parquet_writer,
}


# --- TensorBoard -------------------------------------------------------------


def _check_names(runs: Runs) -> None:
    names = [one.name for one in runs]
    if len({*names}) < len(names):
        raise LoxValueError(
            "two of these runs have the same name, and would share a directory. Export "
            "them one by one."
        )


def _to_tensorboard(runs: Runs, arguments: Any) -> None:
    directory = pathlib.Path(arguments.output)
    targets = {one.name: directory / directory_name(one) for one in runs}
    for target in targets.values():
        if os.path.lexists(target) and not arguments.force:
            raise LoxValueError(
                f"{target} exists; `--force` adds another file to it, which "
                "TensorBoard reads after the others."
            )
    left_out: dict[str, None] = {}
    known: dict[str, None] = {}
    for one in runs:
        logs, names = one.load_selected(arguments.key)
        known |= names
        file = EventFile(targets[one.name])
        try:
            config = flat_config(one.config)
            if config:
                file.hparams({k: _plain(v) for k, v in config.items()}, one.name)
            for column in columns_of(logs.compact()):
                if column.own or column.array.dtype.kind not in "biuf":
                    left_out[column.name] = None
                    continue
                for name, values, steps in _curves(column):
                    file.scalars({name: values}, steps)
            if config:
                file.hparams_end()
        finally:
            file.close()
    check_keys(arguments.key, known)
    if left_out:
        say(f"not exported, since they are not scalars: {', '.join(left_out)}")


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _curves(column: Column) -> Iterable[tuple[str, Any, Any]]:
    """The name, values and steps of each lane of a key, and of each process."""
    array, axis = column.array, column.time_axis
    steps = [name for name in column.of.steps if name not in (LANE, PROCESS)]
    step = "step" if "step" in steps else next(iter(steps), None)

    def time_first(values: Any) -> Any:
        values = np.asarray(values)
        if not column.stacked:
            return values.reshape(1, -1)
        return np.moveaxis(values, axis, 0).reshape(array.shape[axis], -1)

    values = time_first(array)
    count, lanes = values.shape
    mask = np.ones(values.shape, bool)
    if column.of.mask is not None:
        mask = time_first(column.of.mask)
    numbers = np.broadcast_to(np.arange(count)[:, None], values.shape)
    if step is not None:
        numbers = np.broadcast_to(time_first(column.of.steps[step]), values.shape)
    if not np.array_equal(numbers, numbers.astype(np.int64)):
        say(f"{column.name} has steps that are not integers; rows are numbered")
        numbers = np.broadcast_to(np.arange(count)[:, None], values.shape)
    # what rows name themselves: their process and their lane
    named = {
        name: np.broadcast_to(time_first(column.of.steps[name]), values.shape)
        for name in (PROCESS, LANE)
        if name in column.of.steps
    }
    for lane in range(lanes):
        by_row = list(zip(*(x[:, lane].tolist() for x in named.values()), strict=True))
        for named_by in dict.fromkeys(by_row if named else [()]):
            chosen = mask[:, lane].copy()
            label = f"/lane_{lane}" if lanes > 1 else ""
            for name, number in zip(named, named_by, strict=True):
                chosen &= named[name][:, lane] == number
                label += f"/{name}_{number}" if number != NO_LANE else ""
            if chosen.any():
                at = numbers[chosen, lane].astype(np.int64)
                yield column.name + label, values[chosen, lane], at
