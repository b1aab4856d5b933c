"""Types of arguments that several commands have."""

import argparse


def positive_seconds(text: str) -> float:
    """A number of seconds above 0, for `argparse`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 2**31:  # also for NaN
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds
