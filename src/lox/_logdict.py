"""`logdict`: what was logged, as a dict that knows its steps and its time axis."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import _reduce, _views
from ._errors import DtypeError, LoxTypeError, LoxValueError, ShapeError, StepError
from ._events import matches
from ._format import Masked, format_value


class KeyInfo(NamedTuple):
    """What the axes of one key's value mean.

    From the back: the value's own axes (`ndims`, one number a leaf), `lanes` axes of
    `vmap`s inside the function that logged, and, if `stacked`, the time axis. All axes
    in front of these were added later, by a `vmap` around the transformation. Counting
    from the back is what keeps this true when JAX batches the logdict.
    """

    stacked: bool
    lanes: int
    ndims: tuple[int, ...]

    def time_axis(self, leaf: Any, own: int) -> int:
        """Where the time axis is, or would be put."""
        return np.ndim(leaf) - own - self.lanes - self.stacked


def _info_of(value: Any, stacked: bool) -> KeyInfo:
    ndims = tuple(np.ndim(leaf) - stacked for leaf in jax.tree.leaves(value))
    if any(ndim < 0 for ndim in ndims):
        raise LoxValueError("a stacked value needs a leading time axis.")
    return KeyInfo(stacked, 0, ndims)


class logdict(dict[str, Any]):
    """What was logged: a dict of values, with their steps as attributes.

    A `logdict` is a pytree, so it goes through `jax.jit`, `jax.vmap` and
    `jax.tree.map`; it can be copied, pickled and compared like a dict. It remembers
    which axis of each value is time, also when it was batched by a `vmap` (with
    `out_axes=0`).

    Args:
        data: the values by name.
        steps: for each step name, the step numbers by key.
        stacked: whether the values have a leading time axis (or the names of those
            that do).

    Example:
        >>> def f(xs):
        ...     def body(carry, x):
        ...         lox.log({"sum": carry + x}, step=x)
        ...         return carry + x, None
        ...     return jax.lax.scan(body, 0, xs)[0]
        >>> _, logs = lox.spool(f)(jnp.arange(4))
        >>> logs
        {'sum': [0, 1, 3, 6]}
        >>> logs.step["sum"]
        Array([0, 1, 2, 3], dtype=int32)
        >>> logs.reduce("mean")
        {'sum': 2.5}
        >>> logs.slice[::2]
        {'sum': [0, 3]}
    """

    __slots__ = ("_info", "_mask", "_steps")

    _info: dict[str, KeyInfo]
    _mask: dict[str, Any]
    _steps: dict[str, dict[str, Any]]

    def __init__(
        self,
        data: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        stacked: bool | Iterable[str] = False,
    ) -> None:
        super().__init__(data)
        if isinstance(data, logdict) and steps is None:
            self._info = dict(data._info)
            self._mask = dict(data._mask)
            self._steps = {name: dict(of) for name, of in data._steps.items()}
            return
        if isinstance(stacked, bool):
            names = set(self) if stacked else set()
        else:
            names = set(stacked)
        self._info = {key: _info_of(self[key], key in names) for key in self}
        self._mask = {}
        self._steps = {name: dict(of) for name, of in (steps or {}).items()}
        for name in self._steps:
            if name in RESERVED:
                raise StepError(reserved_step(name))

    @classmethod
    def _of(
        cls,
        data: dict[str, Any],
        steps: dict[str, dict[str, Any]],
        mask: dict[str, Any],
        info: dict[str, KeyInfo],
    ) -> "logdict":
        """A logdict of parts that are known to fit."""
        self = cls.__new__(cls)
        dict.update(self, data)
        self._steps = steps
        self._mask = mask
        self._info = info
        return self

    # --- as a dict -------------------------------------------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        info = self._info.get(key)
        new = _info_of(value, False)
        if info is None or key not in self or not self._same_axes(key, value):
            self._info[key] = new
            self._mask.pop(key, None)
            for of in self._steps.values():
                of.pop(key, None)
        super().__setitem__(key, value)

    def _same_axes(self, key: str, value: Any) -> bool:
        old = jax.tree.leaves(self[key])
        new = jax.tree.leaves(value)
        return [np.ndim(leaf) for leaf in old] == [np.ndim(leaf) for leaf in new]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if isinstance(other, logdict) and not (
            _equal(self.steps, other.steps) and _equal(self._mask, other._mask)
        ):
            return False
        return _equal(dict(self), dict(other))

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = dict(self)
        for key, mask in self.mask.items():
            shown[key] = jax.tree.map(lambda x, m=mask: Masked(x, m), shown[key])
        return format_value(shown)

    __str__ = __repr__

    def copy(self) -> "logdict":
        return logdict(self)

    def __copy__(self) -> "logdict":
        return logdict(self)

    def __reduce__(self) -> Any:
        return _rebuild, (dict(self), self.steps, dict(self._mask), self._infos())

    def _infos(self) -> dict[str, KeyInfo]:
        return {key: self._info_for(key) for key in self}

    def _info_for(self, key: str) -> KeyInfo:
        info = self._info.get(key)
        if info is None:  # set by `update`, `setdefault` or `|=`
            info = self._info[key] = _info_of(self[key], False)
        return info

    def __getattr__(self, name: str) -> dict[str, Any]:
        steps = object.__getattribute__(self, "_steps")
        if name in steps:
            return {key: value for key, value in steps[name].items() if key in self}
        known = f"it has the steps {', '.join(steps)}" if steps else "it has no steps"
        raise AttributeError(f"this `logdict` has no step {name!r}; {known}.")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._steps]

    # --- what was logged -------------------------------------------------------------

    @property
    def data(self) -> dict[str, Any]:
        """The values alone, as a plain dict."""
        return dict(self)

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """The steps by name, then by key."""
        return {name: getattr(self, name) for name in self._steps}

    @property
    def mask(self) -> dict[str, Any]:
        """Which rows happened, for the keys with rows that may not have."""
        return {key: mask for key, mask in self._mask.items() if key in self}

    def _key_steps(self, key: str) -> dict[str, Any]:
        return {name: of[key] for name, of in self._steps.items() if key in of}

    def _with(self, keys: Iterable[tuple[str, "_Key"]]) -> "logdict":
        """A logdict of these keys, in the order of this one's step names."""
        data: dict[str, Any] = {}
        steps: dict[str, dict[str, Any]] = {name: {} for name in self._steps}
        mask: dict[str, Any] = {}
        info: dict[str, KeyInfo] = {}
        for name, key in keys:
            data[name], info[name] = key.value, key.info
            for step, value in key.steps.items():
                steps.setdefault(step, {})[name] = value
            if key.mask is not None:
                mask[name] = key.mask
        steps = {name: of for name, of in steps.items() if of}
        return logdict._of(data, steps, mask, info)

    def _key(self, key: str) -> "_Key":
        return _Key(
            self[key], self._key_steps(key), self._mask.get(key), self._info_for(key)
        )

    # --- joining and choosing --------------------------------------------------------

    def __add__(self, other: Mapping[str, Any]) -> "logdict":
        """The logs of two functions that ran one after the other."""
        if not isinstance(other, Mapping):
            return NotImplemented
        right = other if isinstance(other, logdict) else logdict(other)
        keys = {key: self._key(key) for key in self}
        for key in right:
            new = right._key(key)
            keys[key] = keys[key].then(key, new) if key in keys else new
        return self._with(keys.items())

    def __radd__(self, other: Any) -> "logdict":
        if isinstance(other, int) and other == 0:  # the start of `sum(...)`
            return self.copy()
        if not isinstance(other, Mapping):
            return NotImplemented
        return logdict(other) + self

    def __or__(self, other: Mapping[str, Any]) -> "logdict":  # type: ignore[override]
        """The keys of both; where both have one, the right one's."""
        if not isinstance(other, Mapping):
            return NotImplemented
        right = other if isinstance(other, logdict) else logdict(other)
        keys = {key: self._key(key) for key in self}
        return self._with({**keys, **{key: right._key(key) for key in right}}.items())

    def __ror__(self, other: Mapping[str, Any]) -> "logdict":  # type: ignore[override]
        if not isinstance(other, Mapping):
            return NotImplemented
        return logdict(other) | self

    def __ior__(self, other: Any) -> "logdict":  # type: ignore[override,misc]
        joined = self | other
        dict.update(self, joined)
        self._steps, self._mask = joined._steps, joined._mask
        self._info = joined._info
        return self

    def filter(self, pred: Callable[[str], bool] | str | Iterable[str]) -> "logdict":
        """The keys that `pred` holds for, or that match a name or pattern.

        Example:
            >>> logs = lox.logdict({"train/loss": 1.0, "train/acc": 0.5, "lr": 0.1})
            >>> logs.filter("train/*")
            {'train/loss': 1.0, 'train/acc': 0.5}
        """
        if callable(pred):
            chosen = [key for key in self if pred(key)]
        else:
            patterns = [pred] if isinstance(pred, str) else list(pred)
            chosen = [key for key in self if any(matches(key, p) for p in patterns)]
        return self._with((key, self._key(key)) for key in chosen)

    def prefix(self, prefix: str) -> "logdict":
        """The same logs with `prefix` in front of every key."""
        return self._with((f"{prefix}{key}", self._key(key)) for key in self)

    # --- over time -------------------------------------------------------------------

    def reduce(self, reduce: Any) -> "logdict":
        """Reduces every key over time, and over time only.

        Args:
            reduce: one of `mean sum min max first last count std var append`, or a
                dict from names or patterns to these; keys not in it stay as they are.

        Returns:
            The reduced logs; each key has the step of its last row (of its first, for
            `first`).
        """
        checked = _reduce.check(reduce)
        return self._with(
            (key, self._key(key).reduced(_reduce.choose(checked, key))) for key in self
        )

    @property
    def slice(self) -> "_Slicer":
        """Rows by position: `logs.slice[-10:]`, `logs.slice[::100]`, `logs.slice[3]`.

        Keys that were logged once, outside any loop, are not sliced.
        """
        return _Slicer(self)

    def rows(self) -> Iterator["logdict"]:
        """One logdict a row; keys with the same steps come in the same rows."""
        compact = self.compact()
        groups: list[tuple[list[str], int]] = []
        for key in compact:
            length = compact._key(key).length()
            for keys, other in groups:
                same = compact._key_steps(keys[0]), compact._key_steps(key)
                if other == length and _equal(*same):
                    keys.append(key)
                    break
            else:
                groups.append(([key], length))
        for keys, length in groups:
            chosen = compact.filter(lambda key, keys=keys: key in keys)
            for i in range(length):
                yield chosen.slice[i]

    def compact(self) -> "logdict":
        """Exactly the rows that happened; a key that never happened is absent.

        Rows that happened in some lanes only keep their mask; `lanes()` gives each
        lane its own.
        """
        if not self._mask:
            return self
        keys = ((key, self._key(key).compacted()) for key in self)
        return self._with((key, compact) for key, compact in keys if compact)

    def lanes(self) -> list["logdict"]:
        """One logdict a lane of the outermost `vmap`."""
        keys = {key: self._key(key) for key in self}
        counts = {key.lane_count() for key in keys.values()}
        if counts <= {None}:
            return [self]
        sizes = counts - {None}
        if len(sizes) > 1:
            raise LoxValueError(
                f"`lanes` found lane axes of the lengths {sorted(sizes)}; choose keys "
                "of one `vmap` first, with `filter`."
            )
        return [
            self._with((name, key.lane(i)) for name, key in keys.items()).compact()
            for i in range(sizes.pop())
        ]

    # --- elsewhere -------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of rows, with columns for keys, steps and lanes."""
        return _views.to_pandas(self)

    def to_xarray(self) -> Any:
        """An `xarray.Dataset`, with dimensions for lanes, time and the values' axes."""
        return _views.to_xarray(self)

    def plot(self, *keys: str, x: str | None = None) -> Any:
        """Draws each scalar key over its step with matplotlib; returns the figure."""
        return _views.plot(self, keys, x)

    def _repr_html_(self) -> str:
        return _views.to_html(self)


