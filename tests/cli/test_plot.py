"""`lox plot`: curves in the terminal, in files and as JSON."""

import json

import numpy as np
import pytest

import lox.cli
from lox._logs.key import Key, KeyInfo
from lox.cli._canvas import Canvas
from lox.cli._smooth import smoothed

from .stores import name, save_run, sweep
from .test_ls import error, output


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("plot") / "store", 6)


def panels(capsys, *arguments):
    return json.loads(output(capsys, "plot", *arguments, "--json"))["panels"]


def test_plot_groups_by_configs_that_differ_and_says_n(capsys, store, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = output(capsys, "plot", store, "-k", "loss")
    lines = text.splitlines()
    assert lines[0] == "loss" and max(map(len, lines)) <= 60
    assert lines[-2:] == [
        "a lr=0.1: mean, 95 % CI (n = 3)",
        "b lr=0.3: mean, 95 % CI (n = 3)",
    ]
    assert any("step" in line for line in lines)


def test_plot_json_agrees_with_statistics_over_lanes(capsys, store):
    (panel,) = panels(capsys, store, "-k", "l*", "--by", "none")
    (group,) = panel["groups"]
    stats = lox.runs(store).load("loss").over_lanes("mean", "ci", "count")
    assert panel["key"] == "loss" and group["x"] == [0, 1, 2, 3]
    np.testing.assert_allclose(group["middle"], stats["loss/mean"])
    np.testing.assert_allclose(group["low"], stats["loss/low"])
    np.testing.assert_allclose(group["high"], stats["loss/high"])
    assert group["n"] == stats["loss/count"].tolist() == [6] * 4
    assert group["legend"] == "mean, 95 % CI (n = 6)"


def test_plot_by_config_and_band(capsys, store):
    (panel,) = panels(capsys, store, "-k", "loss", "--by", "seed", "--band", "std")
    assert [group["label"] for group in panel["groups"]] == [
        f"seed={i}" for i in range(6)
    ]
    two = panels(capsys, store)
    assert [panel["key"] for panel in two] == ["loss", "acc"]


def test_plot_of_runs_with_different_lengths_says_how_many_there_are(capsys, tmp_path):
    save_run(tmp_path, 0, rows=2)
    save_run(tmp_path, 1, rows=4)
    (panel,) = panels(capsys, tmp_path)
    assert panel["groups"][0]["n"] == [2, 2, 1, 1]
    assert "(n = 1 to 2)" in output(capsys, "plot", tmp_path)


def test_plot_log_axis_says_what_is_not_drawn(capsys, tmp_path):
    lox.save(
        lox.logdict({"x": np.array([-1.0, 1.0, 100.0])}, stacked=True), tmp_path / "a"
    )
    text = output(capsys, "plot", tmp_path, "--logy")
    assert "1 points with y <= 0 are not drawn" in text
    lines = text.splitlines()
    assert lines[1].split("┤")[0].strip() == "100" and "10┤" in text


def test_plot_of_nothing_finite(capsys, tmp_path):
    lox.save(lox.logdict({"x": np.full(3, np.nan)}, stacked=True), tmp_path / "a")
    text = output(capsys, "plot", tmp_path)
    assert "nothing to draw: no finite values" in text and "1 of 1 not finite" in text


def test_plot_smooths_each_run(capsys, store):
    (raw,) = panels(capsys, store, "-k", "loss", "--by", "none")
    (panel,) = panels(capsys, store, "-k", "loss", "--by", "none", "--smooth", "0.5")
    expected, weight = [], 0.0
    total = 0.0
    for value in raw["groups"][0]["middle"]:
        total, weight = total / 2 + value / 2, weight / 2 + 1 / 2
        expected.append(total / weight)
    np.testing.assert_allclose(panel["groups"][0]["middle"], expected, rtol=1e-6)
    text = output(capsys, "plot", store, "-k", "loss", "--smooth", "0.5")
    assert "each run smoothed, 0.5" in text


def test_smoothing_skips_missing_and_nonfinite_rows():
    values = np.array([[1.0, np.nan], [np.nan, 2.0], [3.0, 4.0]])
    mask = np.array([[True, False], [True, True], [True, True]])
    result = smoothed(Key(values, {}, mask, KeyInfo(True, 1, (0,), ())), 0.5).value
    np.testing.assert_allclose(result[:, 0], [1.0, np.nan, (0.5 * 0.5 + 1.5) / 0.75])
    np.testing.assert_allclose(result[1:, 1], [2.0, (0.5 * 1 + 2) / 0.75])


def test_plot_without_band_draws_each_run(capsys, store):
    text = output(capsys, "plot", store, "-k", "loss", "--band", "none", "--by", "none")
    assert text.splitlines()[-1] == "n = 6"


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_plot_to_a_file_does_not_replace_it(capsys, store, tmp_path, suffix):
    path = tmp_path / f"plot.{suffix}"
    assert output(capsys, "plot", store, "-k", "loss", "-o", path) == f"{path}\n"
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)
    if suffix == "svg":
        path.write_text("mine")
        message = error(capsys, "plot", store, "-o", path)
        assert f"{path} exists; `--force` replaces it." in message
        assert path.read_text() == "mine"
        output(capsys, "plot", store, "-k", "loss", "-o", path, "--force")
        assert path.read_bytes().startswith(start)
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


