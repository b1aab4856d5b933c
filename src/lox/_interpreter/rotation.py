"""Rotates a `while_loop`: evaluates its condition before it and in its body."""

import weakref
from collections.abc import Sequence
from typing import Any

from lox._jax import jaxprs, primitives

from .handlers import State
from .patches.masking import EventMasker
from .walk import Walk, cached


def rotated(params: dict[str, Any], masked: bool = False) -> dict[str, Any]:
    """The parameters of a loop with its condition at the end of its body.

    The predicate becomes the first carry. Its initial value is the condition, evaluated
    before the loop.

    Args:
        params: the parameters of the loop.
        masked: whether its events get the predicate as a mask.
    """
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    walk = Walk(EventMasker())

    def run(jaxpr: Any, args: Sequence[Any], running: Any) -> list[Any]:
        return (
            walk(jaxpr, args, State(context=running))[0]
            if masked
            else jaxprs.evaluate(jaxpr, args)
        )

    def new_body(*args: Any) -> list[Any]:
        of_cond, of_body, (running, *carry) = primitives.split_while(params, args)
        outs = run(body, [*of_body, *carry], running)
        return [*run(cond, [*of_cond, *outs], running), *outs]

    carry_avals = [cond.out_avals[0], *body.in_avals[body_consts:]]
    const_avals = [*cond.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    return {
        **params,
        "cond_nconsts": 0,
        "body_nconsts": cond_consts + body_consts,
        **cached(
            body,
            (weakref.ref(cond), cond_consts, body_consts, masked),
            lambda: {
                "cond_jaxpr": jaxprs.trace(
                    lambda running, *_: running, carry_avals, cond
                )[0],
                "body_jaxpr": jaxprs.trace(
                    new_body, [*const_avals, *carry_avals], body
                )[0],
            },
        ),
    }


def run_rotated(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Runs a loop rotated, with the arguments of the original."""
    of_cond, of_body, carry = primitives.split_while(params, args)
    running = jaxprs.evaluate(params["cond_jaxpr"], [*of_cond, *carry])
    operands = [*of_cond, *of_body, *running, *carry]
    return list(primitives.while_p.bind(*operands, **rotated(params)))[1:]
