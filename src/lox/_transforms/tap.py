"""`lox.tap`: streams the logs of a running program to a callback on the host."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Never, ParamSpec, TypeVar, overload

from lox._errors import LoxTypeError
from lox._events.selection import Selection
from lox._host.callbacks import CallbackSink, handle_by_default
from lox._logs.logdict import logdict

from .arguments import Argnames, Argnums, Static
from .cache import Identity
from .compiled import INSIDE, OUTERMOST, Form, compiled, is_outermost
from .deliver import call_and_wait, deliver
from .options import Names, Options, decorator, refuse_unknown
from .transformed import Transformed, check_callable

P = ParamSpec("P")
T = TypeVar("T")
Callback = Callable[[logdict], Any]


class _SwitchSink(CallbackSink):
    """A sink whose callback can be changed between calls.

    An eager call of a tapped function waits for its callbacks, so one compiled program
    can serve every callback, and a new lambda for each call does not compile again.
    """

    def __init__(self, batched: bool) -> None:
        super().__init__(_no_callback, batched)
        self._users = 0
        self._switch = threading.Lock()

    def acquire(self, callback: Callback) -> bool:
        """Sets the callback, unless a call with another one is running."""
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
                self.callback = _no_callback


def _no_callback(logs: logdict) -> None:
    raise RuntimeError(f"no callback is set for {logs}")  # would be a bug in lox


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
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
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
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
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
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    **others: Never,
) -> Any:
    """Streams the logs of `fun` to a callback on the host while it runs.

    An eager call returns once its callbacks have run. Inside `jax.jit`, they run while
    the program continues; `jax.effects_barrier()` waits for them. An exception in a
    callback is raised by the eager call, or by the next barrier.

    Args:
        fun: the function; if omitted, a decorator with these options is returned.
        callback: a function of one `lox.logdict` of NumPy values, called once per event
            and lane. It must not call JAX. By default, events are printed.
        argnames: the keys to collect: names or shell-style patterns. By default, all.
        tags: collect only events that have at least one of these tags.
        prefix: a string to put in front of every key.
        keep_logs: leave the events for an outer transformation too.
        interval: collect every `interval`-th event per key, starting with the first.
        reduce: reduce over time on the device: one of `mean sum min max first last
            count std var append`, a `lox.Reduction`, or a dict of these by key. The
            callback gets the reduced values once, when `fun` has finished.
        window: give the callback one reduced row per `window` events, while the program
            runs, and one for the remaining events. The `reduce` of `lox.log` then
            applies too.
        buffer: give the callback up to `buffer` rows at a time, stacked along a leading
            time axis, and the remaining rows when `fun` has finished. Keys that are
            always logged together arrive together.
        ordered: whether events arrive in program order. If a program runs on multiple
            devices, each device has its own order.
        batched: call the callback once per event with all lanes of a `vmap`, instead of
            once per lane.
        static_argnums: the positions of static arguments, as in `jax.jit`.
        static_argnames: the names of static arguments, as in `jax.jit`.

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
    receive = handle_by_default if callback is None else callback
    identity = Identity(receive)
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
            inside = form(("inside", identity), INSIDE, own_sink)
            return inside(*args, **kwargs)[0]
        shared = form("shared", OUTERMOST, lambda: _SwitchSink(options.batched))
        if not shared.sink.acquire(receive):
            own = form(("own", identity), OUTERMOST, own_sink)
            return call_and_wait(own, args, kwargs)
        try:
            return call_and_wait(shared, args, kwargs)
        finally:
            shared.sink.release()

    return Transformed("tap", fun, call, static)
