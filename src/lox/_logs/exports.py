"""Logs as data frames, datasets, figures and HTML; libraries are imported on use."""

import html
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lox._arrays import leaves_with_names
from lox._errors import LoxValueError

from .formatting import format_value
from .key import Key
from .lane_step import LANE, NO_LANE, lane_numbers

if TYPE_CHECKING:
    from .logdict import logdict


def require(module: str, extra: str, what: str) -> Any:
    """Imports an optional dependency; raises an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f"{what} needs {name}, which is not installed: "
            f"`pip install 'jax-lox[{extra}]'`."
        ) from error


class _Column(NamedTuple):
    """One leaf of a key.

    Attributes:
        name: the key, and the path of the leaf.
        array: the leaf, as a NumPy array.
        own: the number of axes of the value itself; the axes before are lanes and time.
        key: the key.
        of: the key's steps, mask and axes.
    """

    name: str
    array: np.ndarray[Any, Any]
    own: int
    key: str
    of: Key

    @property
    def stacked(self) -> bool:
        return self.of.info.stacked

    @property
    def time_axis(self) -> int:
        return self.of.info.time_axis(self.array, self.own)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of time and lanes."""
        return self.array.shape[: self.array.ndim - self.own]

    def axis_names(self) -> list[str]:
        """The names of time and lanes."""
        outer = self.time_axis
        names = [f"lane_{i}" for i in range(outer)]
        names += ["row"] if self.stacked else []
        return names + [f"lane_{outer + i}" for i in range(self.of.info.lanes)]


def _columns(logs: "logdict") -> list[_Column]:
    return [
        _Column(name + path, np.asarray(leaf), own, name, key)
        for name, key in logs._keys().items()
        for (path, leaf), own in zip(
            leaves_with_names(key.value), key.info.ndims, strict=True
        )
    ]


def to_pandas(logs: "logdict") -> Any:
    pandas = require("pandas", "pandas", "`logs.to_pandas()`")
    tables: dict[tuple[str, ...], Any] = {}
    for column in _columns(logs.compact()):
        labels, frame = _frame(pandas, column)
        if labels not in tables:
            tables[labels] = frame
            continue
        # join rows with the same lanes and steps: the n-th such row with the n-th
        both = tables[labels], frame
        both = tuple(
            one.assign(_nth=one.groupby(list(labels)).cumcount()) if labels else one
            for one in both
        )
        on = [*labels, "_nth"] if labels else None
        how = {"on": on, "how": "outer", "sort": True} if on else {"how": "cross"}
        joined = both[0].merge(both[1], **how)
        tables[labels] = joined.drop(columns="_nth", errors="ignore")
    # a key that was logged once is repeated in every row of its lanes; keys with other
    # steps are in separate rows
    once = {k: tables[k] for k in tables if all(map(_is_lane, k))}
    many = [table for labels, table in tables.items() if labels not in once]
    result = pandas.concat(many, ignore_index=True) if many else None
    for labels, table in once.items():
        if result is None:
            result = table
        elif labels:
            result = result.merge(table, how="left", on=list(labels))
        else:
            result = result.merge(table, how="cross")
    return pandas.DataFrame() if result is None else result


def _frame(pandas: Any, column: _Column) -> tuple[tuple[str, ...], Any]:
    """One column, with row labels: lanes, and steps (or positions without steps)."""
    name, array, own, _, key = column
    shape = column.row_shape
    size = int(np.prod(shape))
    axes = dict(zip(column.axis_names(), _positions(shape), strict=True))
    steps = {
        step: np.broadcast_to(np.asarray(value), shape).reshape(size)
        for step, value in key.steps.items()
    }
    if not all(map(_is_lane, steps)):
        axes.pop("row", None)
    labels = {**axes, **steps}
    cells = array.reshape(size, *array.shape[array.ndim - own :])
    if name in labels:  # a key that has the name of its step
        name = f"{name}.value"
    columns = {**labels, name: list(cells) if own else cells}
    frame = pandas.DataFrame({k: _exact(pandas, x) for k, x in columns.items()})
    if key.mask is not None:
        frame = frame[np.broadcast_to(np.asarray(key.mask), shape).reshape(size)]
    return tuple(labels), frame


def _is_lane(label: str) -> bool:
    return label == LANE or label.startswith("lane_")


def _exact(pandas: Any, column: Any) -> Any:
    """Keeps pandas from rounding large integers.

    Where values are missing, pandas converts integers to floats, which are inexact
    above 2**53. Its nullable integers are exact.
    """
    if not isinstance(column, np.ndarray) or column.dtype not in (np.int64, np.uint64):
        return column
    if not column.size or max(-int(column.min()), int(column.max())) <= 2**53:
        return column
    signed = column.dtype == np.int64
    return pandas.array(column, dtype="Int64" if signed else "UInt64")


def _positions(shape: tuple[int, ...]) -> Any:
    return np.indices(shape).reshape(len(shape), -1) if shape else []


def to_xarray(logs: "logdict") -> Any:
    xarray = require("xarray", "xarray", "`logs.to_xarray()`")
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    lengths: dict[int, str] = {}
    for column in _columns(logs.compact()):
        name, array, own, key, of = column
        rows = column.axis_names()
        if column.stacked:
            # keys with equally many rows share a dimension
            axis = column.time_axis
            label = "time" if not lengths else f"time_{name}"
            rows[axis] = lengths.setdefault(array.shape[axis], label)
        variables[name] = ([*rows, *(f"{name}_{i}" for i in range(own))], array)
        for step, value in of.steps.items():
            coords[f"{key}.{step}"] = (rows, np.asarray(value))
        if of.mask is not None:
            variables[f"{key}.mask"] = (rows, np.asarray(of.mask))
    return xarray.Dataset(variables, coords)


