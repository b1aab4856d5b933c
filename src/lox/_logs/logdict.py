"""`logdict`: what was logged, as a dict that knows its steps and its time axis."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from lox._arrays import (
    is_jax_array,
    is_tracer,
    is_typed_key,
    leaves_of,
    map_leaves,
    to_numpy,
)
from lox._errors import LoxKeyError, LoxTypeError, LoxValueError, LoxWarning, StepError
from lox._imports import when_imported
from lox._patterns import matches
from lox._reduce import reductions
from lox._source import user_line

from . import exports
from .formatting import Masked, format_value
from .grouping import group_keys
from .key import Key, KeyInfo, equal, info_of, sliced


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

    __slots__ = ("_dropped", "_info", "_mask", "_steps")

    # never changed in place: logdicts share them
    _info: dict[str, KeyInfo]
    _mask: dict[str, Any]
    _dropped: dict[str, Any]
    _steps: dict[str, dict[str, Any]]

    def __init__(
        self,
        data: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        stacked: bool | Iterable[str] = False,
    ) -> None:
        super().__init__(data)
        if isinstance(data, logdict) and steps is None:
            self._info, self._mask = data._info, data._mask
            self._steps, self._dropped = data._steps, data._dropped
            return
        if isinstance(stacked, bool):
            names = set(self) if stacked else set()
        else:
            names = set(stacked)
        self._info = {key: info_of(self[key], key in names, key) for key in self}
        self._mask, self._dropped = {}, {}
        self._steps = {name: dict(of) for name, of in (steps or {}).items()}
        for name in self._steps:
            if name in RESERVED:
                raise StepError(reserved_step(name))

    @classmethod
    def _of(
        cls,
        data: dict[str, Any] | Iterable[tuple[str, Any]],
        steps: dict[str, dict[str, Any]],
        mask: dict[str, Any],
        info: dict[str, KeyInfo],
        dropped: dict[str, Any] | None = None,
    ) -> "logdict":
        """A logdict of parts that are known to fit."""
        self = cls.__new__(cls)
        dict.update(self, data)
        self._steps = steps
        self._mask = mask
        self._info = info
        self._dropped = dropped or {}
        return self

    # --- as a dict -------------------------------------------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self or not self._same_axes(key, value):
            self._forget(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._forget(key)

    def _forget(self, key: str) -> None:
        self._info = _less(self._info, key)
        self._mask = _less(self._mask, key)
        self._dropped = _less(self._dropped, key)
        self._steps = {name: _less(of, key) for name, of in self._steps.items()}

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        value = super().pop(key, *default)
        self._forget(key)
        return value

    def popitem(self) -> tuple[str, Any]:
        key, value = super().popitem()
        self._forget(key)
        return key, value

    def clear(self) -> None:
        super().clear()
        self._info, self._mask, self._steps, self._dropped = {}, {}, {}, {}

    def _same_axes(self, key: str, value: Any) -> bool:
        old = leaves_of(self[key])
        new = leaves_of(value)
        return [np.ndim(leaf) for leaf in old] == [np.ndim(leaf) for leaf in new]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if isinstance(other, logdict) and not (
            equal(self.steps, other.steps) and equal(self._mask, other._mask)
        ):
            return False
        return equal(dict(self), dict(other))

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    __hash__ = None

    def __repr__(self) -> str:
        return format_value(self._shown())

    def _shown(self) -> dict[str, Any]:
        """The values, as they print."""
        shown = dict(self)
        for key, mask in self.mask.items():
            shown[key] = map_leaves(functools.partial(Masked, mask=mask), shown[key])
        return shown

    __str__ = __repr__

    def copy(self) -> "logdict":
        return logdict(self)

    def __copy__(self) -> "logdict":
        return logdict(self)

    def __reduce__(self) -> Any:
        # By public names and plain tuples alone, so that files outlive changes of ours.
        infos = {key: tuple(info) for key, info in self._infos().items()}
        parts = dict(self), self.steps, dict(self._mask), infos, dict(self._dropped)
        return logdict._from_pickle, parts

    @classmethod
    def _from_pickle(
        cls,
        data: dict[str, Any],
        steps: dict[str, dict[str, Any]],
        mask: dict[str, Any],
        infos: dict[str, tuple[Any, ...]],
        dropped: dict[str, Any],
    ) -> "logdict":
        """What `pickle` calls; its name and arguments are part of every such file."""
        info = {key: KeyInfo(*parts) for key, parts in infos.items()}
        return cls._of(data, steps, mask, info, dropped)

    def _infos(self) -> dict[str, KeyInfo]:
        return {key: self._info_for(key) for key in self}

    def _info_for(self, key: str) -> KeyInfo:
        info = self._info.get(key)
        if info is None:  # assigned by the user
            info = info_of(self[key], False)
            self._info = {**self._info, key: info}
        return info

    def __getattr__(self, name: str) -> dict[str, Any]:
        steps = object.__getattribute__(self, "_steps")
        if name in steps:
            return {key: value for key, value in steps[name].items() if key in self}
        if name.startswith("__"):  # asked for by others, to find out what this is
            raise AttributeError(name)
        known = f"it has the steps {', '.join(steps)}" if steps else "it has no steps"
        if name in self:
            hint = f" The values are items: `logs[{name!r}]`."
        else:
            hint = f" What it can do: {', '.join(_PUBLIC)}."
        raise AttributeError(
            f"this `logdict` has no attribute and no step {name!r}; {known}.{hint}"
        )

    def __missing__(self, key: Any) -> Any:
        names = ", ".join(map(repr, list(self)[:_MOST_NAMED])) or "nothing"
        if len(self) > _MOST_NAMED:
            names += f", and {len(self) - _MOST_NAMED} more"
        hint = f" Steps are attributes: `logs.{key}`." if key in self._steps else ""
        raise LoxKeyError(f"these logs have no {key!r}; they have {names}.{hint}")

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

    @property
    def dropped(self) -> dict[str, Any]:
        """How many rows there was no room for, for the keys with a `capacity`.

        `compact`, and with it an eager call, warns of them and forgets them.
        """
        return {key: lost for key, lost in self._dropped.items() if key in self}

    @property
    def tags(self) -> dict[str, tuple[str, ...]]:
        """The tags of the lines that logged a key, for the keys that have some."""
        infos = {key: self._info_for(key) for key in self}
        return {key: info.tags for key, info in infos.items() if info.tags}

    def _key_steps(self, key: str) -> dict[str, Any]:
        return {name: of[key] for name, of in self._steps.items() if key in of}

    def _with(self, keys: Iterable[tuple[str, "Key"]]) -> "logdict":
        """A logdict of these keys, in the order of this one's step names."""
        data: dict[str, Any] = {}
        steps: dict[str, dict[str, Any]] = {name: {} for name in self._steps}
        mask: dict[str, Any] = {}
        info: dict[str, KeyInfo] = {}
        dropped: dict[str, Any] = {}
        for name, key in keys:
            data[name], info[name] = key.value, key.info
            if key.dropped is not None:
                dropped[name] = key.dropped
            for step, value in key.steps.items():
                steps.setdefault(step, {})[name] = value
            if key.mask is not None:
                mask[name] = key.mask
        steps = {name: of for name, of in steps.items() if of}
        return logdict._of(data, steps, mask, info, dropped)

    def _key(self, key: str) -> "Key":
        return Key(
            self[key],
            self._key_steps(key),
            self._mask.get(key),
            self._info_for(key),
            self._dropped.get(key),
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

    # dict's own operators promise less, and take other dicts only: hence the ignores

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
        self._info, self._dropped = joined._info, joined._dropped
        return self

    def filter(
        self,
        pred: Callable[[str], Any] | Callable[[str, Any], Any] | str | Iterable[str],
    ) -> "logdict":
        """The keys that `pred` holds for, or that match a name or pattern.

        Args:
            pred: a name or pattern or several; or a function of the key, or of the key
                and its value.

        Example:
            >>> logs = lox.logdict({"train/loss": 1.0, "train/acc": 0.5, "lr": 0.1})
            >>> logs.filter("train/*")
            {'train/loss': 1.0, 'train/acc': 0.5}
            >>> logs.filter(lambda key, value: value < 1)
            {'train/acc': 0.5, 'lr': 0.1}
        """
        if callable(pred):
            holds: Callable[..., Any] = pred
            with_value = _takes_two(pred)
            chosen = [
                key
                for key in self
                if (holds(key, self[key]) if with_value else holds(key))
            ]
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
            reduce: one of `mean sum min max first last count std var append` or a
                `lox.Reduction`, or a dict from names or patterns to these; keys not in
                it stay as they are.

        Returns:
            The reduced logs; each key has the step of its last row (of its first, for
            `first`).
        """
        checked = reductions.check(reduce)
        missing = reductions.unmatched(checked, self)
        if missing:
            warnings.warn(
                f"`reduce` has {', '.join(map(repr, missing))}, but these logs have "
                f"{', '.join(map(repr, self)) or 'nothing'}.",
                LoxWarning,
                stacklevel=2,
            )
        return self._with(
            (key, self._key(key).reduced(key, reductions.choose(checked, key)))
            for key in self
        )

    @property
    def slice(self) -> "_Slicer":
        """Rows by position: `logs.slice[-10:]`, `logs.slice[::100]`, `logs.slice[3]`.

        Positions count the rows that happened. Keys that were logged once, outside any
        loop, are not sliced.
        """
        return _Slicer(self)

    def rows(self) -> Iterator["logdict"]:
        """One logdict of NumPy values a row.

        Keys with the same steps come in the same rows; each such group comes in order.
        """
        compact = self.compact()._on_host()
        for keys, length in compact._groups():
            chosen = compact._with((key, compact._key(key)) for key in keys)
            for i in range(length):
                yield chosen.slice[i]

    def _on_host(self) -> "logdict":
        return self._with(
            (key, self._key(key).arrays(lambda x, axis: _to_host(x))) for key in self
        )

    def _plain(self) -> "logdict":
        """The same with PRNG keys as their data, as which they leave a program."""
        if not any(map(is_jax_array, leaves_of(dict(self)))):
            return self
        return self._with((key, self._key(key).plain()) for key in self)

    def _groups(self) -> list[tuple[list[str], int]]:
        """Keys with the same steps and as many rows, with their number."""
        lengths = {key: self._key(key).length() for key in self}
        steps = {key: self._key_steps(key) for key in self}
        groups = group_keys(
            self,
            lambda key: (lengths[key], frozenset(steps[key])),
            lambda first, key: equal(steps[first], steps[key]),
        )
        return [(keys, lengths[keys[0]]) for keys in groups]

    def compact(self) -> "logdict":
        """Exactly the rows that happened; a key that never happened is absent.

        Rows that happened in some lanes only keep their mask; `lanes()` gives each
        lane its own. Warns of rows that there was no `capacity` for.
        """
        if not self._mask:
            return self
        keys = ((key, self._key(key).compacted()) for key in self)
        logs = self._with((key, compact) for key, compact in keys if compact)
        logs._dropped = {}
        self._warn_of_dropped()
        return logs

    def _warn_of_dropped(self) -> None:
        lost = {key: to_numpy(number) for key, number in self.dropped.items()}
        for key, number in lost.items():
            if not number.any():
                continue
            lanes = f" in {np.count_nonzero(number)} lanes" if number.ndim else ""
            warnings.warn_explicit(
                f"{number.sum()} rows of {key!r} were dropped{lanes}: there were more "
                f"than the `capacity`. Add {number.max()} to it, or reduce {key!r}.",
                LoxWarning,
                *user_line(),
            )

    def lanes(self) -> list["logdict"]:
        """One logdict a lane of the outermost `vmap`."""
        keys = {key: self._key(key) for key in self}
        counts = {key.lane_count() for key in keys.values()}
        sizes = {count for count in counts if count is not None}
        if not sizes:
            return [self]
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
        """A `pandas.DataFrame` with columns for keys, steps and lanes.

        Values with the same lanes and steps share a row, and rows are sorted by them;
        keys with other steps have rows of their own. A key that was logged once,
        outside any loop and without a step, is repeated in every row.
        """
        return exports.to_pandas(self)

    def to_xarray(self) -> Any:
        """An `xarray.Dataset`, with dimensions for lanes, time and the values' axes."""
        return exports.to_xarray(self)

    def plot(self, *keys: str, x: str | None = None) -> Any:
        """Draws scalar keys over a step, a panel a key and a line a lane.

        Args:
            *keys: which keys; all scalar ones with a time axis by default.
            x: the name of the step to draw them over; their first one by default.

        Returns:
            A `matplotlib.figure.Figure`.
        """
        return exports.plot(self, keys, x)

    def _repr_html_(self) -> str:
        return exports.to_html(self)


class _Slicer:
    __slots__ = ("_logs",)

    def __init__(self, logs: logdict) -> None:
        self._logs = logs

    def __getitem__(self, index: Any) -> logdict:
        if not isinstance(index, int | np.integer | slice):
            raise LoxTypeError(
                f"`logs.slice[...]` takes an integer or a slice, not {index!r}."
            )
        logs = self._logs.compact() if self._logs._dropped else self._logs
        keys = ((key, sliced(key, logs._key(key), index)) for key in logs)
        return logs._with((key, part) for key, part in keys if part is not None)


def _to_host(x: Any) -> Any:
    """NumPy, if it can be: indexing rows of it is a hundred times faster."""
    if not is_jax_array(x) or is_tracer(x) or is_typed_key(x):
        return x
    return to_numpy(x)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function needs two arguments; with a default, one is enough."""
    try:
        signature = inspect.signature(function)
        signature.bind("key")
    except ValueError:  # a builtin that does not tell
        return False
    except TypeError:
        return True
    return False


def _less(of: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: value for k, value in of.items() if k != key} if key in of else of


# Makes logs of the arrays of a row: of its values, and then of its steps. Rows of the
# same function have the same keys, shapes and dtypes.
OpenRow = Callable[[Sequence[Any]], logdict]

RESERVED = frozenset(dir(logdict)) | {"explicit"}
# what a logdict has beside what every dict has
_PUBLIC = sorted(
    name for name in set(dir(logdict)) - set(dir(dict)) if not name.startswith("_")
)
# a message names so many keys
_MOST_NAMED = 20


def reserved_step(name: str) -> str:
    return (
        f"a step cannot be called {name!r}, since `logs.{name}` means something else "
        f"already. Call it, say, {name + '_step'!r}."
    )


logdict.__module__ = "lox"


def _register(jax: ModuleType) -> None:
    from . import pytree  # which needs JAX

    pytree.register(jax)


when_imported("jax", _register)
