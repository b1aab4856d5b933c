"""Shows the runs of a store in the browser, live, until Ctrl-C.

The page is served on the loopback address, for this machine only. `--host` makes it
reachable from other machines, which then need the token in the printed URL.
"""

import argparse
import webbrowser
from typing import Any

from lox._page.server import DEFAULT_PORT, serve

from ._find import add_store

HELP = "show all runs in the browser, live"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_store(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen on (default: %(default)s, this machine only)",
    )
    parser.add_argument(
        "-p",
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        help="the port; 0 for any that is free (default: %(default)s)",
    )
    parser.add_argument(
        "--token",
        help="the token for addresses other than the loopback (default: random)",
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run(arguments: Any) -> int:
    def ready(url: str) -> None:
        print(f"{url} shows the runs. Press Ctrl-C to stop.", flush=True)
        if arguments.open:
            webbrowser.open(url)

    serve(arguments.store, arguments.host, arguments.port, arguments.token, ready=ready)
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 65535")
    return int(text)
