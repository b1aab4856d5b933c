"""Writes one HTML file that shows the runs of a store: curves, statistics, a table.

The file needs no server and no network.
"""

import argparse
import pathlib
import webbrowser
from typing import Any

from lox._page.report import write_report

from ._files import check_new
from ._find import add_store, is_run, runs_in
from ._terminal import print_path

HELP = "write a page of all runs to one HTML file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_store(parser)
    parser.add_argument(
        "-o",
        "--output",
        default="report.html",
        metavar="FILE",
        help="the file to write (default: %(default)s)",
    )
    parser.add_argument(
        "-x",
        action="append",
        default=[],
        metavar="KEY",
        help="a scalar that can be the x-axis, besides the steps; also `#time` and "
        "`#clock`; can be repeated",
    )
    parser.add_argument(
        "--force",
        "--overwrite",
        action="store_true",
        help="replace the file if it exists",
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run(arguments: Any) -> int:
    store = arguments.store
    if not is_run(store):
        runs_in(store)  # raises if there are none
    check_new(arguments.output, arguments.force)
    path = write_report(
        store, arguments.output, x=arguments.x, overwrite=arguments.force
    )
    print_path(path)
    if arguments.open:
        webbrowser.open(pathlib.Path(path).absolute().as_uri())
    return 0
