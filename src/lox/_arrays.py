"""Arrays and pytrees for code that must not import JAX.

Logs can be read, printed and reduced with NumPy alone. Values of JAX's own types
(device arrays, tracers, typed PRNG keys, registered pytrees) exist only if JAX has been
imported, and are recognized only then.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


def imported_jax() -> Any:
    """The `jax` module, or None if it has not been imported."""
    return sys.modules.get("jax")


# --- arrays ------------------------------------------------------------------


def is_array(x: Any) -> bool:
    """Whether JAX treats `x` as an array."""
    numbers = np.ndarray | np.generic | bool | int | float | complex
    return (
        isinstance(x, numbers)
        or is_jax_array(x)
        or hasattr(x, "__jax_array__")
        # JAX's own constants in derivatives; up to 0.9, they are none of the above
        or (hasattr(type(x), "__array__") and type(x).__module__.startswith("jax."))
    )


def is_jax_array(x: Any) -> bool:
    jax = imported_jax()
    return jax is not None and isinstance(x, jax.Array)


def is_tracer(x: Any) -> bool:
    jax = imported_jax()
    return jax is not None and isinstance(x, jax.core.Tracer)


def is_typed_key(x: Any) -> bool:
    """Whether `x` is an array of typed PRNG keys, or of another type NumPy lacks."""
    jax = imported_jax()
    return jax is not None and bool(
        jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.extended)
    )


def is_spread(x: Any) -> bool:
    """Whether the shards of an array are on the devices of several processes."""
    return (
        is_jax_array(x)
        and not is_tracer(x)
        # an array that is not committed is on one device, which is known sooner
        and getattr(x, "committed", True)
        and not (x.is_fully_addressable or x.is_fully_replicated)
    )


def namespace(x: Any) -> Any:
    """The module whose functions compute with `x`: `jax.numpy` or NumPy."""
    jax = imported_jax()
    return jax.numpy if jax is not None and isinstance(x, jax.Array) else np


def to_numpy(x: Any) -> Any:
    """Converts to NumPy, explicitly if `jax.transfer_guard` forbids other transfers."""
    try:
        return np.asarray(x)
    except RuntimeError as error:
        jax = imported_jax()
        if jax is None or not isinstance(error, jax.errors.JaxRuntimeError):
            raise
        return np.asarray(jax.device_get(x))


def local_numpy(x: Any) -> Any:
    """Converts to NumPy; for an array spread over processes, only the local elements.

    These have one axis.
    """
    if not is_spread(x):
        return to_numpy(x)
    shards = [shard.data for shard in x.addressable_shards if shard.replica_id == 0]
    return np.concatenate([np.ravel(shard) for shard in shards])


# --- dtypes ------------------------------------------------------------------


def is_integer(dtype: Any) -> bool:
    """Whether a dtype is an integer type, including `int4` and similar types."""
    dtype = np.dtype(dtype)
    return dtype.kind in "iu" or (dtype.kind == "V" and _has(ml_dtypes.iinfo, dtype))


def is_inexact(dtype: Any) -> bool:
    """Whether a dtype is a float or complex type, including `bfloat16`."""
    dtype = np.dtype(dtype)
    return dtype.kind in "fc" or (dtype.kind == "V" and _has(ml_dtypes.finfo, dtype))


def integer_range(dtype: Any) -> tuple[int, int]:
    info = ml_dtypes.iinfo(np.dtype(dtype))
    return int(info.min), int(info.max)


def _has(info: Callable[[Any], Any], dtype: Any) -> bool:
    try:
        info(dtype)
    except ValueError:
        return False
    return True


def default_float() -> Any:
    """The dtype of a Python float in JAX: 32 bits, or 64 with `jax_enable_x64`."""
    jax = imported_jax()
    if jax is not None:
        return jax.numpy.result_type(float)
    enabled = os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "t", "yes")
    return np.dtype(np.float64 if enabled else np.float32)


def widest_integer(unsigned: bool) -> Any:
    """JAX's widest integer dtype: 32 bits, or 64 with `jax_enable_x64`."""
    widest = np.dtype(np.uint64 if unsigned else np.int64)
    jax = imported_jax()
    if jax is not None:
        return jax.dtypes.canonicalize_dtype(widest)
    return np.dtype(f"{widest.kind}{default_float().itemsize}")


