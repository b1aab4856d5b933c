"""Joins the rows of parts of a program: of consecutive parts, and of branches."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._jax import array_types, vma
from lox._jax.numbers import Literal, Literals

from .agreement import agree, cast, check_adopts, check_steps, merged_lines
from .rows import Record, Rows

# --- consecutive parts -------------------------------------------------------


def join(records: Sequence[Record]) -> Record:
    """Joins the rows of parts of a program that run one after the other."""
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
    # the static fields of the first part are those of all, except for these
    columns = map(_sharded_alike, zip(*map(jax.tree.leaves, parts), strict=True))
    joined = jax.tree.structure(parts[0]).unflatten(map(jnp.concatenate, columns))
    return dataclasses.replace(
        joined,
        sparse=any(part.sparse for part in parts),
        flattened=any(part.flattened for part in parts),
    )


def _sharded_alike(column: Sequence[Any]) -> list[Any]:
    """Reshards arrays like the first one that is split over an explicit mesh."""
    types = list(map(jax.typeof, column))
    target = next(filter(array_types.is_split, types), None)
    if target is None:
        return list(column)
    return [array_types.sharded_like(x, target) for x in column]


def cast_to_types(key: str, rows: Rows, types: Rows) -> Rows:
    """Casts rows to the common dtypes of all rows of their key."""
    pairs = list(zip(rows.leaves, types.leaves, strict=True))
    for (leaf, kind), literals in zip(pairs, rows.weak, strict=True):
        if leaf.dtype != kind.dtype:
            known = literals or (Literal.of(None, rows.source),)
            check_adopts(key, leaf.dtype, known, kind.dtype, types.source)
    check_steps(key, rows, types)
    return dataclasses.replace(
        rows,
        leaves=tuple(cast(leaf, kind.dtype) for leaf, kind in pairs),
        steps=collections.OrderedDict(
            (name, cast(step, types.steps[name].dtype))
            for name, step in rows.steps.items()
        ),
    )


# --- branches ----------------------------------------------------------------


def unify(branches: Sequence[Record]) -> list[Record]:
    """Gives the branches of a conditional the same keys and numbers of rows.

    Rows that are missing in a branch are filled with zeros and masked. Branches that
    already have the same rows are unchanged.
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
        unified = (
            present if masks == {False} else [rows.with_mask() for rows in present]
        )
    else:
        # without a time axis, there is at most one row
        time = True in stacked or max(lengths) > 1
        length = max(lengths)
        model = present[0].with_time() if time else present[0]
        unified = [
            _blank(model, length) if rows is None else _pad(rows, time, length)
            for rows in filled
        ]
    first = unified[0]
    # the static fields must be equal, or JAX would see different tree structures
    unified = [
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
        for rows in unified
    ]
    flat = [jax.tree.flatten(rows) for rows in unified]
    varying = [
        frozenset().union(*(vma.varying_axes(jax.typeof(x)) for x in column))
        for column in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return [
        tree.unflatten(map(vma.vary_like, leaves, varying)) for leaves, tree in flat
    ]


def with_all_lines(record: Record, branches: Sequence[Record]) -> Record:
    """Adds the lines of all branches to the rows of a conditional."""
    return Record(
        (key, dataclasses.replace(rows, **merged_lines([b[key] for b in branches])))
        for key, rows in record.items()
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


# --- types -------------------------------------------------------------------


def placeholder_rows(types: Record) -> Record:
    """Converts types to rows of zeros, of which only the types are used."""
    zeros: Record = jax.tree.map(array_types.zeros_of_aval, types)
    return zeros


def have_same_types(records: Sequence[Record]) -> bool:
    """Whether branches have rows of the same types, so that no mask is needed."""
    first, *others = (signature(record, numbers=False) for record in records)
    return all(other == first for other in others)


def signature(record: Record, numbers: bool = True) -> Any:
    """The types of rows, in a form that can be compared.

    Args:
        record: the rows.
        numbers: whether to include the Python numbers, not only whether there are any.
    """

    def comparable(literals: Literals) -> Any:
        return [one[:2] for one in literals] if numbers else bool(literals)

    return [
        (
            key,
            rows.tree,
            rows.stacked,
            rows.lanes,
            list(map(comparable, rows.weak)),
            list(map(comparable, rows.weak_steps)) if numbers else None,
            rows.reduce,
            rows.unbounded,
            rows.sparse,
            rows.flattened,
            rows.over,
            list(rows.steps),
            rows.mask is None,
            [
                (x.shape, x.dtype, vma.varying_axes(x))
                for x in map(_type_of, jax.tree.leaves(rows))
            ],
        )
        for key, rows in record.items()
    ]


def _type_of(x: Any) -> Any:
    return x if isinstance(x, jax.core.AbstractValue) else jax.typeof(x)
