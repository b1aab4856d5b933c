"""Which values of a program have lanes, found without batching it.

JAX decides while it batches a program which of its values differ between the lanes of a
`vmap`. To find that out before, the rules by which it batches are followed here in the
abstract: a result has lanes if one of certain inputs has. A program of which these
inputs are known need not be looked at again, whatever has lanes.

The answer is one of three: a value has lanes, or has none, or only JAX knows. It is the
last wherever a rule is not known to be one of JAX's plain ones. Primitives of other
libraries take lanes together, refuse them or ignore them; collectives such as `psum`
take them together, and `axis_index` has lanes of its own.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from lox._jax import compat

from .walk import remembered

Answer = bool | None  # None: only JAX knows


class Flow(NamedTuple):
    """The inputs from which a value has lanes, as the bits of two numbers."""

    # if one of these has lanes, the value has, too
    certain: int
    # if none of these has, the value has none; the lowest bit always has
    possible: int

    def __or__(self, other: "Flow") -> "Flow":
        return Flow(self.certain | other.certain, self.possible | other.possible)


_NOTHING = Flow(0, 0)
_UNKNOWN = Flow(0, 1)


def _input(i: int) -> Flow:
    return Flow(2 << i, 2 << i)


def _union(flows: Iterable[Flow]) -> Flow:
    return functools.reduce(operator.or_, flows, _NOTHING)


def _uncertain(flow: Flow) -> Flow:
    return Flow(0, flow.possible)


# --- answers -----------------------------------------------------------------


def lanes_of(jaxpr: Any, batched: Sequence[bool]) -> list[Answer]:
    """Which results of a jaxpr have lanes, if these inputs have."""
    return _answers(_flows_of(jaxpr), batched)


def lanes_of_while(
    params: dict[str, Any], batched: Sequence[bool]
) -> tuple[Answer, list[Answer]]:
    """The same of a `while_loop`: whether its predicate has lanes, and its carries."""
    predicate, *carry = _while_flows(params, list(map(_input, range(len(batched)))))
    (answer,) = _answers([predicate], batched)
    return answer, _answers([flow | predicate for flow in carry], batched)


def lanes_of_scan(params: dict[str, Any], batched: Sequence[bool]) -> list[Answer]:
    """The same of a `scan`: its carries, and what it stacks."""
    return _answers(
        _scan_flows(params, list(map(_input, range(len(batched))))), batched
    )


def _answers(flows: Iterable[Flow], batched: Sequence[bool]) -> list[Answer]:
    given = 1 + sum(2 << i for i, one in enumerate(batched) if one)

    def answer(flow: Flow) -> Answer:
        if flow.certain & given:
            return True
        return None if flow.possible & given else False

    return list(map(answer, flows))


# --- the flow through a program ----------------------------------------------


def _flows_of(jaxpr: Any) -> list[Flow]:
    """From which inputs the results of a jaxpr have lanes."""
    jaxpr = compat.open_jaxpr(jaxpr)
    return remembered(jaxpr, "lane flow", lambda: _evaluate(jaxpr))


def _evaluate(jaxpr: Any) -> list[Flow]:
    env: dict[Any, Flow] = {var: _input(i) for i, var in enumerate(jaxpr.invars)}

    def read(atom: Any) -> Flow:
        if isinstance(atom, compat.Literal):
            return _NOTHING
        return env.get(atom, _NOTHING)

    for eqn in jaxpr.eqns:
        if eqn.outvars:
            outs = _equation_flows(eqn, list(map(read, eqn.invars)))
            env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def _equation_flows(eqn: Any, ins: list[Flow]) -> list[Flow]:
    rule = _RULES.get(eqn.primitive)
    if rule is not None:
        return rule(eqn.params, ins)
    kind = compat.batching_kind(eqn.primitive)
    out = _UNKNOWN
    if kind == "nothing without lanes":
        out = _uncertain(_union(ins))
    elif kind == "plain" and not eqn.effects:
        out = _union(ins)
    return [out] * len(eqn.outvars)


def _through(jaxpr: Any, ins: Sequence[Flow]) -> list[Flow]:
    """The flow of the results of a jaxpr, in terms of what its inputs are made of."""

    def total(bits: int, parts: Sequence[int]) -> int:
        found = bits & 1
        bits >>= 1
        while bits:
            lowest = bits & -bits
            found |= parts[lowest.bit_length() - 1]
            bits ^= lowest
        return found

    certain = [flow.certain for flow in ins]
    possible = [flow.possible for flow in ins]
    return [
        Flow(total(flow.certain, certain), total(flow.possible, possible))
        for flow in _flows_of(jaxpr)
    ]


# --- the rules of JAX that look inside ---------------------------------------

_Rule = Callable[[dict[str, Any], list[Flow]], list[Flow]]


def _call_flows(params: dict[str, Any], ins: list[Flow]) -> list[Flow]:
    name = "call_jaxpr" if "call_jaxpr" in params else "jaxpr"
    return _through(params[name], ins)


def _scan_flows(params: dict[str, Any], ins: list[Flow]) -> list[Flow]:
    consts, carried, _ = compat.scan_sizes(params, len(ins))
    first, carry, xs = ins[:consts], ins[consts:][:carried], ins[consts + carried :]

    def body(carry: list[Flow]) -> list[Flow]:
        return _through(params["jaxpr"], [*first, *carry, *xs])

    carry = _fixed_point(lambda carry: body(carry)[:carried], carry)
    return [*carry, *body(carry)[carried:]]


def _while_flows(params: dict[str, Any], ins: list[Flow]) -> list[Flow]:
    """That of the predicate, then of the carries without it."""
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = ins[:of_cond], ins[of_cond:][:of_body]
    carry = _fixed_point(
        lambda carry: _through(params["body_jaxpr"], [*body_consts, *carry]),
        ins[of_cond + of_body :],
    )
    cond = params["cond_jaxpr"]
    (predicate,) = _through(cond, [*cond_consts, *carry])
    # one that has the lanes of another `vmap` gets the new ones, too, if it logs
    return [predicate | _UNKNOWN if cond.out_avals[0].shape else predicate, *carry]


def _loop_flows(params: dict[str, Any], ins: list[Flow]) -> list[Flow]:
    predicate, *carry = _while_flows(params, ins)
    return [flow | predicate for flow in carry]


def _cond_flows(params: dict[str, Any], ins: list[Flow]) -> list[Flow]:
    index, *operands = ins
    if "branches_platforms" in params:  # then it is the same in all lanes
        index = _uncertain(index)
    branches = [_through(branch, operands) for branch in params["branches"]]
    return [index | _union(outs) for outs in zip(*branches, strict=True)]


def _fixed_point(
    step: Callable[[list[Flow]], list[Flow]], flows: list[Flow]
) -> list[Flow]:
    while True:
        joined = [a | b for a, b in zip(flows, step(flows), strict=True)]
        if joined == flows:
            return flows
        flows = joined


_RULES: dict[Any, _Rule] = {
    **dict.fromkeys(compat.call_primitives, _call_flows),
    compat.cond_p: _cond_flows,
    compat.scan_p: _scan_flows,
    compat.while_p: _loop_flows,
}
