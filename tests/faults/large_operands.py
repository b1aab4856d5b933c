"""Large values logged by many devices: `python -m tests.faults.large_operands [STEPS]`.

Every step logs an array of 4 MB, on 8 devices, which share the cores of the machine.
The host reads each of them while the program runs. If a device waited for another one
that waits for the host, the program would hang; the command then ends with an error.
"""

import faulthandler
import os
import sys

if __name__ == "__main__":
    flags = os.environ.get("XLA_FLAGS", "")
    devices = "--xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{flags} {devices}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import lox
import lox.loggers
from tests.waiting import HANG

SIZE = 2**20  # elements of four bytes
DEVICES = 8


class ReadingLogger(lox.loggers.Logger):
    """Reads every value, and keeps a number of it."""

    def __init__(self, background):
        super().__init__()
        self.background = background
        self.seen = []

    def open(self, run):
        return self

    def write(self, run, logs):
        self.seen += [seen(row) for row in logs.rows()]


def seen(logs):
    """The step of an event, its device, and a number that depends on all elements."""
    lane = int(logs.steps.get("lane", {}).get("x", -1))
    return int(logs.step["x"]), lane, float(logs["x"].astype(np.float64).mean())


def program(kind, steps):
    """A function that logs large values, its argument, and what it logs, in order."""
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))

    def train(x):
        def step(x, i):
            lox.log({"x": x}, step=i)
            # a collective, so that devices wait for each other
            total = x.mean() if kind == "automatic" else lax.pmean(x.mean(), "data")
            return x + 1 + 0 * total, None

        return lax.scan(step, x, jnp.arange(steps))[0]

    if kind == "automatic":  # the first device logs the whole array
        x, lanes = jnp.zeros(SIZE), [-1]
    else:  # each device logs its part
        x, lanes = jnp.zeros(DEVICES * SIZE), range(DEVICES)
        train = jax.shard_map(train, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    return train, x, [(i, lane, float(i)) for i in range(steps) for lane in lanes]


def check(kind, steps):
    """Runs the program with `tap`, with a logger, and with one that has a queue."""
    train, x, expected = program(kind, steps)
    found = []
    jax.block_until_ready(lox.tap(train, lambda logs: found.append(seen(logs)))(x))
    assert sorted(found) == expected
    for background in (False, True):
        logger = ReadingLogger(background)
        state = logger.init(0)
        jax.block_until_ready(jax.jit(logger.tap(train, state))(x))
        logger.finish(state)
        assert sorted(logger.seen) == expected


KINDS = ("automatic", "shard_map")

if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for name in KINDS:
        faulthandler.dump_traceback_later(HANG + count, exit=True)
        check(name, count)
        faulthandler.cancel_dump_traceback_later()
        print(f"{name}: {count} steps of 4 MB, three times", flush=True)
