"""Recognizes the counters of loops."""

import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox._jax import jaxprs, primitives


def counters_of(eqn: Any) -> list[int]:
    """The inputs of a loop that are the initial values of counters."""
    return [
        index
        for body, index, input, output in _carries(eqn)
        if is_counter(body, input, output)
    ]


def unchanged_carries(eqn: Any) -> set[int]:
    """The inputs of a loop that are carries which never change."""
    return {
        index
        for body, index, input, output in _carries(eqn)
        if body.outvars[output] is body.invars[input]
    }


def _carries(eqn: Any) -> Iterator[tuple[Any, int, int, int]]:
    """The carries of a loop.

    Yields:
        The body, the index of a carry among the inputs of the loop, among those of the
        body, and among the outputs of the body.
    """
    if eqn.primitive is primitives.scan_p:
        body = eqn.params["jaxpr"]
        consts, carry, _ = primitives.scan_sizes(eqn.params, len(eqn.invars))
        skipped = 0
    elif eqn.primitive is primitives.while_p:
        body = eqn.params["body_jaxpr"]
        skipped = eqn.params["cond_nconsts"]
        consts = skipped + eqn.params["body_nconsts"]
        carry = len(eqn.invars) - consts
    else:
        return
    for i in range(consts, consts + carry):
        yield jaxprs.open_jaxpr(body), i, i - skipped, i - consts


