"""The instructions of compiled programs, to count and compare them."""

import re
from typing import Any

import jax

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?[\w.\-]+ = ")
# the origin of an instruction, which does not affect what it does
_ORIGIN = re.compile(r",? (metadata|stack_frame_id|origin)=(\{[^}]*\}|\d+)")
_NAME = re.compile(r"%[\w.\-]+")


def instructions(fun: Any, *args: Any) -> list[str]:
    """The instructions of the compiled `fun`, with names replaced by numbers.

    Two programs that do the same in the same order have equal lists.
    """
    names: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return names.setdefault(match.group(), f"%{len(names)}")

    text = jax.jit(fun).lower(*args).compile().as_text()
    lines = [line for line in text.splitlines() if _INSTRUCTION.match(line)]
    return [_NAME.sub(number, _ORIGIN.sub("", line)) for line in lines]


def bytes_of(fun: Any, *args: Any) -> int:
    """The bytes that the compiled `fun` needs in addition to its arguments."""
    analysis = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes
