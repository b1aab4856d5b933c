"""Multi-process jobs: rows that all of them write to one run of a store.

More processes than cores slow each other down, whatever they write. So the processes of
a job, which share a run, are compared with as many processes at a time that share
nothing: what remains is the cost of the job and of the shared run. A job of two
processes, for which two cores are enough, is also compared with a single process. For
comparison, a figure without a goal shows what the number of cores costs.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from .figure import Figure

_COUNT = 4
_ROWS = 20_000
_ROUNDS = 12
_AT_MOST = 1 / 0.9  # 0.9 times the rows per second, per process

# Reads names of stores, logs rows to each, and prints the seconds that it took.
_PROGRAM = """
import sys, time
import jax, jax.numpy as jnp
import lox, lox.loggers

port, process, processes, rows = map(int, sys.argv[1:])
if processes > 1:  # a job
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)

def train(xs):
    def step(carry, x):
        carry = carry * 0.5 + x
        lox.log({"carry": carry}, step=x)
        return carry, None
    return jax.lax.scan(step, 0.0, xs)[0]

xs = jnp.arange(1.0 * rows)
for number, line in enumerate(sys.stdin):
    store = line.rstrip("\\n").replace("PROCESS", str(process))
    logger = lox.loggers.SaveLogger(store, processes="all")
    state = logger.init(number)
    tapped = logger.tap(train, state)
    tapped(xs[:10])
    start = time.perf_counter()
    tapped(xs)
    print(time.perf_counter() - start, flush=True)
    logger.finish(state)
"""


class _Processes:
    """Local processes, which `jax.distributed` connects if they are a job."""

    def __init__(self, count: int, is_job: bool) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        size = count if is_job else 1
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *map(str, (port, i, size, _ROWS))],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(count)
        ]

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            process.wait()

    def seconds(self, store: pathlib.Path) -> list[float]:
        """The time in which each process logs its rows, all at the same time."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{store}\n")
            process.stdin.flush()
        found = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            while line.startswith("[Gloo]"):
                line = process.stdout.readline()
            found.append(float(line))
        return found


def figures() -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory() as directory,
        _Processes(_COUNT, is_job=True) as job,
        _Processes(_COUNT, is_job=False) as separate,
        _Processes(2, is_job=True) as pair,
        _Processes(1, is_job=False) as single,
    ):
        path = pathlib.Path(directory)
        one_run, own_runs, two, alone = _best_times(
            (job, path / "job"),
            (separate, path / "separate-PROCESS"),
            (pair, path / "pair"),
            (single, path / "single"),
        )
    yield Figure(
        f"{_COUNT} processes that write one run / {_COUNT} that share nothing, per row",
        one_run / own_runs,
        _AT_MOST,
    )
    yield Figure(f"  {_COUNT} that share nothing / 1 process", own_runs / alone)
    yield Figure("2 processes that write one run / 1 process", two / alone, _AT_MOST)


def _best_times(*contenders: tuple[_Processes, pathlib.Path]) -> list[float]:
    """The mean over processes of their shortest times, in interleaved rounds."""
    times: list[list[list[float]]] = [[] for _ in contenders]
    for _ in range(_ROUNDS):
        for found, (processes, store) in zip(times, contenders, strict=True):
            found.append(processes.seconds(store))
    return [sum(map(min, zip(*found, strict=True))) / len(found[0]) for found in times]
