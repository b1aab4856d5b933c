"""Results of `make fuzz` and `make faults`, as tables that a page includes.

    .venv/bin/python -m docs.site.reliability_results

writes `docs/reliability-results.md` from what `python -m tests.fuzz --record` and
`python -m tests.faults --record` have written to `docs/fuzz.jsonl` and
`docs/faults.jsonl`.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

DOCS = pathlib.Path(__file__).parents[1]
PATH = DOCS / "reliability-results.md"


def read(name: str) -> list[dict[str, Any]]:
    path = DOCS / name
    return [json.loads(line) for line in path.read_text().splitlines()]


def programs(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "| JAX | flags | date | compared | seeds | programs | mismatches |"
    yield "|---|---|---|---|---|---|---|"
    for one in results:
        last = one["first"] + one["count"] - 1
        flags = ", ".join(one["flags"]) or "none"
        yield (
            f"| {one['jax']} | {flags} | {one['date']} | {', '.join(one['checks'])} "
            f"| {one['first']} to {last} | {one['count']} | {one['failed']} |"
        )


def faults(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "| what was done | how often | what was lost | JAX, date |"
    yield "|---|---|---|---|"
    for one in {one["done"]: one for one in results}.values():  # the newest of each
        yield (
            f"| {one['done']} | {one['times']:,} | {one['lost']} "
            f"| {one['jax']}, {one['date']} |"
        )


def main() -> None:
    lines = ["**Random programs**", "", *programs(read("fuzz.jsonl"))]
    lines += ["", "**Faults**", "", *faults(read("faults.jsonl")), ""]
    PATH.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
