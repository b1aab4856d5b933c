"""One key of a logdict: value, steps and mask, and the meaning of their axes."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import (
    flatten,
    imported_jax,
    is_jax_array,
    is_spread,
    is_tracer,
    is_typed_key,
    leaves_of,
    local_numpy,
    namespace,
    structure_of,
    to_numpy,
)
from lox._errors import DtypeError, LoxValueError, ShapeError, StepError
from lox._reduce.named import REDUCTIONS
from lox._reduce.protocol import AnyReduction, StackedRows


class KeyInfo(NamedTuple):
    """The meaning of the axes of one key, and its tags.

    The axes of a leaf are `(*outer lanes, time, *lanes, *own axes)`. Outer lanes are
    added by a `vmap` around the transformation. They are not counted here, so that this
    remains true when JAX batches the logdict.

    Attributes:
        stacked: whether there is a time axis.
        lanes: the number of lane axes, from `vmap`s inside the function that logged.
        ndims: the number of own axes of each leaf.
        tags: the tags of the `lox.log` calls that logged the key.
        multi_row: for logs of a running program, whether it may log several rows of
            the key; else None.
    """

    stacked: bool
    lanes: int
    ndims: tuple[int, ...]
    tags: tuple[str, ...] = ()
    multi_row: bool | None = None

    @classmethod
    def from_json(cls, parts: list[Any]) -> "KeyInfo":
        stacked, lanes, ndims, tags, multi_row = parts
        return cls(stacked, lanes, tuple(ndims), tuple(tags), multi_row)

    def time_axis(self, leaf: Any, own: int) -> int:
        """The position of the time axis of a leaf, or where to insert it."""
        axis = np.ndim(leaf) - own - self.lanes - self.stacked
        if axis < 0:
            raise LoxValueError(
                "these logs have fewer axes than when they were created, so their "
                "time axis is unknown. Take rows with `logs.slice[-1]` instead of "
                "`jax.tree.map(lambda x: x[-1], logs)`."
            )
        return axis


def all_tags(tags: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Joins several tuples of tags, without duplicates."""
    return tuple(dict.fromkeys(tag for each in tags for tag in each))


def describe_axes(value: Any, stacked: bool, key: str = "") -> KeyInfo:
    """The axes of a value without lanes."""
    ndims = tuple(np.ndim(leaf) - stacked for leaf in leaves_of(value))
    if any(ndim < 0 for ndim in ndims):
        raise LoxValueError(
            f"{key!r} is marked as stacked, but contains a scalar, which has no time "
            "axis. A list is a pytree of its items: pass an array."
        )
    return KeyInfo(stacked, 0, ndims)


class FirstRows:
    """The mask of a key of which only the first rows happened, as their number.

    A program returns it in place of a mask, which has as many elements as there are
    rows, and of the number of dropped rows. Keys that are always logged together share
    it.

    Attributes:
        total: the number of rows that there were, of the shape of the lanes.
        capacity: how many rows are kept; None if that is unknown. Then the `total` is
            that of the rows that were kept.
    """

    __slots__ = ("capacity", "total")

    def __init__(self, total: Any, capacity: int | None = None) -> None:
        self.total = total
        self.capacity = capacity

    def mask(self, value: Any, info: KeyInfo) -> Any:
        """The mask of the rows of a value."""
        leaf, own = leaves_of(value)[0], info.ndims[0]
        axis = info.time_axis(leaf, own)
        length = np.shape(leaf)[axis]
        rows = np.arange(length).reshape(-1, *[1] * info.lanes)
        return self._computed(lambda total, of: rows < of.expand_dims(total, axis))

    def dropped(self) -> Any:
        """The number of rows that were not kept, of the shape of the lanes."""
        zero, capacity = np.int32(0), np.int32(self.capacity or 0)
        return self._computed(lambda total, of: of.maximum(total - capacity, zero))

    def range(self) -> tuple[int, int]:
        """The smallest and the largest number of rows of a lane."""
        total = to_numpy(self.total)
        if not total.ndim:  # the common case, in which this is faster
            return (total.item(),) * 2
        return (int(total.min()), int(total.max())) if total.size else (0, 0)

    def dropped_on_host(self) -> Any:
        """`dropped` as a NumPy array; None if no rows were dropped."""
        if self.capacity is None:
            return None
        if not is_spread(self.total) and self.range()[1] <= self.capacity:
            return None
        return np.maximum(local_numpy(self.total) - self.capacity, 0)

    def _computed(self, compute: Callable[[Any, Any], Any]) -> Any:
        """Calls `compute` with the total, and the module that computes with it."""
        total = self.total
        if not is_jax_array(total) or is_tracer(total) or is_spread(total):
            return compute(total, namespace(total))
        # explicit transfers, which a `transfer_guard` allows
        return imported_jax().device_put(compute(to_numpy(total), np))


