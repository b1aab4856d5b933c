"""`logdict`: logged values by key, with their steps and time axes."""

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
    to_numpy,
)
from lox._errors import (
    LoxKeyError,
    LoxTypeError,
    LoxValueError,
    LoxWarning,
    StepError,
    describe,
)
from lox._imports import when_imported
from lox._patterns import matches_any
from lox._reduce import reductions
from lox._source import warn

from . import exports, html_table, over_lanes, plotting
from .compaction import compacted_keys
from .formatting import format_value, mark_masked
from .grouping import group_by_steps
from .key import Key, KeyInfo, describe_axes
from .lane_step import named_lanes, rows_of_lane
from .metadata import Metadata, MetadataDict
from .slicing import Slicer
from .sorting import sort_key


class logdict(MetadataDict):
    """A dict of logged values, with their steps as attributes.

    A `logdict` is a pytree, so it can be passed through `jax.jit`, `jax.vmap` and
    `jax.tree.map`; it can be copied, pickled and compared like a dict. It keeps track
    of the time axis of each value, also when a `vmap` batches it (with `out_axes=0`).

    Args:
        data: the values by name.
        steps: for each step name, the step numbers by key.
        stacked: whether the values have a leading time axis, or the names of those
            that do.

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

    __slots__ = ()

    def __init__(
        self,
        data: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        stacked: bool | Iterable[str] = False,
    ) -> None:
        super().__init__(data)
        if isinstance(data, logdict) and steps is None:
            self._metadata = data._metadata
            return
        if isinstance(stacked, bool):
            names = set(self) if stacked else set()
        else:
            names = set(stacked)
        by_step = _checked_steps(steps or {})
        info = {key: describe_axes(self[key], key in names, key) for key in self}
        self._metadata = Metadata(by_step, info=info)
        for name in by_step:
            if name in RESERVED:
                raise StepError(reserved_step(name))

    def __repr__(self) -> str:
        return format_value(mark_masked(self, self.mask))

    __str__ = __repr__

    def copy(self) -> "logdict":
        return logdict(self)

    def __copy__(self) -> "logdict":
        return logdict(self)

    def __reduce__(self) -> Any:
        # only public names and plain tuples: pickles outlive changes of our classes
        infos = {key: tuple(self._info_of(key)) for key in self}
        data, dropped = dict(self), self.dropped
        return logdict._from_pickle, (data, self.steps, self.mask, infos, dropped)

    @classmethod
    def _from_pickle(
        cls,
        data: dict[str, Any],
        steps: dict[str, dict[str, Any]],
        mask: dict[str, Any],
        infos: dict[str, tuple[Any, ...]],
        dropped: dict[str, Any],
    ) -> "logdict":
        """Called by `pickle`; its name and arguments are part of every pickle."""
        info = {key: KeyInfo(*parts) for key, parts in infos.items()}
        return make_logdict(data, Metadata(steps, mask, info, dropped))

    def __getattr__(self, name: str) -> dict[str, Any]:
        metadata = object.__getattribute__(self, "_metadata")
        steps = metadata.steps
        if name in steps:
            return self._present(steps[name])
        if name in metadata.step_names:
            return {}
        if name.startswith("__"):  # looked up by Python and by other libraries
            raise AttributeError(name)
        known = (
            "its steps are " + ", ".join(map(repr, steps))
            if steps
            else "it has no steps"
        )
        if name in self:
            hint = f" The values are items: `logs[{name!r}]`."
        else:
            hint = f" Its attributes are {', '.join(_PUBLIC)}."
        raise AttributeError(
            f"this `logdict` has no attribute and no step {name!r}; {known}.{hint}"
        )

    def __missing__(self, key: Any) -> Any:
        names = ", ".join(map(repr, list(self)[:_MAX_NAMED])) or "nothing"
        if len(self) > _MAX_NAMED:
            names += f", and {len(self) - _MAX_NAMED} more"
        is_step = key in self._metadata.steps
        hint = f" Steps are attributes: `logs.{key}`." if is_step else ""
        raise LoxKeyError(f"these logs have no {key!r}; they have {names}.{hint}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._metadata.steps]

    # --- joining and selecting -------------------------------------------------------

    def _with(
        self, keys: Iterable[tuple[str, Key]], step_names: Iterable[str] = ()
    ) -> "logdict":
        """A logdict of other keys, with the order of steps of this one.

        Args:
            keys: the keys.
            step_names: steps that are known even if none of the keys has them.
        """
        logs = from_keys(keys, self._metadata.steps)
        known = dict.fromkeys((*self._metadata.step_names, *step_names))
        if known:
            logs._metadata = logs._metadata._replace(step_names=tuple(known))
        return logs

    def __add__(self, other: Mapping[str, Any]) -> "logdict":
        """Joins the logs of two functions that ran one after the other."""
        if not isinstance(other, Mapping):
            return NotImplemented
        right = other if isinstance(other, logdict) else logdict(other)
        keys = self._keys()
        for name, new in right._keys().items():
            keys[name] = keys[name].then(name, new) if name in keys else new
        return self._with(keys.items(), right._metadata.step_names)

    def __radd__(self, other: Any) -> "logdict":
        if isinstance(other, int) and other == 0:  # the start of `sum(...)`
            return self.copy()
        if not isinstance(other, Mapping):
            return NotImplemented
        return logdict(other) + self

    # the type ignores: operators of `dict` return a `dict`, and accept only dicts

    def __or__(self, other: Mapping[str, Any]) -> "logdict":  # type: ignore[override]
        """The keys of both; for a key in both, that of the right operand."""
        if not isinstance(other, Mapping):
            return NotImplemented
        right = other if isinstance(other, logdict) else logdict(other)
        keys = {**self._keys(), **right._keys()}
        return self._with(keys.items(), right._metadata.step_names)

    def __ror__(self, other: Mapping[str, Any]) -> "logdict":  # type: ignore[override]
        if not isinstance(other, Mapping):
            return NotImplemented
        return logdict(other) | self

    def __ior__(self, other: Any) -> "logdict":  # type: ignore[override,misc]
        joined = self | other
        dict.update(self, joined)
        self._metadata = joined._metadata
        return self

    def filter(
        self,
        pred: Callable[[str], Any] | Callable[[str, Any], Any] | str | Iterable[str],
    ) -> "logdict":
        """Selects the keys that match a name or pattern, or satisfy a predicate.

        Args:
            pred: one or several names or patterns; or a function of the key, or of the
                key and its value.

        Example:
            >>> logs = lox.logdict({"train/loss": 1.0, "train/acc": 0.5, "lr": 0.1})
            >>> logs.filter("train/*")
            {'train/loss': 1.0, 'train/acc': 0.5}
            >>> logs.filter(lambda key, value: value < 1)
            {'train/acc': 0.5, 'lr': 0.1}
        """
        if callable(pred):
            predicate: Callable[..., Any] = pred
            with_value = _needs_two_arguments(pred)
            selected = [
                key
                for key in self
                if (predicate(key, self[key]) if with_value else predicate(key))
            ]
        else:
            patterns = [pred] if isinstance(pred, str) else list(pred)
            selected = [key for key in self if matches_any(key, patterns)]
        return self._with((key, self._key(key)) for key in selected)

    def prefix(self, prefix: str) -> "logdict":
        """Adds a prefix to every key."""
        return self._with(
            (f"{prefix}{name}", key) for name, key in self._keys().items()
        )

    # --- over time -------------------------------------------------------------------

    def reduce(self, reduce: Any) -> "logdict":
        """Reduces every key over time; lanes and the axes of values remain.

        Args:
            reduce: one of `mean sum min max first last count std var append` or a
                `lox.Reduction`, or a dict from names or patterns to these; keys not in
                it are not reduced.

        Returns:
            The reduced logs. Each key has the step of its last row, or of its first
            row for `first`.
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
        # not a generator, where a `StopIteration` of a user's reduction would be lost
        return self._with(
            [
                (name, key.reduced(name, reductions.choose(checked, name)))
                for name, key in self._keys().items()
            ]
        )

    @property
    def slice(self) -> Slicer:
        """Rows by position: `logs.slice[-10:]`, `logs.slice[::100]`, `logs.slice[3]`.

        Positions count only the rows that happened. Keys that were logged once, outside
        any loop, are not sliced.
        """
        return Slicer(self)

    def sort(self, step: str) -> "logdict":
        """Sorts the rows of every key that has this step.

        Rows with equal steps keep their order. Each lane is sorted by its own steps,
        and rows that did not happen go to the end. Keys without the step, and keys that
        were logged once, outside any loop, stay as they are. So do all keys if the step
        is only that of keys without any row, which `compact` removed.

        Args:
            step: the name of the step.

        Returns:
            The sorted logs.

        Example:
            >>> steps = {"step": {"loss": jnp.array([2, 0, 1])}}
            >>> logs = lox.logdict({"loss": jnp.array([0.1, 0.5, 0.3])}, steps, True)
            >>> logs.sort("step")
            {'loss': [0.5, 0.3, 0.1]}
        """
        known = self._metadata.known_steps
        if self and step not in known:
            names = ", ".join(map(repr, known)) or "none"
            raise LoxKeyError(
                f"`logs.sort` got {step!r}, but these logs have no such step; their "
                f"steps are {names}. Pass the name of a step, such as "
                '`logs.sort("step")`.'
            )
        return self._with(
            (name, sort_key(key, step)) for name, key in self._keys().items()
        )

    def rows(self) -> Iterator["logdict"]:
        """Yields one logdict of NumPy values per row.

        Keys with the same steps are in the same rows. All rows of one such group of
        keys come before those of the next.
        """
        compact = self.compact()
        on_host = {
            name: key.arrays(lambda x, axis: _to_host(x))
            for name, key in compact._keys().items()
        }
        for names, length in group_by_steps(on_host):
            group = compact._with((name, on_host[name]) for name in names)
            for i in range(length):
                yield group.slice[i]

    def compact(self) -> "logdict":
        """Removes rows that did not happen, and keys without any row.

        Rows that happened only in some lanes keep their mask; `lanes()` separates them.
        Warns about rows that were dropped because they exceeded the `capacity`.
        """
        if self._metadata.mask:
            self._warn_of_dropped()
        return self._compacted()

    def _compacted(self) -> "logdict":
        if not self._metadata.mask:
            return self
        keys = compacted_keys((name, self._counted_key(name)) for name in self)
        return self._with(keys.items(), self._metadata.steps)

    def _warn_of_dropped(self) -> None:
        dropped = self._dropped_on_host()
        if not dropped:
            return
        counts = []
        for key, count in dropped.items():
            rows = "row" if count.sum() == 1 else "rows"
            lanes = f" in {np.count_nonzero(count)} lanes" if count.ndim else ""
            counts.append(f"{count.sum()} {rows} of {key!r}{lanes}")
        more = max(count.max() for count in dropped.values())
        reduced = repr(*dropped) if len(dropped) == 1 else "these keys"
        warn(
            "More rows were logged than the `capacity`, and were dropped: "
            f"{', '.join(counts)}. Add {more} to it, or reduce {reduced}."
        )

    def lanes(self) -> list["logdict"]:
        """Splits the logs into one logdict per lane of the outermost `vmap`.

        Rows that a callback or a logger received have no lane axis, but a step `lane`,
        and are split by it. In a multi-process job, equal numbers of different
        processes are different lanes.
        """
        keys = self._keys()
        counts = {key.lane_count() for key in keys.values()}
        sizes = {count for count in counts if count is not None}
        if not sizes:
            return self._split_by_lane(keys)
        if len(sizes) > 1:
            raise LoxValueError(
                f"`lanes` found lane axes of different lengths ({sorted(sizes)}); "
                "select the keys of one `vmap` first, with `filter`."
            )
        self._warn_of_dropped()  # once, instead of per lane
        return [
            self._with((name, key.lane(i)) for name, key in keys.items())._compacted()
            for i in range(sizes.pop())
        ]

    def _split_by_lane(self, keys: dict[str, Key]) -> list["logdict"]:
        lanes = named_lanes(keys.values())
        if not lanes:
            return [self]
        of_lane = [
            {name: rows_of_lane(key, lane) for name, key in keys.items()}
            for lane in lanes
        ]
        return [
            self._with(
                ((name, key) for name, key in one.items() if key is not None),
                self._metadata.steps,
            )
            for one in of_lane
        ]

    def over_lanes(self, *statistics: str, step: str | None = None) -> "logdict":
        """Computes statistics over all lanes, such as the seeds of a `vmap`.

        Lanes with different numbers of rows, or different steps, are aligned by step,
        and the points are sorted by it. If lanes have several rows with the same step,
        their first rows form one point, their second rows another. Keys without steps
        are aligned by position. Keys without a time axis have one point.

        Only finite values count; a warning reports others. `count` is the number of
        lanes that a point has. Statistics of no values, and `std`, `sem` and `ci` of a
        single value, are NaN.

        Args:
            *statistics: `mean`, `median`, `iqm` (the mean of the middle half), `std`
                and `sem` (of a sample: with n - 1), `min`, `max`, `count`, `ci` (a 95 %
                bootstrap interval of the mean, which is the same at every call) and
                `iqr` (the quartiles). By default `mean`, `ci` and `count`.
            step: the name of the step to align by; by default the first step of a key.

        Returns:
            Logs of NumPy arrays without lanes, with a key such as `loss/mean` for each
            statistic. Those of `ci` are `loss/low` and `loss/high`, those of `iqr`
            `loss/q25` and `loss/q75`.

        Example:
            >>> def f(x):
            ...     def body(x, i):
            ...         lox.log({"x": x}, step=i)
            ...         return x / 2, None
            ...     return jax.lax.scan(body, x, jnp.arange(3))[0]
            >>> _, logs = jax.vmap(lox.spool(f))(jnp.array([1.0, 2.0, 6.0]))
            >>> logs.over_lanes("mean", "max", "count")
            {'x/mean': [3.0, 1.5, 0.75], 'x/max': [6.0, 3.0, 1.5], 'x/count': [3, 3, 3]}
        """
        return self._with(over_lanes.over_lanes(self, statistics, step))

    # --- exports ---------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with columns for keys, steps and lanes.

        Values with the same lanes and steps share a row, and rows are sorted by them.
        Keys with other steps are in separate rows. A key that was logged once, outside
        any loop and without a step, is repeated in every row.
        """
        return exports.to_pandas(self)

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` with dimensions for lanes, time and axes of values."""
        return exports.to_xarray(self)

    def plot(
        self,
        *keys: str,
        x: str | None = None,
        band: plotting.Band | None = None,
        logx: bool = False,
        logy: bool = False,
    ) -> Any:
        """Plots scalar keys over a step, with one panel per key and one line per lane.

        Args:
            *keys: the keys, by name or pattern; by default all scalar keys with a time
                axis.
            x: the name of the step to plot over; by default the first step.
            band: draws the mean over lanes and a band, over lighter lines of the single
                lanes: `"ci"` (a 95 % confidence interval of the mean), `"std"`,
                `"sem"`, `"range"` (from the minimum to the maximum), or `"iqr"` (the
                median and the quartiles). As for `over_lanes`, lanes are aligned by
                step, and only finite values count; the legend says how many lanes there
                are.
            logx: whether the x-axis is logarithmic.
            logy: whether the y-axis is logarithmic.

        Returns:
            A `matplotlib.figure.Figure`.
        """
        return plotting.plot_groups({"": self}, keys, x, band, logx, logy)

    def _repr_html_(self) -> str:
        return html_table.to_html(self)


