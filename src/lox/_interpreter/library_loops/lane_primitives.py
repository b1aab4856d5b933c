"""Primitives that reduce over lanes, and lox's own primitives for masks."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._interpreter.handlers import State
from lox._jax import primitives, rule_tables

_UNVMAPS = frozenset({"unvmap_any", "unvmap_all", "unvmap_max"})


def merges_lanes(eqn: Any) -> bool:
    """Whether an equation is a reduction over the lanes of every `vmap`."""
    return eqn.primitive.name in _UNVMAPS


# The same as the primitive `like`, which is one of the above.
across_lanes_p: Any = primitives.Primitive("lox_across_lanes")
across_lanes_p.def_impl(lambda x, *, like: like.impl(x))
across_lanes_p.def_abstract_eval(lambda x, *, like: like.abstract_eval(x)[0])
rule_tables.register_lowering_as(across_lanes_p, lambda x, *, like: like.impl(x))
rule_tables.register_batching(
    across_lanes_p,
    lambda axis, args, dims, *, like: (across_lanes_p.bind(*args, like=like), None),
)
rule_tables.set_no_derivative(across_lanes_p)

# Whether a lane runs the code around it. Its operand is the predicate of that code, so
# without lanes it is true: code that does not run does not evaluate it. It costs
# nothing unless there is a `vmap`.
active_p: Any = primitives.Primitive("lox_active")
active_p.def_impl(lambda x: jnp.ones((), bool))
active_p.def_abstract_eval(lambda x: x)
rule_tables.register_lowering_as(active_p, lambda x: jnp.ones(x.shape, bool))


def _batch_active(
    axis: Any, args: Sequence[Any], dims: Sequence[Any]
) -> tuple[Any, Any]:
    del axis
    (x,), (dim,) = args, dims
    return (active_p.bind(x), None) if dim is None else (x, dim)


rule_tables.register_batching(active_p, _batch_active)
rule_tables.set_no_derivative(active_p)


def active_state(running: Any) -> State:
    """The state of an `EventMasker`, given which lanes are running."""
    return State(context=active_p.bind(running))


# The start of a loop's counter, which must be the same in all lanes: a lane that starts
# early, because of another one, recomputes what it would else reuse. That is where its
# cotangents go, which reach neither computation as they would without the other lane.
same_start_p: Any = primitives.Primitive("lox_same_start")
same_start_p.def_impl(lambda x, *, event: x)
same_start_p.def_abstract_eval(lambda x, *, event: x)
rule_tables.register_lowering_as(same_start_p, lambda x, *, event: x)


def _batch_same_start(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, event: Event
) -> tuple[Any, Any]:
    del axis
    (x,), (dim,) = args, dims
    if dim is None:
        return same_start_p.bind(x, event=event), None
    raise UnsupportedPrimitiveError(
        f"the cotangent {event.call.description}, is inside a loop that may start "
        "earlier in a lane of `jax.vmap` because another lane needs it, such as the "
        "stages of a diffrax solver that reuses the last stage of the previous step "
        "(FSAL, like `Tsit5`). The lane then has other cotangents than without the "
        "others. Use `jax.lax.map` instead of `jax.vmap`, a solver without FSAL such "
        "as `Heun`, or `log_grad` outside of the loop."
    )


rule_tables.register_batching(same_start_p, _batch_same_start)
rule_tables.set_no_derivative(same_start_p)
