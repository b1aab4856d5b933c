"""Writes to a terminal: live displays, drawn with rich, and lines of text."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

T = TypeVar("T")


def live_display(file: TextIO | None, make: Callable[[Any], T]) -> T | None:
    """Creates a live display; None if rich or the output cannot show one.

    Args:
        file: the output; `sys.stdout` by default.
        make: creates the display, given rich's console.
    """
    try:
        import rich
        import rich.console
        import rich.errors
        import rich.live
    except ImportError:
        return None
    if not is_terminal(sys.stdout if file is None else file):
        return None
    # rich's global console by default: other output on it appears above the table
    console = rich.get_console() if file is None else rich.console.Console(file=file)
    supported = (
        console.is_terminal
        and console.is_interactive
        and not console.is_dumb_terminal
        and console.encoding.startswith("utf")
    )
    # older versions of rich allow one live display, which may be taken
    with contextlib.suppress(rich.errors.LiveError):
        return make(console) if supported else None
    return None


def is_terminal(stream: Any) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # None, a custom object, or closed
        return False


def write_line(file: TextIO | None, line: str) -> None:
    """Writes a line of text, if that is possible."""
    if file is None:  # as in a GUI application without a console
        return
    encoding = getattr(file, "encoding", None) or "utf-8"
    line = line.encode(encoding, "replace").decode(encoding)
    with contextlib.suppress(OSError, ValueError):  # closed, or a broken pipe
        file.write(f"{line}\n")  # one call, unlike `print`
        file.flush()
