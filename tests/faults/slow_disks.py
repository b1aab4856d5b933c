"""A disk on which every write and flush takes long."""

import os
import sys
import time

import jax

import lox
import lox.loggers
from tests.store.written_runs import scanned


def train(directory: str, milliseconds: str) -> None:
    """Trains and saves; prints the number of file operations that were slow."""
    slow, counted = float(milliseconds) / 1000, 0
    flush = os.fsync

    def slow_flush(descriptor: int) -> None:
        time.sleep(slow)
        flush(descriptor)

    def hook(event: str, arguments: tuple) -> None:
        nonlocal counted
        if event == "open" and str(arguments[0]).startswith(directory):
            counted += 1
            time.sleep(slow)

    os.fsync = slow_flush
    sys.addaudithook(hook)
    logger = lox.loggers.SaveLogger(directory)
    state = logger.init(0)
    train = jax.jit(logger.tap(scanned, state))
    assert train(0.0) == 50
    logger.finish(state)
    assert lox.load(directory)["x"][:, 0].tolist() == list(range(50))
    print(counted)
