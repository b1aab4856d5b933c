"""Random programs whose events a logger saves: one run per lane, or one with lanes."""

import random
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
import lox.loggers
from tests import oracle
from tests.interpreter.test_mixed_oracle import CAPACITY, LANES, Program


def check(seed: int, statements: oracle.Program | None = None) -> None:
    program = Program(seed, statements)
    rng = random.Random(f"store {seed}")
    differentiated = not program.unbounded and rng.random() < 0.5
    fun = jax.grad(program.function) if differentiated else program.function
    events = program.events if differentiated else program.forward
    check = rng.choice((check_runs, check_lanes))
    with tempfile.TemporaryDirectory() as store:
        check(fun, events, store, rng)


def logged(logger: Any, fun: Any, state: Any, rng: random.Random) -> Any:
    if rng.random() < 0.3:
        return logger.spool(fun, state, capacity=CAPACITY)
    return logger.tap(fun, state, buffer=rng.choice((None, 3)))


def check_runs(fun: Any, events: Any, store: str, rng: random.Random) -> None:
    logger = lox.loggers.SaveLogger(store)

    def run(x: Any, key: jax.Array) -> None:
        state = logger.init(key, config={"x": x})
        logged(logger, fun, state, rng)(x)
        logger.finish(state)

    keys = jax.random.split(jax.random.key(0), len(LANES))
    jax.jit(jax.vmap(run))(jnp.array(LANES), keys)
    jax.effects_barrier()
    runs = {round(run.config["x"], 3): run.load() for run in lox.runs(store)}
    assert sorted(runs) == sorted(LANES)
    for x, logs in runs.items():
        oracle.assert_spooled(logs, events(x))


def check_lanes(fun: Any, events: Any, store: str, rng: random.Random) -> None:
    logger = lox.loggers.SaveLogger(store)
    state = logger.init(jax.random.key(0))
    logged(logger, jax.vmap(fun), state, rng)(jnp.array(LANES))
    logger.finish(state)
    jax.effects_barrier()
    (run,) = lox.runs(store)
    logs = run.load()
    # a lane without a row is empty, or not in the store at all
    lanes = [
        lane for lane in logs.lanes() if any(map(np.size, jax.tree.leaves(dict(lane))))
    ]
    for lane, own in zip(lanes, filter(None, map(events, LANES)), strict=True):
        oracle.assert_spooled(lane, own)