# `dtype.isbuiltin` of the dtypes of other libraries, such as `ml_dtypes`
_REGISTERED = 2


def to_native(array: Any) -> Any:
    """Converts a NumPy array to a dtype that NumPy itself has, without loss."""
    dtype = array.dtype
    if dtype.isbuiltin != _REGISTERED:
        return array
    if is_inexact(dtype):
        return array.astype(np.float32)
    if is_integer(dtype):
        return array.astype(np.uint8 if integer_range(dtype)[0] == 0 else np.int8)
    return array


# --- pytrees -----------------------------------------------------------------


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree, and its structure, which has a method `unflatten`."""
    jax = imported_jax()
    if jax is not None:
        leaves, tree = jax.tree.flatten(value)
        return leaves, tree
    found = [leaf for _, leaf in _named("", value)]
    return found, _Structure(_mapped(lambda leaf: ..., value))


def leaves_of(value: Any) -> list[Any]:
    return flatten(value)[0]


def structure_of(value: Any) -> Any:
    return flatten(value)[1]


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    leaves, tree = flatten(value)
    return tree.unflatten(map(change, leaves))


def leaves_with_names(value: Any) -> list[tuple[str, Any]]:
    """The leaves of a pytree with their paths, such as `['a'][0]`."""
    jax = imported_jax()
    if jax is not None:
        paths = jax.tree_util.tree_flatten_with_path(value)[0]
        return [(jax.tree_util.keystr(path), leaf) for path, leaf in paths]
    return list(_named("", value))


def leaves_with_paths(value: Any) -> list[tuple[tuple[str, ...], Any]]:
    """The leaves of a pytree with the names on their paths, such as `("a", "0")`."""
    jax = imported_jax()
    if jax is not None:
        found = jax.tree_util.tree_flatten_with_path(value)[0]
        name = jax.tree_util.keystr
        return [
            (tuple(name((entry,), simple=True) for entry in path), leaf)
            for path, leaf in found
        ]
    return list(_with_paths((), value))


def _with_paths(
    path: tuple[str, ...], value: Any
) -> Iterable[tuple[tuple[str, ...], Any]]:
    children = _children(value)
    if children is None:
        yield path, value
    names = sorted(value) if type(value) is dict else getattr(value, "_fields", None)
    for i, (_, item) in enumerate(children or ()):
        yield from _with_paths((*path, str(i if names is None else names[i])), item)


class _Structure(NamedTuple):
    """The structure of a pytree of built-in containers, without JAX.

    Attributes:
        outline: the pytree, with `...` in place of its leaves.
    """

    outline: Any

    @property
    def num_leaves(self) -> int:
        return sum(1 for _ in _named("", self.outline))

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        rest = iter(leaves)
        return _mapped(lambda _: next(rest), self.outline)


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The items of a container in JAX's order, with their names; None for a leaf."""
    if value is None:
        return []
    if type(value) is dict:
        return [(f"[{key!r}]", value[key]) for key in sorted(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return [(f".{name}", item) for name, item in pairs]
    if type(value) in (list, tuple):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    return None


def _rebuilt(value: Any, items: Sequence[Any]) -> Any:
    """A container like `value` with other items, in the order of `_children`."""
    if value is None:
        return None
    if type(value) is dict:
        return dict(zip(sorted(value), items, strict=True))
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to all leaves, in order."""
    children = _children(value)
    if children is None:
        return change(value)
    return _rebuilt(value, [_mapped(change, item) for _, item in children])


def _named(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    children = _children(value)
    if children is None:
        yield path, value
    for name, item in children or ():
        yield from _named(path + name, item)
