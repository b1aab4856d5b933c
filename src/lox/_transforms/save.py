"""`lox.save`: saves logs to disk."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lox._arrays import is_array
from lox._errors import LoxTypeError, LoxValueError, describe
from lox._events.event import Event
from lox._events.payload import send_payload
from lox._host.callbacks import Consume, HostSink
from lox._jax import host
from lox._jax.array_types import axes_size, manual_axes
from lox._logs.access import with_key_data
from lox._logs.logdict import logdict
from lox._logs.shards import local_logs
from lox._store.keys import key_data, run_name
from lox._store.locations import Path, local_path
from lox._store.open_writers import open_writers
from lox._store.processes import part_path

from .compiled import is_outermost
from .run_lanes import run_logs_converter, split_by_run

_MODES = {
    "a": "append to an existing run",
    "w": "replace it",
    "x": "raise an error",
}
_NO_KEY = np.uint32(0)  # the words of a key are an array


def save(logs: Mapping[str, Any], path: Path, mode: str = "a", key: Any = None) -> None:
    """Saves logs to disk, also inside `jax.jit` and `jax.vmap`.

    In a multi-process job, an array that is replicated over processes is saved once,
    the shards of a sharded array are saved by the processes that have them, with the
    steps `lane` and `process`, and local values are saved by each process.

    Args:
        logs: a `lox.logdict`, or a dict of values.
        path: the directory of a run; with a `key`, that of a store of runs.
        mode: what to do if the run already exists: `"a"` appends to it, `"w"` replaces
            it, `"x"` raises an error.
        key: a PRNG key or a number that names the run. Under `jax.vmap`, each lane with
            its own key is a separate run.

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
        raise LoxValueError(
            f"`mode` of `lox.save` is {mode!r}; it must be one of {known}."
        )
    directory = local_path(path, "lox.save")
    logs = logs if isinstance(logs, logdict) else logdict(logs)
    for name, value in logs.items():
        _check_value(name, value)
    words = None if key is None else key_data(key)
    if is_outermost():
        local = local_logs(logs, "`lox.save`")
        parts = [local.written_here(), *local.lanes]
        if local.lanes or local.shared:
            parts = [part for part in parts if part]
        _save(directory, mode, [(words, part) for part in parts])
        return
    if mode != "a" and words is None and axes_size(manual_axes()) > 1:
        raise LoxValueError(
            f"`lox.save` got `mode={mode!r}` inside `jax.shard_map`, where each device "
            "saves its own rows: only those of one device would be kept. Use "
            '`mode="a"`, give each device its own `key`, or save outside `shard_map`.'
        )
    if words is None and not jax.tree.leaves(logs):
        words = _NO_KEY  # without an array, the event would have no lanes
    sink = _SaveSink(directory, mode)
    payload = words, with_key_data(logs)
    send_payload(payload, sink, "`lox.save`", names_device=True)


def _check_value(name: str, value: Any) -> None:
    leaves = jax.tree.leaves(value)
    wrong = [leaf for leaf in leaves if not is_array(leaf)]
    if wrong or not leaves:
        raise LoxTypeError(
            f"`lox.save` got {describe(wrong[0] if wrong else value)} for {name!r}; "
            "values are arrays, numbers or pytrees of these. To describe a run, pass "
            "strings as the `config` of a `SaveLogger`."
        )


class _SaveSink(HostSink):
    """Saves the logs that a program passes to `lox.save`, one lane at a time."""

    def __init__(self, path: pathlib.Path, mode: str) -> None:
        super().__init__()
        self._to = path, mode

    def consumer(self, event: Event) -> Consume:
        convert = run_logs_converter(event)

        def consume(operands: Sequence[Any]) -> None:
            _save(*self._to, convert(operands))

        return consume

    # equal sinks, so that a program that is traced again is not compiled again
    def __eq__(self, other: object) -> bool:
        return type(other) is _SaveSink and other._to == self._to

    def __hash__(self) -> int:
        return hash(self._to)


def _save(path: pathlib.Path, mode: str, parts: Iterable[tuple[Any, logdict]]) -> None:
    """Saves the parts of one call, each with the words of its runs.

    The mode says what to do with earlier runs, so only the first part of a run uses it,
    and the others are appended.
    """
    begun: set[str] = set()
    for words, logs in parts:
        for key, lane in list(split_by_run(words, logs, _mismatch)):
            if key is None or np.ndim(key) == 0:
                key, name, run = None, "", path
            else:
                name = run_name(key)
                run = path / name
            _write(run, "a" if name in begun else mode, key, lane)
            begun.add(name)


def _mismatch(keys: int, lanes: int) -> str:
    return (
        f"`lox.save` got {keys} keys for logs of {lanes} lane(s). Pass one key per "
        "lane."
    )


def _write(run: pathlib.Path, mode: str, words: Any, logs: logdict) -> None:
    open_writers.write(part_path(run, host.known_process_index()), mode, words, logs)