def is_counter(jaxpr: Any, input: int, output: int) -> bool:
    """Whether a carry of a loop's body never decreases.

    Args:
        jaxpr: the body.
        input: the index of the carry among its inputs.
        output: the index of the carry among its outputs.
    """
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    dtype = getattr(jaxpr.invars[input].aval, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
        return False  # also PRNG keys, and types that are not arrays
    sources = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    return _counts(sources, jaxpr.invars[input], jaxpr.outvars[output])


def _counts(sources: dict[Any, Any], counter: Any, atom: Any) -> bool:
    """Whether `atom` is `counter`, or has been incremented from it."""
    if isinstance(atom, jaxprs.Literal):
        return False
    if atom is counter:
        return True
    eqn = sources.get(atom)
    if eqn is None:
        return False

    def counts(inner: Any) -> bool:
        return _counts(sources, counter, inner)

    name = eqn.primitive.name
    if name in ("copy", "copy_p", "convert_element_type", "nonbatchable"):
        return counts(eqn.invars[0])
    if name in ("select_n", "select_if_vmap"):
        return all(map(counts, eqn.invars[1:]))
    if name == "add":
        x, y = eqn.invars
        return isinstance(y, jaxprs.Literal) and bool(y.val > 0) and counts(x)
    if eqn.primitive is primitives.cond_p:
        output = eqn.outvars.index(atom)
        inputs = [i for i, operand in enumerate(eqn.invars[1:]) if counts(operand)]
        return all(
            any(is_counter(branch, i, output) for i in inputs)
            for branch in eqn.params["branches"]
        )
    return False


# --- counters that all running lanes have in common ----------------------------------

_COPIES = ("copy", "copy_p", "convert_element_type")


class _InSync(NamedTuple):
    """The inputs of a loop's body that are the same in all lanes that run.

    Attributes:
        counters: counters that every iteration increments. A lane that has ended has a
            smaller count.
        starts: the constants that some of these start with, if every lane runs the
            first iteration: a lane that has ended has another count.
    """

    counters: frozenset[int]
    starts: dict[int, Any]


_in_sync: "weakref.WeakKeyDictionary[Any, _InSync]" = weakref.WeakKeyDictionary()


def find_counters_in_sync(jaxpr: Any) -> None:
    """Finds the counters in the loops of a jaxpr that start with a constant."""
    for eqn in jaxprs.open_jaxpr(jaxpr).eqns:
        if eqn.primitive is primitives.while_p:
            starts = [x.val if _is_literal(x) else None for x in eqn.invars]
            same = [start is not None for start in starts]
            remember_counters_in_sync(eqn.params, starts, same)


def remember_counters_in_sync(
    params: dict[str, Any], starts: Sequence[Any], same: Sequence[bool]
) -> None:
    """Remembers which counters of a `while_loop` are the same in all running lanes.

    Args:
        params: the parameters of the loop.
        starts: its inputs; those that are not constants are ignored.
        same: which of them are the same in all lanes.
    """
    body, cond = (
        jaxprs.open_jaxpr(params[name]) for name in ("body_jaxpr", "cond_jaxpr")
    )
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    sources = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    counters, first = set(), {}
    for i, out in enumerate(body.outvars):
        at, number = of_body + i, starts[of_cond + of_body + i]
        if same[of_cond + of_body + i] and _always_counts(
            sources, body.invars[at], out
        ):
            counters.add(at)
            if _is_constant(number) and _runs_first(cond, of_cond + i, number):
                first[at] = number
    found = _InSync(frozenset(counters), first)
    before = _in_sync.get(body, found)
    _in_sync[body] = _InSync(
        found.counters & before.counters,
        {i: x for i, x in first.items() if before.starts.get(i) == x},
    )


def counters_in_sync(jaxpr: Any) -> set[Any]:
    """The variables of a loop's body that are counters of all lanes that run."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    known = _in_sync.get(jaxpr)
    found = {jaxpr.invars[i] for i in known.counters} if known else set()
    for eqn in jaxpr.eqns if found else ():
        if _only_counts(eqn) and not _is_literal(eqn.invars[0]):
            found.update(eqn.outvars if eqn.invars[0] in found else ())
    return found


def first_iterations(jaxpr: Any) -> set[Any]:
    """The variables of a loop's body that say whether it is the first iteration."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    known = _in_sync.get(jaxpr)
    starts = {jaxpr.invars[i]: x for i, x in known.starts.items()} if known else {}
    found: set[Any] = set()
    for eqn in jaxpr.eqns if starts else ():
        is_copy = _is_copy_of(eqn, found)
        if is_copy or any(_is_equal_to(eqn, *one) for one in starts.items()):
            found.update(eqn.outvars)
    return found


def _runs_first(cond: Any, counter: int, start: Any) -> bool:
    """Whether the condition of a loop is true if a counter has this value."""
    sources = {var: eqn for eqn in cond.eqns for var in eqn.outvars}
    (out,) = cond.outvars
    last = None if _is_literal(out) else sources.get(out)
    if last is None or last.primitive.name != "or":
        return False
    for part in last.invars:
        eqn = None if _is_literal(part) else sources.get(part)
        while eqn is not None and _is_copy_of(eqn, sources.keys()):
            eqn = sources[eqn.invars[0]]
        if eqn is not None and _is_equal_to(eqn, cond.invars[counter], start):
            return True
    return False


def _is_equal_to(eqn: Any, counter: Any, number: Any) -> bool:
    if eqn.primitive.name != "eq" or eqn.invars[0] is not counter:
        return False
    other = eqn.invars[1]
    return _is_literal(other) and bool(other.val == number)


def _always_counts(sources: dict[Any, Any], counter: Any, atom: Any) -> bool:
    """Whether `atom` is `counter` incremented by constants, in every iteration."""
    incremented = False
    while atom is not counter:
        eqn = None if _is_literal(atom) else sources.get(atom)
        if eqn is None or not _only_counts(eqn):
            return False
        incremented = incremented or eqn.primitive.name == "add"
        atom = eqn.invars[0]
    return incremented


def _only_counts(eqn: Any) -> bool:
    if eqn.primitive.name == "add":
        other = eqn.invars[1]
        return _is_literal(other) and bool(other.val > 0)
    return eqn.primitive.name in _COPIES


def _is_copy_of(eqn: Any, variables: Collection[Any]) -> bool:
    if eqn.primitive.name not in _COPIES or _is_literal(eqn.invars[0]):
        return False
    return eqn.invars[0] in variables


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, jaxprs.Literal)


def _is_constant(x: Any) -> bool:
    return isinstance(x, int | np.ndarray | np.generic) and np.ndim(x) == 0
