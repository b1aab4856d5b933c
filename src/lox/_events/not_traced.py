"""Events that a transformation does not see, since they are not in the program.

A transformation takes the events of the program that JAX traces. Two kinds of events
are reached in other ways, and go to the default handler: those of the host functions
that a program calls, and those of whole programs that `jax.ensure_compile_time_eval`
runs while another one is traced. A warning names their lines, once for each.
"""

import contextlib
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from lox._errors import LoxWarning
from lox._jax import callbacks, compat
from lox._source import Source

_warned: dict[Any, Any] = {}  # as Python keeps it: once for each line


def _warn(keys: Iterable[str], source: Source, rest: str) -> None:
    warnings.warn_explicit(
        f"{', '.join(map(repr, keys))}, logged at {source}, {rest}",
        LoxWarning,
        source.file,
        source.line,
        registry=_warned,
    )


# --- host functions ----------------------------------------------------------

# Those that transformed programs call, by identity: they need not be hashable.
_host_functions: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def note_host_functions(functions: Iterable[Any]) -> None:
    """Remembers the host functions of a program that a transformation evaluates."""
    for function in functions:
        function = getattr(function, "__func__", function)
        with contextlib.suppress(TypeError):  # no weak reference can be made of it
            _host_functions[id(function)] = function


def check_host_function(keys: Iterable[str], source: Source) -> None:
    """Warns if an eager event is one of such a host function."""
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
                "host function and log it where that is called.",
            )
            return


# --- compile-time evaluation -------------------------------------------------

_state = threading.local()


@contextlib.contextmanager
def while_tracing() -> Iterator[None]:
    """While a function is traced for a transformation."""
    before = getattr(_state, "tracing", False)
    _state.tracing = True
    try:
        yield
    finally:
        _state.tracing = before


def may_run_early() -> bool:
    """Whether an event may run while a function is traced for a transformation."""
    return compat.folds_constants() and getattr(_state, "tracing", False)


def check_early(keys: Iterable[str], source: Source) -> None:
    """Warns if the program of an event that nobody took is compiled to run early."""
    if not getattr(_state, "tracing", False):
        return
    _warn(
        keys,
        source,
        "is in a program that `jax.ensure_compile_time_eval` runs while the function "
        "around it is traced: lox's transformations do not reach it, and it goes to "
        "the default handler, which prints. Log the result of that program instead.",
    )
