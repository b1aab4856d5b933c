"""The rule of `custom_vmap` functions, and of the events in their batching rules."""

from typing import Any

import jax

from lox._errors import UnsupportedPrimitiveError
from lox._jax import tracing

from .handlers import NO_STATE, State
from .rule_table import Result, hidden_rules, rule
from .walk import Walk, unsupported


@rule("custom_vmap_call")
def _custom_vmap_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """A later `vmap` runs the batching rule instead of the function and its events."""
    old = eqn.params["call"]
    new, tree = walk.rebuilt(old, state)
    leaves = jax.tree.leaves(state)
    front = len(leaves)
    extra = len(new.out_avals) - len(old.out_avals)
    per_lane = any(state.per_lane_leaves())

    def batch(axis_size: int, batched: list[bool], *flat: Any) -> Any:
        if extra > front or per_lane:
            raise UnsupportedPrimitiveError(
                f"{unsupported(walk, eqn)} (Its `def_vmap` rule replaces the function "
                "that logs: use the transformation after `jax.vmap`, not before it.)"
            )
        inner = eqn.params["in_tree"].unflatten
        call = _handled_vmap_rule(walk, eqn)
        outs, out_batched = call(
            axis_size, inner(batched[front:]), *inner(flat[front:])
        )
        return (
            [*jax.tree.leaves(outs), *flat[:front]],
            [*jax.tree.leaves(out_batched), *batched[:front]],
        )

    outs = tracing.bind(
        eqn,
        [*leaves, *args],
        call=new,
        rule=batch,
        in_tree=jax.tree.structure(tuple(new.in_avals)),
        out_tree=jax.tree.structure(list(new.out_avals)),
    )
    return tree.unflatten(outs)


@hidden_rules("custom_vmap_call")
def _hidden_vmap_rule(walk: Walk, eqn: Any) -> dict[str, Any]:
    return {"rule": _handled_vmap_rule(walk, eqn)}


def _handled_vmap_rule(walk: Walk, eqn: Any) -> Any:
    def handled(axis_size: int, batched: Any, *args: Any) -> Any:
        out_batched: list[Any] = []

        def fun(*args: Any) -> Any:
            outs, flags = eqn.params["rule"](axis_size, list(batched), *args)
            out_batched.append(flags)
            return outs

        closed, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
        # a batching rule cannot return rows
        inner = Walk(walk.handler.without_rows().inside_vmap())
        outs, _, _ = inner(closed, jax.tree.leaves(args), NO_STATE)
        return jax.tree.unflatten(jax.tree.structure(shape), outs), out_batched[-1]

    return handled
