"""Importing lox after JAX, in new processes."""

import subprocess
import sys
from collections.abc import Iterator

from .figure import Figure

_ROUNDS = 15
# Imports compute and do not wait, so they are measured by processor time, which other
# processes do not affect. Names of lox are loaded at their first use.
_PROGRAM = """
from time import process_time
start = process_time()
import jax
before = process_time()
import lox
lox.log, lox.spool, lox.tap, lox.nolog
print(before - start, process_time() - before)
"""


def figures() -> Iterator[Figure]:
    times = [_times() for _ in range(_ROUNDS)]
    jax, lox = (min(each) for each in zip(*times, strict=True))
    yield Figure("seconds of `import lox` and first use of its names", lox, 0.1)
    yield Figure("  / `import jax`", lox / jax)


def _times() -> tuple[float, float]:
    """The seconds that the imports of JAX and of lox take."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True
    )
    jax, lox = map(float, done.stdout.split())
    return jax, lox