class _Key(NamedTuple):
    """One key of a logdict, with all that belongs to it."""

    value: Any
    steps: dict[str, Any]
    mask: Any
    info: KeyInfo

    def arrays(self, change: Callable[[Any, int], Any]) -> "_Key":
        """Changes every array, given the axis at which its time is or would be."""
        leaves, tree = jax.tree.flatten(self.value)
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
        return _Key(value, steps, mask, self.info)

    def stacked(self) -> "_Key":
        if self.info.stacked:
            return self
        new = self.arrays(lambda array, axis: _module(array).expand_dims(array, axis))
        return new._replace(info=self.info._replace(stacked=True))

    def length(self) -> int:
        if not self.info.stacked:
            return 1
        leaf = jax.tree.leaves(self.value)[0]
        return np.shape(leaf)[self.info.time_axis(leaf, self.info.ndims[0])]

    def then(self, name: str, other: "_Key") -> "_Key":
        first, second = self.stacked(), other.stacked()
        tree, other_tree = jax.tree.structure(first.value), jax.tree.structure(
            second.value
        )
        if tree != other_tree or first.info != second.info:
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
                jax.tree.leaves(first.value),
                jax.tree.leaves(second.value),
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
        return _Key(value, steps, mask, first.info)

    def _masked(self) -> "_Key":
        if self.mask is not None:
            return self
        leaf, own = jax.tree.leaves(self.value)[0], self.info.ndims[0]
        shape = np.shape(leaf)[: np.ndim(leaf) - own]
        return self._replace(mask=_module(leaf).ones(shape, dtype=bool))

    def reduced(self, name: str | None) -> "_Key":
        if name is None:
            return self
        if name == "append":
            return self.stacked()
        rows = self.stacked()
        leaves, tree = jax.tree.flatten(rows.value)
        pairs = list(zip(leaves, rows.info.ndims, strict=True))
        reduced = []
        for leaf, own in pairs:
            mask = rows.mask
            if mask is not None:
                mask = mask.reshape(mask.shape + (1,) * own)
            axis = rows.info.time_axis(leaf, own)
            reduced.append(_reduce.reduce_stacked(name, leaf, axis, mask))
        if name == "count":
            reduced, ndims = _counts(reduced, rows.info)
            tree = tree if len(reduced) == tree.num_leaves else jax.tree.structure(0)
        else:
            ndims = rows.info.ndims
        pick = "first" if name == "first" else "last"
        steps = {
            step: _reduce.reduce_stacked(
                pick, value, rows.info.time_axis(value, 0), rows.mask
            )
            for step, value in rows.steps.items()
        }
        info = rows.info._replace(stacked=False, ndims=ndims)
        mask = None if rows.mask is None else rows.mask.any(axis=self._mask_axis(rows))
        return _Key(tree.unflatten(reduced), steps, mask, info)

    @staticmethod
    def _mask_axis(rows: "_Key") -> int:
        return rows.info.time_axis(rows.mask, 0)

    def compacted(self) -> "_Key | None":
        if self.mask is None:
            return self
        if isinstance(self.mask, jax.core.Tracer):
            raise LoxTypeError(
                "`compact` needs values, since its shapes depend on them; call it "
                "outside `jax.jit`."
            )
        mask = np.asarray(self.mask)
        axis = self.info.time_axis(self.mask, 0)
        if not self.info.stacked:
            if not mask.any():
                return None
            return self._replace(mask=None) if mask.all() else self
        others = tuple(i for i in range(mask.ndim) if i != axis)
        happened = mask.any(axis=others)
        if not happened.any():
            return None
        (kept,) = np.nonzero(happened)
        new = self
        if len(kept) < len(happened):
            new = self.arrays(lambda array, axis: _take(array, kept, axis))
        whole = mask.take(kept, axis=axis).all()
        return new._replace(mask=None) if whole else new

    def lane_count(self) -> int | None:
        leaf, own = jax.tree.leaves(self.value)[0], self.info.ndims[0]
        outer = self.info.time_axis(leaf, own)
        if outer > 0:
            return np.shape(leaf)[0]
        if self.info.lanes:
            return np.shape(leaf)[outer + self.info.stacked]
        return None

    def lane(self, i: int) -> "_Key":
        if self.lane_count() is None:
            return self
        leaf, own = jax.tree.leaves(self.value)[0], self.info.ndims[0]
        if self.info.time_axis(leaf, own) > 0:
            return self.arrays(lambda array, axis: array[i])
        stacked = self.info.stacked
        new = self.arrays(
            lambda array, axis: _module(array).take(array, i, axis=axis + stacked)
        )
        return new._replace(info=self.info._replace(lanes=self.info.lanes - 1))


