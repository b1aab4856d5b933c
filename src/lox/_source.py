"""The user's line of code that lox speaks about in errors and warnings."""

import dataclasses
import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType

PACKAGE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The user's line that an event comes from."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_OURS = (PACKAGE, os.path.join(os.path.dirname(PACKAGE), "logify"))


def user_source(skip: Iterable[str] = _OURS) -> Source:
    """The innermost line on the stack that is in none of the packages `skip`."""
    skipped = tuple(f"{package}{os.sep}" for package in skip)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(skipped) and name != threading.__file__:
            return Source(name, frame.f_lineno)
        frame = frame.f_back
    return _without_frame()


# the line of the event that a thread delivers, or has delivered last
delivery = threading.local()


def _without_frame() -> Source:
    """The line to name where none of the user's is on the stack.

    A callback may run on a thread of the runtime's, and an exit handler after all.
    """
    found: Source | None = getattr(delivery, "source", None)
    if found is None:
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        found = Source(main or "sys", 1)  # the latter is what Python itself says
    return found


def user_line() -> tuple[str, int]:
    """The file and line that called lox, be it through JAX; for a warning."""
    jax = sys.modules.get("jax")
    skipped = _OURS if jax is None else (*_OURS, jax.__path__[0])
    source = user_source(skipped)
    return source.file, source.line
