"""Sends a store to another directory or URL, or its runs to a tracker.

Only what is new is sent. A copy can be read at any time, even while it is being made or
if that was interrupted: it then shows an earlier state. The store may be written to at
the same time. For a tracker, logs in .lox/unsent that its loggers could not send are
sent as well.
"""

import argparse
import dataclasses
import difflib
import os
import sys
import time
from typing import Any

from lox._errors import StoreError
from lox._store.copy_store import Report, StoreCopy
from lox._trackers import targets

from . import _trackers
from ._arguments import positive_seconds
from ._output import count_of, print_json, readable_size, say_problems

HELP = "copy a store, or send runs to a tracker; only what is new"

# trackers that runs cannot be sent to; write a directory of such a name as a path
_OTHERS = ("comet", "neptune", "tensorboard")
_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a directory or URL: a store, or one of its runs")
    parser.add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="RUN",
        help="for trackers: only these runs of the store, by name or pattern",
    )
    to = parser.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        type=_target,
        help=f"a tracker: {', '.join(targets.NAMES)}; or a copy: another directory, or "
        "a URL that fsspec opens",
    )
    # for completion scripts; other values are paths
    to.examples = targets.NAMES  # type: ignore[attr-defined]
    parser.add_argument(
        "--follow",
        action="store_true",
        help="repeat until all runs are finished, or until Ctrl-C",
    )
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        default=_SECONDS,
        metavar="SECONDS",
        help="how long to wait between two updates (default: %(default)g)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace runs of the copy that have other rows",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON, per update"
    )
    _trackers.add_arguments(parser)
    parser.set_defaults(parser=parser)


def run(arguments: Any) -> int:
    problem = _trackers.unusable_options(arguments)
    if problem is not None:
        arguments.parser.print_usage(sys.stderr)
        print(f"{arguments.parser.prog}: error: {problem}", file=sys.stderr)
        return 2
    if arguments.to in targets.NAMES:
        return _trackers.run(arguments)
    copy = StoreCopy(
        arguments.store, arguments.to, arguments.overwrite, arguments.follow
    )
    report = copy.update()
    _print(report, arguments.json, reported=None)
    while arguments.follow and not _is_finished(report):
        time.sleep(arguments.interval)
        reported = {**report.skipped, **report.errors}
        try:
            report = copy.update()
        except (OSError, StoreError) as error:  # a server may be back later
            report = Report(errors={arguments.to: str(error)})
        _print(report, arguments.json, reported)
    return 1 if report.errors else 0


def _is_finished(report: Report) -> bool:
    return bool(report.found) and not report.unfinished and not report.errors


def _print(report: Report, as_json: bool, reported: dict[str, str] | None) -> None:
    """Prints a report.

    Args:
        report: the report of one update.
        as_json: whether to print JSON.
        reported: what was reported about the previous update; None if this is the
            first.
    """
    say_problems(report.skipped, report.errors, reported, "not copied")
    if as_json:
        print_json(_as_json(report))
    elif report.files or reported is None or _is_finished(report):
        print(_as_text(report), flush=True)


def _as_text(report: Report) -> str:
    """Formats a report: `sent 1.2 MB in 40 files of 8 runs; 2 runs not finished`."""
    if not report.found:
        return "no runs yet"
    text = "nothing new"
    if report.files:
        size, files = readable_size(report.byte_count), count_of(report.files, "file")
        text = f"sent {size} in {files} of {count_of(len(report.runs), 'run')}"
    if report.unfinished:
        text += f"; {count_of(len(report.unfinished), 'run')} not finished"
    return text


def _as_json(report: Report) -> dict[str, Any]:
    result = dataclasses.asdict(report)
    result["bytes"] = result.pop("byte_count")
    return result


def _target(text: str) -> str:
    name = text.lower()
    if name in targets.NAMES:
        return name
    known = ", ".join(targets.NAMES)
    if name in _OTHERS:
        other = " (`lox export --to tensorboard` does)" if name == "tensorboard" else ""
        raise argparse.ArgumentTypeError(
            f"runs can be sent to {known}, but not to {text}{other}; for a directory "
            f"of this name, write ./{text}"
        )
    close = difflib.get_close_matches(name, targets.NAMES, 1, cutoff=0.75)
    if close and not os.path.exists(text):
        raise argparse.ArgumentTypeError(
            f"{text} is not a tracker; available: {known}. For a directory of this "
            f"name, write ./{text}"
        )
    return text
