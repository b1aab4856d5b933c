"""A stream: what is carried through a program for keys whose rows are not all kept.

An event passes, in this order, the interval (which drops it, or not), the reductions
(which fold it into what the window has so far), and the buffer (which keeps the rows
that come out).
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lox._interpreter.rows import Rows, as_types
from lox._jax import array_types
from lox._reduce.accumulators import Accumulator, accumulator
from lox._source import Source

State = dict[str, Any]


class Batch(NamedTuple):
    """What has come out of a stream: rows, and how many of them count."""

    values: dict[str, tuple[Any, ...]]
    steps: dict[str, Any]
    filled: Any


class Stream:
    """The way of the events of some keys.

    Attributes:
        rows: the types of one row of each key.
        reductions: the reduction of each key; empty if they are not reduced.
        interval: every how many events one is taken.
        window: how many of these go into one row; None for all.
        size: how many rows the buffer has; None without one.
        emits: whether rows leave as soon as they are complete, and the buffer is then
            empty again. If not, rows beyond its end are dropped.
        events: the number of events, if that is known.
        then: what folds the rows of this one when they are complete.
    """

    def __init__(
        self,
        rows: Mapping[str, Rows],
        reductions: Mapping[str, Any],
        interval: int,
        window: int | None,
        size: int | None,
        emits: bool,
        then: "Stream | None" = None,
    ) -> None:
        first = next(iter(rows.values()))
        known = first.mask is None and not first.unbounded
        self.events = first.length if known else None
        self.interval = interval
        self.window = window
        self.size = size
        self._emits = emits
        self._then = then
        self.lanes = first.lanes
        self.devices = first.devices
        # Lanes that may have different numbers of events have all of this apart.
        self.apart = bool(first.lanes) and (not known or first.devices)
        self.rows = {key: _one_row(one) for key, one in rows.items()}
        self._varying = frozenset[Any]().union(
            *(
                array_types.varying_axes(leaf)
                for one in self.rows.values()
                for leaf in jax.tree.leaves(one)
            )
        )

        def lane_type(kind: Any) -> Any:
            for _ in range(self.lanes if self.apart else 0):
                kind = array_types.row_type(kind)
            # on a device of a mesh, nothing is split any more
            return array_types.plain_type(kind) if first.devices else kind

        self._types = {
            key: [lane_type(leaf) for leaf in one.leaves]
            for key, one in self.rows.items()
        }
        self.steps = tuple(first.steps)
        self._step_types = {
            name: lane_type(step)
            for name, step in self.rows[next(iter(rows))].steps.items()
        }
        self._accumulators: dict[str, Accumulator] = {
            key: accumulator(
                reduction,
                rows[key].tree,
                self._types[key],
                0 if self.apart else self.lanes,
                f"{key!r}, logged at {rows[key].source},",
            )
            for key, reduction in reductions.items()
        }
        self._keeps_first = "first" in reductions.values()
        # after how many taken events the rows so far are complete
        self._period = (window or 1) * (size or 1)
        if not emits or (reductions and not window):
            self._period = 0  # not before the end
        self._numbered = (
            self.events is None
            or interval > 1
            or size is not None
            or bool(window)
            or self._keeps_first
            or any(one.counts for one in self._accumulators.values())
        )

    # --- the state -------------------------------------------------------------------

    def initial(self) -> State:
        like = next(iter(self.rows.values())).leaves[0]

        def spread(x: Any) -> Any:
            if self.apart:
                x = array_types.with_lanes(x, like, self.lanes)
            return array_types.vary_like(x, self._varying)

        return jax.tree.map(spread, self._start())

    def _start(self) -> State:
        """The same for a single lane, if lanes are apart."""
        state: State = {}
        if self._numbered:
            state["number"] = jnp.int32(0)
        if self._accumulators:
            state["values"] = {
                key: one.init() for key, one in self._accumulators.items()
            }
            state["steps"] = {
                name: array_types.strong_zeros(kind)
                for name, kind in self._step_types.items()
            }
        if self.size is not None:
            state["rows"] = {
                key: tuple(_buffer(kind, self.size) for kind in self._row_types(key))
                for key in self.rows
            }
            state["row_steps"] = {
                name: _buffer(kind, self.size)
                for name, kind in self._step_types.items()
            }
        return state

    def _row_types(self, key: str) -> Sequence[Any]:
        if key not in self._accumulators:
            return self._types[key]
        one = self._accumulators[key]
        return jax.eval_shape(lambda: one.finish(one.init(), 1))

    # --- an event --------------------------------------------------------------------

    def fold(self, state: State, record: Mapping[str, Rows]) -> tuple[State, Any]:
        """Takes an event.

        Returns:
            The new state, and whether the rows in it are complete; with lanes apart, by
            lane.
        """
        rows = {key: as_types(key, record[key], self.rows[key]) for key in self.rows}
        first = next(iter(rows.values()))
        values = {key: one.leaves for key, one in rows.items()}
        event = values, dict(first.steps), first.mask
        held = jax.tree.leaves(state)
        if self.apart and held:
            like = jax.typeof(held[0])
            event = jax.tree.map(
                lambda x: array_types.with_lanes_of(x, like, first.lanes), event
            )
        fold = self._mapped(self._fold, first.lanes)
        new, due = fold(state, *event)
        return jax.tree.map(_like, new, state), due

    def _mapped(self, fun: Callable[..., Any], lanes: int) -> Callable[..., Any]:
        for _ in range(lanes if self.apart else 0):
            fun = jax.vmap(fun)
        return fun

    def _fold(
        self, state: State, values: dict[str, Any], steps: dict[str, Any], active: Any
    ) -> tuple[State, Any]:
        new: State = {}
        number = state.get("number")
        taken = active
        place: Any = number
        if number is not None:
            one = 1 if active is None else active.astype(jnp.int32)
            new["number"] = number + one
        if self.interval > 1:
            taken = _both(taken, _rest(number, self.interval) == 0)
            place = _part(number, self.interval)
        if self._accumulators:
            before = state["values"]
            started = place
            if self.window is not None:
                started = _rest(place, self.window)
                fresh = {
                    key: one.restart(before[key])
                    for key, one in self._accumulators.items()
                }
                before = _choose(started == 0, fresh, before)
            after = {
                key: one.update(before[key], values[key], started)
                for key, one in self._accumulators.items()
            }
            if self.size is not None:
                values = {
                    key: one.finish(after[key], started + 1)
                    for key, one in self._accumulators.items()
                }
            if self._keeps_first:
                steps = _choose(started == 0, steps, state["steps"])
            new["values"] = _choose(taken, after, state["values"])
            new["steps"] = _choose(taken, steps, state["steps"])
        if self.size is not None:
            index = _part(place, self.window or 1)
            kept = taken
            if self._emits:
                index = _rest(index, self.size)
            elif self.events is None:
                kept = _both(taken, index < self.size)

            def write(buffer: Any, x: Any) -> Any:
                return _write(buffer, x, index, kept)

            new["rows"] = jax.tree.map(write, state["rows"], values)
            new["row_steps"] = jax.tree.map(write, state["row_steps"], steps)
        due: Any = False
        if self._period:
            due = True if place is None else _rest(place + 1, self._period) == 0
            due = _both(taken, due)
        return new, jnp.asarray(due)

    # --- what comes out --------------------------------------------------------------

    def _taken(self, state: State) -> Any:
        number: Any = state.get("number", self.events)
        return _part(number + (self.interval - 1), self.interval)

    def rows_of(self, state: State) -> tuple[dict[str, Rows], Any]:
        """All rows; and how many there was no room for, if that may be."""

        def finish(state: State) -> Any:
            taken = self._taken(state)
            if self.size is None:
                mask = None if self.events is not None else taken > 0
                values = self._finished(state, taken)
                return values, state["steps"], mask, None
            number = _part(taken + ((self.window or 1) - 1), self.window or 1)
            mask = dropped = None
            if self.events is None:
                mask = jnp.arange(self.size) < number
                dropped = jnp.maximum(number - self.size, 0)
            return state["rows"], state["row_steps"], mask, dropped

        values, steps, mask, dropped = self._mapped(finish, self.lanes)(state)
        if self.apart and self.size is not None:
            values, steps, mask = jax.tree.map(
                lambda x: jnp.moveaxis(x, self.lanes, 0), (values, steps, mask)
            )
        rows = {
            key: dataclasses.replace(
                self.rows[key],
                leaves=tuple(values[key]),
                steps=collections.OrderedDict(steps),
                mask=mask,
                tree=self.tree_of(key),
                stacked=self.size is not None,
            )
            for key in self.rows
        }
        return rows, dropped

    def tree_of(self, key: str) -> Any:
        """The structure of the values that come out."""
        if self._then is not None:
            return self._then.tree_of(key)
        one = self._accumulators.get(key)
        return self.rows[key].tree if one is None else one.tree

    @property
    def changes_rows(self) -> bool:
        """Whether what comes out is not simply what goes in."""
        reduced = self._accumulators or self._then is not None
        return bool(reduced) or self.interval > 1

    @property
    def starts_anywhere(self) -> bool:
        """Whether its initial state belongs to no trace."""
        return all(one.starts_anywhere for one in self._accumulators.values())

    @property
    def emits_late(self) -> bool:
        """Whether nothing is complete before the end."""
        return not self._period

    @property
    def holds(self) -> bool:
        """Whether events are kept, and not only counted."""
        return bool(self._accumulators) or self.size is not None

    @property
    def buffers(self) -> bool:
        """Whether rows come out several at a time."""
        return (self._then or self).size is not None

    @property
    def has_windows(self) -> bool:
        """Whether a row is that of a window."""
        return (self._then or self).window is not None

    def left(self, state: State, lanes: int) -> Any:
        """Whether there are rows that are not complete; with lanes apart, by lane."""

        def left(state: State) -> Any:
            return jnp.asarray(self._rest(state) > 0)

        return self._mapped(left, lanes)(state)

    def _rest(self, state: State) -> Any:
        """The number of events in rows that are not complete."""
        number = self._taken(state)
        return _rest(number, self._period) if self._period else number

    def batch(self, state: State, lanes: int, final: bool) -> Batch:
        """The rows that are complete; at the end, those that are not.

        Args:
            state: the state.
            lanes: how many lane axes there are here; devices have none by themselves.
            final: whether this is the end.

        Returns:
            The rows, with their lanes in front.
        """

        def finish(state: State) -> Any:
            return self._emitted(state, self._rest(state) if final else self._period)

        batch = self._mapped(finish, lanes)(state)
        if batch.filled is None or self.apart:
            return batch

        def lanes_first(x: Any) -> Any:
            return jnp.moveaxis(x, 0, self.lanes)

        sizes = next(iter(self.rows.values())).lane_sizes()
        values, steps = jax.tree.map(lanes_first, batch[:2])
        return Batch(values, steps, jnp.broadcast_to(batch.filled, sizes))

    def _emitted(self, state: State, number: Any) -> Batch:
        """The rows of that many taken events."""
        if self._then is not None:
            return self._then._emitted(*self._then._folded(state, number))
        if self.size is None:
            return Batch(self._finished(state, number), state["steps"], None)
        window = self.window or 1
        filled = jnp.asarray(_part(number + (window - 1), window), jnp.int32)
        return Batch(state["rows"], state["row_steps"], filled)

    def _folded(self, rows: State, number: Any) -> tuple[State, Any]:
        """This stream's state after the first rows of a buffer, and their number."""

        def body(state: State, row: Any) -> tuple[State, None]:
            values, steps, i = row
            new, _ = self._fold(state, values, steps, i < number)
            return jax.tree.map(_like, new, state), None

        here = [array_types.varying_axes(jax.typeof(x)) for x in jax.tree.leaves(rows)]
        varying = frozenset[Any]().union(*here)
        start = jax.tree.map(lambda x: array_types.vary_like(x, varying), self._start())
        length = next(iter(jax.tree.leaves(rows["rows"]))).shape[0]
        scanned = rows["rows"], rows["row_steps"], jnp.arange(length)
        state, _ = jax.lax.scan(body, start, scanned)
        return state, state["number"]

    @property
    def source(self) -> Source:
        """The line that logs first."""
        return next(iter(self.rows.values())).source

    def _finished(self, state: State, number: Any) -> dict[str, Any]:
        return {
            key: one.finish(state["values"][key], number)
            for key, one in self._accumulators.items()
        }


