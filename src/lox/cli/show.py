"""Shows one run: status, config, versions, and its keys with their curves."""

import argparse
import datetime
from typing import Any

import numpy as np

from lox._logs.columns import Column as KeyColumn, columns_of
from lox._store.configs import flat_config
from lox._store.reader import Run
from lox._store.run_table import format_duration
from lox._store.summaries import Summary
from lox._text_curves import printable, sparkline

from ._arguments import add_keys
from ._find import add_runs, check_keys, find_count
from ._output import print_json
from ._terminal import Column, print_table, screen_width, status_style, styled
from ._values import to_json, to_text

HELP = "show one run"

_MAX_CURVE = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, "+")
    add_keys(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Any) -> int:
    (found,) = find_count(arguments.runs, 1)
    summary = found.summary()
    logs, known = found.load_selected(arguments.key)
    check_keys(arguments.key, known)
    columns = columns_of(logs.compact())
    if arguments.json:
        print_json(_as_json(found, summary, columns))
        return 0
    _print_description(found, summary)
    if columns:
        print()
        _print_keys(columns)
    return 0


def _as_json(found: Run, summary: Summary, columns: list[KeyColumn]) -> dict[str, Any]:
    return {
        "name": found.name,
        "path": str(found.path),
        "key": to_json(found.key),
        "status": summary.status,
        "error": summary.error,
        "started": found.started,
        "duration": summary.duration,
        "rows": summary.rows,
        "config": to_json(found.config),
        "versions": to_json(found.versions),
        "processes": len(found.processes),
        "unfinished_processes": found.unfinished_processes,
        "last": to_json(summary.last),
        "keys": {
            column.name: {
                "dtype": column.array.dtype.name,
                "shape": list(_own_shape(column)),
                "lanes": _lane_shape(column),
                "rows": _row_count(column),
                "steps": _step_ranges(column),
                "tags": list(column.of.info.tags),
            }
            for column in columns
        },
    }


def _print_description(found: Run, summary: Summary) -> None:
    start = datetime.datetime.fromtimestamp(found.started)
    status = styled(summary.status, status_style(summary.status))
    if summary.error:
        status += f": {printable(summary.error)}"
    lines = {
        "name": styled(printable(found.name), "bold"),
        "path": printable(str(found.path)),
        "status": status,
        "started": f"{start:%Y-%m-%d %H:%M:%S}",
        "duration": format_duration(summary.duration),
        "rows": f"{summary.rows:,}",
    }
    processes, unfinished = len(found.processes), found.unfinished_processes
    if processes > 1:
        lines["processes"] = str(processes)
        if unfinished:
            lines["processes"] += f" (not finished: {', '.join(map(str, unfinished))})"
    config = flat_config(found.config)
    if config:
        pairs = (f"{name}={to_text(value)}" for name, value in config.items())
        lines["config"] = printable("  ".join(pairs))
    versions = (f"{name} {version}" for name, version in found.versions.items())
    lines["versions"] = printable(", ".join(versions))
    width = max(map(len, lines))
    room = screen_width()
    for name, text in lines.items():
        head = styled(name.ljust(width), "dim")
        first = True
        for part in _wrapped(text, None if room is None else room - width - 2):
            print(f"{head if first else ' ' * width}  {part}")
            first = False


def _wrapped(text: str, width: int | None) -> list[str]:
    """Wraps the line of config values; other lines are left as they are."""
    if width is None or len(text) <= width or "\x1b" in text or "  " not in text:
        return [text]
    lines = [""]
    for part in text.split("  "):
        joined = f"{lines[-1]}  {part}" if lines[-1] else part
        if len(joined) > width and lines[-1]:
            lines.append(part)
        else:
            lines[-1] = joined
    return lines


def _print_keys(columns: list[KeyColumn]) -> None:
    series = [_series(column) for column in columns]
    curve = min(_MAX_CURVE, max((screen_width() or 100) // 3 - 2, 8))
    print_table(
        [
            Column("key", [column.name for column in columns]),
            Column("rows", [f"{_row_count(x):,}" for x in columns], True, 2),
            Column("shape", list(map(_shape_text, columns)), False, 4),
            Column("steps", list(map(_step_text, columns)), False, 3),
            Column("last", list(map(_last_text, series)), True, 1),
            Column("curve", [sparkline(x, curve) for x in series], False, 1.5),
        ]
    )


def _own_shape(column: KeyColumn) -> tuple[int, ...]:
    return column.array.shape[column.array.ndim - column.own :]


def _lane_shape(column: KeyColumn) -> list[int]:
    shape = list(column.row_shape)
    if column.stacked:
        del shape[column.time_axis]
    return shape


def _row_count(column: KeyColumn) -> int:
    """The number of rows of the key."""
    return column.array.shape[column.time_axis] if column.stacked else 1


def _shape_text(column: KeyColumn) -> str:
    dtype, shape = column.array.dtype.name, _own_shape(column)
    text = f"{dtype}[{','.join(map(str, shape))}]" if shape else dtype
    lanes = _lane_shape(column)
    return f"{text} x {'x'.join(map(str, lanes))} lanes" if lanes else text


def _step_ranges(column: KeyColumn) -> dict[str, Any]:
    ranges = {}
    for name, step in column.of.steps.items():
        numbers = np.asarray(step)
        if column.of.mask is not None:
            numbers = numbers[np.broadcast_to(column.of.mask, numbers.shape)]
        if numbers.size:
            ranges[name] = [to_json(numbers.min()), to_json(numbers.max())]
    return ranges


def _step_text(column: KeyColumn) -> str:
    return ", ".join(
        f"{name} {to_text(low)}" + (f"..{to_text(high)}" if high != low else "")
        for name, (low, high) in _step_ranges(column).items()
    )


def _series(column: KeyColumn) -> Any:
    """One number per row: the mean over lanes and over the elements of an array."""
    array = column.array
    if array.dtype.kind == "c":
        array = np.abs(array)
    if array.dtype.kind == "O":  # PRNG keys
        return np.empty(0)
    if column.of.mask is not None:
        mask = np.asarray(column.of.mask)
        mask = mask.reshape(*mask.shape, *[1] * column.own)
        array = np.where(mask, array.astype(np.float64), np.nan)
    if not column.stacked:
        rows = array.reshape(1, -1)
    else:
        rows = np.moveaxis(array, column.time_axis, 0).reshape(_row_count(column), -1)
    if rows.shape[1] == 1:
        return rows[:, 0].astype(np.float64)
    rows = rows.astype(np.float64)
    finite = np.isfinite(rows)
    with np.errstate(all="ignore"):
        return np.where(finite, rows, 0).sum(1) / finite.sum(1)


def _last_text(series: Any) -> str:
    return to_text(float(series[-1])) if len(series) else "-"
