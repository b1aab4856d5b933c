"""The values of a table as trackers accept them: numbers, histograms, images."""

from collections.abc import Callable, Iterator
from typing import Any

from lox._event_files.histograms import finite_histogram
from lox._logs.tables import Array, Table, python_numbers

_BINS = 64


def histograms_of(
    table: Table, bins: int
) -> Iterator[tuple[str, list[tuple[Array, Array]]]]:
    """The name, and the counts and bin edges of each row, of all histograms."""
    for name, column in table.histograms.items():
        yield name, [finite_histogram(values, bins) for values in column]
    for name, columns in table.binned.items():
        yield name, list(zip(*columns, strict=True))


def columns_of(
    table: Table,
    histogram: Callable[..., Any],
    image: Callable[[Array], Any],
) -> dict[str, list[Any]]:
    """The columns to log, by name: one value per row.

    Args:
        table: the table.
        histogram: creates a histogram from `np_histogram`, its counts and bin edges.
        image: creates an image from its pixels.
    """
    columns = {name: python_numbers(x) for name, x in table.scalars.items()}
    for name, rows in histograms_of(table, _BINS):
        columns[name] = [histogram(np_histogram=row) for row in rows]
    for name, column in table.images.items():
        columns[name] = [image(pixels) for pixels in column]
    return columns
