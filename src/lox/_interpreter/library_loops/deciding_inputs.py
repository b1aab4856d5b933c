"""Finds the inputs of an equation that decide which lanes log inside.

These are the index of a branch and the initial value of a loop's counter, of the
equation itself or of an equation inside.
"""

from collections.abc import Callable, Iterator
from typing import Any

from lox._interpreter.walk import cached
from lox._jax import jaxprs, primitives

from .counters import counters_of


def deciding_inputs(eqn: Any) -> set[int]:
    """The inputs that are such values, or that they are computed from."""
    return _with_inner(eqn, own_deciding_inputs)


def own_deciding_inputs(eqn: Any) -> list[int]:
    """Those of the equation itself."""
    return [0] if eqn.primitive is primitives.cond_p else counters_of(eqn)


def starts_of_counters(eqn: Any) -> set[int]:
    """The inputs that initial values of counters are computed from."""
    return _with_inner(eqn, counters_of)


_Own = Callable[[Any], list[int]]


def _with_inner(eqn: Any, own: _Own) -> set[int]:
    """The inputs that `own` returns, and those that reach such an input inside."""
    if not jaxprs.has_jaxprs(eqn.params):
        return set()
    found = set(own(eqn))
    for jaxpr, inputs in _jaxprs_with_inputs(eqn):
        found |= {inputs[i] for i in _reaching(jaxpr, own) if i < len(inputs)}
    return found


def _jaxprs_with_inputs(eqn: Any) -> Iterator[tuple[Any, list[int]]]:
    """The jaxprs inside an equation, with the inputs of the equation that they get."""
    everything = list(range(len(eqn.invars)))
    if eqn.primitive is primitives.while_p:
        of_cond, of_body, carry = primitives.split_while(eqn.params, everything)
        yield eqn.params["cond_jaxpr"], [*of_cond, *carry]
        yield eqn.params["body_jaxpr"], [*of_body, *carry]
        return
    inputs = everything[1:] if eqn.primitive is primitives.cond_p else everything
    for jaxpr in jaxprs.jaxprs_of(eqn):
        yield jaxpr, inputs


def _reaching(jaxpr: Any, own: _Own) -> frozenset[int]:
    """The inputs of a jaxpr from which those that `own` returns are computed."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)

    def find() -> frozenset[int]:
        sources = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        found: set[Any] = set()
        left = [eqn.invars[i] for eqn in jaxpr.eqns for i in _with_inner(eqn, own)]
        while left:
            atom = left.pop()
            if isinstance(atom, jaxprs.Literal) or atom in found:
                continue
            found.add(atom)
            eqn = sources.get(atom)
            # the results of a loop or a branch are per-lane values already
            if eqn is not None and is_elementary(eqn):
                left += eqn.invars
        return frozenset(i for i, var in enumerate(jaxpr.invars) if var in found)

    return cached(jaxpr, ("deciding inputs", own), find)


def is_elementary(eqn: Any) -> bool:
    """Whether an equation is neither a loop nor a branch, nor has them inside."""
    if eqn.primitive.name in ("jit", "pjit"):
        return all(map(is_elementary, jaxprs.open_jaxpr(eqn.params["jaxpr"]).eqns))
    return not jaxprs.has_jaxprs(eqn.params)
