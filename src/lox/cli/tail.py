"""Prints the last rows of runs; with `-f`, also new ones as they are written.

`-f` ends when all runs have ended, or at Ctrl-C. Runs that are added to a store later
are followed, too, and so are runs that have ended and are resumed or replaced while
others are running.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox._errors import LoxValueError, StoreError
from lox._store.followed import Followed
from lox._store.locations import location_of
from lox._store.new_rows import NewRows, Row
from lox._store.reader import Run
from lox._store.run_set import Runs
from lox._store.runs import is_run as is_run_at, run_directories, runs as runs_of
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
    stores = stores_in(arguments.runs) if arguments.follow else []
    found = _find(arguments.runs, stores)
    _check_keys(found, arguments)
    printer = _Printer(arguments, has_names=bool(stores) or len(found) > 1)
    followed = {
        identity(one): Followed(one, arguments.key, arguments.n) for one in found
    }
    for each in followed.values():
        printer.print(each.rows, each.update())
    has_runs = bool(followed)
    while arguments.follow and (not has_runs or _any_running(followed)):
        time.sleep(arguments.interval)
        if output_is_closed():  # without new rows, printing would not notice it
            raise BrokenPipeError
        for name, one in _new_runs(stores, followed):
            followed[name] = Followed(one, arguments.key)
            has_runs = True
        for name, each in list(followed.items()):
            try:
                rows = each.update()
            except (OSError, StoreError) as error:
                if each.exists():
                    if each.is_new(error):
                        say(f"error: {error}")
                else:
                    say(f"no longer followed, since it was removed: {name}")
                    del followed[name]
                continue
            printer.print(each.rows, rows)
    return 0


def _find(given: Sequence[str], stores: Sequence[str]) -> Runs:
    """The runs that arguments name; stores that are followed may have none yet."""
    try:
        return find_runs(given)
    except StoreError as error:
        if not stores:
            raise
        found = Runs([one for store in stores for one in runs_of(store)])
        if not found:
            say(f"waiting for runs: {error}")
        return found


def _any_running(followed: Mapping[str, "Followed"]) -> bool:
    return any(each.is_running for each in followed.values())


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
    stores: Iterable[str], known: Mapping[str, Followed]
) -> Iterator[tuple[str, Run]]:
    for store in stores:
        try:
            directories = run_directories(location_of(absolute(store)))
        except StoreError:
            if not known:  # there is nothing else to follow
                raise
            continue
        for path in directories:
            if str(path) not in known and is_run_at(path):
                with contextlib.suppress(StoreError):  # it may be incomplete now
                    yield str(path), Run(path)


class _Printer:
    """Prints rows, with the names of runs if there are several."""

    def __init__(self, arguments: Any, has_names: bool) -> None:
        self._json = arguments.json
        self._has_names = has_names

    def print(self, read_by: NewRows, rows: Iterable[Row]) -> None:
        run, prng_keys = read_by.run, read_by.prng_keys
        for row in rows:
            values = read_by.select(row)
            if self._json:
                print(_as_json(run, row, values))
            else:
                print(self._as_text(run, row, values, prng_keys))
        # others may wait for the rows in a pipe
        print(end="", flush=True)

    def _as_text(
        self,
        run: Run,
        row: Row,
        values: Mapping[str, Any],
        prng_keys: Mapping[str, str],
    ) -> str:
        steps = [f"{printable(name)} {to_text(x)}" for name, x in row.steps.items()]
        parts = [styled(" ".join(steps), "dim")] if steps else []
        parts += [
            f"{printable(name)}={_text_of(value, row.mask, prng_keys.get(name))}"
            for name, value in values.items()
        ]
        name = [styled(printable(run.name), "bold")] if self._has_names else []
        return "  ".join([*name, *parts])


def _as_json(run: Run, row: Row, values: dict[str, Any]) -> str:
    steps = {name: masked_json(x, row.mask) for name, x in row.steps.items()}
    named = {name: masked_json(x, row.mask) for name, x in values.items()}
    return json.dumps({"run": run.name, "steps": steps, "values": named})


def _text_of(value: Any, mask: Any, impl: str | None) -> str:
    """A number, the mean of an array of numbers, or PRNG keys: `key<rbg>([0, 7])`.

    Args:
        value: the value; of PRNG keys, their data.
        mask: in which lanes the event happened; None if in all.
        impl: the implementation of PRNG keys; None for numbers.
    """
    array = np.asarray(value)
    if mask is not None:
        array = array[mask]
    if impl is not None:
        shape = array.shape[:-1]
        shown = f"[{','.join(map(str, shape))}]" if shape else f"({array.tolist()})"
        return printable(f"key<{impl}>{shown}")
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
