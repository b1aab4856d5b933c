"""How often the numbers of an array come, for trackers that show histograms."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def binned(values: Array, bins: int) -> tuple[Array, Array]:
    """The counts and edges of bins; what is not finite has no place in them."""
    numbers = np.ravel(values).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    try:
        return np.histogram(numbers, bins)
    except ValueError:  # numbers so large, or so close, that there are no edges between
        ends = numbers.min(), np.nextafter(numbers.max(), np.inf)
        return np.array([numbers.size]), np.array(ends)
