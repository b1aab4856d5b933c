"""The frames of call stacks and tracebacks."""

import os
from collections.abc import Iterator
from types import FrameType

import jax

from . import compat


def frames(innermost: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those of its callers."""
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def hide_frames(directory: str) -> None:
    """Hides the frames of a directory in tracebacks, as JAX hides its own."""
    register = compat.private(
        "traceback_util.register_exclusion",
        "frames of lox show in the tracebacks of the user's errors",
        default=None,
    )
    if register is not None:
        register(directory)


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
hide_frames(_HERE)
hide_frames(os.path.join(os.path.dirname(_HERE), "logify"))

JAX_DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), "")
