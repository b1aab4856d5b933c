"""`lox.save`, `lox.load` and `lox.runs`."""

import atexit
import collections
import contextlib
import os
import pathlib
import platform
import re
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from . import _compat
from ._errors import LoxTypeError, LoxValueError, LoxWarning, StoreError
from ._events import Event, user_line, user_source
from ._host import CallbackSink
from ._log import operand
from ._logdict import logdict
from ._primitive import log_p
from ._store import (
    FINISHED,
    RUN_FILE,
    TEMPORARY,
    VERSION,
    WRITER,
    shown,
    write_json,
)
from ._store_reader import Run
from ._store_writer import Writer
from ._take import is_outermost
from ._turns import Turns

Path = str | os.PathLike[str]
_MODES = {
    "a": "append to a run that is there already",
    "w": "replace it",
    "x": "refuse",
}


_REMEDY = '`mode="a"` appends, `mode="w"` replaces it'


def check_run(path: pathlib.Path, mode: str, remedy: str = _REMEDY) -> list[str]:
    """Raises if a run is refused; gives the names of what is in its directory."""
    try:
        if mode == "w" and path.is_symlink():
            raise StoreError(
                f"{shown(path)} is a symbolic link: to replace the run would remove "
                f"the rows in {os.readlink(path)}. Give the path of the run itself, or "
                "remove the link."
            )
        names = _names_in(path)
    except OSError as error:
        raise _cannot_make(path, error) from error
    if RUN_FILE not in names and not all(map(_is_of_a_run, names)):
        raise StoreError(f"{shown(path)} is there already, and is no run of lox's.")
    if mode == "x" and _is_there(names):
        raise StoreError(
            f"there is a run at {shown(path)} already. Choose another place or key, "
            f"or say what to do with it: {remedy}."
        )
    if mode == "a" and RUN_FILE in names:
        Run(path)  # nothing is added to what could not be read afterwards
    return names


def create_run(
    path: pathlib.Path,
    mode: str,
    key: Any = None,
    config: Mapping[str, Any] | None = None,
    remedy: str = _REMEDY,
) -> pathlib.Path:
    """Makes a run's directory, or finds it, as the mode says."""
    if mode == "w":
        _overwrite(path, key, config).close()
        return path
    names = check_run(path, mode, remedy)
    if mode == "a" and RUN_FILE in names:
        return path
    try:
        path.mkdir(parents=True, exist_ok=True)
        # never in place of another's, who may have begun to write
        with contextlib.suppress(FileExistsError):
            write_json(path / RUN_FILE, _about(path, key, config), new=True)
            return path
    except OSError as error:
        raise _cannot_make(path, error) from error
    check_run(path, mode, remedy)  # another process was quicker
    return path


def open_run(
    path: pathlib.Path,
    mode: str,
    key: Any = None,
    config: Mapping[str, Any] | None = None,
    remedy: str = _REMEDY,
) -> Writer:
    """Makes a run, or finds it, and begins to write to it."""
    if mode == "w":
        return _overwrite(path, key, config)
    return Writer(create_run(path, mode, key, config, remedy))


def _overwrite(
    path: pathlib.Path, key: Any, config: Mapping[str, Any] | None
) -> Writer:
    """Makes a run in place of whatever there is.

    Of several that do so at once, the one whose writer has the highest number keeps
    the run; the others find their directories removed.
    """
    while True:
        replaces = _is_there(check_run(path, "w"))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_make(path, error) from error
        writer = Writer(path, replaces)
        try:
            writer.begin_run(_about(path, key, config))
            _remove_rows(path, before=writer.number)
            return writer
        except BaseException as error:
            writer.close()
            if isinstance(error, FileExistsError):  # another process was quicker
                continue
            if isinstance(error, OSError):
                raise _cannot_make(path, error) from error
            raise


def _cannot_make(path: pathlib.Path, error: OSError) -> StoreError:
    return StoreError(f"cannot make a run at {shown(path)}: {error}.")


def _is_there(names: list[str]) -> bool:
    """Whether there is a run; what was killed may have left rows, or nothing."""
    return any(name == RUN_FILE or WRITER.fullmatch(name) for name in names)