def test_plot_to_a_file_without_matplotlib_says_what_to_install(
    capsys, store, tmp_path, monkeypatch
):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    message = error(capsys, "plot", store, "-o", tmp_path / "x.svg")
    assert "pip install 'jax-lox[plot]'" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "x*"], "no key matches 'x*'; there are 'loss', 'acc'."),
        (["-x", "episode"], "has no step 'episode' to plot it over; it has 'step'."),
        (["--by", "x"], "`group_by` got 'x', which no config of these 6 runs has"),
    ],
)
def test_plot_of_what_does_not_exist_says_what_exists(
    capsys, store, arguments, message
):
    assert message in error(capsys, "plot", store, *arguments)


def test_plot_of_many_groups_is_refused(capsys, tmp_path):
    for i in range(13):
        save_run(tmp_path, i, {"x": i}, rows=1)
    assert "13 groups of runs by x" in error(capsys, "plot", tmp_path)
    assert "(n = 13)" in output(capsys, "plot", tmp_path, "--by", "none")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--smooth", "1"], "1 is not a number from 0 up to 1"),
        (["-o", "x.gif"], "x.gif must end in .svg, .png or .pdf"),
        (["--height", "1"], "1 is not a number from 2 to 200"),
        (["--band", "x"], "invalid choice: 'x'"),
    ],
)
def test_invalid_options_of_plot(capsys, arguments, message):
    assert lox.cli.main(["plot", "store", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_single_run_says_so(capsys, store):
    text = output(capsys, "plot", store, name(1), "-k", "loss")
    assert text.splitlines()[-1] == "one run (n = 1)"


# --- the canvas --------------------------------------------------------------


def test_canvas_keeps_every_extreme():
    values = np.zeros(100_000)
    values[54_321] = 1.0
    canvas = Canvas(10, 2, (0, len(values)), (0, 1))
    canvas.line(np.arange(len(values)), values, 1)
    top, bottom = canvas.lines([""])
    assert len(top.split()) == 1 and len(bottom) == 10
    assert top.index(top.strip()) == 5


def test_canvas_connects_points_and_leaves_gaps():
    canvas = Canvas(4, 1, (0, 7), (0, 3))
    canvas.line(np.arange(8), np.array([0.0, 1, 2, 3, np.nan, 3, 3, 3]), 1)
    assert canvas.lines([""]) == ["⡠⠊⠈⠉"]


def test_canvas_of_constant_curve_and_of_one_point():
    canvas = Canvas(3, 1, (0, 2), (5, 5))
    canvas.line(np.arange(3), np.full(3, 5.0), 1)
    assert len(canvas.lines([""])[0]) == 3
    canvas = Canvas(3, 1, (1, 1), (5, 5))
    canvas.line(np.array([1]), np.array([5.0]), 1)
    assert canvas.lines([""])[0].strip()
