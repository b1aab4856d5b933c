"""Infers which values of a program get lanes under `vmap`, without batching it.

JAX decides this while it batches a program. Here, its batching rules are applied
abstractly: a value has lanes, has no lanes, or is unknown. Only JAX's own plain
batching rules have a known result: primitives of other libraries may reduce over lanes,
reject them or ignore them, collectives like `psum` reduce over them, and `axis_index`
adds lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._jax import batching_kinds, hijax, jaxprs, primitives

from .walk import cached

HasLanes = bool | None  # whether a value has lanes; None if unknown

# The same as levels: the level of a result is the maximum level of its operands.
_NO, _MAYBE, _YES = 0, 1, 2
_ANSWERS: tuple[HasLanes, ...] = (False, None, True)


def lanes_of_while(
    params: dict[str, Any], batched: Sequence[bool]
) -> tuple[HasLanes, list[HasLanes]]:
    """Whether the predicate and the carries of a `while_loop` have lanes.

    Args:
        params: the parameters of the loop.
        batched: which of its inputs have lanes.
    """
    predicate, carry = _propagate_loop(params, _levels(batched))
    return _ANSWERS[predicate], _answers(carry)


def lanes_of_scan(params: dict[str, Any], batched: Sequence[bool]) -> list[HasLanes]:
    """Whether the carries and the stacked outputs of a `scan` have lanes."""
    return _answers(_propagate_scan(params, _levels(batched)))


def _levels(batched: Sequence[bool]) -> list[int]:
    return [_YES if one else _NO for one in batched]


def _answers(levels: Sequence[int]) -> list[HasLanes]:
    return [_ANSWERS[level] for level in levels]


# --- programs ----------------------------------------------------------------


def _propagate(jaxpr: Any, ins: Sequence[int]) -> list[int]:
    """The levels of the results of a jaxpr, given those of its inputs."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)

    def evaluate() -> list[int]:
        inputs = [*[_NO] * len(jaxpr.constvars), *ins]
        return jaxprs.interpret(jaxpr, inputs, _propagate_equation, lambda _: _NO)

    found: list[int] = cached(jaxpr, ("lanes of", bytes(ins)), evaluate)
    return found


def _propagate_equation(eqn: Any, ins: list[int]) -> list[int]:
    rule = _RULES.get(eqn.primitive)
    if rule is not None:
        return rule(eqn.params, ins)
    called = hijax.called_jaxpr(eqn)
    if called is not None:
        return _propagate(called, ins)
    out = _MAYBE
    kind = batching_kinds.batching_kind(eqn.primitive)
    if kind == "only with batched inputs":
        out = min(max(ins, default=_NO), _MAYBE)
    elif kind == "plain" and not eqn.effects:
        out = max(ins, default=_NO)
    return [out] * len(eqn.outvars)


# --- higher-order primitives -------------------------------------------------

_Rule = Callable[[dict[str, Any], list[int]], list[int]]


def _propagate_call(params: dict[str, Any], ins: list[int]) -> list[int]:
    return _propagate(primitives.called_jaxpr(params), ins)


def _propagate_scan(params: dict[str, Any], ins: list[int]) -> list[int]:
    consts, carried, _ = primitives.scan_sizes(params, len(ins))
    first, carry, xs = ins[:consts], ins[consts:][:carried], ins[consts + carried :]

    def body(carry: list[int]) -> list[int]:
        return _propagate(params["jaxpr"], [*first, *carry, *xs])

    carry = _fixed_point(lambda carry: body(carry)[:carried], carry)
    return [*carry, *body(carry)[carried:]]


def _propagate_while(params: dict[str, Any], ins: list[int]) -> list[int]:
    return _propagate_loop(params, ins)[1]


def _propagate_loop(params: dict[str, Any], ins: list[int]) -> tuple[int, list[int]]:
    """The predicate and the carries of a `while_loop`."""
    cond_consts, body_consts, carry = primitives.split_while(params, ins)
    carry = _fixed_point(
        lambda carry: _propagate(params["body_jaxpr"], [*body_consts, *carry]), carry
    )
    cond = params["cond_jaxpr"]
    (predicate,) = _propagate(cond, [*cond_consts, *carry])
    if cond.out_avals[0].shape:
        # a predicate with the lanes of another `vmap` may get the new ones, if it logs
        predicate = max(predicate, _MAYBE)
    return predicate, [max(one, predicate) for one in carry]


def _propagate_cond(params: dict[str, Any], ins: list[int]) -> list[int]:
    index, *operands = ins
    if "branches_platforms" in params:  # the index is the same in all lanes
        index = min(index, _MAYBE)
    branches = (_propagate(branch, operands) for branch in params["branches"])
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
    **dict.fromkeys(primitives.CALLS, _propagate_call),
    primitives.cond_p: _propagate_cond,
    primitives.scan_p: _propagate_scan,
    primitives.while_p: _propagate_while,
}
