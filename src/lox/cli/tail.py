"""Prints the last rows of runs; with `-f`, also new ones as they are written.

`-f` ends when all runs have ended, or at Ctrl-C. Runs that are added to a store later
are followed, too.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from lox._errors import LoxValueError, StoreError
from lox._patterns import matches
from lox._store.locations import location_of
from lox._store.new_rows import NewRows, Row
from lox._store.reader import Run
from lox._store.runs import is_run as is_run_at
from lox._text_curves import printable

from ._arguments import add_keys, positive_seconds
from ._find import absolute, add_runs, check_keys, find_runs, identity, stores_in
from ._output import output_is_closed, say
from ._terminal import styled
from ._values import masked_json, to_text

HELP = "print the last rows of runs, and follow them"

_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="wait for new rows, and print them"
    )
    parser.add_argument(
        "-n",
        type=_count,
        default=10,
        metavar="ROWS",
        help="how many rows of each run to print first (default: %(default)s)",
    )
    add_keys(parser)
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        default=_SECONDS,
        metavar="SECONDS",
        help="how often to look for new rows (default: %(default)g)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document per row"
    )


def run(arguments: Any) -> int:
    found = {identity(run): run for run in find_runs(arguments.runs)}
    stores = stores_in(arguments.runs) if arguments.follow else []
    _check_keys(found.values(), arguments)
    printer = _Printer(arguments, has_names=bool(stores) or len(found) > 1)
    open_runs = {}
    for name, one in found.items():
        rows = NewRows(one)
        ended = one.status != "running"
        printer.print(one, rows.read(arguments.n))
        if not ended:
            open_runs[name] = rows
    while arguments.follow and open_runs:
        time.sleep(arguments.interval)
        if output_is_closed():  # without new rows, printing would not notice it
            raise BrokenPipeError
        for name, one in _new_runs(stores, found):
            found[name] = one
            open_runs[name] = NewRows(one)
        for name, rows in list(open_runs.items()):
            ended = rows.run.status != "running"  # before the last rows are read
            printer.print(rows.run, rows.read())
            if ended:
                del open_runs[name]
    return 0


def _check_keys(runs: Iterable[Run], arguments: Any) -> None:
    """Raises if no row can be printed; with `-f`, prints a message instead."""
    if arguments.key is None:
        return
    try:
        check_keys(
            arguments.key, dict.fromkeys(key for run in runs for key in run.keys)
        )
    except LoxValueError as error:
        if not arguments.follow:
            raise
        say(f"waiting for such a key: {error}")


def _new_runs(
    stores: Iterable[str], known: dict[str, Run]
) -> Iterable[tuple[str, Run]]:
    for store in stores:
        where = location_of(absolute(store))
        for name in where.names():
            path = where / name
            if str(path) not in known and is_run_at(path):
                with contextlib.suppress(StoreError):  # it may be incomplete now
                    yield str(path), Run(path)


class _Printer:
    """Prints rows, with the names of runs if there are several."""

    def __init__(self, arguments: Any, has_names: bool) -> None:
        self._patterns = arguments.key
        self._json = arguments.json
        self._has_names = has_names

    def print(self, run: Run, rows: Iterable[Row]) -> None:
        for row in rows:
            values = {
                name: value
                for name, value in row.values.items()
                if self._patterns is None
                or any(matches(name, x) for x in self._patterns)
            }
            if not values:
                continue
            if self._json:
                print(_as_json(run, row, values))
            else:
                print(self._as_text(run, row, values))
        # others may wait for the rows in a pipe
        print(end="", flush=True)

    def _as_text(self, run: Run, row: Row, values: dict[str, Any]) -> str:
        steps = [f"{printable(name)} {to_text(x)}" for name, x in row.steps.items()]
        parts = [styled(" ".join(steps), "dim")] if steps else []
        parts += [
            f"{printable(name)}={_text_of(value, row.mask)}"
            for name, value in values.items()
        ]
        name = [styled(printable(run.name), "bold")] if self._has_names else []
        return "  ".join([*name, *parts])


def _as_json(run: Run, row: Row, values: dict[str, Any]) -> str:
    steps = {name: masked_json(x, row.mask) for name, x in row.steps.items()}
    named = {name: masked_json(x, row.mask) for name, x in values.items()}
    return json.dumps({"run": run.name, "steps": steps, "values": named})


def _text_of(value: Any, mask: Any) -> str:
    """A number, or the mean of an array of numbers."""
    array = np.asarray(value)
    if mask is not None:
        array = array[mask]
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        return printable(to_text(value))
    finite = array[np.isfinite(array)]
    if not finite.size:
        return f"{'nan' if array.size else 'empty'} (of {array.size})"
    lost = array.size - finite.size
    note = f", {lost} not finite" if lost else ""
    return f"{to_text(float(finite.mean()))} (mean of {array.size}{note})"


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of rows")
    return int(text)
