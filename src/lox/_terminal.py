"""Whether output goes to a terminal, and rich's console for it."""

import sys
from typing import Any, TextIO


def terminal(file: TextIO | None) -> Any:
    """The rich console for a terminal; None if it cannot show a live display."""
    try:
        import rich
        import rich.console
        import rich.live
    except ImportError:
        return None
    if not is_terminal(sys.stdout if file is None else file):
        return None
    # rich's global console by default: what others print to it appears above the table
    console = rich.get_console() if file is None else rich.console.Console(file=file)
    supported = (
        console.is_terminal
        and console.is_interactive
        and not console.is_dumb_terminal
        and console.encoding.startswith("utf")
    )
    return console if supported else None


def is_terminal(stream: Any) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # None, a custom object, or closed
        return False
