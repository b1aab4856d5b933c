"""Plots scalar keys over a step: a line per lane, or their mean with a band."""

import functools
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from lox._errors import LoxValueError, check_choice
from lox._patterns import matches
from lox._text_curves import printable

from .columns import Column, columns_of
from .exports import require
from .lane_points import align_lanes
from .lane_statistics import STATISTICS, Sample
from .lane_step import LANE, have_several_processes, named_lanes
from .over_lanes import nonfinite_lanes, samples_of
from .thinning import Thinning

if TYPE_CHECKING:
    from .logdict import logdict

Band = Literal["ci", "std", "sem", "range", "iqr"]
BANDS: tuple[Band, ...] = get_args(Band)

# how many lanes have their own line, and how many are named in the legend
_MAX_LINES, _MAX_NAMED = 200, 10
# intervals of the x-axis of a figure with bands; more than it has pixels
_INTERVALS = 1000


class Drawing(NamedTuple):
    """What is drawn in one panel for one group of lanes.

    Attributes:
        label: the label of the x-axis.
        x: the points of the line in the middle.
        middle: the mean or the median of the lanes.
        complete: which points have the maximum number of lanes.
        counts: the number of lanes at each point.
        banded: the indices of the points where the band is computed.
        low: the lower end of the band at these points.
        high: its upper end.
        lanes: x and y of each lane.
        legend: what the line and the band are, and of how many lanes.
    """

    label: str
    x: Any
    middle: Any
    complete: Any
    counts: Any
    banded: Any
    low: Any
    high: Any
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
    if band is not None:
        check_choice(band, BANDS, "`band` of `plot`")
    # not with pyplot, which would keep the figure, and show it twice in a notebook
    module = require("matplotlib.figure", "plot", "`plot`")
    panels = panels_of(groups, keys)
    figure = module.Figure(figsize=(7, 2.4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    thinning = Thinning(_INTERVALS, logx)
    for panel, (name, by_group) in zip(axes, panels.items(), strict=True):
        colors = (f"C{i}" for i in itertools.count())
        for group, column in by_group.items():
            if band is not None:
                drawing = with_band(column, x, band, thinning)
                panel.set_xlabel(_plain(drawing.label))
                _draw_band(panel, drawing, next(colors), group, thinning)
            elif len(groups) > 1:
                label = _draw_lines(panel, column, x, next(colors), group)
                panel.set_xlabel(_plain(label))
            else:
                panel.set_xlabel(_plain(_draw_lines(panel, column, x)))
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small", ncols=1 if band or len(groups) > 1 else 2)
        panel.set_ylabel(_plain(name))
        panel.set_xscale("log" if logx else "linear")
        panel.set_yscale("log" if logy else "linear")
        panel.grid(alpha=0.3)
    # IPython shows figures by itself only after pyplot was imported
    figure._repr_png_ = functools.partial(_as_png, figure)
    return figure


def _as_png(figure: Any) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _plain(text: str) -> str:
    """A label that matplotlib shows as it is, whatever it contains."""
    # between dollars it expects a formula, and it hides names that begin with `_`
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


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
        requested = ", ".join(map(repr, missing or keys)) or "these logs"
        names = ", ".join(map(repr, known))
        raise LoxValueError(
            "`plot` draws scalar keys that have a time axis; it cannot draw "
            f"{requested}. "
            + (f"The keys are {names}." if names else "No key matches.")
        )
    if not keys:
        return panels

    def order(name: str) -> int:
        key = next(iter(panels[name].values())).key
        return [matches(key, pattern) for pattern in keys].index(True)

    return {name: panels[name] for name in sorted(panels, key=order)}


# --- mean and band -----------------------------------------------------------


def with_band(
    column: Column, x: str | None, band: Band, thinning: Thinning | None = None
) -> Drawing:
    """The mean of a scalar key, and a band around it.

    Args:
        column: the rows of the key.
        x: the step of the x-axis; by default the first one.
        band: the kind of band.
        thinning: where the band is drawn; by default, at every point.
    """
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
    middle, banded, low, high, what = _middle_and_band(sample, band, across, thinning)
    counts = sample.count
    least, most = (int(counts.min()), int(counts.max())) if counts.size else (0, 0)
    n = f"n = {most}" if least == most else f"n = {least} to {most}"
    bad, _ = nonfinite_lanes(points, [sample])
    note = f"; {bad} of {points.present.shape[1]} not finite" if bad else ""
    what = what if most > 1 else "one lane"
    label = points.step or "row"
    legend = f"{what} ({n}{note})"
    return Drawing(
        label, across, middle, counts == most, counts, banded, low, high, lanes, legend
    )


_WHAT = {
    "ci": "mean, 95 % CI",
    "iqr": "median, quartiles",
    "range": "mean, min to max",
}


def _middle_and_band(
    sample: Sample, band: Band, x: Any, thinning: Thinning | None
) -> tuple[Any, Any, Any, Any, str]:
    """The line in the middle, the indices and ends of the band, and what they are."""

    def of(statistic: str, sample: Sample = sample) -> Any:
        return STATISTICS[statistic][1](sample)

    (middle,) = of("median" if band == "iqr" else "mean")
    what = _WHAT.get(band, f"mean ± {band}")
    if band == "iqr":
        low, high = of("iqr")
    elif band == "range":
        (low,), (high,) = of("min"), of("max")
    elif band == "ci" and thinning is None:
        low, high = of("ci")
    else:
        (spread,) = of("sem" if band == "ci" else band)
        low, high = middle - spread, middle + spread
    if thinning is None:
        return middle, np.arange(len(x)), low, high, what
    kept = thinning.kept(x, (middle, low), (middle, high))
    if band == "ci":  # slow, so it is computed only where it is drawn
        low, high = of("ci", Sample(sample.values[kept], sample.valid[kept]))
        return middle, kept, low, high, what
    return middle, kept, low[kept], high[kept], what


def _draw_band(
    panel: Any, drawing: Drawing, color: str, group: str, thinning: Thinning
) -> None:
    alpha = 0.35 if len(drawing.lanes) <= 10 else 0.15
    for across, values in drawing.lanes[:_MAX_LINES]:
        kept = thinning.kept(across, (values,), (values,))
        panel.plot(
            across[kept], values[kept], lw=0.6, color=color, alpha=alpha, zorder=1.5
        )
    legend = _plain(f"{group}: {drawing.legend}" if group else drawing.legend)
    x, middle, complete = (
        points[drawing.banded]
        for points in (drawing.x, drawing.middle, drawing.complete)
    )
    if not complete.all():  # dotted where some lanes are missing
        panel.plot(x, middle, lw=1.6, ls=":", color=color, zorder=2.5)
        middle = np.where(complete, middle, np.nan)
    panel.plot(x, middle, lw=1.6, color=color, label=legend, zorder=2.6)
    panel.fill_between(
        x, drawing.low, drawing.high, color=color, alpha=0.2, lw=0, zorder=2
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
        legend = _plain(f"{group} (n = {len(curves)})")
        panel.plot([], [], color=color, label=legend)
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
    lanes = named_lanes([column.of])
    several = have_several_processes(lanes)
    found = {}
    for lane in lanes:
        rows = lane.is_of(column.of.steps).reshape(-1)
        found[lane.name(several)] = across[rows], values[rows]
    return label, found


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
