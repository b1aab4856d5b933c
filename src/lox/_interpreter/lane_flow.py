"""Which values of a program have lanes, found without batching it.

JAX decides while it batches a program which of its values differ between the lanes of a
`vmap`. To find that out before, the rules by which it batches are followed here in the
abstract, with nothing but the answer for each value.

The answer is one of three: a value has lanes, or has none, or only JAX knows. It is the
last wherever a rule is not known to be one of JAX's plain ones. Primitives of other
libraries take lanes together, refuse them or ignore them; collectives such as `psum`
take them together, and `axis_index` has lanes of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._jax import batching_kinds, jaxprs, primitives

from .walk import remembered

Answer = bool | None  # None: only JAX knows

# The same as numbers, of which the greatest is that of a value made of several.
_NO, _MAYBE, _YES = 0, 1, 2
_ANSWERS: tuple[Answer, ...] = (False, None, True)


def lanes_of(jaxpr: Any, batched: Sequence[bool]) -> list[Answer]:
    """Which results of a jaxpr have lanes, if these inputs have."""
    return _answers(_through(jaxpr, _levels(batched)))


def lanes_of_while(
    params: dict[str, Any], batched: Sequence[bool]
) -> tuple[Answer, list[Answer]]:
    """The same of a `while_loop`: whether its predicate has lanes, and its carries."""
    predicate, carry = _through_loop(params, _levels(batched))
    return _ANSWERS[predicate], _answers(carry)


def lanes_of_scan(params: dict[str, Any], batched: Sequence[bool]) -> list[Answer]:
    """The same of a `scan`: its carries, and what it stacks."""
    return _answers(_through_scan(params, _levels(batched)))


def _levels(batched: Sequence[bool]) -> list[int]:
    return [_YES if one else _NO for one in batched]


def _answers(levels: Sequence[int]) -> list[Answer]:
    return [_ANSWERS[level] for level in levels]


# --- programs ----------------------------------------------------------------


def _through(jaxpr: Any, ins: Sequence[int]) -> list[int]:
    """The results of a jaxpr; they depend on its inputs and on nothing else."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    found: list[int] = remembered(
        jaxpr, ("lanes of", bytes(ins)), lambda: _evaluate(jaxpr, ins)
    )
    return found


def _evaluate(jaxpr: Any, ins: Sequence[int]) -> list[int]:
    env: dict[Any, int] = dict(zip(jaxpr.invars, ins, strict=True))

    def read(atom: Any) -> int:
        return _NO if isinstance(atom, jaxprs.Literal) else env.get(atom, _NO)

    for eqn in jaxpr.eqns:
        if eqn.outvars:
            outs = _through_equation(eqn, list(map(read, eqn.invars)))
            env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def _through_equation(eqn: Any, ins: list[int]) -> list[int]:
    rule = _RULES.get(eqn.primitive)
    if rule is not None:
        return rule(eqn.params, ins)
    out = _MAYBE
    kind = batching_kinds.batching_kind(eqn.primitive)
    if kind == "nothing without lanes":
        out = min(max(ins, default=_NO), _MAYBE)
    elif kind == "plain" and not eqn.effects:
        out = max(ins, default=_NO)
    return [out] * len(eqn.outvars)


# --- the rules of JAX that look inside ---------------------------------------

_Rule = Callable[[dict[str, Any], list[int]], list[int]]


def _through_call(params: dict[str, Any], ins: list[int]) -> list[int]:
    return _through(primitives.called_jaxpr(params), ins)


def _through_scan(params: dict[str, Any], ins: list[int]) -> list[int]:
    consts, carried, _ = primitives.scan_sizes(params, len(ins))
    first, carry, xs = ins[:consts], ins[consts:][:carried], ins[consts + carried :]

    def body(carry: list[int]) -> list[int]:
        return _through(params["jaxpr"], [*first, *carry, *xs])

    carry = _fixed_point(lambda carry: body(carry)[:carried], carry)
    return [*carry, *body(carry)[carried:]]


def _through_while(params: dict[str, Any], ins: list[int]) -> list[int]:
    return _through_loop(params, ins)[1]


def _through_loop(params: dict[str, Any], ins: list[int]) -> tuple[int, list[int]]:
    """The predicate and the carries of a `while_loop`."""
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = ins[:of_cond], ins[of_cond:][:of_body]
    carry = _fixed_point(
        lambda carry: _through(params["body_jaxpr"], [*body_consts, *carry]),
        ins[of_cond + of_body :],
    )
    cond = params["cond_jaxpr"]
    (predicate,) = _through(cond, [*cond_consts, *carry])
    if cond.out_avals[0].shape:
        # one that has the lanes of another `vmap` gets the new ones, too, if it logs
        predicate = max(predicate, _MAYBE)
    return predicate, [max(one, predicate) for one in carry]


def _through_cond(params: dict[str, Any], ins: list[int]) -> list[int]:
    index, *operands = ins
    if "branches_platforms" in params:  # then it is the same in all lanes
        index = min(index, _MAYBE)
    branches = (_through(branch, operands) for branch in params["branches"])
    return [max(index, *outs) for outs in zip(*branches, strict=True)]


def _fixed_point(
    step: Callable[[list[int]], list[int]], levels: list[int]
) -> list[int]:
    while True:
        joined = list(map(max, levels, step(levels)))
        if joined == levels:
            return levels
        levels = joined


_RULES: dict[Any, _Rule] = {
    **dict.fromkeys(primitives.CALLS, _through_call),
    primitives.cond_p: _through_cond,
    primitives.scan_p: _through_scan,
    primitives.while_p: _through_while,
}
