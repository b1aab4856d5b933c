"""Results of `make bench`, as a table in Markdown that the benchmark page includes.

    .venv/bin/python -m benchmarks | .venv/bin/python -m docs.site.benchmark_results

writes `docs/benchmark-results.md`. The picture of the page is made from this file too.
An argument, such as "on a laptop", is a remark about the measurement.
"""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
import sys
from typing import NamedTuple

PATH = pathlib.Path(__file__).parents[1] / "benchmark-results.md"
# a row of the table that `python -m benchmarks` prints, and of the one in Markdown
_PRINTED = re.compile(r"(.*?) +(\d+\.\d+) +(-|\d+\.\d+)(?:  (?:yes|NO))?")
_WRITTEN = re.compile(r"\| (.*) \| (\d+\.\d+) \| (-|\d+\.\d+) \|")


class Row(NamedTuple):
    """A figure; two leading spaces mean that it belongs to the figure before it."""

    figure: str
    value: str
    goal: str


def read_printed(text: str) -> list[Row]:
    return _rows(_PRINTED, text)


def read_results(text: str) -> list[Row]:
    return [
        row._replace(figure=row.figure.replace("&emsp;", "  "))
        for row in _rows(_WRITTEN, text)
    ]


def without_noise(rows: list[Row]) -> list[Row]:
    """Drops run times of programs that have the same instructions."""
    kept: list[Row] = []
    is_same = False
    for row in rows:
        if not row.figure.startswith("  "):
            is_same = "instructions" in row.figure and float(row.value) == 1
        if not (is_same and row.figure.strip() == "run time"):
            kept.append(row)
    return kept


def _rows(pattern: re.Pattern[str], text: str) -> list[Row]:
    found = map(pattern.fullmatch, text.splitlines())
    return [Row(*match.groups()) for match in found if match]


def as_markdown(rows: list[Row], measured: str) -> str:
    lines = [f"Measured {measured}.", "", "| figure | value | goal |", "|---|---|---|"]
    for figure, value, goal in rows:
        name = figure.strip() if figure == figure.strip() else f"&emsp;{figure.strip()}"
        lines.append(f"| {name} | {value} | {goal} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    rows = without_noise(read_printed(sys.stdin.read()))
    if not rows:
        sys.exit("no figure in the input: pipe the output of `python -m benchmarks`")
    measured = (
        f"on {datetime.date.today()} with JAX {importlib.metadata.version('jax')}, "
        f"Python {platform.python_version()}, {os.cpu_count()} CPU cores"
    )
    measured = ", ".join([measured, *sys.argv[1:]])
    PATH.write_text(as_markdown(rows, measured))
    print(f"{len(rows)} figures in {PATH}")


if __name__ == "__main__":
    main()
