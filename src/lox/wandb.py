"""Weights & Biases, inside and outside `jax.jit`, `jax.vmap` and `scan`.

    @jax.jit
    @jax.vmap
    def train(key):
        state = lox.wandb.init(key, project="seeds", config={"lr": 0.1})
        ...
        lox.wandb.log(state, {"loss": loss}, step=i)
        ...
        lox.wandb.finish(state)

Each lane of a `vmap` is a separate run. For functions that call `lox.log`, use
`WandbLogger`.
"""

from collections.abc import Mapping
from typing import Any

from .loggers._base import LoggerState
from .loggers._trackers.functions import FunctionLogger
from .loggers._trackers.wandb import WandbLogger as WandbLogger

_logger = FunctionLogger(WandbLogger, __name__)


def init(key: Any = None, **options: Any) -> LoggerState:
    """Starts a run; under `jax.vmap`, one per lane, in one group.

    Args:
        key: a `jax.random` key or an integer that identifies the run. By default a
            random one, outside JAX transformations.
        **options: options of `WandbLogger`, and so of `wandb.init`: `project`,
            `config`, `group`, `mode`. The values in `config` may be traced and differ
            between lanes; all other options are the same for all lanes.

    Returns:
        The state to pass to `log` and `finish`, a pytree.
    """
    return _logger.init(key, **options)


def log(state: LoggerState, logs: Mapping[str, Any], **steps: Any) -> None:
    """Logs values, anywhere in a program.

    Args:
        state: the state returned by `init`.
        logs: values by name, or logs returned by `lox.spool`.
        **steps: step numbers, by any name: `step=i`. They need not increase.
    """
    _logger.log(state, logs, **steps)


def finish(state: LoggerState) -> None:
    """Ends the runs, after W&B has received everything logged to them.

    Args:
        state: the state returned by `init`.
    """
    _logger.finish(state)
