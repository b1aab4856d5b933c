"""Plots scalar keys over a step: a line per lane, or their mean with a band."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from lox._errors import LoxValueError
from lox._patterns import matches

from .columns import Column, columns_of
from .exports import require
from .lane_points import align_lanes
from .lane_statistics import STATISTICS, Sample
from .lane_step import LANE, NO_LANE, lane_numbers
from .over_lanes import nonfinite_lanes, samples_of

if TYPE_CHECKING:
    from .logdict import logdict

Band = Literal["ci", "std", "sem", "range", "iqr"]
BANDS: tuple[Band, ...] = get_args(Band)

# how many lanes have a line of their own, and how many are named in the legend
_MAX_LINES, _MAX_NAMED = 200, 10


class Drawing(NamedTuple):
    """What is drawn in one panel for one group of lanes.

    Attributes:
        label: the label of the x-axis.
        x: the points of the line in the middle.
        middle: the mean or the median of the lanes.
        complete: which points have all lanes that any point has.
        low: the lower end of the band.
        high: its upper end.
        counts: the number of lanes at each point.
        lanes: x and y of each lane.
        legend: what the line and the band are, and of how many lanes.
    """

    label: str
    x: Any
    middle: Any
    complete: Any
    low: Any
    high: Any
    counts: Any
    lanes: list[tuple[Any, Any]]
    legend: str


def plot_groups(
    groups: Mapping[str, "logdict"],
    keys: Sequence[str],
    x: str | None = None,
    band: Band | None = None,
    logx: bool = False,
    logy: bool = False,
) -> Any:
    """Plots groups of lanes, each in one color if there are several.

    Args:
        groups: the logs of each group, by its name.
        keys: the keys, by name or pattern; if there are none, all scalar keys with a
            time axis.
        x: the step to plot over; by default the first one.
        band: what to draw around the mean; if None, each lane has a line.
        logx: whether the x-axis is logarithmic.
        logy: whether the y-axis is logarithmic.
    """
    if band is not None and band not in BANDS:
        raise LoxValueError(
            f"`band` of `plot` is {band!r}; it must be one of "
            f"{', '.join(map(repr, BANDS))}."
        )
    # not with pyplot, which would keep the figure, and show it twice in a notebook
    module = require("matplotlib.figure", "plot", "`plot`")
    panels = panels_of(groups, keys)
    figure = module.Figure(figsize=(7, 2.4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for panel, (name, by_group) in zip(axes, panels.items(), strict=True):
        colors = (f"C{i}" for i in itertools.count())
        for group, column in by_group.items():
            if band is not None:
                drawing = with_band(column, x, band)
                panel.set_xlabel(drawing.label)
                _draw_band(panel, drawing, next(colors), group)
            elif len(groups) > 1:
                panel.set_xlabel(_draw_lines(panel, column, x, next(colors), group))
            else:
                panel.set_xlabel(_draw_lines(panel, column, x))
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small", ncols=1 if band or len(groups) > 1 else 2)
        panel.set_ylabel(name)
        panel.set_xscale("log" if logx else "linear")
        panel.set_yscale("log" if logy else "linear")
        panel.grid(alpha=0.3)
    return figure


def panels_of(
    groups: Mapping[str, "logdict"], keys: Sequence[str]
) -> dict[str, dict[str, Column]]:
    """The columns to draw, by their name and then by group."""
    panels: dict[str, dict[str, Column]] = {}
    known: dict[str, None] = {}
    for group, logs in groups.items():
        known |= dict.fromkeys(logs)
        for column in columns_of(logs.compact()):
            is_selected = not keys or any(matches(column.key, key) for key in keys)
            if is_selected and column.own == 0 and column.stacked:
                panels.setdefault(column.name, {})[group] = column
    drawn = {column.key for by_group in panels.values() for column in by_group.values()}
    missing = [key for key in keys if not any(matches(x, key) for x in drawn)]
    if missing or not panels:
        requested = ", ".join(map(repr, missing or keys)) or "nothing"
        raise LoxValueError(
            "`plot` draws scalar keys that have a time axis; it cannot draw "
            f"{requested}. These logs have {', '.join(map(repr, known)) or 'no keys'}."
        )
    if not keys:
        return panels

    def order(name: str) -> int:
        key = next(iter(panels[name].values())).key
        return [matches(key, pattern) for pattern in keys].index(True)

    return {name: panels[name] for name in sorted(panels, key=order)}


# --- mean and band -----------------------------------------------------------


def with_band(column: Column, x: str | None, band: Band) -> Drawing:
    # one leaf, which is a scalar
    key = column.of._replace(value=column.array)
    key = key._replace(info=key.info._replace(ndims=(0,)))
    _check_step(column, x)
    points = align_lanes(column.key, key, x)
    (sample,) = samples_of(points)
    across = np.arange(len(points.present))
    if points.step is not None:
        across = points.steps[points.step]
    (values,) = points.leaves
    lanes = [
        (across[has], lane[has].astype(float))
        for lane, has in zip(values.T, points.present.T, strict=True)
    ]
    middle, low, high, what = _middle_and_band(sample, band)
    counts = sample.count
    least, most = (int(counts.min()), int(counts.max())) if counts.size else (0, 0)
    n = f"n = {most}" if least == most else f"n = {least} to {most}"
    bad, _ = nonfinite_lanes(points, [sample])
    note = f"; {bad} of {points.present.shape[1]} not finite" if bad else ""
    what = what if most > 1 else "one lane"
    label = points.step or "row"
    legend = f"{what} ({n}{note})"
    return Drawing(
        label, across, middle, counts == most, low, high, counts, lanes, legend
    )


def _middle_and_band(sample: Sample, band: Band) -> tuple[Any, Any, Any, str]:
    def of(statistic: str) -> Any:
        return STATISTICS[statistic][1](sample)

    if band == "iqr":
        return *of("median"), *of("iqr"), "median, quartiles"
    (mean,) = of("mean")
    if band == "ci":
        return mean, *of("ci"), "mean, 95 % CI"
    if band == "range":
        return mean, *of("min"), *of("max"), "mean, min to max"
    (spread,) = of(band)
    return mean, mean - spread, mean + spread, f"mean ± {band}"


def _draw_band(panel: Any, drawing: Drawing, color: str, group: str) -> None:
    alpha = 0.35 if len(drawing.lanes) <= 10 else 0.15
    for across, values in drawing.lanes[:_MAX_LINES]:
        panel.plot(across, values, lw=0.6, color=color, alpha=alpha, zorder=1.5)
    legend = f"{group}: {drawing.legend}" if group else drawing.legend
    middle = drawing.middle
    if not drawing.complete.all():  # dotted where some lanes are missing
        panel.plot(drawing.x, middle, lw=1.6, ls=":", color=color, zorder=2.5)
        middle = np.where(drawing.complete, middle, np.nan)
    panel.plot(drawing.x, middle, lw=1.6, color=color, label=legend, zorder=2.6)
    panel.fill_between(
        drawing.x, drawing.low, drawing.high, color=color, alpha=0.2, lw=0, zorder=2
    )


# --- lines -------------------------------------------------------------------


def _draw_lines(
    panel: Any, column: Column, x: str | None, color: str | None = None, group: str = ""
) -> str:
    """Draws each lane; returns the label of the x-axis."""
    label, curves = _curves(column, x)
    for lane, (across, values) in curves.items():
        panel.plot(across, values, lw=1.2, label=None if group else lane, color=color)
    if group:
        panel.plot([], [], color=color, label=f"{group} (n = {len(curves)})")
    elif not 1 < len(curves) <= _MAX_NAMED:
        for line in panel.lines:
            line.set_label(None)
    return label


def _curves(column: Column, x: str | None) -> tuple[str, dict[str, Any]]:
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


def _lines(column: Column, x: str | None) -> Any:
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
    _check_step(column, step)
    return step, time_first(key.steps[step]), lines


def _check_step(column: Column, step: str | None) -> None:
    steps = column.of.steps
    if step is not None and step not in steps:
        raise LoxValueError(
            f"{column.key!r} has no step {step!r} to plot it over; it has "
            f"{', '.join(map(repr, steps)) or 'none'}."
        )
