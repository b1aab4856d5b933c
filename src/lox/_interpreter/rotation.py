"""A `while_loop` with its condition evaluated before it and at the end of its body."""

import weakref
from collections.abc import Sequence
from typing import Any

from lox._jax import jaxprs, primitives

from .handlers import State
from .patches.guard import Guard
from .walk import Walk, remembered


def rotated(params: dict[str, Any], guarded: bool = False) -> dict[str, Any]:
    """A loop with its condition evaluated before it and at the end of its body.

    The predicate is the first carry then.

    Args:
        params: those of the loop.
        guarded: whether its events get the predicate as a mask.
    """
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    consts = cond_consts + body_consts
    walk = Walk(Guard())

    def run(jaxpr: Any, args: Sequence[Any], go: Any) -> list[Any]:
        return (
            walk(jaxpr, args, State(context=go))[0]
            if guarded
            else jaxprs.evaluate(jaxpr, args)
        )

    def new_body(*args: Any) -> list[Any]:
        inner, go, carry = args[:consts], args[consts], args[consts + 1 :]
        outs = run(body, [*inner[cond_consts:], *carry], go)
        return [*run(cond, [*inner[:cond_consts], *outs], go), *outs]

    carry_avals = [cond.out_avals[0], *body.in_avals[body_consts:]]
    const_avals = [*cond.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    return {
        **params,
        "cond_nconsts": 0,
        "body_nconsts": consts,
        **remembered(
            body,
            (weakref.ref(cond), cond_consts, body_consts, guarded),
            lambda: {
                "cond_jaxpr": jaxprs.trace(lambda go, *_: go, carry_avals, cond)[0],
                "body_jaxpr": jaxprs.trace(
                    new_body, [*const_avals, *carry_avals], body
                )[0],
            },
        ),
    }


def run_rotated(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    inputs = condition_inputs(args, params)
    go = jaxprs.evaluate(params["cond_jaxpr"], inputs)
    consts = params["cond_nconsts"] + params["body_nconsts"]
    operands = [*args[:consts], *go, *args[consts:]]
    return list(primitives.while_p.bind(*operands, **rotated(params)))[1:]


def condition_inputs(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    cond_consts = params["cond_nconsts"]
    return [*args[:cond_consts], *args[cond_consts + params["body_nconsts"] :]]
