"""`lox plot`: curves in the terminal, in files and as JSON."""

import json

import numpy as np
import pytest

import lox.cli
from lox._logs.key import Key, KeyInfo
from lox._logs.lane_statistics import STATISTICS
from lox._logs.thinning import Thinning
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


def test_plot_labels_distinguish_values_that_read_the_same(capsys, tmp_path):
    for seed, a in enumerate([1, 1, 1, "1"]):
        save_run(tmp_path, seed, {"a": a})
    (panel,) = panels(capsys, tmp_path, "-k", "loss")
    found = {group["label"]: max(group["n"]) for group in panel["groups"]}
    assert found == {"a=1": 3, "a='1'": 1}


def test_plot_keeps_points_beside_a_nan_step(capsys, tmp_path):
    for seed in range(2):
        save_run(tmp_path, seed, rows=3, steps=[0.0, 1.0, np.nan])
    (panel,) = panels(capsys, tmp_path, "-k", "loss")
    assert panel["groups"][0]["x"] == [0.0, 1.0, "NaN"]
    assert panel["groups"][0]["n"] == [2, 2, 2]
    assert "mean, 95 % CI (n = 2)" in output(capsys, "plot", tmp_path, "-k", "loss")


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


def test_plot_without_finite_values_says_so(capsys, tmp_path):
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


def test_smoothing_averages_the_rows_of_each_lane_that_rows_name():
    values = np.array([0.0, 100.0, 1.0, 1000.0, 101.0, 3.0, np.nan, 102.0])
    lanes = np.array([0, 1, 0, 0, 1, 0, 0, 1])
    processes = np.array([0, 0, 0, 1, 0, 0, 0, 0])
    info = KeyInfo(True, 0, (0,), ())
    steps = {"lane": lanes, "process": processes}
    result = smoothed(Key(values, steps, None, info), 0.5).value
    for lane, process in ((0, 0), (1, 0), (0, 1)):
        rows = (lanes == lane) & (processes == process)
        alone = smoothed(Key(values[rows], {}, None, info), 0.5).value
        np.testing.assert_array_equal(result[rows], alone)


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
        (["-k", "x*"], "no key matches 'x*'; available: 'loss', 'acc'."),
        (["-x", "episode"], "has no step 'episode' to plot it over; it has 'step'."),
        (["--by", "x"], "`group_by` got 'x', which no config of these runs has"),
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


def test_plot_of_single_run_says_so(capsys, store):
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