def _counts(
    counted: list[Any], info: KeyInfo
) -> tuple[list[Any], tuple[int, ...]]:
    # a count has no axes of the value's own, and one suffices for the whole value
    del info
    return counted[:1], (0,)


class _Slicer:
    __slots__ = ("_logs",)

    def __init__(self, logs: logdict) -> None:
        self._logs = logs

    def __getitem__(self, index: Any) -> logdict:
        if not isinstance(index, int | np.integer | slice):
            raise LoxTypeError(
                f"`logs.slice[...]` takes an integer or a slice, not {index!r}."
            )
        logs = self._logs
        return logs._with((key, _slice(logs._key(key), index)) for key in logs)


def _slice(key: _Key, index: Any) -> _Key:
    if not key.info.stacked:
        return key
    new = key.arrays(lambda array, axis: array[(slice(None),) * axis + (index,)])
    if isinstance(index, slice):
        return new
    return new._replace(info=key.info._replace(stacked=False))


def _module(array: Any) -> Any:
    return jnp if isinstance(array, jax.Array) else np


def _take(array: Any, indices: Any, axis: int) -> Any:
    """Rows of a concrete array; by NumPy, since JAX would compile for each length."""
    if not isinstance(array, jax.Array):
        return np.take(array, indices, axis=axis)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return jnp.take(array, indices, axis=axis)
    return jnp.asarray(np.asarray(array).take(indices, axis=axis))


