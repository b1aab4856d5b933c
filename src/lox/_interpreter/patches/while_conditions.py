"""Events in the condition of a `while_loop`.

XLA drops a condition if it knows how often the loop runs, and `checkify` evaluates it
twice. Both get a loop whose condition only reads the carry.
"""

from collections.abc import Callable
from typing import Any

from lox._interpreter.contents import events_of
from lox._interpreter.rotation import condition_inputs, rotated, run_rotated
from lox._jax import checkify, rule_tables


def lowered_condition(
    rule: Callable[..., Any], ctx: Any, *args: Any, **params: Any
) -> Any:
    """XLA drops a condition, events and all, if it knows how often the loop runs."""
    # those that have an order are safe, and quiet ones are not delivered
    events = events_of(params["cond_jaxpr"])
    if all(event.route.ordered or event.route.quiet for event in events):
        return rule(ctx, *args, **params)

    def loop(*args: Any) -> list[Any]:
        return run_rotated(args, params)

    return rule_tables.lower_as(ctx, loop, args)


def checked_once(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """`checkify` evaluates a condition once to check it, and once to go by it."""
    cond = params["cond_jaxpr"]
    if cond.out_avals[0].shape:
        return rule(*args, **params)
    call, inputs = checkify.split_arguments(args)
    error, go = call(cond, condition_inputs(inputs, params))
    consts = params["cond_nconsts"] + params["body_nconsts"]
    front = args[: len(args) - len(inputs)]
    operands = [*inputs[:consts], *go, *inputs[consts:]]
    error, outs = rule(*checkify.with_error(front, error), *operands, **rotated(params))
    return error, outs[1:]
