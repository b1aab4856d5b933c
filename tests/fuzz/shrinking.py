"""Shrinks a program that fails, so that a person can read it."""

import dataclasses
from collections.abc import Callable, Iterator

from tests.oracle import Program


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one statement or block less, or a smaller number."""
    for i, statement in enumerate(program):
        before, after = program[:i], program[i + 1 :]
        if before or after:
            yield before + after
        for block in statement.blocks:
            yield before + block + after
        for j, block in enumerate(statement.blocks):
            for other in smaller(block):
                blocks = (*statement.blocks[:j], other, *statement.blocks[j + 1 :])
                changed = dataclasses.replace(statement, blocks=blocks)
                yield (*before, changed, *after)
        for number in range(statement.number):
            yield (*before, dataclasses.replace(statement, number=number), *after)


def shrink(
    program: Program, fails: Callable[[Program], bool], tries: int = 200
) -> Program:
    """The smallest failing program that `tries` attempts find."""
    found = True
    while found:
        found = False
        for candidate in smaller(program):
            tries -= 1
            if tries < 0:
                return program
            if fails(candidate):
                program, found = candidate, True
                break
    return program
