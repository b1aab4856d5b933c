"""Traces what an Equinox primitive does."""

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._jax import jaxprs, tracing


def filtered_params(params: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters of a filtered primitive, batched by `eqxi.vprim` or not.

    None for other primitives.
    """
    while "prim" in params and "__batch_axes" in params:  # one level per `vmap`
        params = dict(params["params"])
    return params if {"treedef", "static", "flatten"} <= params.keys() else None


_expansions: "weakref.WeakKeyDictionary[Any, dict[Any, Any]]" = (
    weakref.WeakKeyDictionary()
)


def expansions_of(eqn: Any) -> dict[Any, Any]:
    """The cache for the jaxprs of an equation."""
    params = filtered_params(eqn.params)
    assert params is not None
    return _expansions.setdefault(params["flatten"], {})


def expand(eqn: Any) -> Any:
    """What an equation does, as a closed jaxpr of its inputs."""
    kept = expansions_of(eqn)
    avals = tuple(atom.aval for atom in eqn.invars)
    key = eqn.primitive, avals, tracing.trace_context()
    if key not in kept:
        kept[key] = without_checks(
            trace(lambda *args: eqn.primitive.impl(*args, **eqn.params), avals)
        )
    return kept[key]


def trace(fun: Callable[..., Any], avals: Sequence[Any]) -> Any:
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.make_jaxpr(lambda *args: list(fun(*args)))(*structs)


def without_checks(closed: Any) -> Any:
    """Removes the checks that would raise an error in every transformation."""

    def evaluate(eqn: Any, ins: list[Any]) -> list[Any]:
        if eqn.primitive.name == "nontraceable":
            return ins
        with tracing.equation_context(eqn):
            return tracing.bind(eqn, ins)

    def run(*args: Any) -> list[Any]:
        return jaxprs.interpret(closed.jaxpr, [*closed.consts, *args], evaluate)

    if not any(eqn.primitive.name == "nontraceable" for eqn in closed.jaxpr.eqns):
        return closed
    return jaxprs.trace(run, closed.in_avals, closed)[0]


def equinox_module(name: str) -> Any:
    return sys.modules[f"equinox.internal.{name}"]
