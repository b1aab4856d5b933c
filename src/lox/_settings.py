"""The default handler of events that no transformation collects."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from ._errors import LoxTypeError, LoxValueError

Handler = Callable[[Any], Any]


def _print(logs: Any) -> None:
    print(logs, flush=True)


def _silent(logs: Any) -> None:
    del logs


def _stderr(logs: Any) -> None:
    print(logs, file=sys.stderr, flush=True)


_VARIABLE = "`LOX_DEFAULT`"
_NAMED: dict[str, Handler] = {"print": _print, "silent": _silent, "stderr": _stderr}
_lock = threading.Lock()
_handler: Handler | None = None


def set_default(handler: str | Handler | None) -> None:
    """Sets the handler of events that no transformation collects.

    It applies to the whole process, including functions that are already compiled. The
    environment variable `LOX_DEFAULT` (`print`, `stderr` or `silent`) sets the initial
    handler. In a multi-process job, only the first process prints; a function is called
    in each process.

    Args:
        handler: `"print"` (the default), `"stderr"`, `"silent"` (or None), or a
            function of one `lox.logdict`, called once per event and lane.

    Example:
        >>> lox.set_default("silent")
        >>> _ = lox.log({"x": 1})
        >>> lox.set_default("print")
        >>> _ = lox.log({"x": 1})
        {'x': 1}
    """
    global _handler
    with _lock:
        _handler = _resolve(handler, "`lox.set_default`")


def default_handler() -> Handler:
    global _handler
    if _handler is None:
        with _lock:
            _handler = _resolve(os.environ.get("LOX_DEFAULT") or "print", _VARIABLE)
    return _handler


def is_named(handler: Handler) -> bool:
    """Whether a handler is a built-in one, such as `"print"`."""
    return handler in _NAMED.values()


def _resolve(handler: Any, where: str) -> Handler:
    if handler is None:
        return _silent
    if isinstance(handler, str):
        if handler not in _NAMED:
            other = "" if where == _VARIABLE else ", or a function of a `lox.logdict`"
            raise LoxValueError(
                f"{where} got {handler!r}; it must be one of "
                f"{', '.join(map(repr, _NAMED))}{other}."
            )
        return _NAMED[handler]
    if not callable(handler):
        raise LoxTypeError(
            f"{where} must be a function of a `lox.logdict`, one of "
            f"{', '.join(map(repr, _NAMED))}, or None, not {handler!r}."
        )
    return handler
