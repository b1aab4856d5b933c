"""Programs that log for long, or to many runs: memory, files and threads stay flat."""

import os
import pathlib
import threading
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox
import lox.loggers

PART = 500_000


def resident_bytes() -> int:
    fields = pathlib.Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


def many_events(directory: str, count: str) -> None:
    """Logs `count` events to a run; prints the bytes that the last 80 % added."""
    logger = lox.loggers.SaveLogger(directory)
    state = logger.init(0)

    def train(first: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            lox.log({"x": x}, step=i)
            return x + 1, None

        return lax.scan(step, first * 1.0, first + jnp.arange(PART))[0]

    train = jax.jit(logger.tap(train, state, buffer=10_000))
    parts, resident = max(int(count) // PART, 1), []
    for part in range(parts):
        jax.block_until_ready(train(part * PART))
        jax.effects_barrier()
        resident.append(resident_bytes())
    logger.finish(state)
    logs = lox.load(directory)
    assert len(logs["x"]) == parts * PART
    assert (logs.step["x"] == range(parts * PART)).all()
    print(resident[-1] - resident[len(resident) // 5])


def many_runs(directory: str, count: str) -> None:
    """Writes `count` runs; prints how many files and threads were added."""

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    logger = lox.loggers.SaveLogger(directory)
    before = None
    for i in range(int(count)):
        state = logger.init(i)
        logger.log(state, {"x": i})
        logger.finish(state)
        if i == int(count) // 10:
            before = open_files(), threading.active_count()
    after = open_files(), threading.active_count()
    assert len(lox.runs(directory)) == int(count)
    assert before is not None
    print(after[0] - before[0], after[1] - before[1])
