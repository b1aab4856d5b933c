"""Exact conversions between dtypes, to store the rows of one key in one array.

A log never wraps, rounds or narrows a number. A cast is allowed if it is exact for
every value of the dtype, or, for a Python number that is known at tracing time, if it
is exact for that number. A Python float adopts the precision of the other rows, as in
JAX, but it never becomes infinite or zero.
"""

import math
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._source import Source


class Literal(NamedTuple):
    """A number that may adopt the dtype of the other rows.

    Attributes:
        number: a Python number; None if it is known only at run time, such as the
            counter of a loop.
        kind: the name of its type, because `1 == 1.0`.
        source: the line that logged it.
    """

    number: Any
    kind: str
    source: Source

    @classmethod
    def of(cls, number: Any, source: Source) -> "Literal":
        return cls(number, type(number).__name__, source)


# the literals of one leaf of a key; a strongly typed leaf has none
Literals = tuple[Literal, ...]


def number_of(x: Any) -> Any:
    """The Python number that `x` is, if it is known at tracing time."""
    if isinstance(x, bool | np.bool_):
        return None
    if isinstance(x, np.generic | np.ndarray):
        return x.item() if x.ndim == 0 and _is_plain(x.dtype) else None
    if isinstance(x, int):
        return int(x)
    if isinstance(x, float | complex):
        return x
    concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    if concrete and x.ndim == 0 and x.weak_type and x.is_fully_addressable:
        return jax.device_get(x).item()
    return None


def _is_plain(dtype: Any) -> bool:
    return bool(np.issubdtype(dtype, np.number))


def merged(parts: Iterable[Literals]) -> Literals:
    """The literals that represent all parts; none if one part is strongly typed.

    A program may log thousands of numbers, so only those that decide whether a dtype
    can represent all of them are kept.
    """
    listed = list(parts)
    if not all(listed):
        return ()
    found = list(dict.fromkeys(one for part in listed for one in part))
    if len(found) == 1:
        return tuple(found)
    kept: list[Literal] = [one for one in found if one.number is None][:1]
    whole = [one for one in found if one.kind == "int"]
    if whole:
        value = operator.attrgetter("number")
        kept += [min(whole, key=value), max(whole, key=value)]
        kept += [max(whole, key=lambda one: _odd_part(one.number))]
    real = [one for one in found if one.kind == "float"]
    finite = [one for one in real if math.isfinite(one.number)]
    if finite:
        kept.append(max(finite, key=lambda one: abs(one.number)))
    others = [one for one in finite if one.number]
    if others:
        kept.append(min(others, key=lambda one: abs(one.number)))
    rest = [one for one in real if not math.isfinite(one.number)]
    kept += {repr(one.number): one for one in rest}.values()
    kept += [one for one in found if one.kind == "complex"]
    return tuple(dict.fromkeys(kept))


def _odd_part(number: int) -> int:
    """`number` without factors of two: a float that holds it holds `number`."""
    number = abs(number)
    return number // (number & -number) if number else 0


def first_not_held(dtype: Any, target: Any, literals: Literals) -> Literal | None:
    """The first of the literals, of the dtype `dtype`, that `target` cannot hold."""
    if dtype == target:
        return None
    for literal in literals:
        if literal.number is None:
            if not is_exact(dtype, target):
                return literal
        elif not holds(target, literal.number):
            return literal
    return None


def adopts(dtype: Any, target: Any) -> bool:
    """Whether JAX promotes a weakly typed number of `dtype` to `target`."""
    if dtype == target:
        return True
    if jnp.issubdtype(target, jax.dtypes.extended):
        return False
    number: complex = 0 if jnp.issubdtype(dtype, jnp.integer) else 0.0
    if jnp.issubdtype(dtype, jnp.complexfloating):
        number = 0j
    try:
        return jnp.result_type(number, jnp.zeros((), target)) == target
    except ValueError:  # with `jax_numpy_dtype_promotion="strict"`
        return False


