"""Weights & Biases, inside and outside of `jax.jit`, `jax.vmap` and `scan`.

    @jax.jit
    @jax.vmap
    def train(key):
        state = lox.wandb.init(key, project="seeds", config={"lr": 0.1})
        ...
        lox.wandb.log(state, {"loss": loss}, step=i)
        ...
        lox.wandb.finish(state)

Every lane of a `vmap` is a run of its own. `WandbLogger` does the same for functions
that call `lox.log`.
"""

from collections.abc import Mapping
from typing import Any

from .loggers._base import LoggerState
from .loggers._trackers.functions import Functions
from .loggers._trackers.wandb import WandbLogger as WandbLogger

_functions = Functions(WandbLogger, __name__)


def init(key: Any = None, **options: Any) -> LoggerState:
    """Begins a run; under `jax.vmap`, one a lane, in a group.

    Args:
        key: a key of `jax.random`, or a number, that tells the run from others. By
            default, outside of JAX's transformations, a random one.
        **options: those of `WandbLogger`, and so of `wandb.init`: `project`, `config`,
            `group`, `mode`. Of `config`, values may be traced, and differ between
            lanes; the others are the same for all.

    Returns:
        The state for `log` and `finish`, a pytree.
    """
    return _functions.init(key, **options)


def log(state: LoggerState, logs: Mapping[str, Any], **steps: Any) -> None:
    """Logs values, wherever in a program this is called.

    Args:
        state: what `init` gave.
        logs: the values by name, or logs such as `lox.spool` returns.
        **steps: step numbers, by any name: `step=i`. They need not grow.
    """
    _functions.log(state, logs, **steps)


def finish(state: LoggerState) -> None:
    """Ends the runs; W&B has all that was logged to them then.

    Args:
        state: what `init` gave.
    """
    _functions.finish(state)
