"""Histograms of arrays."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def finite_histogram(values: Array, bins: int) -> tuple[Array, Array]:
    """The counts and bin edges of the finite values."""
    numbers = np.ravel(values).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    try:
        return np.histogram(numbers, bins)
    except ValueError:  # too large, or too close together, for floats between them
        ends = numbers.min(), np.nextafter(numbers.max(), np.inf)
        return np.array([numbers.size]), np.array(ends)
