"""`jax.jit(lox.nolog(f))`, compared with the program without logs."""

import difflib
from collections.abc import Iterator
from functools import partial

import lox

from .figure import Figure
from .hlo import instructions
from .programs import PAIRS, no_log


def figures() -> Iterator[Figure]:
    for pair in PAIRS:
        removed = instructions(lox.nolog(pair.logged), pair.argument)
        plain = instructions(partial(pair.logged, log=no_log), pair.argument)
        yield Figure(
            f"jit(nolog(f)) / without logs, instructions: {pair.name}",
            len(removed) / len(plain),
            1.0,
        )
        different = [
            line
            for line in difflib.unified_diff(plain, removed, n=0, lineterm="")
            if not line.startswith(("---", "+++", "@@"))
        ]
        yield Figure("  instructions that differ", len(different), 0)
