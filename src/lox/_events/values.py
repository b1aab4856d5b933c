"""Checks the values and steps of calls, and converts them to arrays."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._arrays import is_array
from lox._errors import LoxTypeError, RangeError, StepError, describe
from lox._jax import host, tracing
from lox._jax.numbers import lost_by, number_of, rounds
from lox._libraries.nnx import as_arrays
from lox._logs.logdict import RESERVED, reserved_step


def numbers_of(
    values: Iterable[Any], trees: Iterable[Any], steps: Iterable[Any] = ()
) -> tuple[Any, ...]:
    """The Python numbers among logged values, for `Call.numbers`.

    Args:
        values: the logged values.
        trees: the structure of each value after its conversion to arrays.
        steps: the steps.
    """
    if tracing.at_top_level():
        return ()  # eager events are not joined, and so are never cast
    known: list[Any] = []
    for value, tree in zip(values, trees, strict=True):
        leaves = jax.tree.leaves(value)
        same = len(leaves) == tree.num_leaves
        known += map(number_of, leaves if same else [None] * tree.num_leaves)
    known += map(number_of, steps)
    return () if all(number is None for number in known) else tuple(known)


def arrays_of(value: Any, key: str, call: str) -> tuple[list[Any], Any]:
    """The leaves of a value as arrays, and its structure.

    Args:
        value: the logged value.
        key: its key, for messages.
        call: the call and its line, for messages.
    """
    leaves, tree = jax.tree.flatten(as_arrays(value))
    if not leaves:
        raise LoxTypeError(
            f"{call} got {describe(value)} for {key!r}, which contains no array. Log "
            "an array or a number, or omit the key."
        )
    return [_leaf(x, key, call) for x in leaves], tree


def _leaf(x: Any, key: str, call: str) -> Any:
    if not is_array(x):
        raise LoxTypeError(
            f"{call} got {describe(x)} for {key!r}; values are arrays, numbers or "
            "pytrees of these. A string that identifies events can be passed as `tags`."
        )
    return operand(x, key, call)


def operand(x: Any, key: str, call: str) -> Any:
    """Converts to a JAX array, or to a NumPy array if it stays on the host."""
    if _stays_on_host(x):
        return np.array(x)
    lost = lost_by(x)
    if lost is not None:
        raise RangeError(f"{call} got {too_large(lost, repr(key))}")
    try:
        return host.to_array(x)
    except TypeError as error:
        raise LoxTypeError(
            f"{call} cannot convert {key!r} to an array: {error}"
        ) from error


def _stays_on_host(x: Any) -> bool:
    """Whether a value never leaves the host, and a JAX array would round it."""
    if not tracing.at_top_level():
        return False
    if isinstance(x, np.generic | np.ndarray):
        return rounds(x)
    return lost_by(x) is not None and np.asarray(x).dtype != object


def too_large(number: Any, name: str) -> str:
    whole = isinstance(number, int)
    dtype = jax.dtypes.canonicalize_dtype(np.int64 if whole else np.float64)
    if isinstance(number, complex):
        dtype = jax.dtypes.canonicalize_dtype(np.complex128)
    other = "convert it to a float, " if whole else ""
    return (
        f"{number} for {name}, which is too large for {dtype}, the widest dtype of its "
        "kind that JAX currently uses. Log it in a larger unit (for example, "
        f"thousands), {other}or set `jax_enable_x64`."
    )


# names that users write by mistake, and the options that they mean
_MISNAMED_OPTIONS = {
    "tag": "tags",
    "reduction": "reduce",
    "mode": "reduce",
    "condition": "when",
    "where": "when",
    "axis": "over",
    "axis_name": "over",
}


def step_of(name: str, value: Any, caller: str, when: tuple[int, ...] = ()) -> Any:
    """Converts a step to a scalar array, or to one of the shape of `when`."""
    if name in RESERVED:
        raise StepError(f"{caller}: {reserved_step(name)}")
    if not is_array(value) or jnp.shape(value) not in ((), when):
        shape = f" of shape {jnp.shape(value)}" if is_array(value) else ""
        other = f" or have the shape {when} of `when`" if when else ""
        if option := _MISNAMED_OPTIONS.get(name):
            raise StepError(
                f"{caller} has no option `{name}`, and as a step it must be a scalar"
                f"{other}, not {describe(value)}{shape}. Did you mean `{option}`?"
            )
        remedy = f"Log {name!r} as a value, or pass one of its elements."
        if isinstance(value, str):
            remedy = f"Text can be passed as a tag: `tags=[{value!r:.40}]`."
        raise StepError(
            f"{caller}: the step {name!r} must be a scalar{other}, not "
            f"{describe(value)}{shape}. {remedy}"
        )
    if _stays_on_host(value):
        return np.array(value)
    lost = lost_by(value)
    if lost is not None:
        raise StepError(f"{caller} got {too_large(lost, f'the step {name!r}')}")
    number = host.to_array(value)
    if jnp.issubdtype(number.dtype, jax.dtypes.extended):
        raise StepError(
            f"{caller}: the step {name!r} must be a number, not {number.dtype}."
        )
    return number
