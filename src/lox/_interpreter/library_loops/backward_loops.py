"""The backward pass of `eqxi.while_loop(kind="checkpointed")`.

It is another loop, which all lanes run for the same number of iterations. Each
iteration recomputes a step of the forward pass, or differentiates it. The predicate of
each lane in that step is a carry: it selects the new values, by `select_if_vmap`, and
is the mask of the events inside.
"""

from collections.abc import Iterator
from typing import Any

from lox._jax import jaxprs, primitives

from .lane_primitives import active_p, merges_lanes

_COPIES = ("copy", "copy_p", "convert_element_type", "nonbatchable")


def predicates_of_backward_loop(params: dict[str, Any]) -> tuple[int, ...]:
    """The inputs of the body that are predicates of each lane; almost always one.

    There is none if a `while_loop` with these parameters is not such a loop, or
    has its masks already.
    """
    body = jaxprs.open_jaxpr(params["body_jaxpr"])
    if any(eqn.primitive is active_p for eqn in body.eqns):
        return ()
    cond = jaxprs.open_jaxpr(params["cond_jaxpr"])
    if any(map(merges_lanes, cond.eqns)):  # the forward pass
        return ()
    return tuple(sorted(set(_selecting_inputs(body))))


def _selecting_inputs(jaxpr: Any) -> Iterator[int]:
    """The inputs of a jaxpr that select values by `select_if_vmap`."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    sources = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    inputs = {var: i for i, var in enumerate(jaxpr.invars)}
    for eqn in jaxpr.eqns:
        for atom in _selecting_atoms(eqn):
            while atom in sources and sources[atom].primitive.name in _COPIES:
                atom = sources[atom].invars[0]
                if isinstance(atom, jaxprs.Literal):
                    break
            else:
                if atom in inputs:
                    yield inputs[atom]


def _selecting_atoms(eqn: Any) -> Iterator[Any]:
    found: list[Any] = []
    if eqn.primitive.name == "select_if_vmap":
        found = eqn.invars[:1]
    elif eqn.primitive is primitives.cond_p:
        indices = {
            i for branch in eqn.params["branches"] for i in _selecting_inputs(branch)
        }
        found = [eqn.invars[1 + i] for i in indices]
    for atom in found:
        if not isinstance(atom, jaxprs.Literal):
            yield atom
