"""Results as text."""

from collections.abc import Iterator

from .results import Result
from .spread import exponent


def seconds(time: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if time >= 0.9995 * size:  # rounds to 1
            return f"{time / size:.3g} {unit}"
    return f"{time / 1e-9:.3g} ns"


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def short_note(result: Result) -> str:
    """Why a contender has no time."""
    if result.status == "missing":
        return result.note.partition(":")[0]
    return f"{result.status}: {result.note}"


def lines(results: list[Result]) -> Iterator[str]:
    """A table per group, and the exponents of groups with several sizes."""
    groups: dict[tuple[str, str, int | None], list[Result]] = {}
    for result in results:
        groups.setdefault((result.group, result.work, result.size), []).append(result)
    for (group, work, _), rows in groups.items():
        yield f"{group}: {work}"
        header = ("contender", "ratio", "median", "best", "quartiles", "n")
        yield "  {:<28} {:>8} {:>9} {:>9} {:>20} {:>4}".format(*header)
        for row in rows:
            yield f"  {row.peer:<28} {_cells(row)}"
        yield ""
    for name, slopes in exponents(results).items():
        yield f"{name}: exponent of the cost"
        for peer, slope in slopes.items():
            yield f"  {peer:<28} {slope:>8.2f}"
        yield ""


def _cells(row: Result) -> str:
    if row.status != "measured":
        return short_note(row)
    assert row.median and row.best and row.low and row.high
    shown = ratio(row.ratio) if row.ratio else "-"
    quartiles = f"{seconds(row.low)} - {seconds(row.high)}"
    return (
        f"{shown:>8} {seconds(row.median):>9} {seconds(row.best):>9} "
        f"{quartiles:>20} {row.samples:>4}"
    )


def curves(results: list[Result], group: str) -> dict[str, list[tuple[int, float]]]:
    """Of a group with several sizes, the median of each contender at each size."""
    found: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        if result.group == group and result.size is not None and result.median:
            found.setdefault(result.peer, []).append((result.size, result.median))
    return found


def exponents(results: list[Result]) -> dict[str, dict[str, float]]:
    """The exponent of the cost of each contender, of groups with several sizes."""
    found: dict[str, dict[str, float]] = {}
    for group in dict.fromkeys(r.group for r in results if r.size is not None):
        for peer, points in curves(results, group).items():
            slope = exponent(*zip(*points, strict=True))
            if slope is not None:
                found.setdefault(group, {})[peer] = slope
    return found
