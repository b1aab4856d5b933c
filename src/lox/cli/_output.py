"""What commands print."""

import contextlib
import json
import os
import select
import sys
from collections.abc import Mapping
from typing import Any


def say(message: str) -> None:
    """Prints a line about the command itself, which is not part of its result.

    Control characters, which names of runs may have, are escaped.
    """
    from lox._text_curves import printable  # imports NumPy

    line = f"lox: {printable(' '.join(message.splitlines()))}"
    if sys.stderr is not None:  # None if it was closed before the start
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr)
    flush_messages()


def flush_messages() -> None:
    """Writes the messages of the command, if stderr is open."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:  # such as a closed pipe; there is nowhere to report it
        _discard(sys.stderr)


def prepare_output() -> None:
    """Makes the output accept any text, instead of failing.

    Names of files that are not valid UTF-8 are written as they are. Characters that the
    output cannot encode are replaced.
    """
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    if hasattr(sys.stdout, "reconfigure"):
        utf8 = encoding.replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "replace")


def output_is_closed() -> bool | None:
    """Whether the reader of stdout, a pipe, has ended; None if that is not known."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # on Windows; closed, or no file
        return None


def discard_output() -> None:
    """Drops what was printed, which Python would otherwise try to write at exit."""
    _discard(sys.stdout)


def _discard(stream: Any) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def print_json(result: Any) -> None:
    """Prints the result of a command that was given `--json`, as one line."""
    print(json.dumps(result), flush=True)


def say_problems(
    skipped: Mapping[str, str],
    errors: Mapping[str, str],
    reported: Mapping[str, str] | None,
    not_done: str,
) -> None:
    """Reports what was skipped or failed in an update, unless it was reported before.

    Args:
        skipped: the reasons, by run.
        errors: the errors, by run.
        reported: what was reported about the previous update; None if this is the
            first.
        not_done: how to describe skipped runs, such as `not sent`.
    """
    for name, reason in {**skipped, **errors}.items():
        if reported is None or reported.get(name) != reason:
            say(f"{'error' if name in errors else not_done}: {reason}")


def count_of(number: int, what: str) -> str:
    """Formats a number of things, such as `1 run` or `2,000 runs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def readable_size(size: int) -> str:
    """A number of bytes, such as `12.3 MB`."""
    amount, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
