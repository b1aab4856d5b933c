"""Settings of the tests with other libraries."""

import jax
import pytest

import lox

from .recording import scaled


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """The short form compiles for longer than it runs, so XLA optimizes little."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", scaled(1) == 1)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True)
def silent():
    lox.set_default("silent")
