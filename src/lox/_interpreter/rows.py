"""`Rows`: the rows of one key, as a part of a program returns them.

The time axis is added only where rows are joined: a key that the body of a `scan` logs
once is an ordinary stacked output of it, so the compiled program is the same as one
written by hand.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._events.event import Event, Operands
from lox._jax.array_types import as_array
from lox._jax.numbers import Literal, Literals
from lox._logs.key import FirstRows, Key, KeyInfo
from lox._logs.logdict import from_keys, logdict
from lox._reduce.protocol import AnyReduction
from lox._reduce.reductions import Checked
from lox._source import Source


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one key.

    Attributes:
        leaves: the leaves of the value, each of shape `(*time, *lanes, *value)`.
        steps: the step numbers by name, each of shape `(*time, *lanes)`.
        mask: which rows were logged, of shape `(*time, *lanes)`; None if all were.
        tree: the structure of the value.
        stacked: whether there is a time axis; without it, there is one row.
        lanes: the number of lane axes.
        weak: for each leaf, the Python numbers that it may be, which are cast to other
            dtypes where that is exact; empty if the leaf is strongly typed.
        weak_steps: the same for each step; NumPy numbers count as well.
        lines: the lines that logged the key, in program order.
        reduce: the reduction of the key, if any.
        unbounded: whether the number of rows is unknown; then the rows are only types.
        devices: whether some lanes are devices of a mesh.
        over: the mesh axes of the enclosing `shard_map`s along which all devices have
            the same rows (see `_events.over`).
        tags: the tags of all lines.
        sparse: whether some rows have a `when`, so that only a few may be logged.
        flattened: whether lanes of a `vmap` were joined along time.
    """

    leaves: tuple[Any, ...]
    steps: collections.OrderedDict[str, Any]
    mask: Any
    tree: Any = dataclasses.field(metadata={"static": True})
    stacked: bool = dataclasses.field(metadata={"static": True})
    lanes: int = dataclasses.field(metadata={"static": True})
    weak: tuple[Literals, ...] = dataclasses.field(metadata={"static": True})
    weak_steps: tuple[Literals, ...] = dataclasses.field(metadata={"static": True})
    lines: tuple[Source, ...] = dataclasses.field(metadata={"static": True})
    reduce: AnyReduction | None = dataclasses.field(
        metadata={"static": True}, default=None
    )
    unbounded: bool = dataclasses.field(metadata={"static": True}, default=False)
    devices: bool = dataclasses.field(metadata={"static": True}, default=False)
    tags: tuple[str, ...] = dataclasses.field(metadata={"static": True}, default=())
    sparse: bool = dataclasses.field(metadata={"static": True}, default=False)
    flattened: bool = dataclasses.field(metadata={"static": True}, default=False)
    over: tuple[str, ...] = dataclasses.field(metadata={"static": True}, default=())

    @property
    def source(self) -> Source:
        """The first line that logged the key."""
        return self.lines[0]

    @property
    def reduction(self) -> AnyReduction | None:
        """The reduction to one row; None if all rows are kept."""
        return None if self.reduce is None or self.reduce.keeps_rows else self.reduce

    def arrays(self, change: Callable[[Any], Any]) -> "Rows":
        """Applies a function to all leaves, steps and the mask."""
        changed: Rows = jax.tree.map(change, self)
        return changed

    def with_time(self) -> "Rows":
        if self.stacked:
            return self
        rows = self.arrays(lambda x: jax.lax.expand_dims(x, (0,)))
        return dataclasses.replace(rows, stacked=True)

    def merge_time(self) -> "Rows":
        """Merges the axis of a loop's iterations, the first one, with the time axis."""
        if not self.stacked:  # the axis of the iterations becomes the time axis
            return dataclasses.replace(self, stacked=True)
        return self.arrays(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))

    def with_mask(self) -> "Rows":
        if self.mask is not None:
            return self
        return dataclasses.replace(self, mask=jnp.ones(self.row_axes, bool))

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The sizes of the time axis, if there is one, and of the lane axes."""
        return jnp.shape(self.leaves[0])[: self.stacked + self.lanes]

    @property
    def length(self) -> int:
        return self.row_axes[0] if self.stacked else 1

    def own_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the leaves without time and lanes."""
        front = self.stacked + self.lanes
        return tuple(jnp.shape(leaf)[front:] for leaf in self.leaves)

    def lane_sizes(self) -> tuple[int, ...]:
        return self.row_axes[int(self.stacked) :]


