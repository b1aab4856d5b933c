"""Checks that the rows of one key can be joined, and casts them to common dtypes.

Tree structures, steps and shapes must be equal. Python numbers are cast to the dtype of
the other rows where that is exact. Rows of one line with different numbers of lanes are
joined along time.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from lox._errors import DtypeError, LoxValueError, ShapeError, StepError
from lox._jax.numbers import Literal, Literals, adopts, first_not_held, is_exact, merged
from lox._logs.key import all_tags
from lox._source import Source

from .rows import Rows


def agree(key: str, parts: list[Rows]) -> list[Rows]:
    """Makes the rows of a key joinable, or raises an error that names both lines."""
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
                f"{key!r} the same steps, or one of them another name or a `prefix`."
            )
        if other.own_shapes() != first.own_shapes():
            raise ShapeError(
                f"{_both_shapes(key, first, other)} Give one of them another name or a "
                "`prefix`."
            )
        if other.over != first.over:
            raise LoxValueError(
                f"{key!r} is logged {_over(first)} at {first.source} and "
                f"{_over(other)} at {other.source}. Give both the same `over`, or one "
                "of them another name or a `prefix`."
            )
    _agree_reductions(key, parts)
    parts = _agree_lanes(key, [_with_steps(part, first.steps) for part in parts])
    dtypes = [_common_dtype(key, parts, i) for i in range(len(first.leaves))]
    step_dtypes = [_step_dtype(key, parts, i) for i in range(len(first.steps))]
    shared: dict[str, Any] = {
        "reduce": next((part.reduce for part in parts if part.reduce), None),
        "unbounded": any(part.unbounded for part in parts),
        "tags": all_tags(part.tags for part in parts),
        **merged_lines(parts),
    }
    return [
        dataclasses.replace(
            part,
            leaves=tuple(map(cast, part.leaves, dtypes)),
            steps=collections.OrderedDict(
                (name, cast(part.steps[name], dtype))
                for name, dtype in zip(part.steps, step_dtypes, strict=True)
            ),
            **shared,
        )
        for part in parts
    ]


def _with_steps(rows: Rows, names: Iterable[str]) -> Rows:
    """The same rows with their steps in another order."""
    if list(rows.steps) == list(names):
        return rows
    weak = dict(zip(rows.steps, rows.weak_steps, strict=True))
    return dataclasses.replace(
        rows,
        steps=collections.OrderedDict((name, rows.steps[name]) for name in names),
        weak_steps=tuple(weak[name] for name in names),
    )


def merged_lines(parts: Sequence[Rows]) -> dict[str, Any]:
    """The fields of joined rows that come from their lines."""
    weak = zip(*(part.weak for part in parts), strict=True)
    weak_steps = zip(*(part.weak_steps for part in parts), strict=True)
    return {
        "lines": tuple(dict.fromkeys(line for part in parts for line in part.lines)),
        "weak": tuple(map(merged, weak)),
        "weak_steps": tuple(map(merged, weak_steps)),
    }


def cast(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else jax.lax.convert_element_type(x, dtype)


def _agree_reductions(key: str, parts: list[Rows]) -> None:
    first, *others = [part for part in parts if part.reduce is not None] or parts[:1]
    for other in others:
        if other.reduce != first.reduce:
            raise LoxValueError(
                f"{key!r} is logged with `reduce={first.reduce!r}` at {first.source} "
                f"and with `reduce={other.reduce!r}` at {other.source}. Give both the "
                "same reduction, or one of them another name. A reduction given to "
                "the transformation overrides both."
            )


# --- dtypes ------------------------------------------------------------------


def _common_dtype(key: str, parts: list[Rows], i: int) -> Any:
    """The common dtype of a leaf: that of strongly typed rows, which are never cast."""
    dtypes = [part.leaves[i].dtype for part in parts]
    strong: Rows | None = None
    for part in parts:
        if part.weak[i]:
            continue
        if strong is None:
            strong = part
        elif part.leaves[i].dtype != strong.leaves[i].dtype:
            raise DtypeError(
                f"{key!r} is logged as {strong.leaves[i].dtype} at {strong.source} "
                f"and as {part.leaves[i].dtype} at {part.source}. Logged values are "
                "never cast silently: convert one of them (`x.astype(...)`) or give it "
                "another name."
            )
    if strong is None:
        common = functools.reduce(_promoted, dtypes)
        at = next(p for p in parts if p.leaves[i].dtype == common).source
    else:
        common, at = strong.leaves[i].dtype, strong.source
    for part in parts:
        if part.weak[i]:
            check_adopts(key, part.leaves[i].dtype, part.weak[i], common, at)
    return common


def check_adopts(
    key: str, dtype: Any, literals: Literals, target: Any, at: Source
) -> None:
    """Raises unless numbers can be cast to `target`, which was logged at line `at`."""
    if not adopts(dtype, target):
        culprit: Literal | None = literals[0]
    else:
        culprit = first_not_held(dtype, target, literals)
    if culprit is not None:
        raise DtypeError(
            f"{key!r} is logged as {target} at {at} and as "
            f"{_describe(dtype, culprit)} at {culprit.source}, which {target} cannot "
            "hold. Logged values are never wrapped or rounded: convert one of them "
            "(`jnp.asarray(x, dtype)`) or give it another name."
        )


def _describe(dtype: Any, literal: Literal) -> str:
    if literal.number is None:
        return f"{dtype} (weakly typed, and known only at run time)"
    return f"{dtype} (the number {literal.number})"


def _promoted(first: Any, second: Any) -> Any:
    """The dtype of Python numbers of two kinds: int, then float, then complex."""
    if first == second:
        return first
    return second if adopts(first, second) else first


def _step_dtype(key: str, parts: list[Rows], i: int) -> Any:
    """A dtype that can represent the steps of all parts exactly."""
    name = list(parts[0].steps)[i]
    dtypes = [part.steps[name].dtype for part in parts]
    if len(set(dtypes)) == 1:
        return dtypes[0]
    pairs = list(zip(parts, dtypes, strict=True))
    strong = [dtype for part, dtype in pairs if not part.weak_steps[i]]
    for some in filter(None, (strong, dtypes)):
        try:
            common = jnp.result_type(*some)
        except ValueError:  # there is no common dtype
            continue
        if all(_holds_steps(part, i, dtype, common) for part, dtype in pairs):
            return common
    other = next(p for p, dtype in pairs if dtype != dtypes[0])
    _raise_steps(key, name, parts[0], other)


def check_steps(key: str, rows: Rows, types: Rows) -> None:
    """Raises an error unless steps can be cast to the dtypes of `types`."""
    for i, (name, step) in enumerate(rows.steps.items()):
        if not _holds_steps(rows, i, step.dtype, types.steps[name].dtype):
            _raise_steps(key, name, types, rows)


def _raise_steps(key: str, name: str, first: Rows, other: Rows) -> NoReturn:
    raise StepError(
        f"{key!r} is logged with the step {name!r} as {first.steps[name].dtype} at "
        f"{first.source} and as {other.steps[name].dtype} at {other.source}, but no "
        "dtype can hold both. Steps are never wrapped or rounded: convert one of "
        "them (`jnp.asarray(step, jnp.int32)`)."
    )


def _holds_steps(part: Rows, i: int, dtype: Any, target: Any) -> bool:
    literals = part.weak_steps[i]
    if literals:
        return first_not_held(dtype, target, literals) is None
    return is_exact(dtype, target)


# --- lanes -------------------------------------------------------------------


def _agree_lanes(key: str, parts: list[Rows]) -> list[Rows]:
    """Moves lanes that not all parts have into the time axis.

    A library may call a function with and without `vmap`, and
    `lax.map(batch_size=...)` has fewer lanes in its last batch. Each lane is an event
    of the program, so the rows are joined along time, in the order of the lanes. The
    lanes of a `vmap` around all parts remain lanes.
    """
    sizes = [part.lane_sizes() for part in parts]
    if len(set(sizes)) == 1:
        return parts
    common = _common_prefix(sizes)
    if not _can_join_along_time(parts, common):
        _raise_lanes(key, parts)
    return [_flattened(part, common) for part in parts]


def _common_prefix(sizes: Sequence[tuple[int, ...]]) -> int:
    equal = (len(set(column)) == 1 for column in zip(*sizes, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, equal))


def _can_join_along_time(parts: Sequence[Rows], common: int) -> bool:
    """Whether the other lanes can be moved into the time axis."""
    if any(part.devices for part in parts):
        return False
    # after flattening, rows can no longer be sorted by the other lanes
    if any(part.flattened and part.lanes > common for part in parts):
        return False
    lines: dict[tuple[int, ...], set[Source]] = {}
    for part in parts:
        lines.setdefault(part.lane_sizes(), set()).update(part.lines)
    if not set.intersection(*lines.values()):
        return False
    counts = {len(sizes) for sizes in lines}
    reduced = parts[0].reduction is not None
    return len(counts) > 1 or reduced or _is_remainder(parts, common)


def _is_remainder(parts: Sequence[Rows], common: int) -> bool:
    """Whether these are the batches of `lax.map`: full ones, and a remainder.

    In a backward pass, the remainder comes first.
    """
    whole = max(part.lane_sizes() for part in parts)
    rest = next(p.lane_sizes() for p in parts if p.lane_sizes() != whole)
    return (
        common == len(whole) - 1
        and rest < whole
        and all(part.lane_sizes() in (whole, rest) for part in parts)
        and all(part.stacked for part in parts if part.lane_sizes() == whole)
    )


def _flattened(rows: Rows, common: int) -> Rows:
    rows = rows.with_time()
    if rows.lanes == common:
        return rows
    last = 1 + rows.lanes

    def flatten(x: Any) -> Any:
        moved = jnp.moveaxis(x, range(1 + common, last), range(1, last - common))
        count = math.prod(moved.shape[: last - common])
        return moved.reshape(count, *moved.shape[last - common :])

    return dataclasses.replace(rows.arrays(flatten), lanes=common, flattened=True)


def _raise_lanes(key: str, parts: Sequence[Rows]) -> NoReturn:
    first = parts[0]
    other = next(p for p in parts if p.lane_sizes() != first.lane_sizes())
    remedy = "Give one of them another name or a `prefix`"
    devices = first.devices or other.devices
    if not devices and set(first.lines) & set(other.lines):
        remedy = 'Both are the same line: reduce the key (`reduce="mean"`)'
    raise ShapeError(
        f"{_both_shapes(key, first, other)} {remedy}, select other keys by `argnames`, "
        "or deliver its events one by one: `lox.tap` or `logger.tap` without `reduce`, "
        "`window` and `buffer`."
    )


# --- messages ----------------------------------------------------------------


def _both_shapes(key: str, first: Rows, other: Rows) -> str:
    return (
        f"{key!r} is logged with the shape {_shape(first)} at {first.source} and with "
        f"{_shape(other)} at {other.source}. Rows of one key need one shape."
    )


def _steps(rows: Rows) -> str:
    names = ", ".join(map(repr, rows.steps))
    return f"the steps {names}" if names else "no steps"


def _over(rows: Rows) -> str:
    if not rows.over:
        return "without `over`"
    return f"with `over={rows.over[0] if len(rows.over) == 1 else rows.over!r}`"


def _shape(rows: Rows) -> str:
    shapes = rows.own_shapes()
    text = str(shapes[0] if len(shapes) == 1 else shapes)
    lanes = rows.lane_sizes()
    return f"{text} under a `vmap` of {lanes} lanes" if lanes else text
