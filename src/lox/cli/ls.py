"""Lists runs: status, start, duration, rows, config and last values.

The table shows the config keys that differ between the runs, and as many columns as fit
the terminal; in a pipe, all of them. Names are looked up in the store that comes first.
"""

import argparse
import datetime
import os
import time
from collections.abc import Sequence
from typing import Any

from lox._errors import LoxValueError
from lox._garbage import collector_paused
from lox._store.configs import hashable
from lox._store.run_table import Line, format_duration, line_of

from ._find import add_runs, find_runs
from ._output import print_json
from ._terminal import Column, print_table, status_style, styled
from ._values import to_json, to_text

HELP = "list runs"

_STATUSES = "running", "finished", "failed", "killed", "stale"
_MAX_HIDDEN = 8  # how many columns that are not shown are named
_SORT_HELP = (
    "name, status, started, duration, rows, a config key or a logged key; --sort=-KEY "
    "sorts in reverse; config/KEY or last/KEY if both have the same name (default: "
    "started)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument("--sort", metavar="KEY", help=_SORT_HELP)
    parser.add_argument(
        "--status",
        action="append",
        choices=_STATUSES,
        help="only runs with this status; may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Any) -> int:
    lines = _lines(arguments.runs)
    if arguments.status:
        lines = [line for line in lines if line.status in arguments.status]
    if arguments.sort and lines:
        lines = _sorted(lines, arguments.sort)
    if arguments.json:
        print_json({"runs": [line_as_json(line) for line in lines]})
        return 0
    if not lines:
        print(f"no runs with status {' or '.join(arguments.status)}")
        return 0
    hidden = print_table(_columns(lines, (arguments.sort or "").removeprefix("-")))
    if hidden:
        note = f"not shown: {', '.join(hidden[:_MAX_HIDDEN])}"
        more = len(hidden) - _MAX_HIDDEN
        print(styled(f"{note} and {more} more" if more > 0 else note, "dim"))
    return 0


def _lines(given: Sequence[str]) -> list[Line]:
    with collector_paused():
        return [line_of(run) for run in find_runs(given)]


def line_as_json(line: Line) -> dict[str, Any]:
    """A run in the result of `--json`."""
    return {
        "name": line.run.name,
        "path": str(line.run.path),
        "status": line.status,
        "started": line.run.started,
        "duration": line.duration,
        "rows": line.rows,
        "config": to_json(line.run.config),
        "last": to_json(line.last),
    }


def _columns(lines: Sequence[Line], sorted_by: str) -> list[Column]:
    """The columns; that by which the lines are sorted is shown in any case."""
    now = time.time()
    starts = [format_start(line.run.started, now) for line in lines]
    columns = [
        Column("name", [line.run.name for line in lines], priority=0),
        Column(
            "status",
            [line.status for line in lines],
            priority=1,
            styles={status: status_style(status) for status in _STATUSES},
        ),
        Column("started", starts, True, 5.5),
        Column(
            "duration", [format_duration(line.duration) for line in lines], True, 4.5
        ),
        Column("rows", [str(line.rows) for line in lines], True, 4),
    ]
    stores = [os.path.dirname(str(line.run.path)) for line in lines]
    if len({*stores}) > 1:
        columns.insert(1, Column("store", stores, priority=1.5))
    configs = [line.config for line in lines]
    for i, name in enumerate(_differing(configs)):
        cells = [to_text(config.get(name)) for config in configs]
        columns.append(Column(name, cells, _are_numbers(configs, name), 2 + i))
    values = [line.last for line in lines]
    for i, name in enumerate(dict.fromkeys(name for last in values for name in last)):
        cells = [to_text(last.get(name)) for last in values]
        columns.append(Column(name, cells, True, 3 + i))
    shown = sorted_by, sorted_by.partition("/")[2]  # also for `last/KEY`
    return [
        column._replace(priority=0) if column.title in shown else column
        for column in columns
    ]


def _differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The config keys that do not have the same value in all runs; all for one run."""
    names = dict.fromkeys(name for config in configs for name in config)
    if len(configs) == 1:
        return list(names)
    missing = object()
    return [
        name
        for name in names
        if len({hashable(config.get(name, missing)) for config in configs}) > 1
    ]


def _are_numbers(configs: Sequence[dict[str, Any]], name: str) -> bool:
    found = (config[name] for config in configs if name in config)
    return all(isinstance(value, int | float) for value in found)


def format_start(seconds: float, now: float) -> str:
    """The time of a run of today, else its date."""
    start = datetime.datetime.fromtimestamp(seconds)
    if start.date() == datetime.datetime.fromtimestamp(now).date():
        return f"{start:%H:%M:%S}"
    return f"{start:%Y-%m-%d}"


def _sorted(lines: Sequence[Line], key: str) -> list[Line]:
    """Sorts by a column; runs that do not have it come last."""
    reverse, name = key.startswith("-"), key.removeprefix("-")
    found = [_value(line, name) for line in lines]
    if all(value is None for value in found):
        configs = dict.fromkeys(x for line in lines for x in line.config)
        values = dict.fromkeys(x for line in lines for x in line.last)
        known = ", ".join(map(repr, (*_ATTRIBUTES, *configs, *values)))
        raise LoxValueError(f"no run has {name!r} to sort by; available: {known}.")
    pairs = [(_order(x), line) for x, line in zip(found, lines, strict=True)]
    present = [pair for pair in pairs if pair[0] is not None]
    present.sort(key=lambda pair: pair[0], reverse=reverse)
    missing = [pair for pair in pairs if pair[0] is None]
    return [line for _, line in (*present, *missing)]


_ATTRIBUTES = "name", "status", "started", "duration", "rows"


def _value(line: Line, name: str) -> Any:
    if name == "name":
        return line.run.name
    if name == "started":
        return line.run.started
    if name in _ATTRIBUTES:
        return getattr(line, name)
    kind, _, inner = name.partition("/")
    named = {"config": line.config, "last": line.last}.get(kind, {})
    for values, key in ((named, inner), (line.config, name), (line.last, name)):
        if key in values:
            return values[key]
    return None


def _order(value: Any) -> Any:
    """The sort key of a value: numbers before text; None for NaN and missing values."""
    if value is None or value != value:
        return None
    try:
        # a float would round large integers, or not hold them
        return (0, value if isinstance(value, int) else float(value), "")
    except (TypeError, ValueError):
        return (1, 0.0, str(value))
