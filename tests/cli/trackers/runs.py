"""A program of many kinds of logs, for a store and for a tracker's own logger."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox
import lox.cli
import lox.loggers

CONFIG = {"lr": 0.1, "net": {"width": 8}}


def sync(*arguments):
    return lox.cli.main(["sync", *map(str, arguments)])


def train(key, n=4):
    def step(w, i):
        lox.log({"loss": w * w, "w": w}, step=n - i, episode=i // 2)
        histogram = {"counts": jnp.arange(3), "edges": jnp.arange(4.0)}
        lox.log({"h": histogram, "weights": w * jnp.arange(5.0)}, step=i)
        lox.log({"seldom": i}, when=i % 2 == 1)
        return w / 3, None

    return lax.scan(step, jax.random.uniform(key), jnp.arange(n))[0]


def log_one(x):
    for i in range(4):
        lox.log({"one": x + i}, step=i)


def log_of_many_kinds(logger, state):
    logger.tap(train, state)(jax.random.key(3))
    logger.tap(jax.vmap(train), state)(jax.random.split(jax.random.key(4), 2))
    logger.tap(jax.vmap(log_one), state, buffer=2)(jnp.arange(3.0))
    logger.tap(jax.vmap(log_one), state)(jnp.arange(3.0))
    logger.log(state, {"scalar": 1.5, "not a number": np.nan, "inf": -np.inf})
    logger.log(state, {"late": 2.5, "key": jax.random.key(0)}, epoch=0.5)
    logger.log(state, {"tree": {"x": [1, jnp.bfloat16(2)], "y": 2**60 + 1}}, step=3)
    logger.spool(train, state)(jax.random.key(5))


def save(store, tracker=None, seeds=(0,), config=CONFIG, finish=True):
    """Logs to a store and, at the same time, to a tracker."""
    loggers = [lox.loggers.SaveLogger(store, config=config)]
    loggers += [] if tracker is None else [tracker]
    logger = lox.loggers.MultiLogger(*loggers)
    for seed in seeds:
        state = logger.init(seed, config={"seed": seed})
        log_of_many_kinds(logger, state)
        if finish:
            logger.finish(state)
    return logger


def log_numbers(store, seed, count, finish=True):
    """Logs the numbers 0, 1, … without steps."""
    logger = lox.loggers.SaveLogger(store)
    state = logger.init(seed)
    for i in range(count):
        logger.log(state, {"x": float(i)})
    if finish:
        logger.finish(state)
    return logger, state


def name(seed):
    return f"{0:08x}-{seed:08x}"
