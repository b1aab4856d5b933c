"""Array types (avals): shardings, mesh axes and lanes; zeros of a type."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from .vma import vary_like, varying_axes

_enclosing = threading.local()


def partly_manual() -> bool:
    """Whether an enclosing `shard_map` is manual over some, but not all, mesh axes."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = set(getattr(mesh, "manual_axes", ()))
    if manual and manual != set(mesh.axis_names):
        return True
    return getattr(_enclosing, "is_partly_manual", False)


@contextlib.contextmanager
def inside_shard_map(axes: Iterable[Any], mesh_axes: Iterable[Any]) -> Iterator[None]:
    """Remembers a `shard_map`, since a nested one does not show what encloses it.

    Args:
        axes: the axes that it makes manual.
        mesh_axes: all axes of its mesh.
    """
    before = getattr(_enclosing, "is_partly_manual", False)
    _enclosing.is_partly_manual = before or set(axes) != set(mesh_axes)
    try:
        yield
    finally:
        _enclosing.is_partly_manual = before


def shard_map_devices() -> int:
    """The number of devices of the mesh of the enclosing `shard_map`; 0 if none."""
    mesh = jax.sharding.get_abstract_mesh()
    return int(mesh.size) if getattr(mesh, "manual_axes", ()) else 0


def mesh_axes() -> tuple[Any, ...]:
    """The axes of the current mesh."""
    return tuple(jax.sharding.get_abstract_mesh().axis_names)


def manual_axes() -> tuple[Any, ...]:
    """The mesh axes that enclosing `shard_map`s split, in the order of the mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = getattr(mesh, "manual_axes", ())
    return tuple(axis for axis in mesh.axis_names if axis in manual)


def axes_size(axes: Sequence[Any]) -> int:
    """The number of devices along some axes of the current mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in axes)


def device_in_shard_map(over: Sequence[Any] = ()) -> tuple[Any, int] | None:
    """The number of this device in the enclosing `shard_map`, and how many there are.

    Devices along axes that are not manual, and along the axes `over`, log as one. None
    outside `shard_map`, and if all devices log as one.
    """
    axes = tuple(axis for axis in manual_axes() if axis not in over)
    return (lax.axis_index(axes), axes_size(axes)) if axes else None


def is_first(axes: Sequence[Any]) -> Any:
    """Whether this device is the first one along some manual axes."""
    return lax.axis_index(tuple(axes)) == 0


def has_varying_types() -> bool:
    """Whether types say which values vary over the devices of the `shard_map`.

    With `check_vma=False`, they do not.
    """
    axes = manual_axes()
    return bool(axes) and bool(varying_axes(jax.typeof(lax.axis_index(axes))))


def as_array(x: Any) -> Any:
    """Converts literals, which reach traversals and derivatives as Python numbers."""
    return x if isinstance(x, jax.Array) else jax.numpy.asarray(x)


def anchor_aval(x: Any) -> Any:
    """The type of an integer scalar, replicated over the mesh of `x`."""
    sharding = jax.sharding.NamedSharding(x.sharding.mesh, jax.sharding.PartitionSpec())
    return jax.core.ShapedArray((), np.dtype("int32"), sharding=sharding)


def physical_aval(aval: Any) -> Any:
    """The type of the arrays that hold `aval`; for PRNG keys, that of their data."""
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return aval
    data = jax.eval_shape(
        jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    )
    return aval.update(shape=data.shape, dtype=data.dtype)


