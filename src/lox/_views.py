"""Logs as data frames, datasets, figures and HTML; each library is imported at use."""

import html
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._format import format_value

if TYPE_CHECKING:
    from ._logdict import logdict


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
        paths = jax.tree_util.tree_flatten_with_path(value)[0]
        for (path, leaf), own in zip(paths, info.ndims, strict=True):
            name = key + jax.tree_util.keystr(path)
            columns[name] = (np.asarray(leaf), own, (key, info))
    return columns


def to_pandas(logs: "logdict") -> Any:
    pandas = require("pandas", "pandas", "`logs.to_pandas()`")
    compact = logs.compact()
    result: Any = None
    for name, (array, own, (key, info)) in _columns(compact).items():
        shape = array.shape[: array.ndim - own]
        size = int(np.prod(shape))
        columns: dict[str, Any] = dict(
            zip(_axis_names(array, own, info), _positions(shape), strict=True)
        )
        for step, value in compact._key_steps(key).items():
            columns[step] = np.broadcast_to(np.asarray(value), shape).reshape(size)
        cells = array.reshape(size, *array.shape[array.ndim - own :])
        columns[name] = list(cells) if own else cells
        frame = pandas.DataFrame(columns)
        mask = compact.mask.get(key)
        if mask is not None:
            frame = frame[np.broadcast_to(np.asarray(mask), shape).reshape(size)]
        if result is None:
            result = frame
            continue
        shared = [column for column in frame.columns if column in result.columns]
        if shared:
            result = result.merge(frame, how="outer", on=shared)
        else:  # a key that was logged once goes with every row
            result = result.merge(frame, how="cross")
    return pandas.DataFrame() if result is None else result


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
            variables[f"{key}.{step}"] = (rows, np.asarray(value))
        if key in compact.mask:
            variables[f"{key}.mask"] = (rows, np.asarray(compact.mask[key]))
    return xarray.Dataset(variables)


def plot(logs: "logdict", keys: Sequence[str], x: str | None) -> Any:
    pyplot = require("matplotlib.pyplot", "plot", "`logs.plot()`")
    compact = logs.compact()
    chosen = {
        name: column
        for name, column in _columns(compact).items()
        if (not keys or column[2][0] in keys) and column[1] == 0
    }
    chosen = {name: column for name, column in chosen.items() if column[2][1].stacked}
    if not chosen:
        raise ValueError(
            "nothing to draw: `plot` draws scalar keys that have a time axis; these "
            f"logs have {', '.join(map(repr, logs)) or 'no keys'}."
        )
    figure, axes = pyplot.subplots(
        len(chosen), 1, figsize=(7, 2.4 * len(chosen)), squeeze=False, sharex=False
    )
    for panel, (name, (array, own, (key, info))) in zip(
        axes[:, 0], chosen.items(), strict=True
    ):
        axis = info.time_axis(array, own)
        steps = compact._key_steps(key)
        step = x if x is not None else next(iter(steps), None)
        lines = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        if step is not None and step in steps:
            at = np.moveaxis(np.asarray(steps[step]), axis, 0).reshape(len(lines), -1)
        else:
            at, step = np.arange(len(lines))[:, None], "row"
        mask = compact.mask.get(key)
        if mask is not None:
            mask = np.moveaxis(np.asarray(mask), axis, 0).reshape(len(lines), -1)
            lines = np.where(mask, lines.astype(float), np.nan)
        for lane in range(lines.shape[1]):
            panel.plot(at[:, min(lane, at.shape[1] - 1)], lines[:, lane], lw=1.2)
        panel.set_ylabel(name)
        panel.set_xlabel(step)
        panel.grid(alpha=0.3)
    figure.tight_layout()
    return figure


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
    lanes = lanes[:: max(1, -(-len(lanes) // _MOST_POINTS)), :_MOST_LANES]
    lanes = lanes.astype(float)
    finite = lanes[np.isfinite(lanes)]
    if not finite.size:
        return ""
    low, high = float(finite.min()), float(finite.max())
    span = (high - low) or 1.0
    across = np.linspace(1, _WIDTH - 1, max(len(lanes), 2))
    paths = []
    for lane in lanes.T:
        points = [
            f"{x:.1f},{_HEIGHT - 2 - (y - low) / span * (_HEIGHT - 4):.1f}"
            for x, y in zip(across, lane, strict=False)
            if np.isfinite(y)
        ]
        if len(points) == 1:
            points.append(f"{_WIDTH - 1},{points[0].split(',')[1]}")
        paths.append(f'<polyline points="{" ".join(points)}"/>')
    title = f"{low:.4g} to {high:.4g}"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="currentColor" '
        f'stroke-width="1"><title>{title}</title>{"".join(paths)}</svg>'
    )
