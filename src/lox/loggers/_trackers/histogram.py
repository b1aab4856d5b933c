"""Histograms of arrays, for trackers that show them."""

from collections.abc import Iterator

from lox._event_files.histograms import finite_histogram
from lox.loggers._tables import Array, Table


def histograms_of(
    table: Table, bins: int
) -> Iterator[tuple[str, list[tuple[Array, Array]]]]:
    """The name, and the counts and bin edges of each row, of all histograms."""
    for name, column in table.histograms.items():
        yield name, [finite_histogram(values, bins) for values in column]
    for name, columns in table.binned.items():
        yield name, list(zip(*columns, strict=True))
