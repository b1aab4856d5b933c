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


# Computes the same as the primitive `like`, which is one of the above.
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


# Returns its first operand. The others must be the same in all lanes; `problem` is the
# error if they are not.
same_in_lanes_p: Any = primitives.Primitive("lox_same_in_lanes")
same_in_lanes_p.def_impl(lambda x, *others, problem: x)
same_in_lanes_p.def_abstract_eval(lambda x, *others, problem: x)
rule_tables.register_lowering_as(same_in_lanes_p, lambda x, *others, problem: x)


def _batch_same_in_lanes(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, problem: str
) -> tuple[Any, Any]:
    del axis
    if any(dim is not None for dim in dims[1:]):
        raise UnsupportedPrimitiveError(problem)
    return same_in_lanes_p.bind(*args, problem=problem), dims[0]


rule_tables.register_batching(same_in_lanes_p, _batch_same_in_lanes)
rule_tables.set_no_derivative(same_in_lanes_p)


def refuse_different_starts(x: Any, start: Any, event: Event) -> Any:
    """Returns `x`; the start of a loop's counter must be the same in all lanes.

    A lane that starts early, because of another one, recomputes what it would otherwise
    reuse. Its cotangents then flow into the recomputation, and are not those that it
    would have alone.

    Args:
        x: any value.
        start: the start, or what depends on it, in each lane.
        event: logged by the backward pass of the loop.
    """
    problem = (
        f"{event.call.description}, is in the backward pass of a loop that may start "
        "earlier in a lane of `jax.vmap` because another lane needs it, such as the "
        "stages of a diffrax solver that reuses the last stage of the previous step "
        "(FSAL, like `Tsit5`). The lane then has other cotangents than it would have "
        "alone. Use `jax.lax.map` instead of `jax.vmap`, a solver without FSAL such "
        "as `Heun`, or log the cotangent outside the loop."
    )
    return same_in_lanes_p.bind(x, start, problem=problem)


def refuse_lanes(x: Any, values: Sequence[Any], event: Event) -> Any:
    """Returns `x`; the values must be the same in all lanes.

    Args:
        x: any value.
        values: what the unknown predicates of a backward pass are computed from.
        event: logged by the backward pass.
    """
    problem = (
        f"{event.call.description}, is in the backward pass of an Equinox loop that "
        "runs until its last lane of `jax.vmap` has ended, and it is not known which "
        "lanes have ended. Use `jax.lax.map` instead of `jax.vmap`, or log outside the "
        "loop."
    )
    return same_in_lanes_p.bind(x, *values, problem=problem)


def refuse_merged_carry(x: Any, value: Any, event: Event) -> Any:
    """Returns `x`; the value must be the same in all lanes.

    Args:
        x: any value.
        value: the carry of a loop, or the constant of its condition, that decides, in
            each lane, which steps or branches log.
        event: logged inside.
    """
    problem = (
        f"{event.call.description}, is in a loop or branch that depends on a carry of "
        "the loop around it, or on a constant of the loop's condition, which Equinox "
        "has merged over the lanes of `jax.vmap`, so it is not known which lanes log "
        "it. Use `jax.lax.map` instead of `jax.vmap`, or log outside the loop."
    )
    return same_in_lanes_p.bind(x, value, problem=problem)


def refuse_different_steps(x: Any, start: Any, event: Event) -> Any:
    """Returns `x`; the start of a loop's counter must be the same in all lanes.

    Args:
        x: any value.
        start: the start in each lane.
        event: logged by each step of the loop, even if the loop has ended.
    """
    problem = (
        f"{event.call.description}, is logged by each step of an Equinox loop "
        '(`kind="bounded"`) that may start earlier in a lane of `jax.vmap` because '
        "another lane needs it. The lane then takes other steps than it would alone. "
        'Use `jax.lax.map` instead of `jax.vmap`, `kind="lax"` or '
        '`kind="checkpointed"` (`scan_kind` of the solvers of diffrax), or log in the '
        "body of the loop."
    )
    return same_in_lanes_p.bind(x, start, problem=problem)


def refuse_lost_events(x: Any, value: Any, event: Event) -> Any:
    """Returns `x`; the value must be the same in all lanes.

    Args:
        x: any value.
        value: decides, in each lane, whether the lane would log the event alone.
        event: in a branch or step that does not run if another lane decides so.
    """
    problem = (
        f"{event.call.description}, is in a branch or loop whose predicate, index or "
        "start is merged over the lanes of `jax.vmap` (`eqxi.unvmap_any`, "
        "`unvmap_all`, `unvmap_max`), so a lane that would log it alone may not "
        "run it because of another lane. Log outside the branch or loop, with the "
        "predicate of the lane in `when=`, or use `jax.lax.map` instead of `jax.vmap`."
    )
    return same_in_lanes_p.bind(x, value, problem=problem)
