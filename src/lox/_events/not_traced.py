"""Warnings about events that are not in the traced program.

A transformation collects the events of the program that JAX traces. Two kinds of events
are not in it, and go to the default handler: those of host functions that the program
calls, and those of programs that `jax.ensure_compile_time_eval` runs while another one
is traced. lox warns about them once per line.
"""

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any

from lox._flag import Flag
from lox._jax import callbacks, compat
from lox._source import Source, warn

_warned: dict[Any, Any] = {}  # the registry of `warnings`: one warning per line


def _warn(keys: Iterable[str], source: Source, rest: str) -> None:
    listed = ", ".join(map(repr, keys))
    warn(f"{listed}, logged at {source}, {rest}", source, _warned)


# --- host functions ----------------------------------------------------------

# The host functions of transformed programs by `id`, since some are not hashable.
_host_functions: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def remember_host_functions(functions: Iterable[Any]) -> None:
    """Remembers the host functions of a program that a transformation evaluates."""
    for function in functions:
        function = getattr(function, "__func__", function)
        with contextlib.suppress(TypeError):  # not weakly referenceable
            _host_functions[id(function)] = function


def warn_if_in_host_function(keys: Iterable[str], source: Source) -> None:
    """Warns if an eager event is logged by a remembered host function."""
    if not _host_functions:
        return
    for function in callbacks.running_host_functions():
        function = getattr(function, "__func__", function)
        if _host_functions.get(id(function)) is function:
            _warn(
                keys,
                source,
                "is in a host function (of `jax.pure_callback`, `io_callback` or "
                "`jax.debug.callback`), which lox's transformations do not reach: it "
                "goes to the default handler, which prints. Return the value from the "
                "host function, and log it in the program that calls it.",
            )
            return


# --- compile-time evaluation -------------------------------------------------

# set while a function is traced for a transformation
while_tracing = Flag()


def may_run_early() -> bool:
    """Whether an event may run while a transformation traces the function around it."""
    return compat.folds_constants() and bool(while_tracing)


def warn_if_early(keys: Iterable[str], source: Source) -> None:
    """Warns if the program of an uncollected event is lowered during such a trace."""
    if not while_tracing:
        return
    _warn(
        keys,
        source,
        "is in a program that `jax.ensure_compile_time_eval` runs while the function "
        "around it is traced: lox's transformations do not reach it, and it goes to "
        "the default handler, which prints. Log the result of that program instead.",
    )