def _concatenate(name: str, first: Any, second: Any, axis: int) -> Any:
    shapes = [list(np.shape(first)), list(np.shape(second))]
    lengths = [shape.pop(axis) for shape in shapes]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"cannot join the logs of {name!r}: rows of the shapes {shapes[0]} and "
            f"{shapes[1]}. Rename one of them, or give it a `prefix`."
        )
    del lengths
    dtypes = [jnp.result_type(first), jnp.result_type(second)]
    if dtypes[0] != dtypes[1]:
        raise DtypeError(
            f"cannot join the logs of {name!r}: {dtypes[0]} and {dtypes[1]}. Convert "
            "one of them, or give it a `prefix`."
        )
    on_device = isinstance(first, jax.Array) or isinstance(second, jax.Array)
    return (jnp if on_device else np).concatenate([first, second], axis=axis)


def _equal(first: Any, second: Any) -> bool:
    leaves, tree = jax.tree.flatten(first)
    others, other_tree = jax.tree.flatten(second)
    if tree != other_tree:
        return False
    pairs = zip(leaves, others, strict=True)
    return all(a is b or bool(_array_equal(a, b)) for a, b in pairs)


def _array_equal(first: Any, second: Any) -> Any:
    if np.shape(first) != np.shape(second):
        return False
    return _module(first).all(first == second)


