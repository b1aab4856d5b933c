"""Recognizes the counters of loops."""

from collections.abc import Iterator
from typing import Any

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
    if jaxpr.invars[input].aval.dtype.kind not in "iu":
        return False
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
