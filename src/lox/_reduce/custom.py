"""`lox.Reduction` in loops and on stacked rows."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._arrays import is_jax_array
from lox._errors import LoxValueError, ShapeError
from lox._jax import array_types

from .protocol import Accumulator, Leaves, StackedRows, ValueType
from .reductions import Reduction


def accumulator(reduction: Reduction, value_type: ValueType) -> Accumulator:
    """The accumulator of a `lox.Reduction`, whose functions see one lane at a time.

    Its functions may close over tracers of an outer trace, which can enter a loop only
    as a carry, so these are carried along with the state.
    """
    tree, types, lanes, where = value_type
    lane_sizes = types[0].shape[:lanes]
    value = tree.unflatten(
        [array_types.strong_zeros(_own_type(kind, lanes)) for kind in types]
    )
    try:
        start = _agreed_start(reduction, value, where)
        updating = jax.make_jaxpr(reduction.update)(start, value)
        finishing, result = jax.make_jaxpr(reduction.finish, return_shape=True)(start)
    except Exception as error:
        error.add_note(
            f"This happened in the `lox.Reduction` of {where.removesuffix(',')}."
        )
        raise
    if not jax.tree.leaves(result):
        raise LoxValueError(
            f"the `finish` of the `lox.Reduction` of {where} returned {result!r}, "
            "which contains no array."
        )
    starts = map(array_types.sharded_like, jax.tree.leaves(start), updating.out_avals)
    held = [list(starts), updating.consts, finishing.consts]
    flat, held_tree = jax.tree.flatten(held)
    traced = [isinstance(x, jax.core.Tracer) for x in flat]

    def opened(carried: Sequence[Any]) -> Any:
        """The initial state, and the closed-over values of the two functions."""
        rest = iter(carried)
        pairs = zip(flat, traced, strict=True)
        return held_tree.unflatten([next(rest) if own else x for x, own in pairs])

    def spread(start: Sequence[Any]) -> list[Any]:
        return [jnp.broadcast_to(x, (*lane_sizes, *jnp.shape(x))) for x in start]

    def per_lane(closed: Any, consts: Sequence[Any]) -> Callable[..., Any]:
        fun = functools.partial(jax.core.eval_jaxpr, closed.jaxpr, consts)
        for _ in range(lanes):
            fun = jax.vmap(fun)
        return fun

    def init() -> Any:
        carried = [x for x, own in zip(flat, traced, strict=True) if own]
        return spread(held[0]), carried

    def restart(carried: Any) -> Any:
        return spread(opened(carried[1])[0]), carried[1]

    def update(carried: Any, leaves: Leaves, number: Any) -> Any:
        state, rest = carried
        return per_lane(updating, opened(rest)[1])(*state, *leaves), rest

    def finish(carried: Any, number: Any) -> tuple[Any, ...]:
        state, rest = carried
        return tuple(map(jnp.asarray, per_lane(finishing, opened(rest)[2])(*state)))

    return Accumulator(
        jax.tree.structure(result),
        init,
        restart,
        update,
        finish,
        starts_anywhere=not any(traced),
    )


def _agreed_start(reduction: Reduction, value: Any, where: str) -> Any:
    """The initial state; Python numbers in it adopt the dtype that `update` returns."""
    with jax.ensure_compile_time_eval():
        zeros = jax.tree.map(lambda x: _plain_zeros(jax.typeof(x)), value)
        start = reduction.init(zeros) if callable(reduction.init) else reduction.init
        start = jax.tree.map(jnp.asarray, start)
    for _ in range(2):
        start = _adopt(start, jax.eval_shape(reduction.update, start, value))
    after = jax.eval_shape(reduction.update, start, value)
    described = [_describe(start), _describe(after)]
    if described[0] != described[1]:
        raise ShapeError(
            f"the `update` of the `lox.Reduction` of {where} turns a state of "
            f"{described[0]} into one of {described[1]}. It must keep the structure, "
            "shapes and dtypes of `init`."
        )
    return start


def _plain_zeros(kind: Any) -> Any:
    return array_types.zeros_of_aval(array_types.plain_type(kind))


def _describe(state: Any) -> str:
    return str(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", state))


def _adopt(start: Any, after: Any) -> Any:
    if jax.tree.structure(start) != jax.tree.structure(after):
        return start

    def leaf(x: Any, new: Any) -> Any:
        weak = jax.typeof(x).weak_type and x.shape == new.shape
        dtype = jnp.promote_types(x.dtype, new.dtype) if weak else x.dtype
        with jax.ensure_compile_time_eval():
            return jax.lax.convert_element_type(x, dtype)

    return jax.tree.map(leaf, start, after)


def _own_type(kind: Any, lanes: int) -> Any:
    for _ in range(lanes):
        kind = array_types.row_type(kind)
    return kind


def fold_stacked(reduction: Reduction, rows: StackedRows) -> tuple[Leaves, Any]:
    """Reduces stacked rows, one after the other."""
    time_first = [
        jnp.moveaxis(jnp.asarray(leaf), axis, 0)
        for leaf, axis in zip(rows.leaves, rows.axes, strict=True)
    ]
    mask = rows.mask
    if mask is not None:
        mask = jnp.moveaxis(mask, rows.axes[0], 0)
    types = [array_types.row_type(jax.typeof(leaf)) for leaf in time_first]
    lanes = rows.axes[0] + rows.lanes
    one = accumulator(reduction, ValueType(rows.tree, types, lanes, repr(rows.key)))

    def body(carried: Any, row: Any) -> tuple[Any, None]:
        leaves, happened = row
        state, held = one.update(carried, leaves, None)
        if happened is not None:

            def choose(new: Any, old: Any) -> Any:
                shape = happened.shape + (1,) * (new.ndim - happened.ndim)
                return jnp.where(happened.reshape(shape), new, old)

            state = jax.tree.map(choose, state, carried[0])
        return (state, held), None

    carried, _ = jax.lax.scan(body, one.init(), (time_first, mask))
    reduced = one.finish(carried, None)
    if not any(map(is_jax_array, rows.leaves)):
        reduced = tuple(map(np.asarray, reduced))
    return reduced, one.tree
