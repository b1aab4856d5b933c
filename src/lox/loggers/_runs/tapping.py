"""Functions whose logs are sent to the runs of a logger while they run."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lox._transforms.arguments import Static
from lox._transforms.compiled import INSIDE, OUTERMOST, Form, compiled, is_outermost
from lox._transforms.deliver import call_and_wait, deliver
from lox._transforms.options import Options

from .open_runs import OpenRuns
from .sinks import SharedTapSink, TapSink, with_number


def tap_to_runs(
    fun: Callable[..., Any],
    runs: OpenRuns,
    words: Any,
    options: Options,
    static: Static,
) -> Callable[..., Any]:
    """A function like `fun` that sends its logs to runs.

    Args:
        fun: the function.
        runs: the open runs of the logger.
        words: the words of the keys of some of them.
        options: the options of the tap.
        static: the static arguments of `fun`.
    """

    @functools.cache
    def numbered() -> Any:
        return with_number(words, runs)

    def form(where: Form) -> Any:
        # A call that waits for its callbacks can share its compiled program with other
        # loggers: a number that is sent with the words identifies the logger.
        is_shared = where is OUTERMOST

        def build() -> tuple[Any, TapSink]:
            sink = SharedTapSink() if is_shared else TapSink(runs)

            def evaluate(closed: Any, args: Sequence[Any]) -> Any:
                options.warn_unmatched(closed, "lox.tap")
                run = args[0]
                outs = deliver(closed, args, options, where.outermost, sink, run)
                return outs, None

            return evaluate, sink

        key = "logger.tap", None if is_shared else runs, options
        return compiled(fun, key, build, where, static, wrap=_with_words)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_outermost():
            return call_and_wait(form(OUTERMOST), (numbered(), *args), kwargs)
        return form(INSIDE)(words, *args, **kwargs)[0]

    return call


def _with_words(fun: Any) -> Any:
    """A function like `fun` that takes the words of runs as its first argument."""

    def wrapped(words: Any, *args: Any, **kwargs: Any) -> Any:
        del words
        return fun(*args, **kwargs)

    wrapped.__wrapped__ = fun  # type: ignore[attr-defined]
    return wrapped
