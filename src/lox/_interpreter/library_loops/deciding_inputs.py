"""Finds the inputs of an equation that decide which lanes log.

These are the index of a branch, the initial value of a loop's counter and the `when` of
an event, of the equation itself or of an equation inside.
"""

from collections.abc import Callable, Iterator
from typing import Any

from lox._events.event import Event
from lox._events.log_grad import log_grad_p
from lox._events.primitive import log_p
from lox._interpreter.walk import cached
from lox._jax import hijax, jaxprs, primitives

from .counters import counters_of, unchanged_carries

_CALLS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "remat2",
        "checkpoint",
        hijax.CHECKPOINT,
        "custom_jvp_call",
        "custom_vjp_call",
        hijax.CUSTOM_VJP,
    }
)


def deciding_inputs(eqn: Any) -> set[int]:
    """The inputs that are such values, or that they are computed from."""
    return _with_inner(eqn, own_deciding_inputs)


def own_deciding_inputs(eqn: Any) -> list[int]:
    """Those of the equation itself."""
    if is_event(eqn):
        return _index_of_when(eqn.params["event"])
    return [0] if eqn.primitive is primitives.cond_p else counters_of(eqn)


def is_event(eqn: Any) -> bool:
    """Whether an equation is an event, or adds one in reverse mode."""
    return eqn.primitive in (log_p, log_grad_p)


def _index_of_when(event: Event) -> list[int]:
    """The index of the operand of an event that says whether it is logged, if any."""
    values = sum(tree.num_leaves for tree in event.call.trees)
    return [values + len(event.call.steps)] if event.layout.masked else []


def other_deciding_inputs(eqn: Any) -> set[int]:
    """Those of a loop that are not its counters.

    They are deciding inputs of its body, or its condition reads them. A carry that does
    not change is not a counter here.
    """
    found = _inner(eqn, own_deciding_inputs) | _inputs_of_condition(eqn)
    return found.difference(counters_of(eqn)) | (found & unchanged_carries(eqn))


def limiting_counters(eqn: Any) -> set[int]:
    """The counters of a loop that may decide when it ends."""
    counters = set(counters_of(eqn))
    if eqn.primitive is primitives.while_p:
        counters &= _inputs_of_condition(eqn)
    return counters


def starts_of_counters(eqn: Any) -> set[int]:
    """The inputs that initial values of counters are computed from."""
    return _with_inner(eqn, counters_of)


def _inputs_of_condition(eqn: Any) -> set[int]:
    """The inputs of a `while_loop` that its condition reads."""
    if eqn.primitive is not primitives.while_p:
        return set()
    cond = jaxprs.open_jaxpr(eqn.params["cond_jaxpr"])
    atoms = [atom for inner in cond.eqns for atom in inner.invars]
    read = {x for x in [*atoms, *cond.outvars] if not isinstance(x, jaxprs.Literal)}
    (_, inputs), _ = _jaxprs_with_inputs(eqn)
    return {i for i, var in zip(inputs, cond.invars, strict=True) if var in read}


_Own = Callable[[Any], list[int]]


def _with_inner(eqn: Any, own: _Own) -> set[int]:
    """The inputs that `own` returns, and those that reach such an input inside."""
    if not jaxprs.has_jaxprs(eqn.params):
        return set(own(eqn))
    return _inner(eqn, own).union(own(eqn))


def _inner(eqn: Any, own: _Own) -> set[int]:
    """The inputs that reach an input inside that `own` returns."""
    return {
        inputs[i]
        for jaxpr, inputs in _jaxprs_with_inputs(eqn)
        for i in _reaching(jaxpr, own)
        if i < len(inputs)
    }


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
    called = called_jaxpr(eqn)
    if called is not None:
        return all(map(is_elementary, called.jaxpr.eqns))
    return not jaxprs.has_jaxprs(eqn.params)


def called_jaxpr(eqn: Any) -> Any:
    """The closed jaxpr that an equation evaluates once, None if it does not."""
    if hijax.kind_of(eqn) not in _CALLS:
        return None
    called = list(map(jaxprs.close, jaxprs.jaxprs_in(eqn.params)))
    if len(called) != 1 or len(called[0].jaxpr.invars) != len(eqn.invars):
        return None
    return called[0]
