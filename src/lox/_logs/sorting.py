"""Sorts the rows of a key by a step."""

from typing import Any

import numpy as np

from lox._arrays import imported_jax, is_jax_array, is_tracer, is_typed_key, to_numpy

from .key import Key


def sort_key(key: Key, step: str) -> Key:
    """The rows of a key, stably sorted by a step; each lane by its own steps.

    Rows that did not happen go to the end.
    """
    if step not in key.steps or not key.info.stacked:
        return key
    steps, mask = key.steps[step], key.mask
    traced = any(map(is_tracer, (steps, mask)))
    numpy = imported_jax().numpy if traced else np
    if not traced:
        steps = to_numpy(steps)
        mask = None if mask is None else to_numpy(mask)
    axis = key.info.time_axis(steps, 0)
    # the last key of `lexsort` comes first
    by = (steps,) if mask is None else (steps, ~mask)
    order = numpy.lexsort(by, axis=axis)
    return key.arrays(lambda x, axis: _reordered(x, order, axis))


def _reordered(x: Any, order: Any, axis: int) -> Any:
    """An array with its rows in another order, which has no axes of values."""
    if is_typed_key(x):
        random = imported_jax().random
        data = _reordered(random.key_data(x), order, axis)
        return random.wrap_key_data(data, impl=random.key_impl(x))
    indices = order.reshape(order.shape + (1,) * (np.ndim(x) - order.ndim))
    if is_tracer(x) or is_tracer(order):
        return imported_jax().numpy.take_along_axis(x, indices, axis)
    # with NumPy, because JAX would compile per length
    taken = np.take_along_axis(to_numpy(x), indices, axis)
    return imported_jax().device_put(taken) if is_jax_array(x) else taken
