"""One key of a logdict: its value, steps and mask, and what their axes mean."""

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import (
    flatten,
    imported_jax,
    is_jax_array,
    is_tracer,
    is_typed_key,
    leaves_of,
    namespace,
    structure_of,
    to_numpy,
)
from lox._errors import DtypeError, LoxTypeError, LoxValueError, ShapeError, StepError
from lox._reduce.named import REDUCTIONS
from lox._reduce.protocol import AnyReduction, StackedRows


class KeyInfo(NamedTuple):
    """What the axes of one key's value mean, and its tags.

    From the back: the value's own axes (`ndims`, one number a leaf), `lanes` axes of
    `vmap`s inside the function that logged, and, if `stacked`, the time axis. All axes
    in front of these were added later, by a `vmap` around the transformation. Counting
    from the back is what keeps this true when JAX batches the logdict.
    """

    stacked: bool
    lanes: int
    ndims: tuple[int, ...]
    # those of the lines that logged it
    tags: tuple[str, ...] = ()
    # of what comes as the program runs: whether its program may log multi_row rows
    multi_row: bool | None = None

    @classmethod
    def from_json(cls, parts: list[Any]) -> "KeyInfo":
        stacked, lanes, ndims, tags, multi_row = parts
        return cls(stacked, lanes, tuple(ndims), tuple(tags), multi_row)

    def time_axis(self, leaf: Any, own: int) -> int:
        """Where the time axis is, or would be put."""
        axis = np.ndim(leaf) - own - self.lanes - self.stacked
        if axis < 0:
            raise LoxValueError(
                "these logs no longer have the axes that they were made with, so that "
                "nobody can tell which one is time. Take rows with `logs.slice[-1]` "
                "instead of `jax.tree.map(lambda x: x[-1], logs)`."
            )
        return axis


