"""Detects tracers leaked into Flax Linen and Haiku modules.

If part of a model is transformed inside a method of a module, it may create parameters
or set state. These values are tracers, and would stay in the module after the trace has
ended. They are detected after tracing, and only while such a method is running.
"""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax

from lox._errors import LoxTypeError
from lox._jax import tracing


def check_modules(fun: Any, trace: Any) -> None:
    """Raises if a running module has stored a tracer of a trace that has ended."""
    for library, name, variables_of, remedy in _LIBRARIES:
        module = sys.modules.get(library)
        if module is None:
            continue
        leaves = jax.tree_util.tree_leaves_with_path(list(variables_of(module)))
        for path, leaf in leaves:
            if tracing.is_tracer_of(leaf, trace):
                variable = jax.tree_util.keystr(path[1:], simple=True, separator="/")
                raise LoxTypeError(
                    f"{getattr(fun, '__name__', fun)} writes a traced value to "
                    f"{variable!r} of a {name} module, where it would stay after the "
                    "trace has ended. Put the transformation around the whole model: "
                    f"{remedy}."
                )


def _linen_variables(module: ModuleType) -> Iterator[Any]:
    stack = getattr(getattr(module, "_context", None), "module_stack", None)
    scope = getattr(stack[-1] if stack else None, "scope", None)
    yield getattr(getattr(scope, "root", None), "_variables", None)


def _haiku_variables(module: ModuleType) -> Iterator[Any]:
    stack = getattr(module, "frame_stack", None)
    if stack:
        frame = stack.peek()
        yield dict(frame.params or {})
        yield dict(frame.state or {})


_LIBRARIES: tuple[tuple[str, str, Callable[[ModuleType], Iterator[Any]], str], ...] = (
    (
        "flax.linen.module",
        "Linen",
        _linen_variables,
        "`lox.spool(model.apply)(variables, x)`, `lox.nolog(model.init)(key, x)`",
    ),
    (
        "haiku._src.base",
        "Haiku",
        _haiku_variables,
        "`lox.spool(net.apply)(params, state, key, x)`, `lox.nolog(net.init)(key, x)`",
    ),
)
