"""Logs as data frames, datasets, figures and HTML; each library is imported at use."""

import html
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lox._arrays import leaves_with_names
from lox._errors import LoxValueError

from .formatting import format_value

if TYPE_CHECKING:
    from .logdict import logdict


def require(module: str, extra: str, what: str) -> Any:
    """Imports an optional dependency, or says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f"{what} needs {name}, which is not installed: "
            f"`pip install 'jax-lox[{extra}]'`."
        ) from error


def _columns(logs: "logdict") -> dict[str, tuple[np.ndarray[Any, Any], int, Any]]:
    """Every leaf by its path: its array, its own axes, and its key's description."""
    columns: dict[str, tuple[np.ndarray[Any, Any], int, Any]] = {}
    for key, value in logs.items():
        info = logs._info_for(key)
        paths = leaves_with_names(value)
        for (path, leaf), own in zip(paths, info.ndims, strict=True):
            name = key + path
            columns[name] = (np.asarray(leaf), own, (key, info))
    return columns


def to_pandas(logs: "logdict") -> Any:
    pandas = require("pandas", "pandas", "`logs.to_pandas()`")
    compact = logs.compact()
    tables: dict[tuple[str, ...], Any] = {}
    for name, column in _columns(compact).items():
        labels, frame = _frame(pandas, compact, name, column)
        if labels not in tables:
            tables[labels] = frame
            continue
        # rows with the same lanes and steps meet; the n-th such row meets the n-th
        both = tables[labels], frame
        both = tuple(
            one.assign(_nth=one.groupby(list(labels)).cumcount()) if labels else one
            for one in both
        )
        on = [*labels, "_nth"] if labels else None
        how = {"on": on, "how": "outer", "sort": True} if on else {"how": "cross"}
        joined = both[0].merge(both[1], **how)
        tables[labels] = joined.drop(columns="_nth", errors="ignore")
    # a key that was logged once goes with every row of its lanes; keys with other kinds
    # of steps have rows of their own
    once = {k: tables[k] for k in tables if all(x.startswith("lane_") for x in k)}
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


def _frame(
    pandas: Any, logs: "logdict", name: str, column: tuple[Any, int, Any]
) -> tuple[tuple[str, ...], Any]:
    """One column, with the labels of its rows: lanes, and steps or else positions."""
    array, own, (key, info) = column
    shape = array.shape[: array.ndim - own]
    size = int(np.prod(shape))
    axes = dict(zip(_axis_names(array, own, info), _positions(shape), strict=True))
    steps = {
        step: np.broadcast_to(np.asarray(value), shape).reshape(size)
        for step, value in logs._key_steps(key).items()
    }
    if steps:
        axes.pop("row", None)
    labels = {**axes, **steps}
    cells = array.reshape(size, *array.shape[array.ndim - own :])
    if name in labels:  # a value that is called like its step
        name = f"{name}.value"
    columns = {**labels, name: list(cells) if own else cells}
    frame = pandas.DataFrame({k: _exact(pandas, x) for k, x in columns.items()})
    mask = logs.mask.get(key)
    if mask is not None:
        frame = frame[np.broadcast_to(np.asarray(mask), shape).reshape(size)]
    return tuple(labels), frame


def _exact(pandas: Any, column: Any) -> Any:
    """A column of whole numbers that pandas may make floats of, where some are missing.

    Floats do not hold those beyond 2**53; pandas has another type for them.
    """
    if not isinstance(column, np.ndarray) or column.dtype not in (np.int64, np.uint64):
        return column
    if not column.size or max(-int(column.min()), int(column.max())) <= 2**53:
        return column
    signed = column.dtype == np.int64
    return pandas.array(column, dtype="Int64" if signed else "UInt64")


def _axis_names(array: Any, own: int, info: Any) -> list[str]:
    """Names for the axes in front of a value's own."""
    outer = info.time_axis(array, own)
    names = [f"lane_{i}" for i in range(outer)]
    names += ["row"] if info.stacked else []
    return names + [f"lane_{outer + i}" for i in range(info.lanes)]


def _positions(shape: tuple[int, ...]) -> Any:
    return np.indices(shape).reshape(len(shape), -1) if shape else []