def _names_in(path: pathlib.Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        if path.exists():
            raise StoreError(
                f"{shown(path)} is there already, and is no run of lox's."
            ) from None
        raise


def _is_of_a_run(name: str) -> bool:
    temporary = name.startswith(RUN_FILE) and name.endswith(TEMPORARY)
    return temporary or any(kind.fullmatch(name) for kind in (WRITER, FINISHED))


def _remove_rows(path: pathlib.Path, before: int) -> None:
    """Removes what writers of lower numbers have written, and nothing else.

    What is killed meanwhile leaves files that are no part of the run.
    """
    for name in os.listdir(path):
        match = WRITER.fullmatch(name) or FINISHED.fullmatch(name)
        if match is None or int(match[1]) >= before:
            continue
        found = path / name
        if found.is_symlink() or not found.is_dir():
            found.unlink(missing_ok=True)  # and not what is at the end of a link
            continue
        # others may be removing it, too
        with contextlib.suppress(FileNotFoundError):
            for file in found.iterdir():
                if _IN_A_WRITER.fullmatch(file.name):
                    file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            found.rmdir()


_IN_A_WRITER = re.compile(r"\d{4,}\.(npy|places|json(\..*~)?)")


def _about(path: pathlib.Path, key: Any, config: Mapping[str, Any] | None) -> Any:
    from . import __version__

    return {
        "version": VERSION,
        "name": path.name,
        "key": None if key is None else np.asarray(key).tolist(),
        "config": dict(config or {}),
        "started": time.time(),
        "versions": {
            "lox": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def key_data(key: Any) -> Any:
    """The words of a PRNG key: typed, raw, or made of a number."""
    if isinstance(key, np.ndarray) and key.ndim == 0:
        key = key[()]
    if isinstance(key, int | np.integer):
        if not 0 <= key < 2**64:
            raise LoxValueError(
                f"a run's `key` is {key}; a number is from 0 to 2**64 - 1."
            )
        if key >= 2**32:  # of which `jax.random.key` would forget a half
            return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)
        key = int(key)
    dtype = getattr(key, "dtype", None)
    if isinstance(key, int) or (_is_integer(dtype) and np.ndim(key) == 0):
        key = jax.random.key(key)
    if jax.dtypes.issubdtype(getattr(key, "dtype", None), jax.dtypes.prng_key):
        return jax.random.key_data(key)
    if getattr(key, "dtype", None) != np.uint32 or key.ndim == 0:
        raise LoxTypeError(
            f"a run's `key` must be a key of `jax.random` or a number, not {key!r}."
        )
    return key


def _is_integer(dtype: Any) -> bool:
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.integer)


def run_name(words: Any) -> str:
    return "-".join(f"{int(word):08x}" for word in np.ravel(words))


class _Writers:
    """The writers of this process, the last used of which stay open."""

    _MOST = 64

    def __init__(self) -> None:
        # those of the process that this one was forked from: not ours to close
        self._inherited: list[Any] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """At the beginning, and in a process that was forked."""
        if hasattr(self, "_open"):
            self._inherited.append(self._open)
        self._turns = Turns()
        self._lock = self._turns.lock
        self._open: collections.OrderedDict[Any, Writer] = collections.OrderedDict()

    def write(self, path: pathlib.Path, mode: str, key: Any, logs: logdict) -> None:
        self._turns.call(self._write, path, mode, key, logs)

    def _write(self, path: pathlib.Path, mode: str, key: Any, logs: logdict) -> None:
        name = path.resolve()
        if mode == "w" or not os.path.exists(path / RUN_FILE):
            self._close(name)  # also if somebody has removed it
        writer = self._open.get(name)
        if writer is None or mode == "x":
            writer = self._open[name] = open_run(path, mode, key)
        self._open.move_to_end(name)
        while len(self._open) > self._MOST:
            self._close(next(iter(self._open)))
        try:
            writer.write(logs)
        except OSError as error:
            self._close(name)
            raise StoreError(f"cannot write to {shown(path)}: {error}.") from error

    def _close(self, name: Any) -> None:
        writer = self._open.pop(name, None)
        if writer is not None:
            with contextlib.suppress(OSError):  # all that was written is there
                writer.close()

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self._close(name)


_writers = _Writers()
atexit.register(_writers.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_writers.begin_anew)


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
    leaves, tree = jax.tree.flatten((logs._plain(), words))
    event = Event(
        keys=("logs",),
        trees=(tree,),
        steps=(),
        source=user_source(),
        sink=_SaveSink(pathlib.Path(path), mode),
        ordered=not _compat.partly_manual(),
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
        _writers.write(path, mode, None, logs)
    elif np.ndim(words) == 1:
        _writers.write(path / run_name(words), mode, words, logs)
    else:
        lanes = logs.lanes()
        if len(lanes) != len(words):
            raise LoxValueError(
                f"`lox.save` got {len(words)} keys for logs of {len(lanes)} lane(s)."
            )
        for lane, key in zip(lanes, words, strict=True):
            _save(path, mode, key, lane)


def runs(path: Path) -> list[Run]:
    """The runs of a store, the oldest first.

    Example:
        >>> import tempfile
        >>> store = tempfile.mkdtemp()
        >>> for seed in range(2):
        ...     lox.save({"loss": seed / 2}, store, key=seed)
        >>> [run.name for run in lox.runs(store)]
        ['00000000-00000000', '00000000-00000001']
        >>> lox.runs(store)[1].load()
        {'loss': 0.5}
    """
    store = pathlib.Path(path)
    if not os.path.isdir(store):
        raise StoreError(f"there is no store at {store}.")
    found = []
    for directory in store.iterdir():
        if _is_run(directory):
            try:
                found.append(Run(directory))
            except StoreError as error:
                warnings.warn_explicit(
                    f"a run is left out: {error}", LoxWarning, *user_line()
                )
    return sorted(found, key=lambda run: (run.started, run.name))


def _is_run(path: pathlib.Path) -> bool:
    """Whether rows may be there, even if there is no file about the run."""
    if os.path.lexists(path / RUN_FILE):
        return True
    try:
        return any(WRITER.fullmatch(name) for name in os.listdir(path))
    except OSError:
        return False


def load(
    path: Path, argnames: str | Iterable[str] | None = None, key: Any = None
) -> logdict:
    """What was saved of one run, as a `lox.logdict` of NumPy arrays.

    Args:
        path: a run, or a store with one run, or with the one of the `key`.
        argnames: which keys to read, by name or pattern; all by default. Others stay
            on disk.
        key: which run of a store, by the key that it was made with.
    """
    where = pathlib.Path(path)
    if key is not None:
        name = run_name(key_data(key))
        if not _is_run(where / name):
            raise StoreError(f"the store at {where} has no run of the key {name}.")
        return Run(where / name).load(argnames)
    if _is_run(where):
        return Run(where).load(argnames)
    found = runs(where)
    if len(found) != 1:
        names = ", ".join(run.name for run in found) or "none"
        raise StoreError(
            f"{where} is no run, but a store of {len(found)} runs ({names}). Say "
            "which, by its path or its `key`; `lox.runs` lists them."
        )
    return found[0].load(argnames)
