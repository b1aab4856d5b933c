"""Runs as a table: as text, as HTML and as a data frame."""

import datetime
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lox._arrays import leaves_with_names
from lox._errors import LoxError, StoreError
from lox._logs.exports import require
from lox._logs.html_table import html_table, key_rows

from .configs import all_names, flat_config, varying_names
from .reader import Run

if TYPE_CHECKING:
    from .run_set import Runs

# Longer tables show only the first and the last runs, and the first columns.
_MAX_RUNS = 20
_MAX_HTML_RUNS = 50
_MAX_CONFIGS = 6
_MAX_VALUES = 6
_MAX_NAME = 40
# Curves of more runs or rows are not drawn, since all of them must be read.
_MAX_DRAWN_RUNS = 64
_MAX_DRAWN_ROWS = 200_000


class Line(NamedTuple):
    """One run, at one moment.

    Attributes:
        run: the run.
        status: its status.
        duration: its duration in seconds.
        rows: the number of its rows.
        config: its flat config.
        last: the last values of its scalar keys.
    """

    run: Run
    status: str
    duration: float
    rows: int
    config: dict[str, Any]
    last: dict[str, Any]


def line_of(run: Run) -> Line:
    config = flat_config(run.config)
    try:
        summary = run.summary()
        last = {
            name + path: leaf
            for name, value in summary.last_values.items()
            for path, leaf in leaves_with_names(value)
        }
    except StoreError:  # it was removed, or is damaged
        return Line(run, "unreadable", 0.0, 0, config, {})
    return Line(run, summary.status, summary.duration, summary.rows, config, last)


def to_pandas(runs: "Runs") -> Any:
    pandas = require("pandas", "pandas", "`runs.to_pandas()`")
    lines = [line_of(run) for run in runs]
    columns: dict[str, list[Any]] = {
        "name": [line.run.name for line in lines],
        "status": [line.status for line in lines],
        "started": [_datetime(line.run.started) for line in lines],
        "duration": [line.duration for line in lines],
        "rows": [line.rows for line in lines],
    }
    for name in all_names(line.config for line in lines):
        columns[f"config/{name}"] = _exact(
            pandas, [line.config.get(name) for line in lines]
        )
    for name in all_names(line.last for line in lines):
        columns[f"last/{name}"] = _exact(
            pandas, _nullable(pandas, [line.last.get(name) for line in lines])
        )
    return pandas.DataFrame(columns)


def _exact(pandas: Any, values: Any) -> Any:
    """Keeps pandas from rounding integers that it would convert to floats."""
    if not isinstance(values, list):
        return values
    column = pandas.Series(values)
    if column.dtype.kind not in "fc":
        return values
    plain = [x.item() if hasattr(x, "dtype") else x for x in values]
    if all(
        int(converted.real) == value
        for value, converted in zip(plain, column, strict=True)
        if isinstance(value, int)
    ):
        return values
    return pandas.array(plain, dtype=object)


def _nullable(pandas: Any, values: list[Any]) -> Any:
    """Keeps pandas from converting integers to floats where some are missing."""
    found = [value for value in values if value is not None]
    if len(found) == len(values) or not all(x.dtype.kind in "iu" for x in found):
        return values
    ints = [None if value is None else int(value) for value in values]
    if all(x.dtype.kind == "u" for x in found):
        return pandas.array(ints, dtype="UInt64")
    if all(int(x) < 2**63 for x in found):
        return pandas.array(ints, dtype="Int64")
    return pandas.array(ints, dtype=object)  # no dtype can represent all of them


def _datetime(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


# --- text --------------------------------------------------------------------


def to_text(runs: "Runs") -> str:
    if not runs:
        return "<no lox runs>"
    head, shown = _cells(runs, _MAX_RUNS)
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    lines = [
        "  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip()
        for row in (head, *shown)
    ]
    if len(runs) > len(shown):
        half = _MAX_RUNS // 2
        lines.insert(1 + half, f"... {len(runs) - len(shown)} more runs")
    return "\n".join(lines)


def _cells(runs: "Runs", max_runs: int) -> tuple[list[str], list[list[str]]]:
    """The cells of the table: its head, and the first and last runs."""
    shown: Sequence[Run] = runs
    if len(runs) > max_runs:
        shown = [*runs[: max_runs // 2], *runs[-(max_runs // 2) :]]
    lines = [line_of(run) for run in shown]
    configs = varying_names(shown)[:_MAX_CONFIGS]
    if not configs:
        configs = all_names(line.config for line in lines)[:_MAX_CONFIGS]
    values = all_names(line.last for line in lines)[:_MAX_VALUES]
    head = ["name", "status", "started", "duration", "rows", *configs, *values]
    rows = [
        [
            line.run.name,
            line.status,
            f"{_datetime(line.run.started).astimezone():%Y-%m-%d %H:%M}",
            format_duration(line.duration),
            str(line.rows),
            *(_cell(line.config.get(name)) for name in configs),
            *(_cell(line.last.get(name)) for name in values),
        ]
        for line in lines
    ]
    return [_shortened(name) for name in head], [[*map(_shortened, x)] for x in rows]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if hasattr(value, "dtype") and value.dtype.kind in "biuc":
        return str(value)
    if isinstance(value, float) or hasattr(value, "dtype"):
        try:
            return f"{float(value):.4g}"
        except (TypeError, ValueError):
            return str(value)
    return str(value)


def _shortened(text: str) -> str:
    # names may contain line breaks, and characters that control a terminal
    text = "".join(x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in text)
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 3]}..."


def format_duration(seconds: float) -> str:
    """Formats a duration, such as `1 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


# --- HTML --------------------------------------------------------------------


def to_html(runs: "Runs") -> str:
    """A table of the runs, and one of their keys: mean and band over the runs."""
    if not runs:
        return "<p>no lox runs</p>"
    head, rows = _cells(runs, _MAX_HTML_RUNS)
    table = html_table(head, [[html.escape(cell) for cell in row] for row in rows])
    more = ""
    if len(runs) > len(rows):
        more = f"<p>{len(rows)} of {len(runs)} runs: the first and the last.</p>"
    return f"<div>{table}{more}{_curves(runs)}</div>"


def _curves(runs: "Runs") -> str:
    """The keys of all runs, if they can be read quickly; otherwise, why not."""
    try:
        rows = 0 if len(runs) > _MAX_DRAWN_RUNS else sum(run.rows for run in runs)
        if len(runs) > _MAX_DRAWN_RUNS or rows > _MAX_DRAWN_ROWS:
            return (
                f"<p>Curves are drawn for up to {_MAX_DRAWN_RUNS} runs and "
                f"{_MAX_DRAWN_ROWS:,} rows. <code>runs.plot()</code> and "
                "<code>lox.page</code> draw more.</p>"
            )
        logs = runs.load()
    except LoxError as error:  # runs that cannot be read, or do not fit together
        return f"<p>No curves: {html.escape(str(error))}</p>"
    return html_table(
        ("key", "dtype", "shape", "mean ± std", "last", "steps"), key_rows(logs)
    )