def plot(logs: "logdict", keys: Sequence[str], x: str | None) -> Any:
    # not with pyplot, which would keep the figure, and show it twice in a notebook
    module = require("matplotlib.figure", "plot", "`logs.plot()`")
    compact = logs.compact()
    missing = [key for key in keys if key not in compact]
    selected = [
        column
        for column in _columns(compact)
        if (not keys or column.key in keys) and column.own == 0 and column.stacked
    ]
    if keys:
        selected.sort(key=lambda column: keys.index(column.key))
    if missing or not selected:
        requested = ", ".join(map(repr, missing or keys)) or "nothing"
        raise LoxValueError(
            "`plot` draws scalar keys that have a time axis; it cannot draw "
            f"{requested}. These logs have {', '.join(map(repr, logs)) or 'no keys'}."
        )
    figure = module.Figure(figsize=(7, 2.4 * len(selected)), layout="constrained")
    panels = figure.subplots(len(selected), 1, squeeze=False)[:, 0]
    for panel, column in zip(panels, selected, strict=True):
        label, curves = _curves(column, x)
        for lane, (across, values) in curves.items():
            panel.plot(across, values, lw=1.2, label=lane)
        if 1 < len(curves) <= 10:
            panel.legend(fontsize="small", ncols=2)
        panel.set_ylabel(column.name)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    return figure


def _curves(column: _Column, x: str | None) -> tuple[str, dict[str, Any]]:
    """The label of the x-axis, and x and y of each lane, by its name."""
    label, steps, lines = _lines(column, x)
    curves = {
        f"lane {lane}": (steps[:, min(lane, steps.shape[1] - 1)], lines[:, lane])
        for lane in range(lines.shape[1])
    }
    if LANE not in column.of.steps or len(curves) > 1 or x == LANE:
        return label, curves
    # rows that name their lane
    ((across, values),) = curves.values()
    lanes = np.asarray(column.of.steps[LANE]).reshape(-1)
    of_lane = {number: lanes == number for number in lane_numbers({"": column.of})}
    return label, {
        "no lane" if number == NO_LANE else f"lane {number}": (
            across[rows],
            values[rows],
        )
        for number, rows in of_lane.items()
    }


def _lines(column: _Column, x: str | None) -> Any:
    """The label of the x-axis, its values, and the values with one column per lane."""
    array, axis, key = column.array, column.time_axis, column.of

    def time_first(values: Any) -> Any:
        return np.moveaxis(np.asarray(values), axis, 0).reshape(array.shape[axis], -1)

    lines = time_first(array)
    if key.mask is not None:
        lines = np.where(time_first(key.mask), lines.astype(float), np.nan)
    step = x
    if step is None:
        step = next((name for name in key.steps if name != LANE), None)
    if step is None:
        return "row", np.arange(len(lines))[:, None], lines
    if step not in key.steps:
        raise LoxValueError(
            f"{column.key!r} has no step {step!r} to plot it over; it has "
            f"{', '.join(map(repr, key.steps)) or 'none'}."
        )
    return step, time_first(key.steps[step]), lines


def to_html(logs: "logdict") -> str:
    rows = []
    for column in _columns(logs.compact()):
        array = column.array
        line = ""
        if column.stacked and column.own == 0 and array.dtype.kind in "fiub":
            lanes = np.moveaxis(array, column.time_axis, 0)
            line = _sparkline(lanes.reshape(len(lanes), -1))
        cells = [
            f"<code>{html.escape(column.name)}</code>",
            html.escape(str(array.dtype)),
            html.escape(str(array.shape)),
            line or html.escape(format_value(array)),
            html.escape(", ".join(column.of.steps)),
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(
        f"<th>{title}</th>" for title in ("key", "dtype", "shape", "values", "steps")
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


_WIDTH, _HEIGHT, _MAX_LANES, _MAX_POINTS = 160, 28, 16, 200


def _sparkline(lanes: np.ndarray[Any, Any]) -> str:
    lanes = lanes[:, :_MAX_LANES].astype(float)
    finite = lanes[np.isfinite(lanes)]
    if not finite.size:
        return ""
    low, high = float(finite.min()), float(finite.max())
    span = (high - low) or 1.0
    paths = []
    for lane in lanes.T:
        points = [
            f"{1 + i / max(len(lane) - 1, 1) * (_WIDTH - 2):.1f},"
            f"{_HEIGHT - 2 - (lane[i] - low) / span * (_HEIGHT - 4):.1f}"
            for i in _thinned(lane)
        ]
        if len(points) == 1:
            points.append(f"{_WIDTH - 1},{points[0].split(',')[1]}")
        paths.append(f'<polyline points="{" ".join(points)}"/>')
    title = f"{low:.4g} to {high:.4g}"
    nonfinite = lanes.size - finite.size
    note = f" ({nonfinite} not finite)" if nonfinite else ""
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="currentColor" '
        f'stroke-width="1"><title>{title}{note}</title>{"".join(paths)}</svg>{note}'
    )


def _thinned(lane: np.ndarray[Any, Any]) -> list[int]:
    """Indices of points to draw: the minimum and maximum of each segment."""
    kept: set[int] = set()
    for part in np.array_split(np.arange(len(lane)), min(len(lane), _MAX_POINTS)):
        part = part[np.isfinite(lane[part])]
        if len(part):
            kept |= {int(part[lane[part].argmin()]), int(part[lane[part].argmax()])}
    return sorted(kept)