def _rebuild(
    data: dict[str, Any],
    steps: dict[str, dict[str, Any]],
    mask: dict[str, Any],
    info: dict[str, KeyInfo],
) -> logdict:
    return logdict._of(data, steps, mask, info)


# --- as a pytree ---------------------------------------------------------------------


def _layout(logs: logdict) -> tuple[Any, ...]:
    keys = tuple(logs)
    steps = tuple(
        (name, tuple(key for key in of if key in logs))
        for name, of in logs._steps.items()
    )
    masks = tuple(key for key in logs._mask if key in logs)
    return keys, steps, masks, tuple(logs._info_for(key) for key in keys)


def _children(logs: logdict, layout: tuple[Any, ...]) -> list[Any]:
    keys, steps, masks, _ = layout
    children = [logs[key] for key in keys]
    children += [logs._steps[name][key] for name, of in steps for key in of]
    children += [logs._mask[key] for key in masks]
    return children


def _flatten(logs: logdict) -> tuple[list[Any], tuple[Any, ...]]:
    layout = _layout(logs)
    return _children(logs, layout), layout


def _flatten_with_keys(logs: logdict) -> tuple[list[Any], tuple[Any, ...]]:
    layout = _layout(logs)
    keys, steps, masks, _ = layout
    attribute, item = jax.tree_util.GetAttrKey, jax.tree_util.DictKey
    paths: list[Any] = [item(key) for key in keys]
    paths += [attribute(f"{name}[{key!r}]") for name, of in steps for key in of]
    paths += [attribute(f"mask[{key!r}]") for key in masks]
    return list(zip(paths, _children(logs, layout), strict=True)), layout


def _unflatten(layout: tuple[Any, ...], children: Iterable[Any]) -> logdict:
    keys, steps, masks, infos = layout
    rest = iter(children)
    data = {key: next(rest) for key in keys}
    step_values = {name: {key: next(rest) for key in of} for name, of in steps}
    mask = {key: next(rest) for key in masks}
    return logdict._of(data, step_values, mask, dict(zip(keys, infos, strict=True)))


jax.tree_util.register_pytree_with_keys(
    logdict, _flatten_with_keys, _unflatten, _flatten
)

RESERVED = frozenset(dir(logdict)) | {"data", "tags", "reduce", "prefix", "explicit"}


def reserved_step(name: str) -> str:
    return (
        f"a step cannot be called {name!r}, since `logs.{name}` means something else "
        f"already. Call it, say, {name + '_step'!r}."
    )


logdict.__module__ = "lox"
