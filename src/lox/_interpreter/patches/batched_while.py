"""`vmap` of `while_loop` with a predicate per lane.

JAX runs the body for all lanes until the last has finished. The events inside get a
*mask*: the lanes that are still running.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lox._interpreter.contents import events_of
from lox._interpreter.lane_flow import lanes_of_while
from lox._interpreter.rotation import rotated
from lox._jax import batching, jaxprs, primitives

from .missing import events_in
from .with_lanes import with_lanes


def batch_while(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> Any:
    """Wraps the batching rule of `while_loop`."""
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    events = [*events_of(cond), *events_of(body)]
    marks = {event.layout.once for event in events if event.call.keys}
    if marks == {"value"}:  # the `vmap` of `jacfwd`, which adds lanes only to tangents
        return rule(axis_data, args, dims, **params)
    logs = bool(events)
    predicate, carry = lanes_of_while(params, [dim is not None for dim in dims])
    # A predicate that already has lanes always gets the new ones as well: the lanes of
    # an event inside must begin with those of the predicate.
    has_lanes = bool(cond.out_avals[0].shape)
    if logs and not has_lanes and predicate is None:
        predicate = _batched_predicate(axis_data, dims, params)
    if logs and (has_lanes or predicate):
        return _batch_masked_loop(rule, axis_data, args, dims, params)
    if not has_lanes:  # the new lanes are the first axes
        consts = params["cond_nconsts"] + params["body_nconsts"]
        args, dims = with_lanes(axis_data, args, dims, consts, carry)
    return rule(axis_data, args, dims, **params)


def logs_or_made_by_lox(params: dict[str, Any]) -> bool:
    """Whether a loop logs, or lox has rebuilt it from a loop that does.

    A rebuilt loop has the same result as with JAX's rule alone, but is batched faster.
    """
    return bool(events_in(params)) or jaxprs.is_made_by_lox(params["body_jaxpr"])


def _batched_predicate(
    axis_data: Any, dims: Sequence[Any], params: dict[str, Any]
) -> bool:
    """Whether lanes may leave the loop at different times, as JAX computes it."""
    batched = [dim is not None for dim in dims]
    of_cond, of_body, carry = primitives.split_while(params, batched)
    cond, body = params["cond_jaxpr"], rotated(params, True)["body_jaxpr"]
    inputs = [*of_cond, *carry]
    flags = [*batching.batched_outputs(cond, axis_data, inputs, [False]), *carry]
    while True:
        inputs = [*of_cond, *of_body, *flags]
        found = batching.batched_outputs(body, axis_data, inputs, flags)
        joined = [a or b for a, b in zip(flags, found, strict=True)]
        if joined == flags:
            return flags[0]
        flags = joined


def _batch_masked_loop(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    params: dict[str, Any],
) -> Any:
    """Batches the rotated loop, whose predicate is the mask of the events inside."""
    cond = params["cond_jaxpr"]
    pairs = list(zip(args, dims, strict=True))
    of_cond, of_body, carry = primitives.split_while(params, pairs)
    inputs = [
        x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in [*of_cond, *carry]
    ]
    mapped = [dim is not None for _, dim in [*of_cond, *carry]]
    (running,) = jaxprs.evaluate(batching.batch_jaxpr(cond, axis_data, mapped), inputs)
    if jnp.ndim(running) == len(cond.out_avals[0].shape):
        running = batching.broadcast_lanes(running, axis_data)
    pairs = [*of_cond, *of_body, (running, 0), *carry]
    new_args, new_dims = with_lanes(
        axis_data,
        [x for x, _ in pairs],
        [dim for _, dim in pairs],
        len(of_cond) + len(of_body),
        [True] * (1 + len(carry)),
    )
    outs, out_dims = rule(axis_data, new_args, new_dims, **rotated(params, True))
    return outs[1:], out_dims[1:]
