"""Results of `python -m benchmarks peers`, as tables that a page includes.

    .venv/bin/python -m benchmarks peers -o docs/peers.json
    .venv/bin/python -m docs.site.peer_results

writes `docs/peer-results.md`. It has one part per group, between comments with its
name. The pictures of the page are made from the same file in JSON.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

from benchmarks.peers.results import Measurement, Result, read
from benchmarks.peers.table import exponents, ratio, seconds, short_note

DOCS = pathlib.Path(__file__).parents[1]
SOURCE = DOCS / "peers.json"
PATH = DOCS / "peer-results.md"

# The summary has a column for each of these.
_SUMMARY = {
    "scan-10": "10 steps",
    "scan-100000": "100,000 steps",
    "nested": "nested scans",
    "while": "while loop",
    "derivative": "gradient of a scan",
    "transformer": "transformer",
    "checkpointed": "with `checkpoint`",
    "ppo": "PPO, 64 seeds",
}
_NAMES = {"jax-lox": "lox", "jax": "JAX", "python": "Python", "numpy": "NumPy"}


def main_measurement(measurements: list[Measurement]) -> Measurement:
    """The measurement with most results; others have peers that need another JAX."""
    return max(measurements, key=lambda one: len(one.results))


def rows_of(measurements: list[Measurement], group: str) -> list[Result]:
    """The results of a group.

    A peer that does not run with the JAX version of the main measurement is taken from
    another measurement, with the version in its name. Its ratio is relative to the
    program by hand with the same version.
    """
    main = main_measurement(measurements)
    rows = [result for result in main.results if result.group == group]
    for other in measurements:
        if other is main:
            continue
        found: dict[str, list[Result]] = {}
        for result in other.results:
            if result.group == group and result.status != "missing":
                name = f"{result.peer} (JAX {other.versions['jax']})"
                named = dataclasses.replace(result, peer=name)
                found.setdefault(result.peer, []).append(named)
        for peer, replacing in found.items():
            old = [row for row in rows if row.peer == peer]
            if old and all(row.status == "missing" for row in old):
                i = rows.index(old[0])
                by_hand = {row.size: row for row in rows if row.peer == rows[0].peer}
                rows = [row for row in rows if row.peer != peer]
                rows[i:i] = [_scaled(row, by_hand.get(row.size)) for row in replacing]
    return rows


def _scaled(row: Result, by_hand: Result | None) -> Result:
    """A result with another JAX, scaled to the time of the program by hand here."""
    if row.size is None or not (row.ratio and row.median and by_hand):
        return row
    if by_hand.median is None:
        return row
    return dataclasses.replace(row, median=row.ratio * by_hand.median)


def parts(measurements: list[Measurement]) -> dict[str, list[str]]:
    """The lines of each part."""
    found = {
        "measured": list(_measured(measurements)),
        "summary": list(_summary(measurements)),
        "missing": list(_missing(measurements)),
    }
    main = main_measurement(measurements)
    for group in dict.fromkeys(result.group for result in main.results):
        rows = rows_of(measurements, group)
        if any(row.size is not None for row in rows):
            found[group] = list(_exponents(rows, group))
        else:
            found[group] = list(_table(rows))
    return found


def _measured(measurements: list[Measurement]) -> Iterator[str]:
    main = main_measurement(measurements)
    quick = " This is a short measurement." if main.quick else ""
    listed = ", ".join(
        f"{_NAMES.get(name, name)} {version}" for name, version in main.versions.items()
    )
    yield (
        f"Measured on {main.date}, on {main.machine}, with a load of {main.load:.1f} "
        f"before.{quick} Versions: {listed}."
    )
    for other in measurements:
        if other is not main:
            names = {r.peer for r in other.results if r.status != "missing"}
            peers = {r.peer for r in main.results if r.status == "missing"}
            shown = ", ".join(sorted(names & peers)) or "the same"
            yield f"With JAX {other.versions['jax']}, on {other.date}: {shown}."


def _missing(measurements: list[Measurement]) -> Iterator[str]:
    """Peers that could not take part at all, and why."""
    main = main_measurement(measurements)
    notes = {r.peer: r.note for r in main.results if r.status == "missing"}
    for peer, note in notes.items():
        yield f"- {peer}: {_escaped(note)}"


def _summary(measurements: list[Measurement]) -> Iterator[str]:
    groups = {
        group: {row.peer: row for row in rows_of(measurements, group)}
        for group in _SUMMARY
    }
    groups = {group: rows for group, rows in groups.items() if rows}
    titles = " | ".join(_SUMMARY[group] for group in groups)
    yield f"| | {titles} |"
    yield "|---|" + "---|" * len(groups)
    for peer in dict.fromkeys(peer for rows in groups.values() for peer in rows):
        cells = [_cell(rows.get(peer)) for rows in groups.values()]
        if sum(map(bool, cells)) > 1:  # peers of a single group are only in its table
            yield f"| {_code(peer)} | {' | '.join(cells)} |"


def _cell(row: Result | None) -> str:
    if row is None or row.status == "missing":
        return ""
    if row.ratio is not None:
        return ratio(row.ratio)
    return row.status


def _time(value: float) -> str:
    """On one line, also in narrow columns."""
    return seconds(value).replace(" ", "\N{NO-BREAK SPACE}")


def _table(rows: list[Result]) -> Iterator[str]:
    yield "| | ratio | median | quartiles | best | n |"
    yield "|---|---|---|---|---|---|"
    notes = []
    for row in rows:
        if row.status != "measured":
            status = "not available" if row.status == "missing" else row.status
            yield f"| {_code(row.peer)} | {status} | | | | |"
            notes.append(f"- {_code(row.peer)}: {_escaped(short_note(row))}")
            continue
        assert row.median and row.best and row.low and row.high
        shown = ratio(row.ratio) if row.ratio else ""
        quartiles = f"{_time(row.low)} to {_time(row.high)}"
        yield (
            f"| {_code(row.peer)} | {shown} | {_time(row.median)} | {quartiles} "
            f"| {_time(row.best)} | {row.samples} |"
        )
    if notes:  # too long for the table
        yield ""
        yield from notes


def _exponents(rows: list[Result], group: str) -> Iterator[str]:
    sizes = sorted({row.size for row in rows if row.size is not None})
    yield "| | exponent | " + " | ".join(f"{size:,}" for size in sizes) + " |"
    yield "|---|---|" + "---|" * len(sizes)
    slopes = exponents(rows).get(group, {})
    for peer in dict.fromkeys(row.peer for row in rows):
        by_size = {row.size: row for row in rows if row.peer == peer}
        if all(row.status == "missing" for row in by_size.values()):
            continue
        slope = f"{slopes[peer]:.2f}" if peer in slopes else ""
        cells = []
        for size in sizes:
            row = by_size.get(size)
            if row is None:
                cells.append("")
            elif row.median is not None:
                cells.append(_time(row.median))
            else:
                cells.append("too slow" if row.status == "slow" else row.status)
        yield f"| {_code(peer)} | {slope} | {' | '.join(cells)} |"


def _code(peer: str) -> str:
    """Names of functions are code; what follows them is not."""
    name, rest = re.fullmatch(r"(.*?)(, .*| \(.*)?", peer).groups()
    code = f"`{name}`" if any(x in name for x in "._") else name
    return code + (rest or "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def as_markdown(measurements: list[Measurement]) -> str:
    lines = []
    for name, part in parts(measurements).items():
        lines += [f"<!-- {name} -->", "", *part, "", f"<!-- /{name} -->", ""]
    return "\n".join(lines)


def main() -> None:
    measurements = read(SOURCE)
    PATH.write_text(as_markdown(measurements))
    count = sum(len(one.results) for one in measurements)
    print(f"{count} results in {PATH}")


if __name__ == "__main__":
    main()