def long_runs(tmp_path, rows=20_000):
    """Three runs, of which one has a spike in a single row."""
    for seed in range(3):
        values = np.random.default_rng(seed).normal(size=rows)
        values[rows // 3] = 100.0 if seed else 90.0
        logs = lox.logdict(
            {"x": values}, {"step": {"x": np.arange(rows)}}, stacked=True
        )
        lox.save(logs, tmp_path, key=seed)
    return tmp_path


def test_plot_of_long_runs_resamples_only_what_is_drawn(capsys, tmp_path, monkeypatch):
    store = long_runs(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    suffixes, compute = STATISTICS["ci"]
    counts = []

    def counted(sample):
        counts.append(len(sample.count))
        return compute(sample)

    monkeypatch.setitem(STATISTICS, "ci", (suffixes, counted))
    text = output(capsys, "plot", store, "--height", "8")
    assert len(counts) == 1 and counts[0] <= 120 * 6
    # the spike, which is one row, is at the top, and in its column
    lines = text.splitlines()
    assert lines[1].split("┤")[0].strip() == "100"
    margin, _, curve = lines[1].partition("┤")
    assert len(curve.split()) == 1
    assert abs(len(curve) - (60 - len(margin)) / 3) <= 2
    output(capsys, "plot", store, "-o", tmp_path / "x.svg")
    assert len(counts) == 2 and counts[1] <= 1000 * 6
    (panel,) = panels(capsys, store)  # JSON has every row
    assert counts[2] == len(panel["groups"][0]["high"]) == 20_000


@pytest.mark.parametrize("logarithmic", [False, True])
def test_thinned_curve_has_all_extremes_and_gaps(logarithmic):
    x = np.random.default_rng(0).permutation(5000).astype(np.float64)
    y = np.random.default_rng(1).normal(size=5000)
    y[2000:2100] = np.nan
    kept = Thinning(50, logarithmic).kept(x, (y,), (y,))
    assert len(kept) <= 50 * 3 + 2 and (np.diff(kept) > 0).all()
    drawable = x > 0 if logarithmic else x >= 0
    place = np.log(np.where(drawable, x, 1)) if logarithmic else x
    left, right = place[drawable].min(), place[drawable].max()
    interval = np.floor((place - left) / (right - left) * 50).clip(0, 49)
    for i in np.unique(interval[drawable]):
        (rows,) = np.nonzero((interval == i) & drawable)
        chosen = kept[np.isin(kept, rows)]
        if np.isfinite(y[rows]).any():
            assert np.nanmin(y[chosen]) == np.nanmin(y[rows])
            assert np.nanmax(y[chosen]) == np.nanmax(y[rows])
        assert np.isnan(y[chosen]).any() == np.isnan(y[rows]).any()
    assert {x[drawable].min(), x[drawable].max()} <= {*x[kept]}


@pytest.mark.parametrize(
    ("x", "count"),
    [
        (np.arange(10.0), 10),  # few points
        (np.full(1000, 3.0), 2),  # one place
        (np.array([-1e308, *np.linspace(-1, 1, 1000), 1e308]), 4),
        (np.full(1000, np.nan), 0),
    ],
)
def test_thinning_handles_few_equal_extreme_and_nan_points(x, count):
    y = np.linspace(0, 1, len(x))
    assert len(Thinning(10).kept(x, (y,), (y,))) == count


def test_band_of_a_terminal_has_the_extremes_of_each_column():
    canvas = Canvas(20, 10, (0.0, 999.0), (0.0, 1.0))
    low, high = np.full(1000, 0.5), np.full(1000, 0.5)
    high[301] = 1.0
    low[700] = 0.0
    canvas.band(np.arange(1000.0), low, high, 1)
    rows = canvas.lines([""])
    assert rows[0].strip() and rows[-1].strip()


def test_plot_leaves_out_complex_numbers(capsys, tmp_path):
    logs = lox.logdict({"c": np.ones(3) * 1j, "x": np.ones(3)}, stacked=True)
    lox.save(logs, tmp_path / "run")
    assert [panel["key"] for panel in panels(capsys, tmp_path / "run")] == ["x"]
    message = error(capsys, "plot", tmp_path / "run", "-k", "c")
    assert "'c' has the dtype complex128, which cannot be drawn" in message


def test_file_in_a_missing_directory_is_refused(capsys, store, tmp_path):
    path = tmp_path / "no" / "x.svg"
    message = error(capsys, "plot", store, "-o", path)
    assert f"{path} cannot be written: there is no directory {path.parent}." in message
    message = error(capsys, "export", store, "--to", "csv", "-o", path)
    assert f"there is no directory {path.parent}." in message


@pytest.mark.parametrize("weight", [0.5, 0.9, 0.9999])
@pytest.mark.parametrize("count", [1, 256, 1000])
def test_smoothing_agrees_with_the_sum_of_weighted_rows(weight, count):
    """Over several blocks of rows, with gaps that differ between lanes."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(count, 3)) * 1e300
    values[generator.random((count, 3)) < 0.1] = np.nan
    values[:, 1] = 1.5
    info = KeyInfo(True, 1, (0,), ())
    found = smoothed(Key(values, {}, None, info), weight).value
    for lane in range(3):
        total = norm = 0.0
        for x, average in zip(values[:, lane], found[:, lane], strict=True):
            if np.isnan(x):
                assert np.isnan(average)
                continue
            total, norm = weight * total + (1 - weight) * x, weight * norm + 1 - weight
            np.testing.assert_allclose(average, total / norm, rtol=1e-9)
