"""The base class of all loggers, which does everything that involves JAX.

A backend implements three methods on NumPy values: `open`, `write` and `close`.
"""

import dataclasses
import functools
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import LoxTypeError, LoxValueError
from lox._events.over import axes_of
from lox._events.selection import Selection
from lox._jax import host
from lox._logs.access import with_key_data
from lox._logs.logdict import logdict
from lox._logs.shards import local_logs
from lox._source import user_source
from lox._store.keys import key_data, run_name
from lox._trackers.runs import RunInfo as RunInfo
from lox._transforms.arguments import Argnames, Argnums, Static
from lox._transforms.compiled import is_outermost
from lox._transforms.options import Names, Options
from lox._transforms.spool import spool
from lox._transforms.transformed import Transformed, check_callable

from ._runs.backend import RowWriter, Words
from ._runs.config import plain_config, split_config
from ._runs.open_runs import Full, OpenRuns
from ._runs.processes import ALL, FIRST, check_processes
from ._runs.sending import check_logs, send
from ._runs.sinks import CloseSink, DeviceWriteSink, OpenSink, WriteSink
from ._runs.tapping import tap_to_runs

P = ParamSpec("P")
T = TypeVar("T")


# all loggers, by the identifier in their states
_alive: "weakref.WeakValueDictionary[str, Logger]" = weakref.WeakValueDictionary()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """The runs to log to: a pytree, with one axis per `vmap` around `init`."""

    words: Any
    # the identifier of the logger
    logger: str = dataclasses.field(default="", metadata={"static": True})


