"""The user's line of code, which errors and warnings name."""

import dataclasses
import os
import sys
import threading
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ._errors import LoxWarning

PACKAGE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A file and line in the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_OWN_PACKAGES = (PACKAGE, os.path.join(os.path.dirname(PACKAGE), "logify"))


def user_source(skip: Iterable[str] = _OWN_PACKAGES) -> Source:
    """The innermost line on the stack outside the packages `skip`."""
    skipped = tuple(f"{package}{os.sep}" for package in skip)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(skipped) and name != threading.__file__:
            return Source(name, frame.f_lineno)
        frame = frame.f_back
    return _fallback_source()


# `source`: the line of the last event that this thread has delivered; `per_device`:
# whether each device delivers it
delivery = threading.local()


def _fallback_source() -> Source:
    """The line to name if no user code is on the stack.

    Callbacks may run on a thread of the JAX runtime, and exit handlers after the
    program has ended.
    """
    source: Source | None = getattr(delivery, "source", None)
    if source is None:
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        source = Source(main or "sys", 1)  # "sys" as in Python's own warnings
    return source


def user_line() -> tuple[str, int]:
    """The user's file and line that called lox, directly or through JAX."""
    jax = sys.modules.get("jax")
    skipped = _OWN_PACKAGES if jax is None else (*_OWN_PACKAGES, jax.__path__[0])
    source = user_source(skipped)
    return source.file, source.line


def warn(message: str, at: Source | None = None, registry: Any = None) -> None:
    """Warns the user.

    Args:
        message: the message.
        at: the line that the warning names; by default, the one that called lox.
        registry: the warnings that were shown before; one is shown once per line.
    """
    file, line = user_line() if at is None else (at.file, at.line)
    warnings.warn_explicit(message, LoxWarning, file, line, registry=registry)