def holds(dtype: Any, number: Any) -> bool:
    """Whether a dtype holds a number: integers exactly, floats up to precision."""
    if isinstance(number, complex):
        if not jnp.issubdtype(dtype, jnp.complexfloating):
            return False
        part = jnp.finfo(dtype).dtype
        return holds(part, number.real) and holds(part, number.imag)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return holds(jnp.finfo(dtype).dtype, number)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return isinstance(number, int) and int(info.min) <= number <= int(info.max)
    if not jnp.issubdtype(dtype, jnp.floating):
        return False
    try:
        wanted = float(number)
    except OverflowError:
        return False
    with np.errstate(all="ignore"):
        got = float(np.asarray(wanted).astype(dtype))
    if isinstance(number, int):
        return got == wanted and int(wanted) == number
    if not math.isfinite(wanted):
        return repr(got) == repr(wanted)
    return math.isfinite(got) and (got != 0) == (wanted != 0)


def is_exact(source: Any, target: Any) -> bool:
    """Whether `target` holds every value of `source` exactly."""
    if source == target:
        return True
    extended = jax.dtypes.extended
    if jnp.issubdtype(source, extended) or jnp.issubdtype(target, extended):
        return False
    if source == jnp.bool_:
        return True
    if target == jnp.bool_:
        return False
    if jnp.issubdtype(target, jnp.complexfloating):
        target = jnp.finfo(target).dtype
        if jnp.issubdtype(source, jnp.complexfloating):
            source = jnp.finfo(source).dtype
        return is_exact(source, target)
    if jnp.issubdtype(source, jnp.integer):
        bounds = jnp.iinfo(source)
        if jnp.issubdtype(target, jnp.integer):
            room = jnp.iinfo(target)
            return bool(room.min <= bounds.min and bounds.max <= room.max)
        bits = int(bounds.max).bit_length()
        return bool(bits <= jnp.finfo(target).nmant + 1)
    if not jnp.issubdtype(source, jnp.floating):
        return False
    if not jnp.issubdtype(target, jnp.floating):
        return False
    one, other = jnp.finfo(source), jnp.finfo(target)
    return bool(
        one.nmant <= other.nmant
        and one.maxexp <= other.maxexp
        and one.minexp >= other.minexp
    )


def lost_by(x: Any) -> Any:
    """A number in `x` that JAX would wrap, or turn into infinity.

    Without `jax_enable_x64`, JAX converts 64 bits to 32: integers may wrap, and large
    floats become infinite. Rounding of floats is expected.

    Args:
        x: a Python number, or a NumPy array.

    Returns:
        One such number, or None.
    """
    if isinstance(x, bool):
        return None
    if isinstance(x, np.generic | np.ndarray):
        if not _is_plain(x.dtype) or x.size == 0:
            return None
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        if dtype == x.dtype:
            return None
        if np.issubdtype(x.dtype, np.integer):
            extremes = [x.min().item(), x.max().item()]
            return next((one for one in extremes if not holds(dtype, one)), None)
        with np.errstate(all="ignore"):
            lost = np.isfinite(x) & ~np.isfinite(x.astype(dtype))
        return np.asarray(x)[lost].flat[0].item() if lost.any() else None
    if isinstance(x, int):
        return None if holds(jax.dtypes.canonicalize_dtype(np.int64), x) else x
    if isinstance(x, float | complex):
        kind = np.float64 if isinstance(x, float) else np.complex128
        dtype = jax.dtypes.canonicalize_dtype(kind)
        with np.errstate(all="ignore"):
            kept = np.asarray(x).astype(dtype)
        return x if np.isfinite(x) and not np.isfinite(kept) else None
    return None


def as_jax_would(number: Any) -> Any:
    """A Python number as a NumPy array, with JAX's dtype if that holds the number."""
    kept = lost_by(number) is None
    return np.asarray(number, jnp.result_type(number) if kept else None)


def rounds(x: Any) -> bool:
    """Whether JAX would change any value of a NumPy array, even by rounding."""
    if not _is_plain(x.dtype):
        return False
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    if dtype == x.dtype:
        return False
    with np.errstate(all="ignore"):
        back = x.astype(dtype).astype(x.dtype)
    return not np.array_equal(back, x, equal_nan=np.issubdtype(x.dtype, np.inexact))
