"""Neptune, inside and outside of `jax.jit`, `jax.vmap` and `scan`.

Neptune's hosted service was closed in March 2026: runs are written to this machine.

    @jax.jit
    @jax.vmap
    def train(key):
        state = lox.neptune.init(key, project="seeds", config={"lr": 0.1})
        ...
        lox.neptune.log(state, {"loss": loss}, step=i)
        ...
        lox.neptune.finish(state)

Every lane of a `vmap` is a run of its own. `NeptuneLogger` does the same for functions
that call `lox.log`.
"""

from collections.abc import Mapping
from typing import Any

from .loggers._base import LoggerState
from .loggers._trackers.functions import Functions
from .loggers._trackers.neptune import NeptuneLogger as NeptuneLogger

_functions = Functions(NeptuneLogger, __name__)


def init(key: Any = None, **options: Any) -> LoggerState:
    """Begins a run; under `jax.vmap`, one a lane, in a group.

    Args:
        key: a key of `jax.random`, or a number, that tells the run from others. By
            default, outside of JAX's transformations, a random one.
        **options: those of `NeptuneLogger`, and so of `neptune.init_run`: `project`,
            `config`, `group`, `mode`. Of `config`, values may be traced, and differ
            between lanes; the others are the same for all.

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
    """Ends the runs; all that was logged to them is written then.

    Args:
        state: what `init` gave.
    """
    _functions.finish(state)
