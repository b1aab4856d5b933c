"""The keys of runs: a run of a store is named by the words of its PRNG key."""

import os
from typing import Any

import numpy as np

from lox._arrays import imported_jax, is_integer, is_typed_key
from lox._errors import LoxTypeError, LoxValueError


def key_data(key: Any) -> Any:
    """The words of a PRNG key: typed, raw, or made of a number."""
    if isinstance(key, np.ndarray) and key.ndim == 0:
        key = key[()]
    if isinstance(key, int | np.integer):
        if not 0 <= key < 2**64:
            raise LoxValueError(
                f"a run's `key` is {key}; a number is from 0 to 2**64 - 1."
            )
        if key >= 2**32:  # of which `jax.random.key` would forget a half
            return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)
        key = int(key)
    if isinstance(key, int) or _is_whole_number(key):
        return _words_of_seed(key)
    if is_typed_key(key):
        return imported_jax().random.key_data(key)
    if getattr(key, "dtype", None) != np.uint32 or key.ndim == 0:
        raise LoxTypeError(
            f"a run's `key` must be a key of `jax.random` or a number, not {key!r}."
        )
    return key


def _is_whole_number(x: Any) -> bool:
    """Whether it is an array of one whole number, a traced one included."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or is_typed_key(x):
        return False
    return np.ndim(x) == 0 and is_integer(dtype)


def _words_of_seed(seed: Any) -> Any:
    """The words of `jax.random.key(seed)`."""
    usual = os.environ.get("JAX_DEFAULT_PRNG_IMPL", "threefry2x32") == "threefry2x32"
    if imported_jax() is None and usual:
        return np.array([0, seed], np.uint32)
    import jax  # which has other kinds of keys, and traced seeds

    return jax.random.key_data(jax.random.key(seed))


def run_name(words: Any) -> str:
    return "-".join(f"{int(word):08x}" for word in np.ravel(words))
