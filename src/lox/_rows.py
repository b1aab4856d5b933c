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

from . import _compat
from ._errors import DtypeError, LoxValueError, ShapeError, StepError
from ._events import Event, Operands, Source
from ._key import KeyInfo, all_tags
from ._logdict import logdict


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
        weak: which leaves are Python numbers, that adopt other dtypes.
        source: the line that logged it first.
        reduce: the reduction that it gets.
        unbounded: whether there may be more rows than these, which are only types.
        devices: whether some lanes are devices of a mesh.
        tags: those of all lines that logged it.
    """

    leaves: tuple[Any, ...]
    steps: collections.OrderedDict[str, Any]
    mask: Any
    tree: Any = dataclasses.field(metadata={"static": True})
    stacked: bool = dataclasses.field(metadata={"static": True})
    lanes: int = dataclasses.field(metadata={"static": True})
    weak: tuple[bool, ...] = dataclasses.field(metadata={"static": True})
    source: Source = dataclasses.field(metadata={"static": True})
    reduce: Any = dataclasses.field(metadata={"static": True}, default=None)
    unbounded: bool = dataclasses.field(metadata={"static": True}, default=False)
    devices: bool = dataclasses.field(metadata={"static": True}, default=False)
    tags: tuple[str, ...] = dataclasses.field(metadata={"static": True}, default=())

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
Reductions = Callable[[str, Any], Any]


def rows_of(event: Event, operands: Sequence[Any], reductions: Reductions) -> Record:
    """The rows of a single event."""
    parts = event.split([jnp.asarray(x) for x in operands])
    steps = _ordered(zip(event.steps, parts.steps, strict=True))
    return Record(
        (
            key,
            Rows(
                leaves=tuple(leaves),
                steps=steps,
                mask=parts.mask,
                tree=tree,
                stacked=False,
                lanes=event.lanes,
                weak=tuple(jax.typeof(leaf).weak_type for leaf in leaves),
                source=event.source,
                reduce=reductions(key, event.reduce),
                tags=event.tags,
            ),
        )
        for key, tree, leaves in zip(event.keys, event.trees, parts.values, strict=True)
    )


def event_of(record: Record, like: Event) -> tuple[Event, list[Any]]:
    """Some of the rows of an event, each of one row, as an event again."""
    first = next(iter(record.values()))
    event = dataclasses.replace(
        like,
        keys=tuple(record),
        trees=tuple(rows.tree for rows in record.values()),
        lanes=first.lanes,
        masked=first.mask is not None,
        anchors=0,
    )
    values = [list(rows.leaves) for rows in record.values()]
    operands = Operands(values, list(first.steps.values()), first.mask, None, [])
    return event, operands.flat()


def masked(record: Record, mask: Any) -> Record:
    return Record((key, rows.masked(mask)) for key, rows in record.items())


def is_reduced(rows: Rows) -> bool:
    return rows.reduce not in (None, "append")


def _ordered(pairs: Iterable[tuple[str, Any]]) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict(pairs)


def outline(record: Record) -> Any:
    """All of a record but its values and its lines, to tell whether two are alike."""
    return [
        (
            key,
            rows.tree,
            rows.stacked,
            rows.lanes,
            rows.weak,
            rows.reduce,
            rows.unbounded,
            list(rows.steps),
            rows.mask is None,
            [
                (x.shape, x.dtype, _compat.varying_axes(x))
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
    parts = _agree(key, parts)
    if any(part.mask is not None for part in parts):
        parts = [part.with_mask() for part in parts]
    parts = _agree_lanes(key, parts)
    parts = [part.with_time() for part in parts]

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
    present = _agree(key, [rows for rows in branches if rows is not None])
    sizes = {rows.lane_sizes() for rows in present}
    if len(sizes) > 1:
        _raise_lanes(key, present)
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
            source=first.source,
            weak=first.weak,
            reduce=first.reduce,
            tags=first.tags,
        )
        for rows in alike
    ]
    flat = [jax.tree.flatten(rows) for rows in alike]
    varying = [
        frozenset().union(*(_compat.varying_axes(jax.typeof(x)) for x in column))
        for column in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return [
        tree.unflatten(map(_compat.vary_like, leaves, varying)) for leaves, tree in flat
    ]


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
    return _compat.zeros_of_aval(aval.update(shape=(length, *aval.shape[1:])))


# --- what the rows of one key must have in common ----------------------------


def _agree(key: str, parts: list[Rows]) -> list[Rows]:
    """Checks trees, steps, shapes and dtypes; casts Python numbers to their peers."""
    first = parts[0]
    for other in parts[1:]:
        if other.tree != first.tree:
            raise ShapeError(
                f"{key!r} is logged with the structure {first.tree} at {first.source} "
                f"and with {other.tree} at {other.source}. Give one of them another "
                "name or a `prefix`."
            )
        if other.steps.keys() != first.steps.keys():
            raise StepError(
                f"{key!r} is logged with {_steps(first)} at {first.source} and with "
                f"{_steps(other)} at {other.source}. Give every `lox.log` of "
                f"{key!r} the same steps, or one of them another name."
            )
        if other.own_shapes() != first.own_shapes() or other.lanes != first.lanes:
            raise ShapeError(
                f"{key!r} is logged with the shape {_shape(first)} at {first.source} "
                f"and with {_shape(other)} at {other.source}. Rows of one key need one "
                "shape: give one of them another name or a `prefix`."
            )
    _agree_reductions(key, parts)
    leaves = [_agree_dtypes(key, parts, i) for i in range(len(first.leaves))]
    reduce = next((part.reduce for part in parts if part.reduce), None)
    unbounded = any(part.unbounded for part in parts)
    weak = tuple(all(part.weak[i] for part in parts) for i in range(len(first.leaves)))
    tags = all_tags(part.tags for part in parts)
    return [
        dataclasses.replace(
            part,
            leaves=tuple(column[j] for column in leaves),
            steps=_agree_steps(part, parts),
            weak=weak,
            reduce=reduce,
            unbounded=unbounded,
            tags=tags,
        )
        for j, part in enumerate(parts)
    ]


def _agree_reductions(key: str, parts: list[Rows]) -> None:
    first, *others = [part for part in parts if part.reduce is not None] or parts[:1]
    for other in others:
        if other.reduce != first.reduce:
            raise LoxValueError(
                f"{key!r} is logged with `reduce={first.reduce!r}` at {first.source} "
                f"and with `reduce={other.reduce!r}` at {other.source}. Give both the "
                "same reduction, or one of them another name; one given to the "
                "transformation wins over both."
            )


def _agree_dtypes(key: str, parts: list[Rows], i: int) -> list[Any]:
    arrays = [part.leaves[i] for part in parts]
    strong: Rows | None = None
    for part in parts:
        if part.weak[i]:
            continue
        if strong is None:
            strong = part
        elif part.leaves[i].dtype != strong.leaves[i].dtype:
            _raise_dtypes(key, strong, part, i)
    if strong is None:
        dtype = jnp.result_type(*(array.dtype for array in arrays))
    else:
        dtype = strong.leaves[i].dtype
        for part in parts:
            if part.weak[i] and not _adopts(part.leaves[i].dtype, dtype):
                _raise_dtypes(key, strong, part, i)
    return [
        array if array.dtype == dtype else jax.lax.convert_element_type(array, dtype)
        for array in arrays
    ]


def _adopts(weak: Any, strong: Any) -> bool:
    """Whether a Python number of dtype `weak` takes on `strong`, as JAX promotes."""
    if weak == strong:
        return True
    if jnp.issubdtype(strong, jax.dtypes.extended):
        return False
    number: complex = 0 if jnp.issubdtype(weak, jnp.integer) else 0.0
    if jnp.issubdtype(weak, jnp.complexfloating):
        number = 0j
    return jnp.result_type(number, jnp.zeros((), strong)) == strong


def _agree_steps(part: Rows, parts: list[Rows]) -> collections.OrderedDict[str, Any]:
    steps = _ordered(())
    for name in parts[0].steps:
        step = part.steps[name]
        dtype = jnp.result_type(*(other.steps[name].dtype for other in parts))
        steps[name] = (
            step if step.dtype == dtype else jax.lax.convert_element_type(step, dtype)
        )
    return steps


def _agree_lanes(key: str, parts: list[Rows]) -> list[Rows]:
    """Joins rows of lane axes that differ in length along time, if they may be.

    `lax.map(batch_size=…)` makes them when its batches do not divide its input: a loop
    over whole batches, and then the shorter rest.
    """
    sizes = [part.lane_sizes() for part in parts]
    if len(set(sizes)) == 1:
        return parts
    first, last = sizes[0], sizes[-1]
    is_rest = (
        len(parts) == 2
        and parts[0].lanes == 1
        and parts[0].source == parts[1].source
        and parts[0].stacked
        and not parts[1].stacked
        and last < first
    )
    if not is_rest:
        _raise_lanes(key, parts)

    def flatten(x: Any) -> Any:
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    return [
        dataclasses.replace(part.with_time().arrays(flatten), lanes=0) for part in parts
    ]


def _raise_lanes(key: str, parts: Sequence[Rows]) -> None:
    first = parts[0]
    other = next(p for p in parts if p.lane_sizes() != first.lane_sizes())
    raise ShapeError(
        f"{key!r} is logged under a `vmap` of {first.lane_sizes()} lanes at "
        f"{first.source} and of {other.lane_sizes()} lanes at {other.source}. Give one "
        "of them another name or a `prefix`."
    )


def _raise_dtypes(key: str, first: Rows, other: Rows, i: int) -> None:
    raise DtypeError(
        f"{key!r} is logged as {first.leaves[i].dtype} at {first.source} and as "
        f"{other.leaves[i].dtype} at {other.source}. Logged values are never cast "
        "silently: convert one of them (`x.astype(...)`) or give it another name."
    )


def _steps(rows: Rows) -> str:
    names = ", ".join(map(repr, rows.steps))
    return f"the steps {names}" if names else "no steps"


def _shape(rows: Rows) -> str:
    shapes = rows.own_shapes()
    text = str(shapes[0] if len(shapes) == 1 else shapes)
    lanes = rows.lane_sizes()
    return f"{text} under a `vmap` of {lanes} lanes" if lanes else text


# --- to the user -------------------------------------------------------------


def to_logdict(
    record: Mapping[str, Rows], prefix: str, dropped: Mapping[str, Any]
) -> logdict:
    """The rows as the user sees them."""
    named = {f"{prefix}{key}": rows for key, rows in record.items()}
    steps: dict[str, dict[str, Any]] = {}
    for key, rows in named.items():
        for name, value in rows.steps.items():
            steps.setdefault(name, {})[key] = value
    return logdict._of(
        {key: rows.tree.unflatten(rows.leaves) for key, rows in named.items()},
        steps,
        {key: rows.mask for key, rows in named.items() if rows.mask is not None},
        {
            key: KeyInfo(
                rows.stacked,
                rows.lanes,
                tuple(len(s) for s in rows.own_shapes()),
                rows.tags,
            )
            for key, rows in named.items()
        },
        {f"{prefix}{key}": lost for key, lost in dropped.items()},
    )