class Key(NamedTuple):
    """The rows of one key of a logdict.

    Attributes:
        value: a pytree of arrays.
        steps: the step numbers of the rows, by name.
        mask: which rows happened, of the shape of a step; None if all did.
        info: the meaning of the axes.
        dropped: how many rows exceeded the `capacity`; None without a `capacity`.
    """

    value: Any
    steps: dict[str, Any]
    mask: Any
    info: KeyInfo
    dropped: Any = None

    def arrays(self, change: Callable[[Any, int], Any]) -> "Key":
        """Changes all arrays: the leaves, then the steps, then the mask.

        Args:
            change: a function of an array and the position of its time axis.
        """
        found, fill = self.split()
        return fill([change(array, axis) for array, axis in found])

    def split(self) -> tuple[list[tuple[Any, int]], Callable[[list[Any]], "Key"]]:
        """All arrays, and the positions of their time axes.

        Also a function that returns the same key with other arrays.
        """
        leaves, tree = flatten(self.value)
        axis, count, steps = self.info.time_axis, len(leaves), self.steps
        found = [
            (x, axis(x, own)) for x, own in zip(leaves, self.info.ndims, strict=True)
        ]
        found += [(x, axis(x, 0)) for x in steps.values()]
        if self.mask is not None:
            found.append((self.mask, axis(self.mask, 0)))

        def fill(arrays: list[Any]) -> Key:
            return Key(
                tree.unflatten(arrays[:count]),
                dict(zip(steps, arrays[count:])),  # noqa: B905
                None if self.mask is None else arrays[-1],
                self.info,
                self.dropped,
            )

        return found, fill

    def stacked(self) -> "Key":
        if self.info.stacked:
            return self
        new = self.arrays(_insert_time)
        return new._replace(info=self.info._replace(stacked=True))

    def length(self) -> int:
        if not self.info.stacked:
            return 1
        return self.row_shape()[self.outer_lanes()]

    def row_shape(self) -> tuple[int, ...]:
        """The shape of lanes and time."""
        leaf, own = leaves_of(self.value)[0], self.info.ndims[0]
        return np.shape(leaf)[: np.ndim(leaf) - own]

    def then(self, name: str, other: "Key") -> "Key":
        """Joins the rows of a key with later ones."""
        first, second = self.stacked(), other.stacked()
        tree, other_tree = structure_of(first.value), structure_of(second.value)
        tags = all_tags([first.info.tags, second.info.tags])
        info = first.info._replace(tags=tags)
        if tree != other_tree or info != second.info._replace(tags=tags):
            raise ShapeError(
                f"cannot join the logs of {name!r}: one has the structure {tree} and "
                f"axes {first.info}, the other {other_tree} and {second.info}. Rename "
                "one of them, or give it a `prefix`."
            )
        if first.steps.keys() != second.steps.keys():
            raise StepError(
                f"cannot join the logs of {name!r}: one has the steps "
                f"{sorted(first.steps)}, the other {sorted(second.steps)}. Give both "
                "the same steps, or a `prefix` to one."
            )
        if (first.mask is None) != (second.mask is None):
            first, second = first.masked(), second.masked()
        joined = combine([first, second], functools.partial(_concatenate, name))
        dropped = [key.dropped for key in (first, second) if key.dropped is not None]
        return joined._replace(info=info, dropped=sum(dropped) if dropped else None)

    def masked(self) -> "Key":
        if self.mask is not None:
            return self
        module = namespace(leaves_of(self.value)[0])
        return self._replace(mask=module.ones(self.row_shape(), dtype=bool))

    def only_if(self, condition: Any) -> "Key":
        """The same rows, logged only if a scalar is true."""
        masked = self.masked()
        return masked._replace(mask=masked.mask & condition)

    def reduced(self, key: str, reduction: AnyReduction | None) -> "Key":
        """Reduces the rows over time."""
        if reduction is None:
            return self
        rows = self.stacked()
        if reduction.keeps_rows:
            return rows
        info = rows.info
        leaves, tree = flatten(rows.value)
        axes = list(map(info.time_axis, leaves, info.ndims))
        stacked = StackedRows(
            key, tree, leaves, axes, info.ndims, info.lanes, rows.mask
        )
        reduced, tree = reduction.stacked(stacked)
        lanes = max(axes, default=0) + info.lanes
        ndims = tuple(np.ndim(leaf) - lanes for leaf in reduced)
        return Key(
            tree.unflatten(reduced),
            rows._reduced_steps(REDUCTIONS[reduction.step]),
            rows._any_happened(),
            info._replace(stacked=False, ndims=ndims),
            rows.dropped,
        )

    def _reduced_steps(self, reduction: AnyReduction) -> dict[str, Any]:
        """Reduces the steps, by `first` or `last`."""
        if not self.steps or not self.length():  # without rows, there is no last step
            return {}
        names, steps = list(self.steps), list(self.steps.values())
        axes = [self.info.time_axis(step, 0) for step in steps]
        own = [0] * len(steps)
        rows = StackedRows("", None, steps, axes, own, self.info.lanes, self.mask)
        return dict(zip(names, reduction.stacked(rows)[0], strict=True))

    def _any_happened(self) -> Any:
        if self.mask is None:
            return None
        return self.mask.any(axis=self.info.time_axis(self.mask, 0))

    def with_key_data(self) -> "Key":
        """Replaces typed PRNG keys with their data, which has one more axis."""
        leaves, tree = flatten(self.value)
        if not any(map(is_typed_key, leaves)):
            return self
        random = imported_jax().random
        data = [random.key_data(x) if is_typed_key(x) else x for x in leaves]
        ndims = tuple(
            ndim + np.ndim(new) - np.ndim(old)
            for ndim, new, old in zip(self.info.ndims, data, leaves, strict=True)
        )
        info = self.info._replace(ndims=ndims)
        return self._replace(value=tree.unflatten(data), info=info)

    def taken(self, rows: Any) -> "Key":
        """The rows at these positions."""
        return self.arrays(lambda array, axis: _take(array, rows, axis))

    def outer_lanes(self) -> int:
        """The number of lane axes added by a `vmap` around the transformation."""
        leaf, own = leaves_of(self.value)[0], self.info.ndims[0]
        return self.info.time_axis(leaf, own)

    def lane_count(self) -> int | None:
        """The size of the outermost lane axis; None if there are no lanes."""
        outer = self.outer_lanes()
        if not outer and not self.info.lanes:
            return None
        return self.row_shape()[0 if outer else self.info.stacked]

    def lane(self, i: int) -> "Key":
        """One lane of the outermost lane axis."""
        if self.lane_count() is None:
            return self
        key = self
        if self.dropped is not None:
            key = self._replace(dropped=_index_lane(self.dropped, i, 0))
        if self.outer_lanes():
            return key.arrays(lambda array, axis: _index_lane(array, i, 0))
        info = self.info
        new = key.arrays(lambda x, axis: _index_lane(x, i, axis + info.stacked))
        return new._replace(info=info._replace(lanes=info.lanes - 1))