_new, _update = dict.__new__, dict.update


def make_logdict(
    data: dict[str, Any] | Iterable[tuple[str, Any]], metadata: Metadata
) -> logdict:
    """Creates a logdict from values and their metadata, without any checks."""
    logs = _new(logdict)  # taps create one per event: `__init__` is slower
    _update(logs, data)
    logs._metadata = metadata
    return logs


def from_keys(
    keys: Iterable[tuple[str, Key]], step_names: Iterable[str] = ()
) -> logdict:
    """A logdict of these keys, with the steps in the order of `step_names`."""
    by_name = dict(keys)
    data = ((name, key.value) for name, key in by_name.items())
    return make_logdict(data, Metadata.of_keys(by_name, step_names))


def _to_host(x: Any) -> Any:
    """Converts to NumPy if possible: indexing its rows is a hundred times faster."""
    if not is_jax_array(x) or is_tracer(x) or is_typed_key(x):
        return x
    return to_numpy(x)


def _needs_two_arguments(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
        signature.bind("key")
    except ValueError:  # a builtin without a signature
        return False
    except TypeError:
        return True
    return False


# A function from the arrays of a row, first its values and then its steps, to logs. All
# rows of one function have the same keys, shapes and dtypes.
RowToLogs = Callable[[Sequence[Any]], logdict]

RESERVED = frozenset(dir(logdict)) | {"explicit"}
# the attributes that a logdict has and a dict does not
_PUBLIC = sorted(
    name for name in set(dir(logdict)) - set(dir(dict)) if not name.startswith("_")
)
# how many keys a message names
_MAX_NAMED = 20


def _checked_steps(steps: Any) -> dict[str, dict[str, Any]]:
    """The given steps, copied; by step and key."""
    if not isinstance(steps, Mapping):
        raise LoxTypeError(
            'the steps of a `logdict` are a dict such as `{"step": {"loss": 1}}`, not '
            f"{describe(steps)}."
        )
    for name, by_key in steps.items():
        if not isinstance(by_key, Mapping):
            raise LoxTypeError(
                f"the step {name!r} of a `logdict` is a dict of values by key, not "
                f"{describe(by_key)}."
            )
    return {name: dict(by_key) for name, by_key in steps.items()}


def reserved_step(name: str) -> str:
    return (
        f"a step cannot be called {name!r}, since `logs.{name}` has another meaning. "
        f"Choose another name, such as {name + '_step'!r}."
    )


logdict.__module__ = "lox"


def _register(jax: ModuleType) -> None:
    from . import pytree  # which needs JAX

    pytree.register(jax)


when_imported("jax", _register)
