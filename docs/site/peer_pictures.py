"""Pictures of the results of `python -m benchmarks peers`: bars and curves."""

import re
from collections.abc import Callable
from typing import Any

from benchmarks.peers.results import Measurement, Result
from benchmarks.peers.table import curves, exponents, ratio
from docs.site.peer_results import rows_of

_BAR = 0.21  # inches
# the pictures with bars: the groups that are shown one below the other
_BARS = {
    "peers-scans": ["scan-10", "scan-100000"],
    "peers-loops": ["nested", "while"],
    "peers-derivatives": ["derivative", "transformer", "checkpointed"],
    "peers-seeds": ["ppo"],
    "peers-cotangents": ["cotangents"],
    "peers-first-calls": ["trace", "lower", "compile"],
    "peers-progress": ["progress"],
}
_CURVES = {
    "peers-steps": ("steps", "steps of a scan"),
    "peers-lanes": ("lanes", "lanes of a vmap"),
    "peers-keys": ("keys", "keys per event"),
    "peers-write-rows": ("write-rows", "rows"),
    "peers-read-rows": ("read-rows", "rows"),
}
_MARKS = "osD^v<>Pp*hX"
# A tracker and its lox logger have the same marker.
_MARKS_OF_ROWS = {
    "numpy.save": "o",
    "lox.save": "o",
    "lox SaveLogger.tap": "D",
    "lox SaveLogger.log": "*",
    "TensorBoard's writer": "s",
    "tensorboardX": "h",
    "lox TensorBoardLogger": "s",
    "wandb (offline)": "^",
    "lox WandbLogger": "^",
    "trackio": "v",
    "lox TrackioLogger": "v",
    "MLflow log_metric": "X",
    "MLflow log_batch": "P",
    "lox MLflowLogger": "P",
}


def pictures(measurements: list[Measurement]) -> dict[str, Callable[[], Any]]:
    """The functions that draw each figure for which there are measurements."""
    found: dict[str, Callable[[], Any]] = {}
    for name, groups in _BARS.items():
        rows = {group: rows_of(measurements, group) for group in groups}
        rows = {group: some for group, some in rows.items() if some}
        if not rows:
            continue
        found[name] = lambda rows=rows: _bars(rows)
    for name, (group, label) in _CURVES.items():
        results = rows_of(measurements, group)
        if not curves(results, group):
            continue
        found[name] = lambda results=results, group=group, label=label: _lines(
            results, group, label
        )
    return found


def _is_lox(peer: str) -> bool:
    return peer.startswith("lox")


def _bars(groups: dict[str, list[Result]]) -> Any:
    from matplotlib.figure import Figure

    groups = {
        name: [row for row in rows if row.status != "missing"]
        for name, rows in groups.items()
    }
    counts = [len(rows) for rows in groups.values()]
    height = sum(_BAR * count + 0.75 for count in counts)
    figure = Figure(figsize=(7, height), layout="constrained")
    ratios = {"height_ratios": counts}
    all_axes = figure.subplots(len(groups), squeeze=False, gridspec_kw=ratios)[:, 0]
    for axes, rows in zip(all_axes, groups.values(), strict=True):
        _bars_of_group(axes, rows)
    all_axes[-1].set_xlabel("time, relative to the first bar")
    return figure


def _bars_of_group(axes: Any, rows: list[Result]) -> None:
    first = rows[0]
    assert first.median
    longest = max(row.high / first.median for row in rows if row.high)
    longest = max(longest, 10.0)
    left = min(0.5, *(row.low / first.median * 0.8 for row in rows if row.low))
    for i, row in enumerate(rows):
        if row.ratio is None or row.median is None:
            axes.text(left * 1.1, i, _why(row), va="center", fontsize=7.5, alpha=0.8)
            continue
        # relative to the program by hand with the same version of JAX
        scale = row.ratio / row.median
        color = "C0" if _is_lox(row.peer) else "C1" if i else "0.55"
        axes.barh(i, row.ratio - left, left=left, color=color, height=0.7)
        assert row.low and row.high
        axes.plot([row.low * scale, row.high * scale], [i, i], color="0.5", lw=1.2)
        end = max(row.ratio, row.high * scale)
        text = ratio(row.ratio)
        axes.annotate(text, (end, i), (4, -3), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(left, longest * (longest / left) ** 0.12)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_yticks(range(len(rows)), [row.peer for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    title = first.work.replace("`", "")
    axes.set_title(title, fontsize=9, loc="right")


def _why(row: Result) -> str:
    # without the class of an error
    note = re.sub(r"^\w+Error: ", "", row.note).replace("`", "")
    text = f"{row.status}: {note}"
    return text if len(text) <= 56 else text[:53].rstrip() + " …"


def _lines(results: list[Result], group: str, label: str) -> Any:
    from matplotlib.figure import Figure

    found = curves(results, group)
    height = 3.4 + 0.16 * len(found)  # with the legend, in one column
    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots()
    slopes = exponents(results).get(group, {})
    ours = theirs = 0
    for i, (peer, points) in enumerate(found.items()):
        name = peer
        if peer in slopes:
            name += f"  (exponent {slopes[peer]:.2f})"
        if not i:
            color, style = "0.55", "--"
        elif _is_lox(peer):
            color, style, ours = "C0", "-", ours + 1
        else:
            color, style, theirs = "C1", "-", theirs + 1
        mark = _MARKS[(ours if _is_lox(peer) else theirs) % len(_MARKS)]
        mark = _MARKS_OF_ROWS.get(peer, mark)
        x, y = zip(*points, strict=True)
        axes.plot(
            x, y, style, color=color, marker=mark, markersize=4.5, lw=1.3, label=name
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("seconds per call")
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", fontsize=7.5)
    return figure