def combine(keys: Sequence[Key], join: Callable[[list[Any], int], Any]) -> Key:
    """Joins the arrays of keys that have the same tree, steps and axes.

    Args:
        keys: the keys; all or none have a mask.
        join: a function of corresponding arrays and the position of their time axis.
    """
    first, *others = keys
    rest = [
        iter([*leaves_of(key.value), *(key.steps[x] for x in first.steps), key.mask])
        for key in others
    ]
    return first.arrays(lambda x, axis: join([x, *map(next, rest)], axis))


def _insert_time(array: Any, axis: int) -> Any:
    if not hasattr(array, "dtype"):  # a Python number
        from lox._jax.numbers import as_jax_would

        array = as_jax_would(array)
    return namespace(array).expand_dims(array, axis)


def _index_lane(array: Any, i: int, axis: int) -> Any:
    if is_jax_array(array):
        from lox._jax import array_types

        if array_types.is_split(imported_jax().typeof(array)):
            return _take(array, i, axis)  # JAX does not index sharded axes
    return index_axis(array, i, axis)


def index_axis(array: Any, index: Any, axis: int) -> Any:
    """Indexes one axis, with an integer or a slice."""
    indices = (slice(None),) * axis + (index,)
    if not is_jax_array(array):
        return array[indices]
    if _is_on_one_device(array) and _is_on_cpu(array):
        return _to_device_of(array, np.array(to_numpy(array)[indices]))
    try:
        return array[indices]
    except imported_jax().errors.JaxRuntimeError:
        # a `transfer_guard`: JAX transfers indices implicitly
        return _take(array, np.arange(array.shape[axis])[index], axis)


