"""What JAX records about the user's code: lines, functions and names of values."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend import source_info_util
from jax.extend.core import JaxprEqn

from . import compat, jaxprs

_user_frame = compat.private(
    "source_info_util.user_frame",
    "the line of a loop is not known",
    default=lambda traceback: None,
)


_source_info = compat.private(
    "source_info_util._source_info_context",
    "loops in derivative rules seem to be on the line that calls the function",
    default=None,
)


class Place(NamedTuple):
    """A line of user code, and the function that contains it."""

    file: str
    line: int
    function: str


def place_of(eqn: JaxprEqn) -> Place | None:
    """The innermost line outside JAX that an equation comes from."""
    frame = _user_frame(eqn.source_info.traceback)
    if frame is None:
        return None
    return Place(frame.file_name, frame.start_line, frame.function_name)


@contextlib.contextmanager
def own_lines() -> Iterator[None]:
    """Inside, traced functions keep the lines of their own equations.

    Otherwise, all of them would get the line of the equation that is being evaluated.
    """
    if _source_info is None:
        yield
        return
    before = _source_info.context
    names = source_info_util.current_name_stack()
    new = source_info_util.new_source_info()
    _source_info.context = new.replace(name_stack=names)
    try:
        yield
    finally:
        _source_info.context = before


def is_backward(eqn: JaxprEqn) -> bool:
    """Whether an equation is part of a backward pass."""
    return "transpose(" in str(eqn.source_info.name_stack)


def argument_names(jaxpr: Any) -> list[str]:
    """The path of each input in the arguments of the function; empty if unknown."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    return _names(jaxpr.debug_info.arg_names, len(jaxpr.invars))


def result_paths(jaxpr: Any) -> list[str]:
    """The path of each output in the result of the function; empty if unknown."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    paths = jaxpr.debug_info.result_paths
    return _names(paths if isinstance(paths, tuple) else None, len(jaxpr.outvars))


def _names(found: Any, count: int) -> list[str]:
    names = [] if found is None else [name or "" for name in found]
    return names if len(names) == count else [""] * count
