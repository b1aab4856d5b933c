"""Neptune, inside and outside `jax.jit`, `jax.vmap` and `scan`.

Neptune's hosted service was closed in March 2026: runs are written to local files.

    @jax.jit
    @jax.vmap
    def train(key):
        state = lox.neptune.init(key, project="seeds", config={"lr": 0.1})
        ...
        lox.neptune.log(state, {"loss": loss}, step=i)
        ...
        lox.neptune.finish(state)

Each lane of a `vmap` is a separate run. For functions that call `lox.log`, use
`NeptuneLogger`.
"""

from collections.abc import Mapping
from typing import Any

from .loggers._base import LoggerState
from .loggers._trackers.functions import FunctionLogger
from .loggers._trackers.neptune import NeptuneLogger as NeptuneLogger

_logger = FunctionLogger(NeptuneLogger, __name__)


def init(key: Any = None, **options: Any) -> LoggerState:
    """Starts a run; under `jax.vmap`, one per lane, in one group.

    Args:
        key: a `jax.random` key or an integer that identifies the run. By default a
            random one, outside JAX transformations.
        **options: options of `NeptuneLogger`, and so of `neptune.init_run`: `project`,
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
    """Ends the runs, after everything logged to them was written.

    Args:
        state: the state returned by `init`.
    """
    _logger.finish(state)
