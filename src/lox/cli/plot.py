"""Plots keys of runs, in the terminal or to a file.

By default, runs are grouped by all config keys that differ, except `seed`, and each
group is drawn as its mean with a 95 % confidence interval. The legend says how many
runs there are. Writing a file needs matplotlib.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import is_typed_key, leaves_of
from lox._errors import LoxValueError
from lox._logs.access import keys_of
from lox._logs.key import Key
from lox._logs.logdict import from_keys, logdict
from lox._logs.plotting import BANDS, Drawing, panels_of, plot_groups, with_band
from lox._logs.thinning import Thinning
from lox._store.run_set import Groups, Runs
from lox._store.stacking import stack_runs
from lox._text_curves import printable

from ._canvas import Canvas
from ._files import check_new, replacing
from ._find import add_runs, check_keys, find_runs
from ._output import print_json
from ._smooth import smoothed
from ._terminal import print_path, screen_height, screen_width, styled
from ._values import to_json, to_text

HELP = "plot keys of runs"

_COLORS = "blue", "red", "green", "magenta", "yellow", "cyan"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MAX_GROUPS = 12
_MAX_LINES = 64
_SUFFIXES = ".svg", ".png", ".pdf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "-k",
        "--key",
        action="append",
        metavar="KEY",
        help="the keys, by name or pattern; may be given several times (default: all "
        "scalar keys)",
    )
    parser.add_argument("-x", metavar="STEP", help="the step of the x-axis")
    parser.add_argument(
        "--by",
        action="append",
        metavar="CONFIG",
        help="group runs by a config key; may be given several times, or be `none` "
        "(default: all config keys that differ, except `seed`)",
    )
    parser.add_argument(
        "--band",
        choices=(*BANDS, "none"),
        default="ci",
        help="what to draw around the mean; `none` draws a line per run (default: ci)",
    )
    parser.add_argument("--logx", action="store_true", help="logarithmic x-axis")
    parser.add_argument("--logy", action="store_true", help="logarithmic y-axis")
    parser.add_argument(
        "--smooth",
        type=_weight,
        default=0.0,
        metavar="WEIGHT",
        help="smooth each run by an exponential moving average, 0 to 1",
    )
    parser.add_argument(
        "--height",
        type=_height,
        metavar="LINES",
        help="the number of lines of a plot in the terminal",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=_file, help="an .svg, .png or .pdf file"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the file if it exists"
    )
    parser.add_argument("--json", action="store_true", help="print the curves as JSON")


def run(arguments: Any) -> int:
    if arguments.output:
        check_new(arguments.output, arguments.force)
    groups = _groups(find_runs(arguments.runs), arguments.by)
    logs = _load(groups, arguments.key, arguments.smooth)
    if arguments.output:
        _save(logs, arguments)
        return 0
    panels = _panels(logs, arguments)
    if arguments.json:
        print_json({"panels": [_as_json(panel) for panel in panels]})
        return 0
    for i, panel in enumerate(panels):
        if i:
            print()
        _print(panel, len(panels), arguments)
    return 0


def _groups(runs: Runs, by: list[str] | None) -> Groups:
    if by == ["none"]:
        return Groups((), {(): runs})
    groups = runs.group_by(*(by or ()))
    if len(groups) > _MAX_GROUPS:
        names = ", ".join(groups.names)
        raise LoxValueError(
            f"there are {len(groups)} groups of runs by {names}, but at most "
            f"{_MAX_GROUPS} are drawn. Choose config keys with `--by`, `--by none` for "
            "none, or fewer runs."
        )
    return groups


def _load(groups: Groups, keys: list[str] | None, weight: float) -> dict[str, logdict]:
    """The logs of each group, with runs as lanes."""
    known: dict[str, None] = {}
    found = {}
    for label, runs in zip(groups.labels(), groups.values(), strict=True):
        logs = []
        for one in runs:
            loaded, names = one.load_selected(keys)
            known |= names
            if keys is None:
                loaded = _only_curves(loaded)
            _check_real(loaded)
            logs.append(loaded)
        stacked = keys_of(stack_runs([one.name for one in runs], logs))
        if weight:
            stacked = {name: smoothed(key, weight) for name, key in stacked.items()}
        found[label] = from_keys((name, key.stacked()) for name, key in stacked.items())
    check_keys(keys, known)
    return found


def _only_curves(logs: logdict) -> logdict:
    """The keys whose rows are numbers that can be drawn."""
    keys = keys_of(logs).items()
    return from_keys((name, key) for name, key in keys if _is_curve(key))


def _is_curve(key: Key) -> bool:
    return not any(key.info.ndims) and all(map(_is_real, leaves_of(key.value)))


def _is_real(leaf: Any) -> bool:
    return not is_typed_key(leaf) and np.asarray(leaf).dtype.kind not in "cO"


def _check_real(logs: logdict) -> None:
    for name, value in logs.items():
        for leaf in leaves_of(value):
            if not _is_real(leaf):
                raise LoxValueError(
                    f"{name!r} has the dtype {leaf.dtype}, which cannot be drawn. "
                    "Choose other keys with `-k`."
                )


class _Panel(NamedTuple):
    """The curves of one key, by group."""

    name: str
    drawings: dict[str, Drawing]


def _panels(logs: dict[str, logdict], arguments: Any) -> list[_Panel]:
    band: Any = "range" if arguments.band == "none" else arguments.band
    thinning = None
    if not arguments.json:  # two columns of dots per character
        thinning = Thinning(2 * _width(), arguments.logx)
    return [
        _Panel(
            name,
            {
                group: with_band(x, arguments.x, band, thinning)
                for group, x in by_group.items()
            },
        )
        for name, by_group in panels_of(logs, arguments.key or ()).items()
    ]


def _save(logs: dict[str, logdict], arguments: Any) -> None:
    band = None if arguments.band == "none" else arguments.band
    figure = plot_groups(
        logs, arguments.key or (), arguments.x, band, arguments.logx, arguments.logy
    )
    if arguments.smooth:
        figure.suptitle(f"each run smoothed ({arguments.smooth:g})", fontsize="small")
    kind = arguments.output.lower().rpartition(".")[2]
    with replacing(arguments.output) as path:
        figure.savefig(path, format=kind)
    print_path(arguments.output)


# --- the terminal ------------------------------------------------------------


def _width() -> int:
    return screen_width() or 100


def _print(panel: _Panel, count: int, arguments: Any) -> None:
    width = _width()
    lines = screen_height() or 24
    groups = len(panel.drawings)
    height = max(min(lines - groups - 5, 20), 6) if count == 1 else 10
    height = arguments.height or height
    x_of, y_of = _scale(arguments.logx), _scale(arguments.logy)
    curves = [
        _curves(drawing, arguments.band == "none", x_of, y_of)
        for drawing in panel.drawings.values()
    ]
    title = styled(printable(panel.name), "bold")
    if arguments.smooth:
        title += f" (each run smoothed, {arguments.smooth:g})"
    print(title)
    points = _points(curves)
    if points is None:
        print("  nothing to draw: no finite values")
    else:
        (left, right), (low, high) = points
        labels = [
            _label(value, arguments.logy) for value in (high, (low + high) / 2, low)
        ]
        margin = max(map(len, labels))
        canvas = Canvas(max(width - margin - 2, 10), height, *points)
        _draw(canvas, curves, len(curves) > 1)
        styles = [_COLORS[i % len(_COLORS)] for i in range(groups)]
        places = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
        for i, line in enumerate(canvas.lines(styles)):
            tick = "┤" if i in places else "│"
            print(f"{places.get(i, '').rjust(margin)}{tick}{line}")
        print(f"{' ' * margin}└{'─' * (width - margin - 2)}")
        ends = _label(left, arguments.logx), _label(right, arguments.logx)
        name = next(iter(panel.drawings.values())).label
        room = width - margin - 1
        gap = max((room - len(ends[0]) - len(ends[1]) - len(name)) // 2, 1)
        line = f"{ends[0]}{' ' * gap}{name}"
        print(f"{' ' * (margin + 1)}{line}{ends[1].rjust(max(room - len(line), 1))}")
    for i, (group, drawing) in enumerate(panel.drawings.items()):
        legend = _legend(drawing, arguments)
        letter = f"{_LETTERS[i]} " if groups > 1 else ""
        text = f"{letter}{printable(group)}{': ' if group else ''}{legend}"
        print(styled(text, _COLORS[i % len(_COLORS)]))


class _Curves(NamedTuple):
    """What is drawn for one group: lines, and perhaps a band."""

    lines: list[tuple[Any, Any]]
    band: tuple[Any, Any, Any] | None


def _curves(
    drawing: Drawing,
    each_run: bool,
    x_of: Callable[[Any], Any],
    y_of: Callable[[Any], Any],
) -> _Curves:
    if each_run:
        lanes = drawing.lanes[:_MAX_LINES]
        return _Curves([(x_of(x), y_of(y)) for x, y in lanes], None)
    x, middle = x_of(drawing.x), y_of(drawing.middle)
    band = x[drawing.banded], y_of(drawing.low), y_of(drawing.high)
    return _Curves([(x, middle)], band)


def _scale(logarithmic: bool) -> Callable[[Any], Any]:
    def scale(values: Any) -> Any:
        values = np.asarray(values, np.float64)
        if not logarithmic:
            return values
        with np.errstate(all="ignore"):
            return np.where(values > 0, np.log10(values), np.nan)

    return scale


def _points(curves: list[_Curves]) -> Any:
    """The ranges of both axes; None if there is nothing to draw."""
    lines = [line for curve in curves for line in curve.lines]
    for curve in curves:
        if curve.band is not None:
            x, low, high = curve.band
            lines += [(x, low), (x, high)]
    finite = [(x[ok], y[ok]) for x, y in lines if (ok := np.isfinite(x + y)).any()]
    if not finite:
        return None
    x, y = (np.concatenate(each) for each in zip(*finite, strict=True))
    return (x.min(), x.max()), (y.min(), y.max())


def _draw(canvas: Canvas, curves: list[_Curves], letters: bool) -> None:
    for i, curve in enumerate(curves):
        if curve.band is not None:
            canvas.band(*curve.band, owner=i + 1)
    for i, curve in enumerate(curves):
        for x, y in curve.lines:
            canvas.line(x, y, i + 1)
    for i, curve in enumerate(curves if letters else ()):
        for x, y in curve.lines:
            at = np.nonzero(np.isfinite(x + y))[0]
            if len(at):
                last = at[np.argmax(x[at])]
                canvas.mark(x[last], y[last], _LETTERS[i], i + 1)


def _label(value: float, logarithmic: bool) -> str:
    return to_text(float(10**value if logarithmic else value), 3)


def _legend(drawing: Drawing, arguments: Any) -> str:
    notes = []
    if arguments.band == "none":
        count = len(drawing.lanes)
        legend = f"n = {count}"
        if count > _MAX_LINES:
            notes.append(f"the first {_MAX_LINES} are drawn")
    else:
        legend = drawing.legend.replace("one lane", "one run")
    for axis, values in (("x", drawing.x), ("y", drawing.middle)):
        if getattr(arguments, f"log{axis}"):
            with np.errstate(invalid="ignore"):
                hidden = int((np.asarray(values, np.float64) <= 0).sum())
            if hidden:
                notes.append(f"{hidden} points with {axis} <= 0 are not drawn")
    return "; ".join([legend, *notes])


def _as_json(panel: _Panel) -> dict[str, Any]:
    return {
        "key": panel.name,
        "groups": [
            {
                "label": group,
                "x_label": drawing.label,
                "legend": drawing.legend,
                "n": to_json(drawing.counts),
                "x": to_json(np.asarray(drawing.x)),
                "middle": to_json(drawing.middle),
                "low": to_json(drawing.low),
                "high": to_json(drawing.high),
            }
            for group, drawing in panel.drawings.items()
        ],
    }


# --- arguments ---------------------------------------------------------------


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up to 1")
    return weight


def _height(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 200:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 2 to 200")
    return int(text)


def _file(text: str) -> str:
    if not text.lower().endswith(_SUFFIXES):
        raise argparse.ArgumentTypeError(
            f"{text} must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        )
    return text
