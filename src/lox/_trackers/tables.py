"""Logs as tables of the values that trackers show: scalars, histograms and images."""

import math
import shlex
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from lox._errors import LoxWarning
from lox._logs.access import metadata_of
from lox._logs.lane_step import LANE, PROCESS
from lox._logs.logdict import logdict
from lox._logs.tables import Array, Table, split_by_lane, tables
from lox._patterns import matches, matches_any, names_of
from lox._source import user_line

Names = str | Iterable[str]
_ARRAYS = "histograms", "images"  # the options that select arrays to show


class TrackerTables:
    """Splits logs into tables, and sorts their values by how to show them.

    Args:
        step: the name of the step to use as the x-axis; by default `step`, else the
            first.
        histograms: the keys, by name or pattern, whose arrays to show as histograms.
        images: the keys, by name or pattern, whose arrays to show as images.
        in_command: whether it is used by `lox sync`, whose options messages then name.
    """

    shows_histograms = True

    def __init__(
        self,
        step: str | None = None,
        histograms: Names = (),
        images: Names = (),
        in_command: bool = False,
    ) -> None:
        self.in_command = in_command
        # warnings are about options, and name the line that set them
        self._line = user_line()
        self._warned: set[str] = set()
        self._step = step
        self._histograms = names_of("histograms", histograms) or ()
        self._images = names_of("images", images) or ()
        self._unmatched = {*self._histograms, *self._images}
        # a cache: how to show a key, by its name, shape and dtype
        self._kinds: dict[Any, str] = {}
        # the `info` of logs that are one table of scalars, by identity: events of one
        # `lox.log` call share it
        self._scalar_infos: dict[int, Any] = {}

    # --- messages --------------------------------------------------------------------

    @property
    def caller(self) -> str:
        """What the user has called, for messages."""
        return "`lox sync`" if self.in_command else f"`{type(self).__name__}`"

    def option(self, name: str, value: str | None = None) -> str:
        """An option as the user writes it, for messages; with a value, as code."""
        if self.in_command:
            return f"--{name}" if value is None else f"`--{name} {shlex.quote(value)}`"
        return name if value is None else f"`{name}={value!r}`"

    # --- logs as tables --------------------------------------------------------------

    def tables(self, logs: logdict) -> list[Table]:
        """Splits the logs of one run by what was logged together."""
        info = metadata_of(logs).info
        if self._scalar_infos.get(id(info)) is info:
            scalars = _scalar_table(logs)
            if scalars is not None:
                return [scalars]
        split = (part for table in tables(logs) for part in split_by_lane(table))
        found = [self._classified(table).with_lane_names() for table in split]
        if len(found) == 1 and _is_scalar_table(logs, found[0]):
            if len(self._scalar_infos) > _MAX_SCALAR_INFOS:
                self._scalar_infos.clear()
            self._scalar_infos[id(info)] = info
        return found

    def step_of(self, table: Table) -> tuple[str, Array] | None:
        """The name and the numbers of the step to use as the x-axis, if any."""
        steps = table.steps
        if self._step is not None and self._step in steps:
            return self._step, steps[self._step]
        others = (name for name in steps if name != PROCESS)
        name = "step" if "step" in steps else next(others, None)
        if name is None:
            return None
        if self._step is not None:
            keys = ", ".join(map(repr, table.shown))
            self.warn_once(
                f"{self.caller} plots {keys} over the step {name!r}, because these "
                f"rows have no step {self._step!r}. Log that step with them, or choose "
                f"another `{self.option('step')}`."
            )
        return name, steps[name]

    def _classified(self, table: Table) -> Table:
        """Sorts the values of a table by how to show them."""
        in_histograms = self._find_binned(table) if self.shows_histograms else ()
        for name, column in table.values.items():
            if name in in_histograms:
                continue
            kind = self._kind_of(name, column)
            if kind == "scalars":
                table.scalars[name] = column.reshape(table.length)
            elif kind != "other":
                getattr(table, kind)[name] = column
        return table

    def _find_binned(self, table: Table) -> set[str]:
        """Adds the histograms of a table: counts, and one more edge of bins.

        Returns:
            The names of the columns that belong to them.
        """
        found: set[str] = set()
        for name, edges in table.values.items():
            if not name.endswith(_EDGES):
                continue
            histogram = name.removesuffix(_EDGES)
            counts = table.values.get(histogram + _COUNTS)
            if counts is None or not _are_binned(counts, edges):
                continue
            names = histogram + _COUNTS, name
            if not any(map(self._is_selected, names)):
                table.binned[histogram] = counts, edges
                found.update(names)
        return found

    def _is_selected(self, name: str) -> bool:
        return matches_any(name, (*self._histograms, *self._images))

    def _kind_of(self, name: str, column: Array) -> str:
        """How to show a key: "scalars", "histograms", "images", or "other" if not."""
        key = name, column.shape[1:], column.dtype.kind
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._find_kind(name, column)
        return kind

    def unmatched(self) -> list[str]:
        """The names and patterns that have matched none of the keys so far."""
        return sorted(self._unmatched) if self._kinds else []

    def seen(self) -> list[str]:
        """The names of all keys so far that it can show."""
        return list(dict.fromkeys(name for name, _, _ in self._kinds))

    def _find_kind(self, name: str, column: Array) -> str:
        self._unmatched = {x for x in self._unmatched if not matches(name, x)}
        if column.dtype.kind in "biuf":
            if column.ndim == 1:
                return "scalars"
            if matches_any(name, self._histograms):
                return "histograms"
            if matches_any(name, self._images):
                return self._image_kind(name, column.shape[1:])
            if math.prod(column.shape[1:]) == 1:
                return "scalars"
        what = f"{column.dtype} of shape {column.shape[1:]}"
        self.warn_once(
            f"{self.caller} leaves out {name!r}, which is {what}: it plots "
            f"real scalars only. {self._remedy(name, column.dtype.kind in 'biuf')}"
        )
        return "other"

    def _image_kind(self, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) == 2 or (len(shape) == 3 and 1 <= shape[2] <= 4):
            return "images"
        self.warn_once(
            f"{self.caller} leaves out {name!r}, which `{self.option('images')}` "
            f"selects: its shape is {shape}, and images have the shape (height, width) "
            "or (height, width, channels) with up to 4 channels. Reshape it, or log "
            "each image separately."
        )
        return "other"

    def warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            try:
                warnings.warn_explicit(message, LoxWarning, *self._line)
            except LoxWarning as error:  # if filters make it an error, the run goes on
                self._raise_later(error)

    def _raise_later(self, error: Warning) -> None:
        raise error

    def _remedy(self, name: str, is_real: bool) -> str:
        options = " or ".join(self.option(option, name) for option in _ARRAYS)
        if self.in_command:
            return f"To send it, pass {options}." if is_real else "The store keeps it."
        first = f"Pass {options}, log" if is_real else "Log"
        return f"{first} a scalar computed from it, or save it with a `SaveLogger`."


