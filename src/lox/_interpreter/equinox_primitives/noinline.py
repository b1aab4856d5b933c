"""The rule of `eqxi.noinline`."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._imports import when_imported
from lox._interpreter.contents import events_inside, events_of
from lox._interpreter.handlers import State
from lox._interpreter.patches.unmapped import patch_of_unmapped
from lox._interpreter.rule_table import Result, other_jaxprs, rule
from lox._interpreter.walk import Walk, without_events
from lox._jax import jaxprs, patches, tracing

from .expansion import equinox_module, expansions_of, trace


def _called_function(eqn: Any) -> Any:
    """The function of an equation as a jaxpr; None if it is known only at run time."""
    kept = expansions_of(eqn)
    first, *rest = eqn.invars
    index = int(first.val) if isinstance(first, jaxprs.Literal) else None
    avals = tuple(atom.aval for atom in rest)
    key = index, avals, tracing.trace_context()
    if key not in kept:
        run = _shape_function(eqn) if index is None else _function(eqn, index)
        kept[key] = None if run is None else trace(run, avals)
    return kept[key]


def _function(eqn: Any, index: int) -> Callable[..., list[Any]]:
    def run(*args: Any) -> list[Any]:
        return eqn.primitive.impl(np.asarray(index), *args, **eqn.params)

    return run


def _shape_function(eqn: Any) -> Callable[..., list[Any]] | None:
    """The function of an equation whose index is known only at run time.

    The equation also has a function for the shapes of its results. Unless the user
    passed one (`abstract_fn`), it calls the function itself, and is returned here.
    """
    missing = equinox_module("_primitive")._missing_dynamic

    def parts(*args: Any) -> Any:
        rest = iter((None, *args))
        flat = [next(rest) if x is missing else x for x in eqn.params["static"]]
        return jax.tree.unflatten(eqn.params["treedef"], flat)

    def run(*args: Any) -> list[Any]:
        _, function, transforms, inputs = parts(*args)

        def fun(inputs: Any) -> Any:
            dynamic, args, kwargs = inputs
            return function(dynamic, *args, **kwargs)

        for transform in transforms[1:]:  # the first one looks up the function
            fun = transform(fun)
        return jax.tree.leaves(fun(inputs))

    given = parts(*eqn.invars[1:])[1]
    return run if given.__qualname__ == "noinline.<locals>.abstract_fn" else None


def _possible_functions(eqn: Any) -> list[Any]:
    """Every function that logs and that an equation may call."""
    avals = [atom.aval for atom in eqn.invars[1:]]
    outs = [var.aval for var in eqn.outvars]
    found = []
    for index in range(len(equinox_module("_noinline")._index_to_fn)):
        try:
            closed = trace(_function(eqn, index), avals)
        except Exception:  # it takes other arguments
            continue
        same = [(a.shape, a.dtype) for a in closed.out_avals] == [
            (a.shape, a.dtype) for a in outs
        ]
        if same and events_of(closed):
            found.append(closed)
    return found


def _is_derivative(eqn: Any) -> bool:
    """Whether an equation computes a derivative; another one computes the value."""
    names = {getattr(item, "__name__", "") for item in eqn.params["static"]}
    tree = str(eqn.params["treedef"])
    return "_jvp_transform" in names or "_MetaTransposeTransform" in tree


@other_jaxprs("noinline")
def _functions_of_noinline(eqn: Any) -> list[Any]:
    expanded = _called_function(eqn)
    return _possible_functions(eqn) if expanded is None else [expanded]


def _is_of_value(event: Event) -> bool:
    return not event.call.of_cotangents


@rule("noinline")
def _noinline_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """The function becomes a jitted call in the program."""
    expanded = _called_function(eqn)
    if expanded is None:
        keys = ", ".join(
            f"{key!r} (logged at {event.call.source})"
            for event in filter(walk.handler.wants, events_inside(eqn))
            for key in event.call.keys
        )
        raise UnsupportedPrimitiveError(
            f"a function of `eqxi.noinline` may log {keys}, but which function it "
            "calls is known only at run time: the function is an argument, and has an "
            "`abstract_fn`. Omit `abstract_fn`, or close over the function instead of "
            "passing it."
        )
    args = args[1:]
    if _is_derivative(eqn):  # another equation computes the value, and logs it
        expanded = without_events(expanded, _is_of_value)
    return jax.jit(lambda state, *args: walk(expanded, args, state))(state, *args)


# early, since the first event of a process may be in the function
when_imported(
    "equinox.internal._noinline",
    lambda module: patches.add_early(patch_of_unmapped(module.noinline_p)),
)
