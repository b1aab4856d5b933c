"""A plain table of runs, for readers of a page without JavaScript."""

import html
from typing import Any

from .source import StoreSource

_MAX_RUNS, _MAX_KEYS = 50, 8


def summary_table(source: StoreSource) -> str:
    """The runs of a store with their last values, as HTML."""
    runs = [run.description for run in list(source.runs.values())[:_MAX_RUNS]]
    keys = list(dict.fromkeys(key for run in runs for key in run["last"]))[:_MAX_KEYS]
    head = "".join(_cell("th", text) for text in ("run", "status", "rows", *keys))
    rows = [
        [run["name"], run["status"], run["rows"], *map(_number, _last(run, keys))]
        for run in runs
    ]
    body = "".join(
        "<tr>" + "".join(_cell("td", str(x)) for x in row) + "</tr>" for row in rows
    )
    more = len(source.runs) - len(runs)
    note = f"<p>and {more} more runs</p>" if more > 0 else ""
    return (
        f"<table><caption>{html.escape(source.name)}: {len(source.runs)} runs"
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"
    )


def _last(run: dict[str, Any], keys: list[str]) -> list[Any]:
    return [run["last"].get(key) for key in keys]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _cell(tag: str, text: str) -> str:
    safe = text.encode("utf-8", "backslashreplace").decode()
    return f"<{tag}>{html.escape(safe)}</{tag}>"
