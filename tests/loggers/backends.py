"""Loggers that keep what they receive, and programs that log to them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import lox
import lox.loggers


class MemoryLogger(lox.loggers.Logger):
    """Keeps everything in lists."""

    def __init__(self, config=None):
        super().__init__(config)
        self.runs, self.closed, self.calls = {}, [], 0

    def open(self, run):
        self.runs[run.key] = []
        return run.key

    def write(self, run, logs):
        assert all(isinstance(x, np.ndarray | np.generic) for x in logs.values())
        self.calls += 1
        self.runs[run].append(logs)

    def close(self, run):
        self.closed.append(run)


class BrokenLogger(lox.loggers.Logger):
    """A client that raises."""

    def open(self, run):
        return run

    def write(self, run, logs):
        raise ConnectionError("no network")


class DoublingLogger(lox.loggers.SaveLogger):
    """Writes doubled values."""

    def write(self, run, logs):
        doubled = lox.logdict(logs)
        doubled["x"] = logs["x"] * 2
        super().write(run, doubled)


def scanned(x, n=3):
    def body(carry, i):
        lox.log({"x": carry}, step=i)
        return carry * 2, None

    return lax.scan(body, x, jnp.arange(n))[0]


def rows(calls):
    return [float(x) for logs in calls for x in np.ravel(logs["x"])]


def words(key):
    return tuple(int(word) for word in jax.random.key_data(key))


METHODS = ["tap", "spool"]


def on_devices(f, count=4):
    mesh = jax.make_mesh((count,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)


class NumberLogger(lox.loggers.Logger):
    """Keeps the numbers called `x` of every run."""

    def __init__(self, **attributes):
        super().__init__()
        self.runs, self.closed = {}, []
        self.__dict__ |= attributes

    def open(self, run):
        self.runs[run.key] = []
        return run.key

    def write(self, run, logs):
        self.runs[run] += np.ravel(logs["x"]).tolist()

    def close(self, run):
        self.closed.append(run)


class BrokenNumberLogger(NumberLogger):
    def write(self, run, logs):
        raise ConnectionError("no network")


def counting(x, n=3):
    def body(carry, i):
        lox.log({"x": carry}, step=i)
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(n))[0]
