"""What commands print."""

import json
import sys
from typing import Any


def say(message: str) -> None:
    """Prints a line about the command itself, which is not part of its result."""
    print(f"lox: {' '.join(message.splitlines())}", file=sys.stderr, flush=True)


def print_json(result: Any) -> None:
    """Prints the result of a command that was given `--json`, as one line."""
    print(json.dumps(result), flush=True)


def readable_size(size: int) -> str:
    """A number of bytes, such as `12.3 MB`."""
    amount, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