def zeros_of_aval(aval: Any) -> Any:
    """Zeros of a type, with its sharding and varying axes; for keys, zero keys."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = physical_aval(aval)
        zeros = jax.numpy.zeros(data.shape, data.dtype)
        return jax.random.wrap_key_data(zeros, impl=aval.dtype._impl.name)
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, aval.dtype)
    zeros = jax.numpy.zeros(aval.shape, aval.dtype)
    return vary_like(sharded_like(zeros, aval), varying_axes(aval))


def strong_zeros(aval: Any, dtype: Any = None) -> Any:
    """Strongly typed zeros of a type, optionally with another dtype."""
    return zeros_of_aval(aval.update(dtype=dtype or aval.dtype, weak_type=False))


def sharded_like(x: Any, aval: Any) -> Any:
    """Reshards `x` like `aval`."""
    sharding = getattr(aval, "sharding", None)
    if not getattr(getattr(sharding, "mesh", None), "are_all_axes_explicit", False):
        is_same = not is_split(aval)
    else:
        is_same = jax.typeof(x).sharding == sharding
    return x if is_same else jax.sharding.reshard(x, sharding)


def replicated(x: Any) -> Any:
    """Reshards `x` so that it is not split over an explicit mesh."""
    kind = jax.typeof(x)
    if not is_split(kind):
        return x
    return _resharded(x, kind.sharding, ())


def with_whole_axis(x: Any, axis: int) -> Any:
    """Reshards `x` so that one axis is not split over an explicit mesh."""
    kind = jax.typeof(x)
    if not is_split(kind):
        return x
    spec = [*kind.sharding.spec, *[None] * (x.ndim - len(kind.sharding.spec))]
    if spec[axis] is None:
        return x
    spec[axis] = None
    return _resharded(x, kind.sharding, spec)


def plain_type(aval: Any) -> Any:
    """A type without its sharding."""
    return jax.core.ShapedArray(aval.shape, aval.dtype)


def with_lanes(x: Any, like: Any, lanes: int) -> Any:
    """Broadcasts `x` to the lanes of the type `like`."""
    x = jax.numpy.broadcast_to(x, (*like.shape[:lanes], *x.shape))
    if not is_split(like):
        return x
    spec = (*like.sharding.spec[:lanes], *jax.typeof(x).sharding.spec[lanes:])
    return _resharded(x, like.sharding, spec)


def with_lanes_of(x: Any, like: Any, lanes: int) -> Any:
    """Reshards the lanes of `x` over an explicit mesh like those of `like`."""
    kind = jax.typeof(x)
    if not is_split(like) and not is_split(kind):
        return x
    spec = (*like.sharding.spec[:lanes], *kind.sharding.spec[lanes:])
    if spec == tuple(kind.sharding.spec):
        return x
    # the type of a constant has no mesh
    known = like if is_split(like) else kind
    return _resharded(x, known.sharding, spec)


def _resharded(x: Any, sharding: Any, spec: Iterable[Any]) -> Any:
    """Reshards `x` over the mesh of another sharding."""
    spec = jax.sharding.PartitionSpec(*spec)
    return jax.sharding.reshard(x, sharding.update(spec=spec))


def row_type(aval: Any) -> Any:
    """A type without its first axis."""
    return _with_first_axes(aval, aval.shape[1:], lambda spec: spec[1:])


def rows_type(aval: Any, length: int) -> Any:
    """A type with one more axis in front."""
    shape = (length, *aval.shape)
    return _with_first_axes(aval, shape, lambda spec: (None, *spec))


def _with_first_axes(aval: Any, shape: Any, change: Callable[[Any], Any]) -> Any:
    changes: dict[str, Any] = {"shape": shape, "weak_type": False}
    if not hasattr(aval, "update"):
        return jax.ShapeDtypeStruct(shape, aval.dtype)
    sharding: Any = getattr(aval, "sharding", None)
    spec = getattr(sharding, "spec", None)
    # even without sharding, a spec has an entry per axis
    if spec is not None and len(spec) == len(aval.shape):
        spec = jax.sharding.PartitionSpec(*change(tuple(spec)))
        changes["sharding"] = sharding.update(spec=spec)
    return aval.update(**changes)


def is_split(aval: Any) -> bool:
    """Whether an array of a type is split over an explicit mesh."""
    spec = getattr(getattr(aval, "sharding", None), "spec", ())
    return any(part is not None for part in spec)
