"""Makes the pictures of the documentation: `python -m docs.site.make_pictures`.

Plots and screenshots show what the examples of a page have logged. Each is made twice,
for the light and the dark mode of the site.
"""

import contextlib
import io
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.peers.results import read
from docs.site import peer_pictures, peer_results
from docs.site.benchmark_results import PATH, read_results
from docs.site.diagrams import DIAGRAMS
from docs.site.page_programs import run_page
from docs.site.pictures_in_pages import DIRECTORY
from docs.site.terminal import picture

_STYLES = {
    "light": {"color": "#333333", "colors": ["#1f6fb4", "#d1602a", "#2b8a3e"]},
    "dark": {"color": "#cfd0d0", "colors": ["#6cb2f0", "#f2a06b", "#7bd88f"]},
}


def _save_plot(name: str, draw: Callable[[], Any]) -> None:
    import matplotlib as mpl

    for mode, style in _STYLES.items():
        color = style["color"]
        settings = {
            **dict.fromkeys(
                (
                    "text.color",
                    "axes.labelcolor",
                    "axes.edgecolor",
                    "xtick.color",
                    "ytick.color",
                    "legend.labelcolor",
                ),
                color,
            ),
            "axes.prop_cycle": mpl.cycler(color=style["colors"]),
            "axes.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": "none",
            "font.size": 10,
            "legend.frameon": False,
            "svg.fonttype": "path",
            "svg.hashsalt": name,  # the same picture has the same bytes
        }
        with mpl.rc_context(settings):
            figure = draw()
            # small, so that the text can be read on a phone
            figure.set_size_inches(5.2, figure.get_figheight())
            figure.savefig(DIRECTORY / f"{name}-{mode}.svg", metadata={"Date": None})


def _front_page(directory: pathlib.Path) -> None:
    logs = run_page("index.md", directory)["logs"]
    _save_plot("front", lambda: logs.plot("loss", band="ci", logy=True))


def _tutorial(directory: pathlib.Path) -> None:
    import lox

    run_page("tutorial.md", directory)
    runs = lox.runs(directory / "runs")
    _save_plot("tutorial-curves", lambda: runs.plot("loss", by="lr", band="ci"))
    _terminal("tutorial-plot", "plot runs -k loss --logy --height 9", directory)
    _screenshots("tutorial-page", directory)


def _terminal(name: str, command: str, directory: pathlib.Path) -> None:
    """Draws what a `lox` command prints."""
    from lox.cli import main

    output = io.StringIO()
    os.environ["COLUMNS"] = "72"
    with contextlib.chdir(directory), contextlib.redirect_stdout(output):
        if main(command.split()) != 0:
            sys.exit(f"`lox {command}` failed")
    (DIRECTORY / f"{name}.svg").write_text(picture(output.getvalue()))


def _screenshots(name: str, directory: pathlib.Path) -> None:
    """Takes pictures of the page of a store in a browser."""
    from lox.cli import main
    from tests.page.browser import Browser, find

    if find() is None:
        print(f"SKIPPED: the picture {name!r}, because there is no Chromium or Chrome")
        (DIRECTORY / f"{name}.skipped").touch()
        return
    page = directory / "report.html"
    with contextlib.redirect_stdout(io.StringIO()):
        if main(["report", str(directory / "runs"), "-o", str(page)]) != 0:
            sys.exit("`lox report` failed")
    browser = Browser(directory / "profile")
    try:
        for mode in _STYLES:
            tab = browser.open(page.as_uri(), 1000, 730, dark=mode == "dark")
            tab.wait("document.querySelector('canvas') !== null")
            tab.screenshot(DIRECTORY / f"{name}-{mode}.png")
    finally:
        browser.close()


def _benchmarks(directory: pathlib.Path) -> None:
    """The time that an event takes, relative to `jax.debug.callback`."""
    from matplotlib.figure import Figure

    peer = " / `jax.debug.callback`, one event"
    costs = {"jax.debug.callback": 1.0}
    for row in read_results(PATH.read_text()):
        if peer in row.figure:
            costs["lox." + row.figure.partition(peer)[0].strip("`")] = float(row.value)
    if len(costs) == 1:
        sys.exit(f"{PATH} has no figures of `python -m benchmarks streaming`")

    def draw() -> Figure:
        figure = Figure(figsize=(7, 0.7 + 0.36 * len(costs)), layout="constrained")
        axes = figure.subplots()
        axes.plot(list(costs.values()), list(costs), "o", markersize=9)
        for name, cost in costs.items():
            axes.annotate(
                f"{cost:.2g}", (cost, name), (9, -4), textcoords="offset points"
            )
        axes.set_xscale("log")
        axes.set_xlim(5e-4, 5)
        axes.grid(axis="x", alpha=0.3)
        axes.margins(y=0.1)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        return figure

    _save_plot("benchmark-streaming", draw)


def _peers(directory: pathlib.Path) -> None:
    del directory
    for name, draw in peer_pictures.pictures(read(peer_results.SOURCE)).items():
        _save_plot(name, draw)


def main() -> None:
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    for name, draw in DIAGRAMS.items():
        (DIRECTORY / f"{name}.svg").write_text(draw())
    for make in (_front_page, _tutorial, _benchmarks, _peers):
        with tempfile.TemporaryDirectory() as directory:
            make(pathlib.Path(directory))
    made = [path for path in DIRECTORY.iterdir() if path.suffix != ".skipped"]
    print(f"{len(made)} pictures in {DIRECTORY}")


if __name__ == "__main__":
    main()
