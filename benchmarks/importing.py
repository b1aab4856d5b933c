"""Importing lox after JAX: whole processes, from their start to their end."""

import resource
import subprocess
import sys
from collections.abc import Iterator

from .figure import Figure
from .interleaved import best_times

_NAMES = "lox.log, lox.spool, lox.tap, lox.nolog"  # names are loaded at their first use


def figures() -> Iterator[Figure]:
    lox, jax, nothing = best_times(
        lambda: _run(f"import jax, lox; {_NAMES}"),
        lambda: _run("import jax"),
        lambda: _run("pass"),
        rounds=15,
        clock=_processor_time,
    )
    yield Figure(
        "`import lox` and first use of its names, after JAX, seconds", lox - jax, 0.1
    )
    yield Figure("  / importing JAX", (lox - jax) / (jax - nothing))


def _run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


def _processor_time() -> float:
    """Of all processes that have ended, which other processes do not affect."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
