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
    """A line for each version of JAX and its flags."""
    yield "| JAX | flags | dates | seeds | programs | of them compiled | mismatches |"
    yield "|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in results:
        flags = ", ".join(one["flags"]) or "none"
        groups.setdefault((one["jax"], flags), []).append(one)
    for (jax, flags), group in sorted(groups.items(), key=by_version):
        dates = sorted({one["date"] for one in group})
        count, compiled, failed = (
            sum(one[name] for one in group) for name in ("count", "compiled", "failed")
        )
        yield (
            f"| {jax} | {flags} | {' to '.join(dict.fromkeys((dates[0], dates[-1])))} "
            f"| {seeds(group)} | {count:,} | {compiled:,} | {failed} |"
        )


def by_version(item: tuple[tuple[str, str], Any]) -> tuple[list[int], str]:
    (jax, flags), _ = item
    return [int(part) for part in jax.split(".")], flags


def seeds(group: list[dict[str, Any]]) -> str:
    """The ranges of seeds; adjacent ranges are joined."""
    ranges: list[list[int]] = []
    for first, end in sorted(
        (one["first"], one["first"] + one["count"]) for one in group
    ):
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = end
        else:
            ranges.append([first, end])
    return ", ".join(f"{first} to {end - 1}" for first, end in ranges)


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