def all_tags(tags: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The tags of multi_row, each once."""
    return tuple(dict.fromkeys(tag for each in tags for tag in each))


def describe_axes(value: Any, stacked: bool, key: str = "") -> KeyInfo:
    ndims = tuple(np.ndim(leaf) - stacked for leaf in leaves_of(value))
    if any(ndim < 0 for ndim in ndims):
        raise LoxValueError(
            f"{key!r} is to be stacked, but holds a number without a time axis. A list "
            "is a pytree of its items: pass an array."
        )
    return KeyInfo(stacked, 0, ndims)


class Key(NamedTuple):
    """One key of a logdict, with all that belongs to it."""

    value: Any
    steps: dict[str, Any]
    mask: Any
    info: KeyInfo
    # how many rows there was no room for, if that may be
    dropped: Any = None

    def arrays(self, change: Callable[[Any, int], Any]) -> "Key":
        """Changes every array, given the axis at which its time is or would be."""
        leaves, tree = flatten(self.value)
        pairs = zip(leaves, self.info.ndims, strict=True)
        value = tree.unflatten(
            [change(leaf, self.info.time_axis(leaf, own)) for leaf, own in pairs]
        )
        steps = {
            name: change(step, self.info.time_axis(step, 0))
            for name, step in self.steps.items()
        }
        mask = self.mask
        if mask is not None:
            mask = change(mask, self.info.time_axis(mask, 0))
        return Key(value, steps, mask, self.info, self.dropped)

    def stacked(self) -> "Key":
        if self.info.stacked:
            return self
        new = self.arrays(_with_time)
        return new._replace(info=self.info._replace(stacked=True))

    def length(self) -> int:
        if not self.info.stacked:
            return 1
        leaf = leaves_of(self.value)[0]
        return np.shape(leaf)[self.info.time_axis(leaf, self.info.ndims[0])]

    def then(self, name: str, other: "Key") -> "Key":
        first, second = self.stacked(), other.stacked()
        tree, other_tree = (
            structure_of(first.value),
            structure_of(second.value),
        )
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
            first, second = first._masked(), second._masked()
        joined = [
            _concatenate(name, a, b, first.info.time_axis(a, own))
            for a, b, own in zip(
                leaves_of(first.value),
                leaves_of(second.value),
                first.info.ndims,
                strict=True,
            )
        ]
        value = tree.unflatten(joined)
        axis = first.info.time_axis
        steps = {
            step: _concatenate(name, a, second.steps[step], axis(a, 0))
            for step, a in first.steps.items()
        }
        mask = None
        if first.mask is not None:
            mask = _concatenate(name, first.mask, second.mask, axis(first.mask, 0))
        lost = [one.dropped for one in (first, second) if one.dropped is not None]
        return Key(value, steps, mask, info, sum(lost) if lost else None)

    def _masked(self) -> "Key":
        if self.mask is not None:
            return self
        leaf, own = leaves_of(self.value)[0], self.info.ndims[0]
        shape = np.shape(leaf)[: np.ndim(leaf) - own]
        return self._replace(mask=namespace(leaf).ones(shape, dtype=bool))

    def reduced(self, key: str, reduction: AnyReduction | None) -> "Key":
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
            rows._steps_of(REDUCTIONS[reduction.step]),
            rows._any_happened(),
            info._replace(stacked=False, ndims=ndims),
            rows.dropped,
        )

    def _steps_of(self, picks: AnyReduction) -> dict[str, Any]:
        """The steps of the rows that a reduction picks."""
        if not self.steps or not self.length():  # no rows have no last step either
            return {}
        names, steps = list(self.steps), list(self.steps.values())
        axes = [self.info.time_axis(step, 0) for step in steps]
        own = [0] * len(steps)
        rows = StackedRows("", None, steps, axes, own, self.info.lanes, self.mask)
        return dict(zip(names, picks.stacked(rows)[0], strict=True))

    def _any_happened(self) -> Any:
        if self.mask is None:
            return None
        return self.mask.any(axis=self.info.time_axis(self.mask, 0))

    def with_key_data(self) -> "Key":
        """The same with the data of typed PRNG keys, which has one more axis."""
        leaves, tree = flatten(self.value)
        if not any(map(is_typed_key, leaves)):
            return self
        random = imported_jax().random
        data = [random.key_data(x) if is_typed_key(x) else x for x in leaves]
        more = [
            np.ndim(new) - np.ndim(old) for new, old in zip(data, leaves, strict=True)
        ]
        ndims = tuple(map(operator.add, self.info.ndims, more))
        info = self.info._replace(ndims=ndims)
        return self._replace(value=tree.unflatten(data), info=info)

    def compacted(self) -> "Key | None":
        if self.mask is None:
            return self
        if is_tracer(self.mask):
            raise LoxTypeError(
                "`compact` needs values, since its shapes depend on them; call it "
                "outside `jax.jit`."
            )
        mask = to_numpy(self.mask)
        axis = self.info.time_axis(self.mask, 0)
        if not self.info.stacked:
            if not mask.any():
                return None
            return self._replace(mask=None) if mask.all() else self
        others = tuple(i for i in range(mask.ndim) if i != axis)
        happened = np.asarray(mask.any(axis=others))
        if not happened.any():
            return None
        (kept,) = np.nonzero(happened)
        new = self
        if len(kept) < len(happened):
            new = self.arrays(lambda array, axis: _take(array, kept, axis))
        whole = mask.take(kept, axis=axis).all()
        return new._replace(mask=None) if whole else new

    def outer_lanes(self) -> int:
        """How many lane axes a `vmap` around the transformation put in front."""
        leaf, own = leaves_of(self.value)[0], self.info.ndims[0]
        return self.info.time_axis(leaf, own)

    def lane_count(self) -> int | None:
        leaf, own = leaves_of(self.value)[0], self.info.ndims[0]
        outer = self.info.time_axis(leaf, own)
        if outer > 0:
            return np.shape(leaf)[0]
        if self.info.lanes:
            return np.shape(leaf)[outer + self.info.stacked]
        return None

    def lane(self, i: int) -> "Key":
        if self.lane_count() is None:
            return self
        key = self
        if self.dropped is not None:
            key = self._replace(dropped=_index_lane(self.dropped, i, 0))
        leaf, own = leaves_of(self.value)[0], self.info.ndims[0]
        if self.info.time_axis(leaf, own) > 0:
            return key.arrays(lambda array, axis: _index_lane(array, i, 0))
        stacked = self.info.stacked
        new = key.arrays(lambda array, axis: _index_lane(array, i, axis + stacked))
        return new._replace(info=self.info._replace(lanes=self.info.lanes - 1))


def _with_time(array: Any, axis: int) -> Any:
    if not hasattr(array, "dtype"):  # a Python number, as JAX would take it
        from lox._jax.numbers import as_jax_would

        array = as_jax_would(array)
    return namespace(array).expand_dims(array, axis)


def _index_lane(array: Any, i: int, axis: int) -> Any:
    if is_jax_array(array):
        from lox._jax import array_types

        if array_types.is_split(imported_jax().typeof(array)):
            return _take(array, i, axis)  # JAX does not index axes that are split
    return index_axis(array, i, axis)


def index_axis(array: Any, index: Any, axis: int) -> Any:
    place = (slice(None),) * axis + (index,)
    if not is_jax_array(array):
        return array[place]
    try:
        return array[place]
    except imported_jax().errors.JaxRuntimeError:
        # of a `transfer_guard`: JAX transfers indices
        length = array.shape[axis]
        rows = np.arange(length)[index]
        return _take(array, rows, axis)


def _take(array: Any, indices: Any, axis: int) -> Any:
    """Rows of a concrete array; by NumPy, since JAX would compile for each length."""
    if not is_jax_array(array):
        return np.take(array, indices, axis=axis)
    if is_typed_key(array):
        return namespace(array).take(array, indices, axis=axis)
    # named as transfers, since a user may have forbidden all others
    taken = to_numpy(array).take(indices, axis=axis)
    return imported_jax().device_put(taken)


def _concatenate(name: str, first: Any, second: Any, axis: int) -> Any:
    shapes = [list(np.shape(first)), list(np.shape(second))]
    for shape in shapes:
        del shape[axis]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"cannot join the logs of {name!r}: rows of the shapes {shapes[0]} and "
            f"{shapes[1]}. Rename one of them, or give it a `prefix`."
        )
    dtypes = [first.dtype, second.dtype]
    if dtypes[0] != dtypes[1]:
        raise DtypeError(
            f"cannot join the logs of {name!r}: {dtypes[0]} and {dtypes[1]}. Convert "
            "one of them, or give it a `prefix`."
        )
    on_device = first if is_jax_array(first) else second
    return namespace(on_device).concatenate([first, second], axis=axis)


def equal(first: Any, second: Any) -> bool:
    leaves, tree = flatten(first)
    others, other_tree = flatten(second)
    if tree != other_tree:
        return False
    pairs = zip(leaves, others, strict=True)
    return all(a is b or bool(_array_equal(a, b)) for a, b in pairs)


def _array_equal(first: Any, second: Any) -> Any:
    if np.shape(first) != np.shape(second):
        return False
    return namespace(first).all(first == second)