_MAX_SCALAR_INFOS = 1000
_COUNTS, _EDGES = "/counts", "/edges"  # of a logged histogram


def _are_binned(counts: Array, edges: Array) -> bool:
    """Whether two columns are counts of values in bins, and the edges of the bins."""
    return (
        counts.ndim == edges.ndim == 2
        and edges.shape[1] == counts.shape[1] + 1 > 1
        and all(column.dtype.kind in "iuf" for column in (counts, edges))
    )


def _is_scalar_table(logs: logdict, table: Table) -> bool:
    """Whether logs are rows of one event that has only scalars."""
    metadata = metadata_of(logs)
    return (
        list(table.scalars) == list(logs)
        and all(info.ndims == (0,) for info in metadata.info.values())
        and all(
            len(by_key) == len(logs)
            and len({id(step) for step in by_key.values()}) == 1
            for by_key in metadata.steps.values()
        )
        and _scalar_table(logs) is not None
    )


def _scalar_table(logs: logdict) -> Table | None:
    """The table of logs that are rows of scalars; None if they are not."""
    metadata = metadata_of(logs)
    if metadata.mask or len(logs) != len(metadata.info):
        return None
    for value in logs.values():
        if not isinstance(value, np.ndarray | np.generic):
            return None
        if value.ndim > 1 or value.dtype.kind not in "biuf":
            return None
    scalars = {key: value.reshape(-1) for key, value in logs.items()}
    steps = {
        name: np.asarray(next(iter(by_key.values()))).reshape(-1)
        for name, by_key in metadata.steps.items()
    }
    lengths = {len(column) for column in (*scalars.values(), *steps.values())}
    if len(lengths) > 1 or LANE in steps:
        return None
    return Table(lengths.pop(), steps, scalars, scalars)