def to_xarray(logs: "logdict") -> Any:
    xarray = require("xarray", "xarray", "`logs.to_xarray()`")
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    compact = logs.compact()
    lengths: dict[int, str] = {}
    for name, (array, own, (key, info)) in _columns(compact).items():
        rows = _axis_names(array, own, info)
        if info.stacked:
            # keys of one length share a dimension; others get one of their own
            at = info.time_axis(array, own)
            label = "time" if not lengths else f"time_{name}"
            rows[at] = lengths.setdefault(array.shape[at], label)
        variables[name] = ([*rows, *(f"{name}_{i}" for i in range(own))], array)
        for step, value in compact._key_steps(key).items():
            coords[f"{key}.{step}"] = (rows, np.asarray(value))
        if key in compact.mask:
            variables[f"{key}.mask"] = (rows, np.asarray(compact.mask[key]))
    return xarray.Dataset(variables, coords)


def plot(logs: "logdict", keys: Sequence[str], x: str | None) -> Any:
    # not through pyplot, which would keep the figure, and show it twice in a notebook
    module = require("matplotlib.figure", "plot", "`logs.plot()`")
    compact = logs.compact()
    missing = [key for key in keys if key not in compact]
    chosen = {
        name: column
        for name, column in _columns(compact).items()
        if (not keys or column[2][0] in keys)
        and column[1] == 0
        and column[2][1].stacked
    }
    if keys:  # in their order
        chosen = dict(sorted(chosen.items(), key=lambda c: keys.index(c[1][2][0])))
    if missing or not chosen:
        asked = ", ".join(map(repr, missing or keys)) or "nothing"
        raise LoxValueError(
            f"`plot` draws scalar keys that have a time axis; it cannot draw {asked}. "
            f"These logs have {', '.join(map(repr, logs)) or 'no keys'}."
        )
    figure = module.Figure(figsize=(7, 2.4 * len(chosen)), layout="constrained")
    panels = figure.subplots(len(chosen), 1, squeeze=False)[:, 0]
    for panel, (name, column) in zip(panels, chosen.items(), strict=True):
        label, at, lines = _lines(compact, column, x)
        for lane in range(lines.shape[1]):
            across = at[:, min(lane, at.shape[1] - 1)]
            panel.plot(across, lines[:, lane], lw=1.2, label=f"lane {lane}")
        if 1 < lines.shape[1] <= 10:
            panel.legend(fontsize="small", ncols=2)
        panel.set_ylabel(name)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    return figure


def _lines(logs: "logdict", column: tuple[Any, int, Any], x: str | None) -> Any:
    """What to call the abscissa, its values, and a column of values a lane."""
    array, own, (key, info) = column
    axis = info.time_axis(array, own)

    def by_time(values: Any) -> Any:
        return np.moveaxis(np.asarray(values), axis, 0).reshape(array.shape[axis], -1)

    lines = by_time(array)
    mask = logs.mask.get(key)
    if mask is not None:
        lines = np.where(by_time(mask), lines.astype(float), np.nan)
    steps = logs._key_steps(key)
    step = x if x is not None else next(iter(steps), None)
    if step is None:
        return "row", np.arange(len(lines))[:, None], lines
    if step not in steps:
        raise LoxValueError(
            f"{key!r} has no step {step!r} to draw it over; it has "
            f"{', '.join(map(repr, steps)) or 'none'}."
        )
    return step, by_time(steps[step]), lines


def to_html(logs: "logdict") -> str:
    rows = []
    for name, (array, own, (key, info)) in _columns(logs.compact()).items():
        line = ""
        if info.stacked and own == 0 and array.dtype.kind in "fiub":
            lanes = np.moveaxis(array, info.time_axis(array, own), 0)
            line = _sparkline(lanes.reshape(len(lanes), -1))
        cells = [
            f"<code>{html.escape(name)}</code>",
            html.escape(str(array.dtype)),
            html.escape(str(array.shape)),
            line or html.escape(format_value(array)),
            html.escape(", ".join(logs._key_steps(key))),
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(
        f"<th>{title}</th>" for title in ("key", "dtype", "shape", "values", "steps")
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


_WIDTH, _HEIGHT, _MOST_LANES, _MOST_POINTS = 160, 28, 16, 200


def _sparkline(lanes: np.ndarray[Any, Any]) -> str:
    lanes = lanes[:, :_MOST_LANES].astype(float)
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
    strange = lanes.size - finite.size
    note = f" ({strange} not finite)" if strange else ""
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="currentColor" '
        f'stroke-width="1"><title>{title}{note}</title>{"".join(paths)}</svg>{note}'
    )


def _thinned(lane: np.ndarray[Any, Any]) -> list[int]:
    """Positions to draw: of each stretch, the lowest and the highest finite value."""
    kept: set[int] = set()
    for part in np.array_split(np.arange(len(lane)), min(len(lane), _MOST_POINTS)):
        part = part[np.isfinite(lane[part])]
        if len(part):
            kept |= {int(part[lane[part].argmin()]), int(part[lane[part].argmax()])}
    return sorted(kept)
