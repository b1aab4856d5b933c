"""Logs as an HTML table for notebooks, with a small curve for each scalar key.

There are no scripts, and everything that comes from logs is escaped.
"""

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import Column, columns_of
from .formatting import format_value
from .lane_points import LanePoints, align_lanes, has_lanes
from .lane_statistics import Sample
from .over_lanes import nonfinite_lanes, samples_of

if TYPE_CHECKING:
    from .logdict import logdict

_HEAD = ("key", "dtype", "shape", "values", "last", "steps")
_WIDTH, _HEIGHT, _MAX_SEGMENTS, _MAX_TEXT = 160, 28, 200, 80


def to_html(logs: "logdict") -> str:
    return html_table(_HEAD, key_rows(logs))


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the cells are HTML, the head is text."""
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<table style="white-space:nowrap"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def key_rows(logs: "logdict") -> list[list[str]]:
    """The cells of each key: its name, dtype, shape, values, last value and steps."""
    rows = []
    for column in columns_of(logs.compact()):
        curve, last = _curve(column)
        array = column.array
        rows.append(
            [
                f"<code>{html.escape(column.name)}</code>",
                html.escape(str(array.dtype)),
                html.escape(str(array.shape)),
                curve or html.escape(_shortened(format_value(array))),
                html.escape(last),
                html.escape(", ".join(column.of.steps)),
            ]
        )
    return rows


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _curve(column: Column) -> tuple[str, str]:
    """An SVG of a scalar key, and its last value; empty if there is nothing to draw."""
    is_number = column.array.dtype.kind in "fiub"
    if column.own or not is_number or not (column.stacked or has_lanes(column.of)):
        return "", ""
    key = column.of._replace(value=column.array)
    key = key._replace(info=key.info._replace(ndims=(0,)))
    points = align_lanes(column.key, key)
    (sample,) = samples_of(points)
    if not sample.count.any():
        return "", ""
    last = _last(sample)
    if not column.stacked:
        return "", last
    return _svg(points, sample), last


def _last(sample: Sample) -> str:
    """The mean and the standard deviation at the last point that has values."""
    i = int(np.nonzero(sample.count)[0][-1])
    mean, count = sample.mean[i], int(sample.count[i])
    if sample.values.shape[1] == 1:
        return f"{mean:.4g}"
    spread = f" ± {sample.std[i]:.2g}" if count > 1 else ""
    return f"{mean:.4g}{spread} (n = {count})"


def _svg(points: LanePoints, sample: Sample) -> str:
    """The mean over lanes, and a band of one standard deviation around it."""
    lanes = sample.values.shape[1]
    what = f"mean ± std of {lanes} lanes: " if lanes > 1 else ""
    # the range of the values themselves
    found = sample.floats[sample.valid]
    title = f"{what}{found.min():.4g} to {found.max():.4g}"
    missing = int((points.present & ~sample.valid).sum())
    lost, _ = nonfinite_lanes(points, [sample])
    note = f" ({missing} not finite)" if missing else ""
    if missing and lanes > 1:
        note = f" ({missing} not finite, in {lost} of {lanes} lanes)"
    std = sample.std if lanes > 1 else None
    return f"{curve_svg(sample.mean, std, title + note)}{note}"


def curve_svg(
    mean: Any, std: Any, title: str, max_segments: int = _MAX_SEGMENTS
) -> str:
    """A curve with a band of one standard deviation around it.

    Args:
        mean: an array; only its finite values are drawn, at least one.
        std: an array of the same length, or None to draw no band.
        title: text that is shown when the pointer is over the curve.
        max_segments: the extremes of this many segments are drawn.
    """
    mean = np.where(np.isfinite(mean), mean, np.nan)
    low = high = mean
    if std is not None:
        with np.errstate(over="ignore"):
            low, high = mean - std, mean + std
        # no band where there is one value, or where the sum is too large for a float
        low, high = (np.where(np.isfinite(edge), edge, mean) for edge in (low, high))
    bottom, top = float(np.nanmin(low)), float(np.nanmax(high))
    span = (top / 2 - bottom / 2) or 1.0  # half of it is always finite
    count = len(mean)

    def place(i: Any, value: float) -> str:
        x = 1 + i / max(count - 1, 1) * (_WIDTH - 2)
        height = (value / 2 - bottom / 2) / span * (_HEIGHT - 4)
        return f"{x:.1f},{_HEIGHT - 2 - height:.1f}"

    def drawn(values: Any, *extremes: Any) -> list[int]:
        return _thinned(values, max_segments, *extremes)

    line = [place(i, mean[i]) for i in drawn(mean, np.argmin, np.argmax)]
    if len(line) == 1:
        line.append(f"{_WIDTH - 1},{line[0].split(',')[1]}")
    band = ""
    if std is not None:
        outline = [place(i, low[i]) for i in drawn(low, np.argmin)]
        outline += [place(i, high[i]) for i in reversed(drawn(high, np.argmax))]
        corners = " ".join(outline)
        band = f'<polygon points="{corners}" fill="currentColor" opacity="0.2"/>'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" fill="none">'
        f"<title>{html.escape(title)}</title>{band}"
        f'<polyline points="{" ".join(line)}" stroke="currentColor" '
        'stroke-width="1"/></svg>'
    )


def _thinned(values: Any, max_segments: int, *extremes: Any) -> list[int]:
    """Indices of points to draw: the extremes of each segment."""
    kept: set[int] = set()
    segments = np.array_split(np.arange(len(values)), min(len(values), max_segments))
    for part in segments:
        part = part[np.isfinite(values[part])]
        if len(part):
            for extreme in extremes:
                kept.add(int(part[extreme(values[part])]))
    return sorted(kept)
