"""`Runs`: the runs of a store, as a sequence."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex, overload

from lox._errors import LoxKeyError, LoxTypeError
from lox._logs.logdict import logdict
from lox._logs.plotting import Band, plot_groups
from lox._patterns import matches_any, names_of

from . import run_table
from .configs import (
    Names,
    all_names,
    distinct_labels,
    flat_config,
    hashable,
    varying_names,
)
from .reader import Run, warn_of_unmatched
from .stacking import stack_runs

_ATTRIBUTES = ("name", "status", "error", "started", "duration", "rows")


class Runs(Sequence[Run]):
    """A sequence of runs, as returned by `lox.runs`.

    Slices and selections of runs are again `Runs`. In a notebook, they are displayed as
    a table.

    Example:
        >>> import tempfile
        >>> import lox.loggers
        >>> store = tempfile.mkdtemp()
        >>> for seed in range(4):
        ...     config = {"lr": 0.1 if seed < 2 else 0.3, "seed": seed}
        ...     logger = lox.loggers.SaveLogger(store, config=config)
        ...     state = logger.init(seed)
        ...     for i in range(3):
        ...         logger.log(state, {"loss": seed / (i + 1)}, step=i)
        ...     logger.finish(state)
        >>> runs = lox.runs(store)
        >>> [run.status for run in runs.where(lr=0.3)]
        ['finished', 'finished']
        >>> {lr: len(group) for lr, group in runs.group_by("lr").items()}
        {0.1: 2, 0.3: 2}
        >>> runs.load("loss")["loss"].shape
        (4, 3)
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = tuple(runs)

    # --- as a sequence ---------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Run: ...

    @overload
    def __getitem__(self, index: "slice[Any, Any, Any]") -> "Runs": ...

    def __getitem__(self, index: Any) -> "Run | Runs":
        if isinstance(index, str):
            raise LoxTypeError(
                f"runs are numbered: `runs[0]`. To select one by its name, use "
                f"`runs.where(name={index!r})[0]`."
            )
        found = self._runs[index]
        return Runs(found) if isinstance(found, tuple) else found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Runs | list | tuple):
            return NotImplemented
        return list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._runs)

    def __add__(self, other: Iterable[Run]) -> "Runs":
        """The runs of both, for example of two stores."""
        if not isinstance(other, Runs | list | tuple):
            return NotImplemented
        return Runs((*self, *other))

    def __repr__(self) -> str:
        return run_table.to_text(self)

    def _repr_html_(self) -> str:
        return run_table.to_html(self)

    # --- selecting -------------------------------------------------------------------

    def where(
        self, predicate: Callable[[Run], Any] | None = None, /, **config: Any
    ) -> "Runs":
        """Selects runs by their configs, or by a predicate.

        Args:
            predicate: a function of a run.
            **config: config keys, with the values that they must have, or functions of
                the value. A key of a nested config is named by its path, such as
                `**{"net/width": 64}`. `name`, `status`, `error`, `started`, `duration`
                and `rows` select by the attribute of the run, unless a config has a key
                of that name.

        Example:
            >>> import tempfile
            >>> store = tempfile.mkdtemp()
            >>> for seed in range(3):
            ...     lox.save({"loss": seed / 2}, store, key=seed)
            >>> len(lox.runs(store).where(lambda run: run.last["loss"] > 0))
            2
            >>> len(lox.runs(store).where(status="finished"))
            3
        """
        if predicate is not None and not callable(predicate):
            raise LoxTypeError(
                f"`where` takes a function of a run, or config keys with their values, "
                f"such as `where(lr=0.1)`, not {predicate!r}."
            )
        found = self._runs
        if predicate is not None:
            found = tuple(run for run in found if predicate(run))
        for name, wanted in config.items():
            value_of = self._getter("where", name)
            found = tuple(run for run in found if _matches(value_of(run), wanted))
        return Runs(found)

    def group_by(self, *names: str, ignore: str | Iterable[str] = "seed") -> "Groups":
        """Groups the runs by values of their configs.

        Args:
            *names: config keys, or attributes, as for `where`. By default, all config
                keys whose values differ between runs, except `ignore`.
            ignore: without `names`, the config keys that do not separate runs, by name
                or pattern.

        Returns:
            A dict from values to `Runs`, in the order of the first run of each group.
            Its keys are the values of one name, or tuples of the values of several; a
            run without the config key has the value None. Its attribute `names` lists
            the names.
        """
        if not names:
            ignored = names_of("ignore", ignore) or ()
            names = tuple(
                name for name in varying_names(self) if not matches_any(name, ignored)
            )
        getters = [self._getter("group_by", name) for name in names]
        groups: dict[Any, list[Run]] = {}
        for run in self:
            values = tuple(hashable(_or_none(value_of(run))) for value_of in getters)
            key = values[0] if len(values) == 1 else values
            groups.setdefault(key, []).append(run)
        return Groups(names, {key: Runs(found) for key, found in groups.items()})

    def _getter(self, function: str, name: str) -> Callable[[Run], Any]:
        """A function that returns a value of a run, or `_MISSING`."""
        known = all_names(flat_config(run.config) for run in self)
        if name in known:
            return lambda run: flat_config(run.config).get(name, _MISSING)
        if name in _ATTRIBUTES:
            return lambda run: getattr(run, name)
        if not self._runs:
            return lambda run: _MISSING
        names = ", ".join(map(repr, dict.fromkeys([*known, *_ATTRIBUTES])))
        raise LoxKeyError(
            f"`{function}` got {name!r}, which no config of these runs "
            f"has; available: {names}."
        )

    # --- values ----------------------------------------------------------------------

    def load(self, argnames: str | Iterable[str] | None = None) -> logdict:
        """Loads all runs as lanes of one logdict.

        `logs.lanes()[i]` are the logs of run i. Runs may have different numbers of
        rows, steps and keys: `logs.mask` says which rows there are. If a key has a time
        axis in one run, it has one in all.

        Args:
            argnames: the keys to load, by name or pattern; all by default.
        """
        selected = names_of("argnames", argnames)
        loaded = [run.load_selected(selected) for run in self]
        known = dict.fromkeys(name for _, names in loaded for name in names)
        warn_of_unmatched(selected, known, "these runs")
        return stack_runs([run.name for run in self], [logs for logs, _ in loaded])

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with one row per run.

        The columns are the name, status, start, duration in seconds and rows of the
        run; its config, such as `config/lr`; and the last row of each scalar key, such
        as `last/loss`.
        """
        return run_table.to_pandas(self)

    def plot(
        self,
        *keys: str,
        by: Names = None,
        x: str | None = None,
        band: Band | None = None,
        logx: bool = False,
        logy: bool = False,
    ) -> Any:
        """Plots scalar keys over a step, with one panel per key and one line per run.

        Args:
            *keys: the keys, by name or pattern; by default all scalar keys with a time
                axis.
            by: the config keys to group runs by; each group has a color.
            x: the name of the step to plot over; by default the first step.
            band: draws the mean of each group and a band, over lighter lines of the
                single runs; see `lox.logdict.plot`. The legend says how many runs there
                are.
            logx: whether the x-axis is logarithmic.
            logy: whether the y-axis is logarithmic.

        Returns:
            A `matplotlib.figure.Figure`.
        """
        names = names_of("by", by)
        groups = Groups((), {(): self})
        if names:
            groups = self.group_by(*names)
        logs = {
            label: runs.load(keys or None)
            for label, runs in zip(groups.labels(), groups.values(), strict=True)
        }
        return plot_groups(logs, keys, x, band, logx, logy)


class Groups(dict[Any, Runs]):
    """Runs by values of their configs.

    Attributes:
        names: the config keys or attributes that the runs are grouped by.
    """

    def __init__(self, names: Sequence[str], groups: dict[Any, Runs]) -> None:
        super().__init__(groups)
        self.names = tuple(names)

    def __repr__(self) -> str:
        items = (f"{key!r}: <{len(runs)} runs>" for key, runs in self.items())
        return f"{{{', '.join(items)}}}"

    def label(self, key: Any) -> str:
        """Describes a group, such as `lr=0.1`, differently from all others."""
        return dict(zip(self, self.labels(), strict=True))[key]

    def labels(self) -> list[str]:
        """Describes all groups, in their order."""
        keys = [(key,) if len(self.names) == 1 else key for key in self]
        return distinct_labels(self.names, keys)


_MISSING: Any = object()


def _or_none(value: Any) -> Any:
    return None if value is _MISSING else value


def _matches(value: Any, wanted: Any) -> bool:
    if value is _MISSING:
        return False
    if callable(wanted):
        return bool(wanted(value))
    # in tuples, NaN is equal to itself
    return (hashable(value),) == (hashable(wanted),)
