"""A stream: interval, reduction and buffer for one group of keys.

It applies the stages to events with lanes and devices.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lox._interpreter.joining import cast_to_types
from lox._interpreter.rows import Rows
from lox._jax import array_types, vma
from lox._jax.array_types import as_array
from lox._reduce.protocol import ValueType

from .stages import (
    Buffer,
    Interval,
    Reduce,
    Row,
    Stages,
    State,
    both,
    remainder,
    same_type,
    varying_axes,
)

# In a loop with a callback, XLA runs operations one by one, so updating an accumulator
# takes longer than writing a row. Windows of up to this size are buffered, and reduced
# when they are complete.
_MAX_UNFOLDED_BYTES = 1 << 20


class Plan(NamedTuple):
    """The stages that the events of a key pass through.

    Attributes:
        interval: the interval; 1 for every event.
        step: which event's step a reduced row has, that of the "first" or the "last";
            None without a reduction.
        window: the number of events per reduced row; None for all.
        size: the size of the buffer; None without one.
    """

    interval: int
    step: str | None
    window: int | None
    size: int | None


class Stream:
    """Interval, reduction and buffer for one group of keys.

    Args:
        rows: the types of the rows per key.
        plan: the stages.
        emits: whether rows are emitted as soon as they are complete, which empties the
            buffer. If not, rows beyond the end of the buffer are dropped.

    Attributes:
        rows: the types of one row per key.
        first: the types of the first key.
        per_lane: whether every lane has its own state, because lanes may have different
            numbers of events.
        emits_late: whether rows are complete only at the end of the program.
        changes_rows: whether rows are dropped or reduced.
        holds: whether the state holds values, not only counts.
        buffers: whether multiple rows are emitted at a time.
        has_windows: whether a row is the reduction of a window.
    """

    def __init__(self, rows: Mapping[str, Rows], plan: Plan, emits: bool) -> None:
        self.rows = {key: _one_row(one) for key, one in rows.items()}
        self.first = next(iter(self.rows.values()))
        whole = next(iter(rows.values()))
        known = whole.mask is None and not whole.unbounded
        self._events = whole.length if known else None
        self.per_lane = bool(whole.lanes) and (not known or whole.devices)
        self._varying = varying_axes(jax.tree.leaves(self.rows))
        self.changes_rows = plan.step is not None or plan.interval > 1
        self.holds = plan.step is not None or plan.size is not None
        self.buffers = plan.size is not None
        self.has_windows = plan.window is not None
        # the number of passed events after which rows are complete; 0 for the end
        self._period = (plan.window or 1) * (plan.size or 1)
        if not emits or (plan.step and not plan.window):
            self._period = 0
        self.emits_late = not self._period
        # the stages that are applied to buffered rows when they are emitted
        self._late = self._late_stages(plan) if emits else None
        if self._late is not None:
            plan = Plan(plan.interval, None, None, self._period)
        self._stages = self._stages_of(plan, emits, known)

    def _late_stages(self, plan: Plan) -> Stages | None:
        """The reductions of windows, if they can wait until a window is complete."""
        leaves = [leaf for one in self.rows.values() for leaf in one.leaves]
        size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        if not plan.window or self._period * size > _MAX_UNFOLDED_BYTES:
            return None
        # their input is a buffer, which may not be full
        late = self._stages_of(plan._replace(interval=1), emits=False, fits=False)
        reductions = late.reduce.accumulators.values()
        return late if all(one.starts_anywhere for one in reductions) else None

    def _stages_of(self, plan: Plan, emits: bool, fits: bool) -> Stages:
        row_types = Row(
            {key: tuple(map(self._type, x.leaves)) for key, x in self.rows.items()},
            {name: self._type(step) for name, step in self.first.steps.items()},
        )
        reduce = Reduce({}, {}, None, False, False)
        if plan.step is not None:
            reduce = Reduce(
                {
                    key: one.reduction.in_loop(
                        ValueType(
                            one.tree,
                            row_types.values[key],
                            0 if self.per_lane else one.lanes,
                            f"{key!r}, logged at {one.source},",
                        )
                    )
                    for key, one in self.rows.items()
                    if one.reduction is not None
                },
                row_types.steps,
                plan.window,
                keeps_first=plan.step == "first",
                finishes=plan.size is not None,
            )
        accumulators = reduce.accumulators.values()
        if accumulators and plan.size is not None:
            values = jax.eval_shape(lambda: reduce.finish(reduce.initial(), 1).values)
            row_types = row_types._replace(values=values)
        counts = (
            not fits
            or plan.interval > 1
            or plan.size is not None
            or plan.window is not None
            or reduce.keeps_first
            or any(one.counts for one in accumulators)
        )
        buffer = Buffer(plan.size, row_types, empties_when_full=emits, fits=fits)
        return Stages(Interval(plan.interval, counts), reduce, buffer)

    def _type(self, kind: Any) -> Any:
        """The type of one lane, if every lane has its own state."""
        for _ in range(self.first.lanes if self.per_lane else 0):
            kind = array_types.row_type(kind)
        # inside a `shard_map`, arrays are not sharded
        return array_types.plain_type(kind) if self.first.devices else kind

    def tree_of(self, key: str) -> Any:
        """The structure of the emitted values."""
        accumulators = (self._late or self._stages).reduce.accumulators
        return (accumulators.get(key) or self.rows[key]).tree

    # --- events ----------------------------------------------------------------------

    def initial(self) -> State:
        like, lanes = self.first.leaves[0], self.first.lanes

        def spread(x: Any) -> Any:
            if self.per_lane:
                x = array_types.with_lanes(x, like, lanes)
            return vma.vary_like(x, self._varying)

        return jax.tree.map(spread, self._stages.initial())

    def update(self, state: State, record: Mapping[str, Rows]) -> tuple[State, Any]:
        """Updates the state with an event.

        Returns:
            The new state, and whether the rows in it are complete; per lane, if every
            lane has its own state.
        """
        rows = {
            key: cast_to_types(key, record[key], self.rows[key]) for key in self.rows
        }
        first = next(iter(rows.values()))
        values = {key: self._sharded(key, one.leaves) for key, one in rows.items()}
        event = Row(values, dict(first.steps)), first.mask
        held = jax.tree.leaves(state)
        if varying := varying_axes(map(jax.typeof, held)):
            event = jax.tree.map(lambda x: vma.vary_like(as_array(x), varying), event)
        if self.per_lane and held:
            like = jax.typeof(held[0])
            event = jax.tree.map(
                lambda x: array_types.with_lanes_of(x, like, first.lanes), event
            )

        def update(state: State, row: Row, happens: Any) -> tuple[State, Any]:
            new, number, passes = self._stages.update(state, row, happens)
            if self.emits_late:
                return new, jnp.asarray(False)
            due: Any = True
            if number is not None:
                due = remainder(number + 1, self._period) == 0
            return new, jnp.asarray(both(passes, due))

        new, due = self._mapped(update, first.lanes)(state, *event)
        return jax.tree.map(same_type, new, state), due

    def _sharded(self, key: str, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        """Reshards the values of an event like the rows of its key."""
        if self.first.devices:  # inside a `shard_map`, arrays are not sharded
            return leaves
        return tuple(map(array_types.sharded_like, leaves, self.rows[key].leaves))

    def _mapped(self, fun: Callable[..., Any], lanes: int) -> Callable[..., Any]:
        for _ in range(lanes if self.per_lane else 0):
            fun = jax.vmap(fun)
        return fun

    # --- rows ------------------------------------------------------------------------

    def _passed(self, state: State) -> Any:
        """The number of events that passed the interval."""
        count = self._events if state.count is None else state.count
        return self._stages.interval.passed(count)

    def _incomplete(self, state: State) -> Any:
        """The number of events in rows that are not complete."""
        passed = self._passed(state)
        return remainder(passed, self._period) if self._period else passed

    def all_rows(self, state: State) -> tuple[dict[str, Rows], Any]:
        """All rows, and how many there were in total, if any may be dropped."""

        def finish(state: State) -> Any:
            passed = self._passed(state)
            row, filled = self._stages.rows(state, passed)
            if self._events is not None:
                return row, None, None
            if filled is None:
                return row, passed > 0, None
            size = self._stages.buffer.size
            return row, jnp.arange(size) < filled, filled

        lanes = self.first.lanes
        row, mask, total = self._mapped(finish, lanes)(state)
        if self.per_lane and self.buffers:
            row, mask = jax.tree.map(lambda x: jnp.moveaxis(x, lanes, 0), (row, mask))
        rows = {
            key: dataclasses.replace(
                one,
                leaves=tuple(row.values[key]),
                # a pytree sorts the names, but the first step is the x-axis of plots
                steps=collections.OrderedDict(
                    (name, row.steps[name]) for name in self.first.steps
                ),
                mask=mask,
                tree=self.tree_of(key),
                stacked=self.buffers,
            )
            for key, one in self.rows.items()
        }
        return rows, total

    def has_incomplete(self, state: State, lanes: int) -> Any:
        """Whether there are incomplete rows; per lane, as in `update`."""
        return self._mapped(lambda x: jnp.asarray(self._incomplete(x) > 0), lanes)(
            state
        )

    def batch(self, state: State, lanes: int, final: bool) -> tuple[Row, Any]:
        """The complete rows; at the end of the program, the incomplete ones.

        Args:
            state: the state.
            lanes: the number of lane axes here; inside a `shard_map`, without that of
                the devices.
            final: whether this is the end of the program.

        Returns:
            The rows, with leading lane axes, and how many of them are filled; without
            a buffer, one row and None.
        """

        def finish(state: State) -> tuple[Row, Any]:
            stages, number = self._stages, self._period
            if final:
                number = self._incomplete(state)
            if self._late is not None:
                stages, state = self._late, self._late.update_all(state.kept, number)
                number = state.count
            row, filled = stages.rows(state, number)
            return row, None if filled is None else jnp.asarray(filled, jnp.int32)

        row, filled = self._mapped(finish, lanes)(state)
        if filled is None or self.per_lane:
            return row, filled
        row = jax.tree.map(lambda x: jnp.moveaxis(x, 0, self.first.lanes), row)
        return row, jnp.broadcast_to(filled, self.first.lane_sizes())


def _one_row(rows: Rows) -> Rows:
    """The types of one row, from those of stacked rows."""
    if not rows.stacked:
        return rows
    return dataclasses.replace(rows.arrays(array_types.row_type), stacked=False)
