"""Events in the condition of a `while_loop`.

XLA removes a condition if it knows the number of iterations, and `checkify` evaluates
it twice. Both get a rotated loop, whose condition only reads the carry.
"""

from collections.abc import Callable
from typing import Any

from lox._interpreter.contents import events_of
from lox._interpreter.rotation import rotated, run_rotated
from lox._jax import checkify, primitives, rule_tables


def lower_while(rule: Callable[..., Any], ctx: Any, *args: Any, **params: Any) -> Any:
    """Wraps the lowering of `while_loop`."""
    # XLA keeps ordered events, and quiet ones are not delivered
    events = events_of(params["cond_jaxpr"])
    if all(event.route.ordered or event.route.quiet for event in events):
        return rule(ctx, *args, **params)

    def loop(*args: Any) -> list[Any]:
        return run_rotated(args, params)

    return rule_tables.lower_as(ctx, loop, args)


def checkify_while(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Wraps the `checkify` rule, which would evaluate the condition twice."""
    cond = params["cond_jaxpr"]
    if cond.out_avals[0].shape:
        return rule(*args, **params)
    call, inputs = checkify.split_arguments(args)
    of_cond, of_body, carry = primitives.split_while(params, inputs)
    error, running = call(cond, [*of_cond, *carry])
    front = args[: len(args) - len(inputs)]
    operands = [*of_cond, *of_body, *running, *carry]
    error, outs = rule(*checkify.with_error(front, error), *operands, **rotated(params))
    return error, outs[1:]
