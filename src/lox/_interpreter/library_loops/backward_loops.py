"""The backward pass of `eqxi.while_loop(kind="checkpointed")`.

It is another loop, which all lanes run for the same number of iterations. Each
iteration recomputes a step of the forward pass, or differentiates it. The predicate of
each lane in that step is a carry: it selects the new values, by `select_if_vmap` and,
for buffers, by `maybe_set`. It is the mask of the events inside.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from lox._interpreter.walk import cached
from lox._jax import jaxprs, primitives

from .lane_primitives import active_p, merges_lanes

_COPIES = ("copy", "copy_p", "convert_element_type", "nonbatchable")


class LanePredicates(NamedTuple):
    """The predicates of each lane, as inputs of a jaxpr.

    Attributes:
        known: the inputs that are predicates; a lane runs if all of them are true.
        unknown: the inputs that other predicates are computed from. What these
            predicates are is not known where the jaxpr begins.
    """

    known: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()


def predicates_of_backward_loop(params: dict[str, Any]) -> LanePredicates:
    """The predicates of each lane, as inputs of the body; almost always one.

    There is none if a `while_loop` with these parameters is not such a loop, or
    has its masks already.
    """
    body = jaxprs.open_jaxpr(params["body_jaxpr"])
    if any(eqn.primitive is active_p for eqn in body.eqns):
        return LanePredicates()
    cond = jaxprs.open_jaxpr(params["cond_jaxpr"])
    if any(map(merges_lanes, cond.eqns)):  # the forward pass
        return LanePredicates()
    return _selecting_inputs(body)


def _selecting_inputs(jaxpr: Any) -> LanePredicates:
    """The inputs of a jaxpr that select the values of each lane."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    return cached(jaxpr, "lane predicates", lambda: _find_selecting_inputs(jaxpr))


def _find_selecting_inputs(jaxpr: Any) -> LanePredicates:
    sources = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    inputs = {var: i for i, var in enumerate(jaxpr.invars)}
    known: set[int] = set()
    unknown: set[int] = set()
    for eqn in jaxpr.eqns:
        certain, others = _selecting_atoms(eqn)
        for atom in certain:
            parts = set(_conjunction(atom, sources))
            if parts <= inputs.keys():
                known |= {inputs[part] for part in parts}
            else:
                others = [*others, atom]
        unknown |= {inputs[var] for var in _ancestors(others, sources) if var in inputs}
    return LanePredicates(tuple(sorted(known)), tuple(sorted(unknown)))


def _selecting_atoms(eqn: Any) -> tuple[list[Any], list[Any]]:
    """The inputs of an equation that are predicates of each lane.

    Also returns the inputs that other predicates, inside the equation, are computed
    from.
    """
    name = eqn.primitive.name
    if name == "select_if_vmap":
        return eqn.invars[:1], []
    if name == "maybe_set":
        # a buffer that does not belong to a loop of this kind has its own predicate
        return ([], []) if eqn.params["makes_false_steps"] else (eqn.invars[:1], [])
    if eqn.primitive in (primitives.while_p, primitives.scan_p):
        return [], []  # the predicates inside are those of another loop
    operands = eqn.invars[1:] if eqn.primitive is primitives.cond_p else eqn.invars
    known: set[int] = set()
    unknown: set[int] = set()
    for inner in jaxprs.jaxprs_in(eqn.params):
        found = _selecting_inputs(inner)
        if len(jaxprs.open_jaxpr(inner).invars) == len(operands):
            known.update(found.known)
            unknown.update(found.unknown)
        elif found.known or found.unknown:
            unknown.update(range(len(operands)))
    return [operands[i] for i in sorted(known)], [operands[i] for i in sorted(unknown)]


def _conjunction(atom: Any, sources: dict[Any, Any]) -> Iterator[Any]:
    """The variables whose conjunction a predicate is."""
    if isinstance(atom, jaxprs.Literal):
        return
    eqn = sources.get(atom)
    if eqn is None or not _is_conjunction(eqn):
        yield atom
        return
    for operand in eqn.invars:
        yield from _conjunction(operand, sources)


def _is_conjunction(eqn: Any) -> bool:
    """Whether the result is true exactly if all inputs that are variables are."""
    literals = [atom for atom in eqn.invars if isinstance(atom, jaxprs.Literal)]
    is_and = eqn.primitive.name == "and" and all(atom.val for atom in literals)
    return is_and or eqn.primitive.name in _COPIES


def _ancestors(atoms: list[Any], sources: dict[Any, Any]) -> set[Any]:
    """These variables, and all variables that they are computed from."""
    found: set[Any] = set()
    left = [atom for atom in atoms if not isinstance(atom, jaxprs.Literal)]
    while left:
        var = left.pop()
        if var not in found:
            found.add(var)
            eqn = sources.get(var)
            operands = eqn.invars if eqn is not None else ()
            left += [x for x in operands if not isinstance(x, jaxprs.Literal)]
    return found
