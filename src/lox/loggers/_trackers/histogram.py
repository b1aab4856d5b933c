"""Histograms of arrays, for trackers that show them."""

from collections.abc import Iterator

import numpy as np

from lox.loggers._tables import Array, Table


def finite_histogram(values: Array, bins: int) -> tuple[Array, Array]:
    """The counts and bin edges of the finite values."""
    numbers = np.ravel(values).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    try:
        return np.histogram(numbers, bins)
    except ValueError:  # too large, or too close together, for floats between them
        ends = numbers.min(), np.nextafter(numbers.max(), np.inf)
        return np.array([numbers.size]), np.array(ends)


def histograms_of(
    table: Table, bins: int
) -> Iterator[tuple[str, list[tuple[Array, Array]]]]:
    """The name, and the counts and bin edges of each row, of all histograms."""
    for name, column in table.histograms.items():
        yield name, [finite_histogram(values, bins) for values in column]
    for name, columns in table.binned.items():
        yield name, list(zip(*columns, strict=True))
