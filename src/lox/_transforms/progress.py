"""`lox.progress`: a progress bar for the loops of a function."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TextIO, TypeVar, overload

import jax
import jax.numpy as jnp

from lox._errors import LoxTypeError, LoxValueError, describe
from lox._events.event import Call, Event, Route
from lox._events.primitive import log_p
from lox._host.progress_bars import ProgressSink, Report
from lox._interpreter.loops import Loop, find_sites
from lox._interpreter.observed_loops import ObservedProgram, Observer
from lox._jax import array_types, primitives, rule_tables

from .arguments import Argnames, Argnums, Static
from .compiled import INSIDE, OUTERMOST, Form, compiled, is_outermost
from .deliver import call_and_wait
from .options import decorator
from .transformed import Transformed, check_callable

P = ParamSpec("P")
T = TypeVar("T")

_REPORTS_PER_DOUBLING = 4  # each time the count of an unbounded loop doubles


@overload
def progress(
    fun: Callable[P, T],
    *,
    label: str | None = None,
    total: int | None = None,
    file: TextIO | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Callable[P, T]: ...


@overload
def progress(
    fun: None = None,
    *,
    label: str | None = None,
    total: int | None = None,
    file: TextIO | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def progress(
    fun: Any = None,
    *,
    label: str | None = None,
    total: int | None = None,
    file: TextIO | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Any:
    """Shows a progress bar for the loops of `fun`, without changing its code.

    There is one bar for each outermost `scan`, `fori_loop` or `while_loop`; under
    `vmap`, one for all lanes. A terminal shows live bars, which need rich
    (`pip install 'jax-lox[console]'`); log files and notebooks get a line of text at
    every tenth of a loop, at most two per second. A loop of unknown length shows its
    count and its rate. In a multi-process job, the first process shows its bars.

    Args:
        fun: the function; if omitted, a decorator with these options is returned.
        label: the name that is shown; the name of `fun` by default.
        total: the expected number of iterations of loops of unknown length.
        file: where to write; `sys.stderr` by default.
        static_argnums: the positions of static arguments, as in `jax.jit`.
        static_argnames: the names of static arguments, as in `jax.jit`.

    Returns:
        A function with the arguments and the result of `fun`.

    Example:
        >>> import sys
        >>> def train(x):
        ...     return jax.lax.fori_loop(0, 1000, lambda i, x: x + i, x)
        >>> _ = lox.progress(train, file=sys.stdout)(0)
        train: 10% (100/1000)...
        train: 100% (1000/1000)...
    """
    if fun is None:
        return decorator(progress, locals())
    check_callable(fun, "lox.progress")
    _check_options(total, label, file)
    name = label or getattr(fun, "__name__", None) or type(fun).__name__
    static = Static.of(fun, static_argnums, static_argnames)

    def form(where: Form) -> Any:
        def build() -> tuple[Any, ProgressSink]:
            sink = ProgressSink(file)

            def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], None]:
                found = find_sites(closed)
                sites = {path: site for path, site in found if _is_shown(site.target)}
                reports = _Reports(sink, name, total, several=len(sites) > 1)
                return ObservedProgram(reports, sites)(closed, args), None

            return evaluate, sink

        return compiled(fun, ("progress", name, total, file), build, where, static)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_outermost():
            return form(INSIDE)(*args, **kwargs)[0]
        program = form(OUTERMOST)
        try:
            return call_and_wait(program, args, kwargs)
        finally:
            program.sink.close()

    return Transformed("progress", fun, call, static)


def _check_options(total: Any, label: Any, file: Any) -> None:
    if total is not None and (isinstance(total, bool) or not isinstance(total, int)):
        raise LoxTypeError(
            f"`total` of `lox.progress` must be a whole number, not {describe(total)}."
        )
    if total is not None and total < 1:
        raise LoxValueError(
            f"`total` of `lox.progress` must be at least 1, not {total}: it is the "
            "expected number of iterations."
        )
    if not isinstance(label, str | None):
        raise LoxTypeError(
            f"`label` of `lox.progress` must be a string, not {describe(label)}."
        )
    if file is not None and not hasattr(file, "write"):
        raise LoxTypeError(
            f"`file` of `lox.progress` must be an open file, not {describe(file)}."
        )


def _is_shown(target: Any) -> bool:
    return isinstance(target, Loop) and target.is_outermost


# --- on the device -----------------------------------------------------------


def _over_lanes(name: str, reduction: Callable[[Any], Any]) -> Any:
    """A primitive that reduces over all lanes.

    Its result has no lanes, so that what depends on it is decided once for all of them.
    """
    primitive: Any = primitives.Primitive(name)
    primitive.def_impl(reduction)
    primitive.def_abstract_eval(lambda x: x.update(shape=()))
    rule_tables.register_lowering_as(primitive, reduction)
    rule_tables.register_batching(
        primitive, lambda axis, args, dims: (primitive.bind(*args), None)
    )
    rule_tables.set_no_derivative(primitive)
    return primitive


_latest_p = _over_lanes("lox_latest", jnp.max)
_any_p = _over_lanes("lox_any", jnp.any)


class _Reports(Observer):
    """Reports the progress of loops to a sink.

    Args:
        sink: the sink.
        label: the name of the function.
        total: the number of iterations of loops of unknown length, if known.
        several: whether there is more than one loop, so that bars need longer names.
    """

    pauses = True

    def __init__(
        self, sink: ProgressSink, label: str, total: int | None, several: bool
    ) -> None:
        self._sink = sink
        self._label = label
        self._total = total
        self._several = several

    def iteration(
        self,
        loop: Loop,
        number: Any,
        carry: Sequence[Any],
        ys: Sequence[Any],
        running: Any,
    ) -> None:
        del carry, ys
        total = self._total_of(loop)
        if running is None:
            due = _is_due(_latest_p.bind(number + 1), total)
        else:  # all lanes that run have the same count
            due = _any_p.bind(_is_due(number + 1, total) & running)

        def body(again: Any) -> Any:
            # the carry itself: XLA would compute any other value in every iteration
            self._report(loop, number)
            return jnp.zeros_like(again)

        # on CPUs, a loop of at most one iteration takes a fifth of the time of a `cond`
        jax.lax.while_loop(lambda again: again, body, due)

    def next_pause(self, loop: Loop, count: Any) -> Any:
        interval = _interval(count, self._total_of(loop))
        return (jax.lax.div(count, interval) + 1) * interval

    def pause(self, loop: Loop, count: Any) -> None:
        self._report(loop, _latest_p.bind(count) - 1)

    def end(self, loop: Loop, count: Any) -> None:
        self._report(loop, _latest_p.bind(count), ends=True)

    def _total_of(self, loop: Loop) -> int | None:
        return self._total if loop.length is None else loop.length

    def _report(self, loop: Loop, count: Any, ends: bool = False) -> None:
        label = f"{self._label} {loop.address}" if self._several else self._label
        call = Call(
            keys=(f"{loop.address} {'end' if ends else 'count'}",),
            trees=(jax.tree.structure(0),),
            steps=(),
            source=loop.source,
            api="progress",
            api_data=Report(loop.address, label, self._total_of(loop), ends),
        )
        # in order, because XLA may know the length of a loop and report its end first
        route = Route(sink=self._sink, ordered=not array_types.partly_manual())
        log_p.bind(count, event=Event(call, route=route))


def _is_due(count: Any, total: int | None) -> Any:
    """Whether to report a count, which is at least 1."""
    return jax.lax.rem(count, _interval(count, total)) == 0


def _interval(count: Any, total: int | None) -> Any:
    """The counts to report are the multiples of this number."""
    if total is not None:
        return jnp.full_like(count, _interval_of(total))
    highest_bit = jnp.iinfo(count.dtype).bits - 1 - jax.lax.clz(count)
    shift = _REPORTS_PER_DOUBLING.bit_length() - 1
    return jnp.left_shift(jnp.ones_like(count), jnp.maximum(highest_bit - shift, 0))


def _interval_of(total: int) -> int:
    """The number of iterations between two reports of a loop of known length.

    A report takes about 33 µs. Long loops report 20 to 100 times, so that all reports
    together take less than 1 % of a loop whose iterations take that long or longer.
    Short loops report 50 times, because their iterations tend to be slow.
    """
    if total <= 2500:
        return max(1, total // 50)
    return max(min(total // 20, 800), total // 100)