# The rows of several keys. JAX sorts the keys of a plain dict; an `OrderedDict` keeps
# the order in which they were logged.
Record = collections.OrderedDict[str, Rows]


# Returns the reduction of a key, given the key and the reduction of its `lox.log`.
Reductions = Callable[[str, Checked], AnyReduction | None]


def rows_of(event: Event, operands: Sequence[Any], reductions: Reductions) -> Record:
    """The rows of a single event; its elements become the time axis."""
    arrays = [jnp.asarray(x) for x in operands]
    if event.layout.elements:
        count = len(arrays) - event.layout.anchors
        arrays[:count] = (
            jnp.moveaxis(x, event.layout.lanes, 0) for x in arrays[:count]
        )
    parts = event.split(arrays)
    steps = collections.OrderedDict(zip(event.call.steps, parts.steps, strict=True))
    numbers, step_numbers = event.call.split_numbers()
    pairs = zip(parts.steps, step_numbers, strict=True)
    weak_steps = tuple(
        _literals(x, number, event.call.source)
        if number is None
        else (Literal.of(number, event.call.source),)
        for x, number in pairs
    )
    return Record(
        (
            key,
            Rows(
                leaves=tuple(leaves),
                steps=steps,
                mask=parts.mask,
                tree=tree,
                stacked=event.layout.elements,
                lanes=event.layout.lanes,
                weak=tuple(
                    _literals(leaf, number, event.call.source)
                    for leaf, number in zip(leaves, known, strict=True)
                ),
                weak_steps=weak_steps,
                lines=(event.call.source,),
                reduce=reductions(key, event.call.reduce),
                tags=event.call.tags,
                sparse=event.call.conditional,
                over=event.call.over,
            ),
        )
        for key, tree, leaves, known in zip(
            event.call.keys, event.call.trees, parts.values, numbers, strict=True
        )
    )


def _literals(x: Any, number: Any, source: Source) -> Literals:
    weak = jax.typeof(x).weak_type
    return (Literal.of(number, source),) if weak else ()


def event_of(record: Record, like: Event) -> tuple[Event, list[Any]]:
    """Converts rows of an event back to an event; a time axis becomes its elements."""
    first = next(iter(record.values()))
    trees = tuple(rows.tree for rows in record.values())
    event = like.with_call(keys=tuple(record), trees=trees, numbers=())
    masked = first.mask is not None
    event = event.with_layout(
        lanes=first.lanes, elements=first.stacked, masked=masked, anchors=0
    )
    values = [list(rows.leaves) for rows in record.values()]
    operands = Operands(values, list(first.steps.values()), first.mask, None, [])
    flat = operands.flat()
    if first.stacked:
        flat = [jnp.moveaxis(x, 0, first.lanes) for x in flat]
    return event, flat


def map_rows(record: Record, change: Callable[[Rows], Rows]) -> Record:
    return Record((key, change(rows)) for key, rows in record.items())


def masked(record: Record, mask: Any) -> Record:
    return map_rows(record, lambda rows: dataclasses.replace(rows, mask=mask))


def to_logdict(
    record: Mapping[str, Rows], prefix: str, totals: Mapping[str, Any]
) -> logdict:
    """Converts rows to the logdict that the user gets.

    Args:
        record: the rows of each key.
        prefix: a prefix for every key.
        totals: for keys of which only the first rows were kept, the total number of
            rows.
    """
    # keys with the same total share it, so that the program returns it once
    counts: dict[tuple[int, int], FirstRows] = {}

    def key_of(name: str, rows: Rows) -> Key:
        rows = rows.arrays(as_array)
        mask = rows.mask
        if name in totals:
            total, capacity = totals[name], rows.length
            mask = counts.setdefault((id(total), capacity), FirstRows(total, capacity))
        ndims = tuple(map(len, rows.own_shapes()))
        info = KeyInfo(rows.stacked, rows.lanes, ndims, rows.tags)
        return Key(rows.tree.unflatten(rows.leaves), rows.steps, mask, info)

    return from_keys(
        (f"{prefix}{name}", key_of(name, rows)) for name, rows in record.items()
    )
