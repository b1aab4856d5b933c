"""What a `lox.Reduction` carries, and what it does to rows that are stacked already."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import LoxValueError, ShapeError
from lox._jax import array_types

from .reductions import Reduction


class UserAccumulator:
    """A `lox.Reduction`, which sees the values of one lane.

    What its functions close over may belong to a trace around this one, and can reach
    the inside of a loop only as a carry: so it goes beside the state.
    """

    counts = False

    def __init__(
        self,
        reduction: Reduction,
        tree: Any,
        types: Sequence[Any],
        lanes: int,
        where: str,
    ) -> None:
        self._lanes = lanes
        self._lane_sizes = types[0].shape[:lanes]
        self._value_tree = tree
        value = tree.unflatten(
            [array_types.strong_zeros(_own_type(kind, lanes)) for kind in types]
        )
        try:
            start = _agreed_start(reduction, value, where)
            self._update = jax.make_jaxpr(reduction.update)(start, value)
            self._finish, result = jax.make_jaxpr(reduction.finish, return_shape=True)(
                start
            )
        except Exception as error:
            error.add_note(f"This was in the `lox.Reduction` of {where} of `lox.log`.")
            raise
        leaves, self._tree = jax.tree.flatten(start)
        self._start = [
            array_types.sharded_like(x, kind)
            for x, kind in zip(leaves, self._update.out_avals, strict=True)
        ]
        self._held = [*self._start, *self._update.consts, *self._finish.consts]
        self._traced = [isinstance(x, jax.core.Tracer) for x in self._held]
        self.starts_anywhere = not any(self._traced)
        self.tree = jax.tree.structure(result)
        if not self.tree.num_leaves:
            raise LoxValueError(
                f"the `finish` of the `lox.Reduction` of {where} gave {result!r}, "
                "which holds no array."
            )

    def init(self) -> Any:
        held = [x for x, traced in zip(self._held, self._traced, strict=True) if traced]
        return self._spread(self._start), held

    def restart(self, carried: Any) -> Any:
        start, _, _ = self._opened(carried[1])
        return self._spread(start), carried[1]

    def _spread(self, start: Sequence[Any]) -> list[Any]:
        return [jnp.broadcast_to(x, (*self._lane_sizes, *jnp.shape(x))) for x in start]

    def _opened(self, held: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The start, and what the functions close over."""
        rest = iter(held)
        pairs = zip(self._held, self._traced, strict=True)
        full = [next(rest) if traced else x for x, traced in pairs]
        middle = len(self._start)
        end = middle + len(self._update.consts)
        return full[:middle], full[middle:end], full[end:]

    def update(self, carried: Any, leaves: Sequence[Any], number: Any) -> Any:
        state, held = carried
        _, consts, _ = self._opened(held)

        def update(state: list[Any], leaves: Sequence[Any]) -> list[Any]:
            return jax.core.eval_jaxpr(self._update.jaxpr, consts, *state, *leaves)

        return self._mapped(update)(state, list(leaves)), held

    def finish(self, carried: Any, number: Any) -> tuple[Any, ...]:
        state, held = carried
        _, _, consts = self._opened(held)

        def finish(state: list[Any]) -> list[Any]:
            return jax.core.eval_jaxpr(self._finish.jaxpr, consts, *state)

        return tuple(map(jnp.asarray, self._mapped(finish)(state)))

    def _mapped(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        for _ in range(self._lanes):
            fun = jax.vmap(fun)
        return fun


def _agreed_start(reduction: Reduction, value: Any, where: str) -> Any:
    """The initial state; a Python number in it takes the dtype that it gets."""
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
            f"{described[0]} into one of {described[1]}. What it returns must have "
            "the structure, shapes and dtypes of what `init` gave."
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


def fold_stacked(
    reduction: Reduction,
    tree: Any,
    leaves: Sequence[Any],
    lanes: int,
    mask: Any,
    key: str,
) -> tuple[tuple[Any, ...], Any]:
    """Reduces rows that are stacked already, along their first axis.

    Args:
        reduction: the reduction.
        tree: the structure of the value.
        leaves: its leaves, of shape `(time, *lanes, *own)`.
        lanes: how many lane axes there are.
        mask: which rows happened, of shape `(time, *lanes)`; None for all.
        key: whose rows these are.

    Returns:
        The leaves of the reduced value, and its structure.
    """
    rows = [jnp.asarray(leaf) for leaf in leaves]
    types = [array_types.row_type(jax.typeof(leaf)) for leaf in rows]
    one = UserAccumulator(reduction, tree, types, lanes, repr(key))

    def body(carried: Any, row: Any) -> tuple[Any, None]:
        leaves, happened = row
        state, held = one.update(carried, leaves, None)
        if happened is not None:

            def choose(new: Any, old: Any) -> Any:
                shape = happened.shape + (1,) * (new.ndim - happened.ndim)
                return jnp.where(happened.reshape(shape), new, old)

            state = jax.tree.map(choose, state, carried[0])
        return (state, held), None

    carried, _ = jax.lax.scan(body, one.init(), (rows, mask))
    return one.finish(carried, None), one.tree