# --- arithmetic --------------------------------------------------------------


def _one_row(rows: Rows) -> Rows:
    """The types of one row, of those of all."""
    if not rows.stacked:
        return rows
    return dataclasses.replace(rows.arrays(array_types.row_type), stacked=False)


def _buffer(kind: Any, size: int) -> Any:
    return array_types.zeros_of_aval(array_types.rows_type(kind, size))


def _like(new: Any, old: Any) -> Any:
    """`new` of the very type of `old`, which a loop's carry must keep."""
    aval = jax.typeof(old)
    if new.dtype != aval.dtype or jax.typeof(new).weak_type:
        new = jax.lax.convert_element_type(new, aval.dtype)
    return array_types.vary_like(new, array_types.varying_axes(aval))


def _both(first: Any, second: Any) -> Any:
    return second if first is None else first & second


def _rest(number: Any, divisor: int) -> Any:
    if isinstance(number, int):
        return number % divisor
    return jax.lax.rem(number, jnp.int32(divisor))


def _part(number: Any, divisor: int) -> Any:
    if divisor == 1:
        return number
    if isinstance(number, int):
        return number // divisor
    return jax.lax.div(number, jnp.int32(divisor))


def _choose(condition: Any, new: Any, old: Any) -> Any:
    if condition is None:
        return new
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def _write(buffer: Any, x: Any, index: Any, condition: Any) -> Any:
    """Writes a row, without a copy of the others."""
    if condition is not None:
        here = jax.lax.dynamic_index_in_dim(buffer, index, keepdims=False)
        x = jnp.where(condition, x, here)
    return jax.lax.dynamic_update_index_in_dim(buffer, x, index, 0)
