"""What all loggers share: the JAX side, written once.

A backend is three methods on NumPy values: `open` a run, `write` logs to it, and
`close` it.
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

from lox._errors import LoxTypeError, LoxValueError, StepError
from lox._events.event import Event
from lox._events.log import arrays_of, operand
from lox._events.primitive import log_p
from lox._events.selection import Selection
from lox._host import signals
from lox._jax import array_types, host
from lox._logs.logdict import logdict
from lox._source import user_source
from lox._store.keys import key_data, run_name
from lox._transforms.arguments import Argnames, Argnums, Static
from lox._transforms.compiled import INSIDE, OUTERMOST, Form, compiled, is_outermost
from lox._transforms.deliver import call_and_wait, deliver
from lox._transforms.options import Names, Options
from lox._transforms.spool import spool
from lox._transforms.transformed import Transformed, check_callable

from ._runs.config import plain_config, split_config
from ._runs.open_runs import OpenRuns, RowWriter, Words
from ._runs.sinks import (
    Closes,
    Opens,
    RunSink,
    SharedTapSink,
    TapSink,
    Writes,
    with_number,
)

P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """What a backend is told of a run that it is to open.

    Attributes:
        key: the words of the PRNG key that tells it from others.
        name: a name made of them.
        config: what the logger and the run were given.
    """

    key: Words
    name: str
    config: Mapping[str, Any]


# by what tells their states from those of others
_alive: "weakref.WeakValueDictionary[str, Logger]" = weakref.WeakValueDictionary()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """The runs that logs go to: a pytree, with an axis for each `vmap` of `init`."""

    words: Any
    # whose they are
    logger: str = dataclasses.field(default="", metadata={"static": True})


class Logger:
    """The base of all loggers.

    A backend overrides `open`, `write` and, if there is something to close, `close`.
    They run on the host, one at a time, and must not call JAX.

    Args:
        config: what to remember of the runs, such as hyperparameters; JSON.

    Attributes:
        background: whether the backend is slow, so that it is called by a thread of its
            own, out of a queue. The queue is bounded: a program that is faster for
            long waits for room in it; nothing is dropped.
        patience: for how many seconds such a backend may leave the others waiting,
            before it is taken as failed.
    """

    background = False
    patience = 120.0
    # whether some program may log without order, so that rows may come after `finish`,
    # or before `init`; and whether that is because it has several devices
    _unordered = False
    _devices = False
    # whether some program begins runs of its own
    _opens_inside = False
    # whether `write` takes typed PRNG keys; others get their data
    _takes_keys = False

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = plain_config(config or {})

    # --- what a backend says ---------------------------------------------------------

    def open(self, run: RunInfo) -> Any:
        """Begins a run, and gives whatever `write` needs to find it again."""
        raise NotImplementedError

    def write(self, run: Any, logs: logdict) -> None:
        """Writes logs of NumPy values, with a time axis if they are several rows."""
        raise NotImplementedError

    def flush(self, run: Any) -> None:
        """Sends what `write` has kept back, if it does; called when there is time."""

    def close(self, run: Any) -> None:
        """Ends a run."""

    # --- what a user calls -----------------------------------------------------------

    def init(
        self, key: Any = None, config: Mapping[str, Any] | None = None
    ) -> LoggerState:
        """Begins a run; under `jax.vmap`, one a lane.

        Args:
            key: a key of `jax.random`, or a number, that tells the run from others. By
                default, outside of JAX's transformations, a random one.
            config: what this run was made with, beside the config of the logger;
                of its values, some may be traced, and differ between lanes.
        """
        static, traced = split_config(config)
        words = words_of(key)

        def opens(runs: OpenRuns, shared: int) -> Opens:
            return Opens(runs, shared, static)

        self._hand_over((words, traced), opens)
        return LoggerState(jnp.array(words), self._kind)

    def finish(self, state: LoggerState) -> None:
        """Ends the runs; all that was logged to them is where it should be then."""
        self._hand_over(self._checked(state).words, Closes)

    def log(self, state: LoggerState, logs: Mapping[str, Any], **steps: Any) -> None:
        """Sends logs to the runs of a state.

        Args:
            state: what `init` gave.
            logs: logs such as `lox.spool` returns, or values by name.
            **steps: the step numbers of values that come without: `step=i`.
        """
        words = self._checked(state).words
        logs = self._logs(logs, steps)
        if not (self._takes_keys and is_outermost()):
            logs = logs._plain()
        self._hand_over((words, logs), Writes)

    def _logs(self, logs: Mapping[str, Any], steps: Mapping[str, Any]) -> logdict:
        """Checks what `log` was given."""
        call = f"`{type(self).__name__}.log`"
        if not isinstance(logs, Mapping):
            raise LoxTypeError(
                f"{call} takes a state and values by name, not {logs!r}: "
                '`logger.log(state, {"loss": loss}, step=i)`.'
            )
        if isinstance(logs, logdict) and steps:
            raise LoxTypeError(
                f"a `logdict` has steps of its own; {call} takes "
                f"{', '.join(map(repr, steps))} for a plain dict."
            )
        for key, value in logs.items():
            leaves = jax.tree.leaves(value)
            if not leaves or not all(map(_is_array, leaves)):
                # which says what is wrong
                arrays_of(value, key, f"{call} at {user_source()}")
        if isinstance(logs, logdict):
            return logs
        for name, step in steps.items():
            if not _is_array(step) or np.ndim(step):
                raise StepError(
                    f"{call} at {user_source()}: the step {name!r} must be a number, "
                    f"not {step!r:.80}. Several rows at once are a `lox.logdict(..., "
                    "stacked=True)`."
                )
        of = {name: dict.fromkeys(logs, step) for name, step in steps.items()}
        return logdict(logs, of)

    def _hand_over(
        self, payload: Any, sink: Callable[[OpenRuns, int], RunSink]
    ) -> None:
        receiver = sink(self._runs, array_types.shard_map_devices())
        if is_outermost():
            payload = jax.tree.map(_to_host, payload)
            in_callback = host.in_callback()
            if not in_callback:
                # what programs that still run have logged comes before it
                host.wait_for_callbacks()
                self._runs.close_ending()
            if isinstance(receiver, Closes):  # it may wait, and can be interrupted
                receiver.take(payload, late=in_callback)
                return
            signals.uninterrupted(lambda: receiver.take(payload, late=in_callback))
            return
        leaves, tree = jax.tree.flatten(payload)
        event = Event(
            keys=("payload",),
            trees=(tree,),
            steps=(),
            source=user_source(),
            sink=receiver,
            ordered=not array_types.partly_manual(),
        )
        call = f"the logger at {user_source()}"
        operands = [operand(leaf, "a value", call) for leaf in leaves]
        log_p.bind(*operands, event=event)

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
        """Makes `fun` send its logs to the runs of a state, when it has ended.

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

        return _Logged(fun, call)

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
        """Makes `fun` send its logs to the runs of a state, as they come.

        The options are those of `lox.tap`.
        """
        self._check_call(fun, state, "tap")
        words = state.words
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
        runs = self._runs

        @functools.cache
        def numbered() -> Any:
            return with_number(words, runs)

        def form(where: Form) -> Any:
            # A call that waits for its callbacks can share its program with other
            # loggers: a number that goes with the run says whose it is.
            shares = where is OUTERMOST

            def build() -> tuple[Any, TapSink]:
                sink = SharedTapSink() if shares else TapSink(runs)

                def evaluate(closed: Any, args: Sequence[Any]) -> Any:
                    options.warn_unmatched(closed, "lox.tap")
                    run = args[0]
                    outs = deliver(closed, args, options, where.outermost, sink, run)
                    return outs, None

                return evaluate, sink

            key = "logger.tap", None if shares else runs, options
            return compiled(fun, key, build, where, static, wrap=_with_words)

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_outermost():
                return call_and_wait(form(OUTERMOST), (numbered(), *args), kwargs)
            return form(INSIDE)(words, *args, **kwargs)[0]

        return _Logged(fun, call, static)

    @property
    def _runs(self) -> OpenRuns:
        # not in `__init__`, which a backend may forget to call
        found = self.__dict__.get("_open_runs")
        for method in ("open", "write") if found is None else ():
            if getattr(type(self), method) is getattr(Logger, method):
                raise LoxTypeError(
                    f"{type(self).__name__} has no method `{method}`: a logger has "
                    "`open(self, run)` and `write(self, run, logs)`."
                )
        # of two threads at once, one makes it
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
                f"a logger needs the state that its `init` gave, not {state!r:.80}: "
                "`state = logger.init(key)`, and then `logger.tap(f, state)`, "
                "`logger.log(state, logs)` or `logger.finish(state)`."
            )
        kind, _, _ = state.logger.partition(" ")
        mine, _, _ = self._kind.partition(" ")
        # one that is gone, as after a restart, may leave its states to another
        is_others = kind != mine or state.logger in _alive
        if state.logger not in ("", self._kind) and is_others:
            other = f"another {mine}" if kind == mine else f"{kind}, and not of {mine}"
            raise LoxValueError(
                f"this state is one of {other}: each logger has states of its own, "
                "which its `init` gives."
            )
        return state

    @property
    def _kind(self) -> str:
        """What tells its states from those of others."""
        found: str | None = self.__dict__.get("_own_kind")
        if found is None:
            name = f"{type(self).__name__} {secrets.token_hex(4)}"
            found = self.__dict__.setdefault("_own_kind", name)
            _alive[found] = self
        return found

    def _keeps_back(self) -> bool:
        return type(self).flush is not Logger.flush

    def _wait(self) -> None:
        self._runs.wait()

    def _info(self, words: Words, config: Mapping[str, Any] | None = None) -> RunInfo:
        """What there is to know of a run, which may have a config of its own."""
        whole = {**getattr(self, "config", {}), **(config or {})}
        return RunInfo(words, run_name(words), whole)

    def _begin(self, words: Words, config: Mapping[str, Any], late: bool) -> Any:
        """Opens a run; the arguments are those of `OpenRuns.open`."""
        del late
        return self.open(self._info(words, config))

    def _row_writer(self) -> RowWriter | None:
        """A quicker `write` for single rows of programs, if the backend has one."""
        return None

    def _adopt(self, run: Any, info: RunInfo) -> bool:
        """Gives a config to a run that has begun without; False if it cannot."""
        return False

    def _check(self, run: RunInfo) -> None:
        """Raises if `open` would refuse a run, and changes nothing."""


class _Logged(Transformed):
    __slots__ = ()
    __doc__ = Transformed.__doc__


def _with_words(fun: Any) -> Any:
    def wrapped(words: Any, *args: Any, **kwargs: Any) -> Any:
        del words
        return fun(*args, **kwargs)

    wrapped.__wrapped__ = fun  # type: ignore[attr-defined]
    return wrapped


def words_of(key: Any) -> Any:
    """The words of a run's key; of a random one, if there is none."""
    if key is not None:
        return key_data(key)
    if not is_outermost():
        raise LoxTypeError(
            "`init` of a logger needs a `key` inside `jax.jit` and `jax.vmap`, which "
            "would give every call and every lane the same run."
        )
    return np.frombuffer(secrets.token_bytes(8), np.uint32)


def _is_array(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype.kind not in "OSUMm"
    return isinstance(x, jax.Array | bool | int | float | complex)


def _to_host(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.flags.writeable:
        return x.copy()  # it may wait in a queue while its owner changes it
    is_key = jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.extended)
    return x if is_key else np.asarray(x)
