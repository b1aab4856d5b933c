"""The `lox` command: whole processes, from their start to their end."""

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import jax
import jax.numpy as jnp

import lox
import lox.loggers

from .figure import Figure
from .interleaved import best_times

_RUNS = 1_000


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        store = pathlib.Path(directory) / "store"
        _save_runs(store)

        def process(*arguments: str) -> None:
            subprocess.run(
                [sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True
            )

        ls, numpy = best_times(
            lambda: process("-m", "lox", "ls", str(store)),
            lambda: process("-c", "import numpy"),
            rounds=15,
        )
        yield Figure(f"`lox ls` of {_RUNS:,} runs, whole process, seconds", ls, 0.3)
        yield Figure("  of which Python and NumPy take, without lox", numpy)


def _save_runs(store: pathlib.Path) -> None:
    """Lanes of one `vmap`, each a run."""
    logger = lox.loggers.SaveLogger(store, config={"lr": 0.1, "net": {"width": 64}})

    @jax.jit
    @jax.vmap
    def program(key: jax.Array) -> None:
        state = logger.init(key)
        values = {"loss": jnp.float32(0.5), "accuracy": jnp.float32(0.25)}
        logger.log(state, values, step=0)
        logger.finish(state)

    program(jax.random.split(jax.random.key(0), _RUNS))
    jax.effects_barrier()
    assert len(os.listdir(store)) == _RUNS
