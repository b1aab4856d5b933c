"""`lox.save`."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lox._errors import LoxTypeError, LoxValueError
from lox._events.event import Event
from lox._events.log import operand
from lox._events.primitive import log_p
from lox._host.callbacks import CallbackSink
from lox._jax import array_types
from lox._logs.access import with_key_data
from lox._logs.logdict import logdict
from lox._source import user_source
from lox._store.keys import key_data, run_name
from lox._store.open_writers import open_writers
from lox._store.runs import Path

from .transformed import is_outermost

_MODES = {
    "a": "append to a run that is there already",
    "w": "replace it",
    "x": "refuse",
}


def save(logs: Mapping[str, Any], path: Path, mode: str = "a", key: Any = None) -> None:
    """Saves logs to disk; inside `jax.jit` and `jax.vmap` too.

    Args:
        logs: a `lox.logdict`, or a dict of values.
        path: a run's directory; if there is a `key`, that of a store of runs.
        mode: what to do if there is such a run already: `"a"` appends to it, `"w"`
            replaces it, `"x"` refuses.
        key: a key of `jax.random`, or a number, that names the run. Under `jax.vmap`,
            each lane with its own key is a run of its own.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/run"
        >>> logs = lox.logdict({"loss": jnp.array([2.0, 1.0])}, stacked=True)
        >>> lox.save(logs, path)
        >>> lox.save(logs, path)
        >>> lox.load(path)
        {'loss': [2.0, 1.0, 2.0, 1.0]}
    """
    if not isinstance(logs, Mapping):
        raise LoxTypeError(
            f"`lox.save` takes a `lox.logdict` or a dict of values, not {logs!r}."
        )
    if mode not in _MODES:
        known = ", ".join(f"{m!r} ({what})" for m, what in _MODES.items())
        raise LoxValueError(f"`mode` of `lox.save` is {mode!r}; there are {known}.")
    logs = logs if isinstance(logs, logdict) else logdict(logs)
    words = None if key is None else key_data(key)
    if is_outermost():
        _save(pathlib.Path(path), mode, words, logs)
        return
    leaves, tree = jax.tree.flatten((with_key_data(logs), words))
    event = Event(
        keys=("logs",),
        trees=(tree,),
        steps=(),
        source=user_source(),
        sink=_SaveSink(pathlib.Path(path), mode),
        ordered=not array_types.partly_manual(),
    )
    call = f"`lox.save` at {event.source}"
    operands = [operand(leaf, "a value", call) for leaf in leaves]
    log_p.bind(*operands, event=event)


class _SaveSink(CallbackSink):
    """Saves what a program hands over, a lane at a time."""

    def __init__(self, path: pathlib.Path, mode: str) -> None:
        super().__init__(self._write)
        self._to = path, mode

    def _write(self, payload: logdict) -> None:
        logs, words = payload["logs"]
        _save(*self._to, words, logs)

    # the same program is compiled once, however often it is traced
    def __eq__(self, other: object) -> bool:
        return type(other) is _SaveSink and other._to == self._to

    def __hash__(self) -> int:
        return hash(self._to)


def _save(path: pathlib.Path, mode: str, words: Any, logs: logdict) -> None:
    if words is None:
        open_writers.write(path, mode, None, logs)
    elif np.ndim(words) == 1:
        open_writers.write(path / run_name(words), mode, words, logs)
    else:
        lanes = logs.lanes()
        if len(lanes) != len(words):
            raise LoxValueError(
                f"`lox.save` got {len(words)} keys for logs of {len(lanes)} lane(s)."
            )
        for lane, key in zip(lanes, words, strict=True):
            _save(path, mode, key, lane)
