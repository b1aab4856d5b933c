"""Stores for the tests of the command."""

import numpy as np

import lox
import lox.loggers


def save_run(store, seed, config=None, rows=4, keys=("loss",), steps=None, finish=True):
    """Saves a run of scalars; the loss of row i is `seed + 1 / (i + 1)`."""
    logger = lox.loggers.SaveLogger(store, config=config)
    state = logger.init(seed)
    values = seed + 1 / (1 + np.arange(rows, dtype=np.float32))
    at = np.arange(rows) if steps is None else np.asarray(steps)
    data = dict.fromkeys(keys, values)
    logs = lox.logdict(data, {"step": dict.fromkeys(keys, at)}, stacked=True)
    logger.log(state, logs)
    if finish:
        logger.finish(state)
    return logger, state


def sweep(store, count=4):
    """Runs with two learning rates and several seeds."""
    for seed in range(count):
        config = {"lr": [0.1, 0.3][seed % 2], "seed": seed, "net": {"width": 64}}
        save_run(store, seed, config, keys=("loss", "acc"))
    return store


def name(seed):
    return f"{0:08x}-{seed:08x}"
