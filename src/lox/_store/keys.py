"""The keys of runs: a run is named after the words of its PRNG key, in hex."""

import os
from typing import Any

import numpy as np

from lox._arrays import imported_jax, is_integer, is_typed_key
from lox._errors import LoxTypeError, LoxValueError


def key_data(key: Any) -> Any:
    """The words of a PRNG key, which is typed, raw, or an integer seed."""
    if isinstance(key, np.ndarray) and key.ndim == 0:
        key = key[()]
    if isinstance(key, int | np.integer):
        if not 0 <= key < 2**64:
            raise LoxValueError(
                f"a run's `key` is {key}; an integer must be from 0 to 2**64 - 1."
            )
        if key >= 2**32:  # `jax.random.key` may drop the upper half
            return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)
        key = int(key)
    if isinstance(key, int) or _is_integer_scalar(key):
        return _words_of_seed(key)
    if is_typed_key(key):
        return imported_jax().random.key_data(key)
    if getattr(key, "dtype", None) != np.uint32 or key.ndim == 0:
        raise LoxTypeError(
            f"a run's `key` must be a `jax.random` key or an integer, not {key!r}."
        )
    return key


def _is_integer_scalar(x: Any) -> bool:
    """Whether `x` is a scalar integer array, possibly traced."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or is_typed_key(x):
        return False
    return np.ndim(x) == 0 and is_integer(dtype)


def _words_of_seed(seed: Any) -> Any:
    """The words of `jax.random.key(seed)`."""
    impl = os.environ.get("JAX_DEFAULT_PRNG_IMPL", "threefry2x32")
    if imported_jax() is None and impl == "threefry2x32":
        return np.array([0, seed], np.uint32)
    import jax  # for other implementations, and traced seeds

    return jax.random.key_data(jax.random.key(seed))


def run_name(words: Any) -> str:
    return "-".join(f"{int(word):08x}" for word in np.ravel(words))