class Logger:
    """The base class of all loggers.

    A backend overrides `open`, `write` and, if needed, `close`. They are called on the
    host, one at a time, and must not call JAX.

    Args:
        config: the config of the runs, such as hyperparameters; JSON values.
        processes: which processes of a job log: `"first"`, or `"all"`, each to a run of
            its own.

    Attributes:
        background: whether the backend is slow. It is then called by a background
            thread, from a queue, which is bounded; nothing is dropped.
        full: what happens if this queue is full: with `"wait"`, the program waits; with
            `"spill"`, logs are kept on disk, in `.lox/unsent`, and sent later, in
            order.
        patience: the number of seconds that a background backend may take for a call,
            before it is considered failed.
        processes: as passed.
    """

    background = False
    full: Full = "wait"
    patience = 120.0
    processes = FIRST  # for a subclass that does not call `__init__`
    # whether the rows of several processes can be kept in one run
    _joins_processes = False
    # whether events of a program may have no order, so that rows may arrive after
    # `finish` or before `init`; and whether that is because of several devices
    _unordered = False
    _devices = False
    # whether a program opens runs while it runs
    _opens_inside = False
    # whether `write` accepts typed PRNG keys; otherwise it gets their data
    _accepts_typed_keys = False

    def __init__(
        self, config: Mapping[str, Any] | None = None, processes: str = FIRST
    ) -> None:
        self.config = plain_config(config or {})
        self.processes = check_processes(processes, type(self).__name__)

    # --- for backends ----------------------------------------------------------------

    def open(self, run: RunInfo) -> Any:
        """Opens a run, and returns the `run` that is passed to `write` and `close`."""
        raise NotImplementedError

    def write(self, run: Any, logs: logdict) -> None:
        """Writes logs of NumPy values; several rows have a time axis."""
        raise NotImplementedError

    def flush(self, run: Any) -> None:
        """Sends what `write` has buffered, if anything; called from time to time."""

    def close(self, run: Any) -> None:
        """Closes a run."""

    # --- for users -------------------------------------------------------------------

    def init(
        self, key: Any = None, config: Mapping[str, Any] | None = None
    ) -> LoggerState:
        """Opens a run; under `jax.vmap`, one per lane.

        Args:
            key: a `jax.random` key or an integer that identifies the run. By default a
                random one, outside JAX transformations.
            config: the config of this run, in addition to that of the logger. Its
                values may be traced, and differ between lanes.
        """
        return self._init(key, config, OpenSink)

    def _init(
        self, key: Any, config: Any, make_sink: Callable[..., OpenSink]
    ) -> LoggerState:
        """`init`, with a function that creates the sink."""
        static, traced = split_config(config)
        words = words_of(key)
        make = functools.partial(make_sink, config=static)
        send(self._runs, (words, traced), make)
        return LoggerState(jnp.array(words), self._kind)

    def finish(self, state: LoggerState) -> None:
        """Closes the runs, after everything logged to them was written."""
        send(self._runs, self._checked(state).words, CloseSink)

    def log(
        self,
        state: LoggerState,
        logs: Mapping[str, Any],
        *,
        when: Any = None,
        over: str | Sequence[str] | None = None,
        **steps: Any,
    ) -> None:
        """Logs values to the runs of a state.

        In `jax.shard_map`, each device logs, and rows have the step `lane`.

        Args:
            state: the state returned by `init`.
            logs: values by name, or logs returned by `lox.spool`.
            when: log only if this is true. With an array, each true element of the
                values is a separate row, as in `lox.log`.
            over: in `jax.shard_map`, the name of a mesh axis, or several: the mean of
                the values across the devices along it is logged once, as in `lox.log`.
            **steps: step numbers, for values without steps: `step=i`.
        """
        words = self._checked(state).words
        name = type(self).__name__
        axes = () if over is None else axes_of(over, f"`{name}.log` at {user_source()}")
        checked = check_logs(logs, steps, name, when, axes)
        if not (self._accepts_typed_keys and is_outermost()):
            checked = with_key_data(checked)
        if not is_outermost():
            send(self._runs, (words, checked), WriteSink, axes, checked)
            return
        local = local_logs(checked, f"`{name}.log`")
        send(self._runs, (words, local.own), WriteSink)
        for rows in local.lanes:
            send(self._runs, (words, rows), DeviceWriteSink)

    def spool(
        self,
        fun: Callable[P, T],
        state: LoggerState,
        argnames: Names = None,
        tags: Names = None,
        keep_logs: bool = False,
        interval: int | None = None,
        reduce: Any = None,
        prefix: str = "",
        *,
        window: int | None = None,
        capacity: int | None = None,
        static_argnums: Argnums = None,
        static_argnames: Argnames = None,
    ) -> Callable[P, T]:
        """Transforms `fun` to send its logs to the runs of a state when it returns.

        The options are those of `lox.spool`.
        """
        self._check_call(fun, state, "spool")
        spooled = spool(
            fun,
            argnames,
            tags,
            keep_logs,
            interval,
            reduce,
            prefix,
            window=window,
            capacity=capacity,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )

        def call(*args: Any, **kwargs: Any) -> Any:
            result, logs = spooled(*args, **kwargs)
            self.log(state, logs)
            return result

        return Transformed("logged", fun, call)

    def tap(
        self,
        fun: Callable[P, T],
        state: LoggerState,
        argnames: Names = None,
        tags: Names = None,
        prefix: str = "",
        *,
        keep_logs: bool = False,
        interval: int | None = None,
        reduce: Any = None,
        window: int | None = None,
        buffer: int | None = None,
        ordered: bool = True,
        static_argnums: Argnums = None,
        static_argnames: Argnames = None,
    ) -> Callable[P, T]:
        """Transforms `fun` to send its logs to the runs of a state while it runs.

        The options are those of `lox.tap`.
        """
        self._check_call(fun, state, "tap")
        options = Options(
            f"{type(self).__name__}.tap",
            Selection.of(argnames, tags),
            prefix=prefix,
            keep_logs=keep_logs,
            interval=interval,
            reduce=reduce,
            window=window,
            buffer=buffer,
            ordered=ordered,
        )
        static = Static.of(fun, static_argnums, static_argnames)
        call = tap_to_runs(fun, self._runs, state.words, options, static)
        return Transformed("logged", fun, call, static)

    @property
    def _runs(self) -> OpenRuns:
        # not in `__init__`, which a subclass may not call
        found = self.__dict__.get("_open_runs")
        for method in ("open", "write") if found is None else ():
            if getattr(type(self), method) is getattr(Logger, method):
                raise LoxTypeError(
                    f"{type(self).__name__} has no method `{method}`: a logger needs "
                    "`open(self, run)` and `write(self, run, logs)`."
                )
        # atomic: two threads get the same object
        return found or self.__dict__.setdefault("_open_runs", OpenRuns(self))

    def _check_call(self, fun: Any, state: Any, method: str) -> None:
        if isinstance(fun, LoggerState):
            raise LoxTypeError(
                f"`{type(self).__name__}.{method}` takes the function first, and then "
                f"the state: `logger.{method}(f, state)(x)`."
            )
        check_callable(fun, f"logger.{method}", ", state")
        self._checked(state)

    def _checked(self, state: Any) -> LoggerState:
        if not isinstance(state, LoggerState):
            raise LoxTypeError(
                "a logger needs the state that its `init` returned, not "
                f"{state!r:.80}: `state = logger.init(key)`, and then "
                "`logger.tap(f, state)`, `logger.log(state, logs)` or "
                "`logger.finish(state)`."
            )
        kind, _, _ = state.logger.partition(" ")
        mine, _, _ = self._kind.partition(" ")
        # after a restart, a state whose logger no longer exists fits a new logger
        belongs_to_other = kind != mine or state.logger in _alive
        if state.logger not in ("", self._kind) and belongs_to_other:
            other = f"another {mine}" if kind == mine else f"{kind}, not to {mine}"
            raise LoxValueError(
                f"this state belongs to {other}. Pass the state that `init` of this "
                "logger returned."
            )
        return state

    @property
    def _kind(self) -> str:
        """The identifier in its states."""
        found: str | None = self.__dict__.get("_own_kind")
        if found is None:
            name = f"{type(self).__name__} {secrets.token_hex(4)}"
            found = self.__dict__.setdefault("_own_kind", name)
            _alive[found] = self
        return found

    def _buffers(self) -> bool:
        """Whether `write` may buffer logs."""
        return type(self).flush is not Logger.flush

    def _wait(self) -> None:
        self._runs.wait()

    def _run_info(
        self, words: Words, config: Mapping[str, Any] | None = None
    ) -> RunInfo:
        """The information about a run, given its own config."""
        # a subclass may not call `__init__`
        merged = {**getattr(self, "config", {}), **(config or {})}
        name = run_name(words)
        if self.processes == ALL and not self._joins_processes and host.process_index():
            name += f"-process-{host.process_index()}"
        return RunInfo(words, name, merged)

    def _open_run(self, words: Words, config: Mapping[str, Any], late: bool) -> Any:
        """Opens a run; the arguments are those of `OpenRuns.open`."""
        del late
        return self.open(self._run_info(words, config))

    def _full_of(self, words: Words) -> Full:
        """What happens to logs of a run if the queue is full."""
        del words
        return self.full

    def _sync(self) -> None:
        """Waits until closed runs are on disk; called once for many runs."""

    def _row_writer(self) -> RowWriter | None:
        """A faster `write` for single rows of programs, if the backend has one."""
        return None

    def _set_config(self, run: Any, info: RunInfo) -> bool:
        """Sets the config of an open run; returns False if that is not possible."""
        return False

    def _origin(self, run: Any, info: RunInfo) -> dict[str, Any] | None:
        """What `lox sync` needs to know to send logs that were not sent, as JSON.

        Args:
            run: what `open` has returned; None if it failed.
            info: the run.
        """
        return None

    def _skip(self, run: RunInfo) -> None:
        """Called instead of `open` in a process that does not log to a run yet."""

    def _unskip(self, run: RunInfo) -> None:
        """Called instead of `close`, if the process has not logged to the run."""

    def _check(self, run: RunInfo) -> None:
        """Raises if `open` would raise, without changing anything."""


def words_of(key: Any) -> Any:
    """The words of a run's key; those of a random key for None."""
    if key is not None:
        return key_data(key)
    if not is_outermost():
        raise LoxTypeError(
            "`init` of a logger needs a `key` inside `jax.jit` and `jax.vmap`: with a "
            "random one, every call and every lane would have the same run."
        )
    return np.frombuffer(secrets.token_bytes(8), np.uint32)
