"""Arguments that several commands have, and their types."""

import argparse


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Adds the option that selects keys."""
    help = "only these keys, by name or pattern"
    parser.add_argument("-k", "--key", action="append", metavar="KEY", help=help)


def positive_seconds(text: str) -> float:
    """A number of seconds above 0, for `argparse`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 2**31:  # also for NaN
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds
