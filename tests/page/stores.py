"""Stores that the tests of the page write."""

import contextlib
import types
from unittest import mock

import numpy as np

import lox
from lox._store import times as store_times
from lox._store.creating import create_run
from lox._store.reader import Run
from lox._store.writer import Writer


def logs(step=None, **columns):
    """Rows of scalars or arrays, with a step unless it is None."""
    rows = {name: np.asarray(column) for name, column in columns.items()}
    steps = {} if step is None else {"step": dict.fromkeys(rows, np.asarray(step))}
    return lox.logdict(rows, steps, stacked=True)


def write_run(store, name, rows, config=None, finish=True):
    """Writes a run; `rows` is a logdict, or several."""
    with open_run(store, name, config, finish) as writer:
        for each in rows if isinstance(rows, list) else [rows]:
            writer.write(each)


@contextlib.contextmanager
def open_run(store, name, config=None, finish=True):
    writer = Writer(create_run(store / name, "x", None, config or {}))
    yield writer
    if finish:
        writer.finish()
    writer.close()


def write_timed(store, name, times, config=None, **columns):
    """Writes a run, each row at one of these times since its start."""
    run = create_run(store / name, "x", None, config or {})
    started = Run(run).started
    now = [0.0]
    clock = types.SimpleNamespace(
        monotonic=lambda: 1e6 + now[0], time=lambda: started + now[0]
    )
    with mock.patch.object(store_times, "time", clock):
        writer = Writer(run)
        for i, now[0] in enumerate(times):
            row = {key: column[i : i + 1] for key, column in columns.items()}
            writer.write(logs([i], **row))
        writer.finish()
        writer.close()


def write_seeds(store, seeds=4, rows=50, lrs=(0.1, 0.01), keys=("loss", "accuracy")):
    """A sweep: runs that differ in their seed and their learning rate."""
    generator = np.random.default_rng(0)
    curves = {}
    for lr in lrs:
        for seed in range(seeds):
            columns = {
                key: generator.normal(lr, 1, rows).astype(np.float32) for key in keys
            }
            name = f"lr{lr}-seed{seed}"
            config = {"seed": seed, "optimizer": {"lr": lr}, "width": 64}
            write_run(store, name, logs(np.arange(rows), **columns), config)
            curves[name] = columns
    return curves
