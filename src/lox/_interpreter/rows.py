"""The rows that a program's events become while they travel out of it.

Every part of a program gives its rows back as a `Rows` a key. The time axis is added
only where rows are joined: a key that a scan's body logs once leaves it as an ordinary
stacked output, so that the compiled program is the hand-written one.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._events.event import Event, Operands
from lox._jax import array_types
from lox._jax.numbers import Literal, Literals
from lox._logs.key import Key, KeyInfo
from lox._logs.logdict import from_keys, logdict
from lox._reduce.protocol import AnyReduction
from lox._reduce.reductions import Checked
from lox._source import Source

from .agreement import agree, cast, check_adopts, check_steps, merged_lines


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one key.

    Attributes:
        leaves: the leaves of its value, each of shape `(*time, *lanes, *own)`.
        steps: its step numbers by name, each of shape `(*time, *lanes)`.
        mask: which rows happened, of shape `(*time, *lanes)`; None if all did.
        tree: the structure of its value.
        stacked: whether there is a time axis, or one row without it.
        lanes: the number of lane axes.
        weak: for each leaf, the Python numbers that it is, which adopt other dtypes;
            none, if it is strongly typed.
        weak_steps: the same for each step; NumPy numbers count as well.
        lines: the lines that logged it, in their order.
        reduce: the reduction that it was given, if any.
        unbounded: whether there may be more rows than these, which are only types.
        devices: whether some lanes are devices of a mesh.
        tags: those of all lines that logged it.
        sparse: whether some rows have a `when`, so that few of them may happen.
        flattened: whether some rows are lanes of a `vmap`, one after the other.
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

    @property
    def source(self) -> Source:
        """The line that logged it first."""
        return self.lines[0]

    @property
    def reduction(self) -> AnyReduction | None:
        """The reduction to one row, if not all rows are kept."""
        return None if self.reduce is None or self.reduce.keeps_rows else self.reduce

    def arrays(self, change: Callable[[Any], Any]) -> "Rows":
        return dataclasses.replace(
            self,
            leaves=tuple(change(leaf) for leaf in self.leaves),
            steps=_ordered((name, change(x)) for name, x in self.steps.items()),
            mask=None if self.mask is None else change(self.mask),
        )

    def with_time(self) -> "Rows":
        if self.stacked:
            return self
        rows = self.arrays(lambda x: jax.lax.expand_dims(x, (0,)))
        return dataclasses.replace(rows, stacked=True)

    def merge_time(self) -> "Rows":
        """Rows of a loop's iterations, `(steps, *time, …)`, in one time axis."""
        if not self.stacked:  # the loop's own axis becomes the time axis
            return dataclasses.replace(self, stacked=True)
        return self.arrays(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))

    def with_mask(self) -> "Rows":
        if self.mask is not None:
            return self
        return dataclasses.replace(self, mask=jnp.ones(self.row_axes, bool))

    def masked(self, mask: Any) -> "Rows":
        return dataclasses.replace(self, mask=mask)

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The sizes of the time axis, if there is one, and of the lanes."""
        return jnp.shape(self.leaves[0])[: self.stacked + self.lanes]

    @property
    def length(self) -> int:
        return self.row_axes[0] if self.stacked else 1

    def own_shapes(self) -> tuple[tuple[int, ...], ...]:
        front = self.stacked + self.lanes
        return tuple(jnp.shape(leaf)[front:] for leaf in self.leaves)

    def lane_sizes(self) -> tuple[int, ...]:
        return self.row_axes[int(self.stacked) :]


# JAX sorts the keys of a plain dict; these keep the order in which they were logged.
Record = collections.OrderedDict[str, Rows]


# from a key and what its `lox.log` asked for, the reduction that it gets
Reductions = Callable[[str, Checked], AnyReduction | None]


def rows_of(event: Event, operands: Sequence[Any], reductions: Reductions) -> Record:
    """The rows of a single event; its elements are the time axis."""
    arrays = [jnp.asarray(x) for x in operands]
    if event.layout.elements:
        count = len(arrays) - event.layout.anchors
        arrays[:count] = (
            jnp.moveaxis(x, event.layout.lanes, 0) for x in arrays[:count]
        )
    parts = event.split(arrays)
    steps = _ordered(zip(event.call.steps, parts.steps, strict=True))
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
    """Rows of an event as an event again; a time axis becomes its elements."""
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


def stand_in(types: Record) -> Record:
    """Rows of which only the types matter."""
    return map_rows(types, lambda rows: rows.arrays(array_types.zeros_of_aval))


def alike(records: Sequence[Record]) -> bool:
    """Whether branches give the very same outputs, so that no row needs a mask."""
    first, *others = (outline(record, numbers=False) for record in records)
    return all(other == first for other in others)


def masked(record: Record, mask: Any) -> Record:
    return Record((key, rows.masked(mask)) for key, rows in record.items())


def _ordered(pairs: Iterable[tuple[str, Any]]) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict(pairs)


def outline(record: Record, numbers: bool = True) -> Any:
    """All of a record but its values and its lines, to tell whether two are alike.

    Args:
        record: the rows.
        numbers: whether Python numbers must be the same, and not only weakly typed.
    """

    def adopting(literals: Literals) -> Any:
        return [one[:2] for one in literals] if numbers else bool(literals)

    return [
        (
            key,
            rows.tree,
            rows.stacked,
            rows.lanes,
            list(map(adopting, rows.weak)),
            list(map(adopting, rows.weak_steps)) if numbers else None,
            rows.reduce,
            rows.unbounded,
            rows.sparse,
            rows.flattened,
            list(rows.steps),
            rows.mask is None,
            [
                (x.shape, x.dtype, array_types.varying_axes(x))
                for x in map(_type_of, jax.tree.leaves(rows))
            ],
        )
        for key, rows in record.items()
    ]


def _type_of(x: Any) -> Any:
    return x if isinstance(x, jax.core.AbstractValue) else jax.typeof(x)


def join(records: Sequence[Record]) -> Record:
    """The rows of parts of a program that run one after the other."""
    parts: dict[str, list[Rows]] = {}
    for record in records:
        for key, rows in record.items():
            parts.setdefault(key, []).append(rows)
    return Record(
        (key, rows[0] if len(rows) == 1 else _concatenate(key, rows))
        for key, rows in parts.items()
    )


def _concatenate(key: str, parts: list[Rows]) -> Rows:
    parts = [part.with_time() for part in agree(key, parts)]
    if any(part.mask is not None for part in parts):
        parts = [part.with_mask() for part in parts]

    def concatenate(*arrays: Any) -> Any:
        return jnp.concatenate(arrays)

    first = parts[0]
    return dataclasses.replace(
        first,
        leaves=tuple(
            concatenate(*leaves)
            for leaves in zip(*(part.leaves for part in parts), strict=True)
        ),
        steps=_ordered(
            (name, concatenate(*(part.steps[name] for part in parts)))
            for name in first.steps
        ),
        mask=None
        if first.mask is None
        else concatenate(*(part.mask for part in parts)),
        sparse=any(part.sparse for part in parts),
        flattened=any(part.flattened for part in parts),
    )


def unify(branches: Sequence[Record]) -> list[Record]:
    """Makes the branches of a conditional log alike.

    Branches that do already cost nothing. Where they differ, the rows that only some
    branches have are filled up and masked in the others.
    """
    keys: dict[str, None] = {}
    for branch in branches:
        keys.update(dict.fromkeys(branch))
    unified = [Record() for _ in branches]
    for key in keys:
        for record, rows in zip(
            unified, _unify_key(key, [b.get(key) for b in branches]), strict=True
        ):
            record[key] = rows
    return unified


def _unify_key(key: str, branches: list[Rows | None]) -> list[Rows]:
    present = agree(key, [rows for rows in branches if rows is not None])
    rest = iter(present)
    filled = [None if rows is None else next(rest) for rows in branches]
    lengths = {rows.length for rows in present}
    stacked = {rows.stacked for rows in present}
    masks = {rows.mask is not None for rows in present}
    if len(present) == len(branches) and len(lengths) == len(stacked) == 1:
        alike = present if masks == {False} else [rows.with_mask() for rows in present]
    else:
        # one row at most needs no time axis
        time = True in stacked or max(lengths) > 1
        length = max(lengths)
        model = present[0].with_time() if time else present[0]
        alike = [
            _blank(model, length) if rows is None else _pad(rows, time, length)
            for rows in filled
        ]
    first = alike[0]
    # one static description for all, or JAX would see different structures
    alike = [
        dataclasses.replace(
            rows,
            lines=first.lines,
            weak=first.weak,
            weak_steps=first.weak_steps,
            reduce=first.reduce,
            tags=first.tags,
            sparse=any(rows.sparse for rows in present),
            flattened=any(rows.flattened for rows in present),
        )
        for rows in alike
    ]
    flat = [jax.tree.flatten(rows) for rows in alike]
    varying = [
        frozenset().union(*(array_types.varying_axes(jax.typeof(x)) for x in column))
        for column in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return [
        tree.unflatten(map(array_types.vary_like, leaves, varying))
        for leaves, tree in flat
    ]


def of_any(record: Record, branches: Sequence[Record]) -> Record:
    """What branches that log alike give, of whichever it is: the lines of all."""
    return Record(
        (key, dataclasses.replace(rows, **merged_lines([b[key] for b in branches])))
        for key, rows in record.items()
    )


def as_types(key: str, rows: Rows, types: Rows) -> Rows:
    """The same rows, of the dtypes that all rows of their key have in common."""
    pairs = list(zip(rows.leaves, types.leaves, strict=True))
    for (leaf, kind), literals in zip(pairs, rows.weak, strict=True):
        if leaf.dtype != kind.dtype:
            known = literals or (Literal.of(None, rows.source),)
            check_adopts(key, leaf.dtype, known, kind.dtype, types.source)
    check_steps(key, rows, types)
    return dataclasses.replace(
        rows,
        leaves=tuple(cast(leaf, kind.dtype) for leaf, kind in pairs),
        steps=_ordered(
            (name, cast(step, types.steps[name].dtype))
            for name, step in rows.steps.items()
        ),
    )


def _pad(rows: Rows, time: bool, length: int) -> Rows:
    rows = rows.with_mask()
    if not time:
        return rows
    rows = rows.with_time()
    missing = length - rows.length

    def fill(x: Any) -> Any:
        return jnp.concatenate([x, _zeros(x, missing)]) if missing else x

    return rows.arrays(fill)


def _blank(model: Rows, length: int) -> Rows:
    blank = model.with_mask()
    if not model.stacked:
        return blank.arrays(lambda x: _zeros(x[None], 1)[0])
    return blank.arrays(lambda x: _zeros(x, length))


def _zeros(like: Any, length: int) -> Any:
    aval = jax.typeof(like)
    return array_types.zeros_of_aval(aval.update(shape=(length, *aval.shape[1:])))


# --- to the user -------------------------------------------------------------


def to_logdict(
    record: Mapping[str, Rows], prefix: str, dropped: Mapping[str, Any]
) -> logdict:
    """The rows as the user sees them."""
    return from_keys(
        (
            f"{prefix}{name}",
            Key(
                rows.tree.unflatten(rows.leaves),
                rows.steps,
                rows.mask,
                KeyInfo(
                    rows.stacked,
                    rows.lanes,
                    tuple(len(s) for s in rows.own_shapes()),
                    rows.tags,
                ),
                dropped.get(name),
            ),
        )
        for name, rows in record.items()
    )
