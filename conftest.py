"""Set-up that must come before JAX is imported."""

import os

# shard_map and meshes need devices; everything else runs on the first one
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import pytest

import lox

collect_ignore = ["tests/typing_of_the_api.py"]  # for the type checker alone


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace):
    doctest_namespace.update(jax=jax, jnp=jnp, lox=lox)


@pytest.fixture(autouse=True)
def default_handler():
    yield
    lox.set_default("print")
