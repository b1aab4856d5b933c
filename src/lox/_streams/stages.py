"""Interval, reduction and buffer: the stages that events pass through, in this order.

The interval drops events, the reductions fold the others into one row per window, and
the buffer keeps the rows. Each stage has its own state, which loops carry. Stages do
not handle lanes: they work on one lane, or on lanes with the same counts.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lox._jax import array_types, vma
from lox._reduce.protocol import Accumulator


class Row(NamedTuple):
    """The values of some keys and their steps by name, for one row or for many."""

    values: Mapping[str, Any]
    steps: Mapping[str, Any]


class State(NamedTuple):
    """What loops carry: one state per stage."""

    count: Any
    folded: Row
    kept: Row


class Interval(NamedTuple):
    """Passes every k-th event, starting with the first; the state counts the events.

    Attributes:
        every: the interval k.
        counts: whether events are counted; if not, the state is None.
    """

    every: int
    counts: bool

    def initial(self) -> Any:
        return jnp.int32(0) if self.counts else None

    def update(self, count: Any, happens: Any) -> tuple[Any, Any, Any]:
        """The new state; how many events passed before this one; whether it passes."""
        if count is None:
            return None, None, happens
        new = count + (1 if happens is None else happens.astype(jnp.int32))
        if self.every > 1:
            happens = both(happens, remainder(count, self.every) == 0)
        return new, _quotient(count, self.every), happens

    def passed(self, count: Any) -> Any:
        """How many of `count` events have passed."""
        return _quotient(count + (self.every - 1), self.every)


class Reduce(NamedTuple):
    """Folds events into one row per window; the state is the current row.

    Attributes:
        accumulators: the reductions by key; without any, events pass unchanged.
        step_types: the types of the steps by name.
        window: the number of events per row; None for all.
        keeps_first: whether a row has the step of its first event; otherwise, that of
            its last.
        finishes: whether `update` returns finished rows.
    """

    accumulators: Mapping[str, Accumulator]
    step_types: Mapping[str, Any]
    window: int | None
    keeps_first: bool
    finishes: bool

    def initial(self) -> Row:
        values = {key: one.init() for key, one in self.accumulators.items()}
        steps = {
            k: array_types.strong_zeros(kind) for k, kind in self.step_types.items()
        }
        return Row(values, steps)

    def update(
        self, state: Row, event: Row, number: Any, happens: Any
    ) -> tuple[Row, Row, Any]:
        """The new state, the current row, and how many rows came before it."""
        if not self.accumulators:
            return state, event, number
        before, steps, started = state.values, event.steps, number
        if self.window is not None:
            started = remainder(number, self.window)
            fresh = {k: one.restart(before[k]) for k, one in self.accumulators.items()}
            before = _choose(started == 0, fresh, before)
        after = {
            key: one.update(before[key], event.values[key], started)
            for key, one in self.accumulators.items()
        }
        if self.keeps_first:
            steps = _choose(started == 0, steps, state.steps)
        new = Row(after, steps)
        row = self.finish(new, started + 1) if self.finishes else new
        return _choose(happens, new, state), row, _quotient(number, self.window or 1)

    def finish(self, state: Row, number: Any) -> Row:
        """The row of `number` events."""
        return state._replace(
            values={
                key: one.finish(state.values[key], number)
                for key, one in self.accumulators.items()
            }
        )

    def rows_of(self, number: Any) -> Any:
        """How many rows `number` events result in, including an incomplete last row."""
        window = self.window or 1
        return _quotient(number + (window - 1), window)


class Buffer(NamedTuple):
    """Keeps rows, which are its state.

    Attributes:
        size: the maximum number of rows; None for a buffer that keeps none.
        row_types: the types of a row.
        empties_when_full: whether it is emptied when it is full. If not, rows beyond
            its end are dropped.
        fits: whether it is known that no rows are dropped.
    """

    size: int | None
    row_types: Row
    empties_when_full: bool
    fits: bool

    def initial(self) -> Row:
        if self.size is None:
            return Row({}, {})
        return jax.tree.map(
            lambda kind: array_types.zeros_of_aval(
                array_types.rows_type(kind, self.size)
            ),
            self.row_types,
        )

    def update(self, kept: Row, row: Row, index: Any, happens: Any) -> Row:
        if self.size is None:
            return kept
        if self.empties_when_full:
            index = remainder(index, self.size)
        elif not self.fits:
            happens = both(happens, index < self.size)
        return jax.tree.map(lambda rows, x: _write(rows, x, index, happens), kept, row)


class Stages(NamedTuple):
    """All stages, in order."""

    interval: Interval
    reduce: Reduce
    buffer: Buffer

    def initial(self) -> State:
        return State(*(stage.initial() for stage in self))

    def update(self, state: State, event: Row, happens: Any) -> tuple[State, Any, Any]:
        """Updates the state with an event.

        Args:
            state: the state.
            event: its values and steps.
            happens: whether the event is logged; None if it always is.

        Returns:
            The new state; how many events passed the interval before this one, if
            events are counted; whether this one passes.
        """
        count, number, happens = self.interval.update(state.count, happens)
        folded, row, index = self.reduce.update(state.folded, event, number, happens)
        kept = self.buffer.update(state.kept, row, index, happens)
        return State(count, folded, kept), number, happens

    def update_all(self, rows: Row, number: Any) -> State:
        """The state after the first `number` rows of another buffer."""

        def body(state: State, row: Any) -> tuple[State, None]:
            event, i = row
            new, _, _ = self.update(state, event, i < number)
            return jax.tree.map(same_type, new, state), None

        varying = varying_axes(map(jax.typeof, jax.tree.leaves(rows)))
        start = jax.tree.map(lambda x: vma.vary_like(x, varying), self.initial())
        length = jax.tree.leaves(rows.values)[0].shape[0]
        return jax.lax.scan(body, start, (rows, jnp.arange(length)))[0]

    def rows(self, state: State, number: Any) -> tuple[Row, Any]:
        """The rows of `number` events, and how many of them are filled.

        Without a buffer, it is one row without a time axis, and None.
        """
        if self.buffer.size is None:
            return self.reduce.finish(state.folded, number), None
        return state.kept, self.reduce.rows_of(number)


# --- arithmetic --------------------------------------------------------------


def same_type(new: Any, old: Any) -> Any:
    """Casts `new` to the type of `old`, as the carry of a loop requires."""
    aval = jax.typeof(old)
    if new.dtype != aval.dtype or jax.typeof(new).weak_type:
        new = jax.lax.convert_element_type(new, aval.dtype)
    return vma.vary_like(new, vma.varying_axes(aval))


def varying_axes(types: Iterable[Any]) -> frozenset[Any]:
    """The manual mesh axes over which arrays of these types vary."""
    return frozenset[Any]().union(*map(vma.varying_axes, types))


def both(first: Any, second: Any) -> Any:
    return second if first is None else first & second


def remainder(number: Any, divisor: int) -> Any:
    if isinstance(number, int):
        return number % divisor
    return jax.lax.rem(number, jnp.int32(divisor))


def _quotient(number: Any, divisor: int) -> Any:
    if divisor == 1:
        return number
    if isinstance(number, int):
        return number // divisor
    return jax.lax.div(number, jnp.int32(divisor))


def _choose(condition: Any, new: Any, old: Any) -> Any:
    if condition is None:
        return new
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def _write(rows: Any, x: Any, index: Any, condition: Any) -> Any:
    """Writes a row in place, without copying the others."""
    x = jax.lax.expand_dims(x, (0,))
    if condition is not None:
        # reads only this row, so that XLA reads and writes in one operation
        here = jax.lax.dynamic_slice_in_dim(rows, index, 1)
        x = jnp.where(condition, x, here)
    return jax.lax.dynamic_update_slice_in_dim(rows, x, index, 0)
