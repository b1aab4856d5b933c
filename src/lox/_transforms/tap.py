"""`lox.tap`: logs to a callback on the host, as they come."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Never, ParamSpec, TypeVar, overload

from lox._errors import LoxTypeError
from lox._events.selection import Selection
from lox._host.callbacks import CallbackSink
from lox._logs.logdict import logdict
from lox._settings import default_handler

from .arguments import Static
from .deliver import deliver, finished
from .options import Options, decorator, refuse_unknown
from .transformed import (
    INSIDE,
    OUTERMOST,
    Form,
    Transformed,
    check_callable,
    compiled,
    is_outermost,
)

P = ParamSpec("P")
T = TypeVar("T")
Callback = Callable[[logdict], Any]
Names = str | Iterable[str] | None


class _SwitchSink(CallbackSink):
    """A sink whose callback can be exchanged between calls.

    An eager call of a tapped function waits for its callbacks. So one compiled program
    serves every callback, and a lambda written anew at each call compiles nothing.
    """

    def __init__(self, batched: bool) -> None:
        super().__init__(_nobody, batched)
        self._users = 0
        self._switch = threading.Lock()

    def acquire(self, callback: Callback) -> bool:
        """Sets the callback, unless a call with another one is under way."""
        with self._switch:
            if self._users and self.callback is not callback:
                return False
            self.callback = callback
            self._users += 1
            return True

    def release(self) -> None:
        with self._switch:
            self._users -= 1
            if not self._users:
                self.callback = _nobody


def _nobody(logs: logdict) -> None:
    raise RuntimeError(f"no callback is set for {logs}")  # would be a bug of lox's


def _print(logs: logdict) -> None:
    default_handler()(logs)


@overload
def tap(
    fun: Callable[P, T],
    callback: Callback | None = None,
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
    batched: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[P, T]: ...


@overload
def tap(
    fun: None = None,
    callback: Callback | None = None,
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
    batched: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def tap(
    fun: Any = None,
    callback: Callback | None = None,
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
    batched: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    **others: Never,
) -> Any:
    """Streams the logs of `fun` to a callback on the host, as they come.

    An eager call returns once its callbacks have run. Inside `jax.jit`, they run while
    the program goes on; `jax.effects_barrier()` waits for them. An exception in a
    callback is raised by the eager call, or by the next barrier.

    Args:
        fun: the function; without one, a decorator with these options is returned.
        callback: a function of one `lox.logdict` of NumPy values, called once an event
            and lane. It must not call JAX. By default, events are printed.
        argnames: which keys to take: a name or several, or shell-style patterns.
        tags: take only events that have one of these tags.
        prefix: put in front of every key.
        keep_logs: also leave the events for a transformation outside this one.
        interval: take the events 0, k, 2k, … of each key.
        reduce: reduce over time on the device: one of `mean sum min max first last
            count std var append` or a `lox.Reduction`, or a dict of these by key. The
            callback gets the reduced values once, when `fun` has ended.
        window: give the callback one reduced row for every so many events, as they
            come, and one for the rest. The `reduce` of `lox.log` counts too, then.
        buffer: give the callback up to so many rows at a time, stacked along a leading
            time axis, and the rest when `fun` has ended. Keys that are always logged
            together come together.
        ordered: whether events come in program order. Where a program is split over
            devices, each device has an order of its own.
        batched: call once an event with all lanes of a `vmap`, instead of once a lane.
        static_argnums: which arguments are static, as in `jax.jit`.
        static_argnames: the same, by name.

    Returns:
        A function with the arguments and the result of `fun`.

    Example:
        >>> def f(xs):
        ...     def step(carry, x):
        ...         lox.log({"carry": carry + x})
        ...         return carry + x, None
        ...     return jax.lax.scan(step, 0, xs)[0]
        >>> y = lox.tap(f, callback=lambda logs: print("got", logs))(jnp.arange(3))
        got {'carry': 0}
        got {'carry': 1}
        got {'carry': 3}
    """
    if others:
        refuse_unknown("lox.tap", others, tap)
    if fun is None:
        return decorator(tap, locals())
    check_callable(fun, "lox.tap")
    if callback is not None and not callable(callback):
        raise LoxTypeError(
            f"`callback` of `lox.tap` must be a function of a `lox.logdict`, not "
            f"{callback!r}."
        )
    receive = _print if callback is None else callback
    options = Options(
        "lox.tap",
        Selection.of(argnames, tags),
        prefix=prefix,
        keep_logs=keep_logs,
        interval=interval,
        reduce=reduce,
        window=window,
        buffer=buffer,
        ordered=ordered,
        batched=batched,
    )
    static = Static.of(fun, static_argnums, static_argnames)

    def form(name: Any, where: Form, make_sink: Callable[[], CallbackSink]) -> Any:
        def build() -> tuple[Any, CallbackSink]:
            sink = make_sink()

            def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], None]:
                options.warn_unmatched(closed, "lox.tap")
                return deliver(closed, args, options, where.outermost, sink), None

            return evaluate, sink

        return compiled(fun, ("tap", options, name), build, where, static)

    def own_sink() -> CallbackSink:
        return CallbackSink(receive, options.batched)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_outermost():
            return form(("inside", receive), INSIDE, own_sink)(*args, **kwargs)[0]
        shared = form("shared", OUTERMOST, lambda: _SwitchSink(options.batched))
        if not shared.sink.acquire(receive):
            return finished(form(("own", receive), OUTERMOST, own_sink), args, kwargs)
        try:
            return finished(shared, args, kwargs)
        finally:
            shared.sink.release()

    return _Tap(fun, call, static)


class _Tap(Transformed):
    __slots__ = ()
    __doc__ = Transformed.__doc__