def _take(array: Any, indices: Any, axis: int) -> Any:
    """Rows of a concrete array; with NumPy, because JAX would compile per length."""
    if not is_jax_array(array):
        return np.take(array, indices, axis=axis)
    if is_typed_key(array):
        return namespace(array).take(array, indices, axis=axis)
    # explicit transfers, which a `transfer_guard` allows
    taken = to_numpy(array).take(indices, axis=axis)
    return imported_jax().device_put(taken)


def _concatenate(name: str, arrays: list[Any], axis: int) -> Any:
    first, second = arrays
    shapes = [list(np.shape(array)) for array in arrays]
    for shape in shapes:
        del shape[axis]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"cannot join the logs of {name!r}: rows of the shapes {shapes[0]} and "
            f"{shapes[1]}. Rename one of them, or give it a `prefix`."
        )
    if first.dtype != second.dtype:
        raise DtypeError(
            f"cannot join the logs of {name!r}: {first.dtype} and {second.dtype}. "
            "Convert one of them, or give it a `prefix`."
        )
    on_device = first if is_jax_array(first) else second
    if all(map(_is_on_one_device, arrays)):
        # with NumPy, because JAX would compile per length
        joined = np.concatenate([to_numpy(array) for array in arrays], axis=axis)
        return _to_device_of(on_device, joined)
    return namespace(on_device).concatenate(arrays, axis=axis)


def _is_on_one_device(array: Any) -> bool:
    return (
        is_jax_array(array)
        and not is_tracer(array)
        and not is_typed_key(array)
        and not array.weak_type
        and len(array.devices()) == 1
    )


def _is_on_cpu(array: Any) -> bool:
    """Whether NumPy reads an array in place; JAX would compile a program."""
    (device,) = array.devices()
    return bool(device.platform == "cpu")


def _to_device_of(like: Any, array: Any) -> Any:
    where = like.sharding if like.committed else None
    return imported_jax().device_put(array, where)


def equal(first: Any, second: Any) -> bool:
    """Whether two pytrees of arrays have the same structure and equal arrays."""
    leaves, tree = flatten(first)
    others, other_tree = flatten(second)
    if tree != other_tree:
        return False
    pairs = zip(leaves, others, strict=True)
    return all(a is b or bool(_array_equal(a, b)) for a, b in pairs)


def _array_equal(first: Any, second: Any) -> Any:
    if np.shape(first) != np.shape(second):
        return False
    arrays = first, second
    if all(map(_is_on_one_device, arrays)) and first.dtype == second.dtype:
        # with NumPy, because JAX would compile per shape
        first, second = map(to_numpy, arrays)
    return namespace(first).all(first == second)
