"""`logs.over_lanes` and bands of plots, compared with SciPy, rliable and oracles."""

import collections
import functools
import importlib
import inspect
import io
import itertools
import pickle
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.stats

import lox
from lox._logs import lane_statistics
from lox._logs.key import KeyInfo
from lox._logs.lane_points import align_lanes
from lox._logs.logdict import from_keys, make_logdict
from lox._logs.metadata import Metadata
from lox._logs.plotting import plot_groups

ALL = ("mean", "median", "iqm", "std", "sem", "min", "max", "ci", "iqr", "count")


def lanes_of(values, steps=None, mask=None):
    """Logs of a key of the shape (lanes, rows), as from a `vmap` around `spool`."""
    values = np.asarray(values)
    logs = lox.logdict({"x": values[0]}, stacked=True)
    if steps is not None:
        logs = lox.logdict({"x": values[0]}, {"step": {"x": steps[0]}}, stacked=True)
    info = logs._metadata.info
    by_step = {} if steps is None else {"step": {"x": np.asarray(steps)}}
    masks = {} if mask is None else {"x": np.asarray(mask)}
    return make_logdict({"x": values}, Metadata(by_step, masks, info))


def random_values(lanes=5, rows=7, seed=0):
    return np.random.default_rng(seed).normal(size=(lanes, rows))


# --- against other libraries ------------------------------------------------


@pytest.mark.parametrize("lanes", [2, 3, 4, 5, 8, 11])
def test_statistics_agree_with_scipy(lanes):
    values = random_values(lanes)
    found = lanes_of(values).over_lanes(*ALL)
    expected = {
        "mean": values.mean(0),
        "median": np.median(values, 0),
        "iqm": scipy.stats.trim_mean(values, 0.25, axis=0),
        "std": scipy.stats.tstd(values, axis=0),
        "sem": scipy.stats.sem(values, axis=0),
        "min": values.min(0),
        "max": values.max(0),
        "q25": scipy.stats.mstats.mquantiles(values, [0.25], 1, 1, axis=0)[0],
        "q75": np.quantile(values, 0.75, axis=0),
        "count": np.full(7, lanes),
    }
    bootstrap = scipy.stats.bootstrap(
        (values,),
        np.mean,
        axis=0,
        n_resamples=lane_statistics.RESAMPLES,
        method="percentile",
        **_with_generator(),
    ).confidence_interval
    expected |= {"low": bootstrap.low, "high": bootstrap.high}
    assert found.keys() == {f"x/{name}" for name in expected}
    for name, values in expected.items():
        np.testing.assert_allclose(found[f"x/{name}"], values, rtol=1e-9, atol=1e-12)


def _with_generator():
    """The argument of SciPy's bootstrap that was renamed in version 1.15."""
    generator = np.random.default_rng(0)
    names = inspect.signature(scipy.stats.bootstrap).parameters
    return {"rng" if "rng" in names else "random_state": generator}


def rliable():
    """The library, which few environments have: its dependencies are many, and old."""
    try:
        return importlib.import_module("rliable.library"), importlib.import_module(
            "rliable.metrics"
        )
    except Exception as error:  # its dependencies fail in several ways
        pytest.skip(f"rliable cannot be imported: {error!r}")


def test_statistics_agree_with_rliable(monkeypatch):
    library, metrics = rliable()
    values = random_values(6, 3)
    found = lanes_of(values).over_lanes("mean", "iqm", "median", "ci")
    # the same resamples, as rliable draws them one by one
    indices = np.random.default_rng(0).integers(0, 6, (lane_statistics.RESAMPLES, 6))
    drawn = itertools.cycle(indices)
    monkeypatch.setattr(
        np.random, "choice", lambda n, shape, replace: next(drawn).reshape(shape)
    )
    for i, scores in enumerate(values.T):
        scores = scores[:, None]  # one task
        assert found["x/iqm"][i] == pytest.approx(metrics.aggregate_iqm(scores), 1e-9)
        assert found["x/mean"][i] == pytest.approx(metrics.aggregate_mean(scores), 1e-9)
        _, interval = library.get_interval_estimates(
            {"x": scores}, lambda x: np.array([np.mean(x)]), reps=len(indices)
        )
        low, high = interval["x"][:, 0]
        assert found["x/low"][i] == pytest.approx(low, rel=1e-6, abs=1e-9)
        assert found["x/high"][i] == pytest.approx(high, rel=1e-6, abs=1e-9)


def test_interval_is_that_of_all_resamples():
    """With three lanes, all 27 equally likely resamples can be enumerated."""
    values = np.array([0.0, 1.0, 5.0])
    indices = np.indices((3, 3, 3)).reshape(3, -1)
    means = np.sort(values[indices].mean(0))
    found = lanes_of(values[:, None]).over_lanes("ci")
    # 2.5 % of the resamples are below: fewer than one of 27
    assert found["x/low"][0] == means[0] == 0 and found["x/high"][0] == means[-1] == 5


def test_interval_covers_the_mean_as_often_as_bootstrap_intervals_do():
    values = np.random.default_rng(1).normal(size=(30, 500))
    found = lanes_of(values).over_lanes("ci")
    covered = ((found["x/low"] < 0) & (found["x/high"] > 0)).mean()
    assert 0.9 < covered < 0.98
    assert lanes_of(values).over_lanes("ci") == found  # seeded


def test_interval_of_many_points_is_that_of_few(monkeypatch):
    values = random_values(5, 20)
    whole = lanes_of(values).over_lanes("ci")
    monkeypatch.setattr(lane_statistics, "_MAX_MEANS", 3 * lane_statistics.RESAMPLES)
    assert lanes_of(values).over_lanes("ci") == whole


# --- alignment --------------------------------------------------------------


def oracle(series):
    """Aligns lists of `(step, value)` pairs by the step and its n-th occurrence."""
    points = collections.defaultdict(list)
    for lane in series:
        seen = collections.Counter()
        for step, value in lane:
            points[step, seen[step]].append(value)
            seen[step] += 1
    return {point: points[point] for point in sorted(points)}


@pytest.mark.parametrize("seed", range(20))
def test_lanes_are_aligned_by_step(seed):
    rng = np.random.default_rng(seed)
    lanes, rows = int(rng.integers(1, 6)), int(rng.integers(1, 8))
    values = rng.normal(size=(lanes, rows))
    steps = rng.integers(0, 6, (lanes, rows))
    if seed % 3 == 0:
        steps = np.sort(steps, axis=1)
    mask = rng.random((lanes, rows)) < 0.8
    mask[0, 0] = True
    series = [
        list(zip(s[m].tolist(), v[m].tolist(), strict=True))
        for s, v, m in zip(steps, values, mask, strict=True)
    ]
    found = lanes_of(values, steps, mask).over_lanes("mean", "count", "max")
    expected = oracle(series)
    if len({tuple(step for step, _ in lane) for lane in series}) == 1 and mask.all():
        return  # equal steps keep their order
    assert found.step["x/mean"].tolist() == [step for step, _ in expected]
    assert found["x/count"].tolist() == list(map(len, expected.values()))
    assert found["x/max"].tolist() == list(map(max, expected.values()))
    np.testing.assert_allclose(found["x/mean"], list(map(np.mean, expected.values())))


def test_lanes_that_lack_different_rows_of_a_step_share_a_point():
    """Each lane has one row per step: the even lanes the first, the odd the second."""
    values = np.arange(4.0)[:, None].repeat(4, 1)
    mask = (np.arange(4) - np.arange(4)[:, None]) % 2 == 0
    steps = np.array([0, 0, 1, 1])[None].repeat(4, 0)
    found = lanes_of(values, steps, mask).over_lanes("mean", "count")
    assert found["x/mean"].tolist() == [1.5, 1.5]
    assert found["x/count"].tolist() == [4, 4]
    assert found.step["x/mean"].tolist() == [0, 1]


@pytest.mark.parametrize("band", ["ci", "range", None])
def test_lanes_with_the_same_nan_step_share_a_point(band):
    logs = lanes_of([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], [[0.0, 1.0, np.nan]] * 2)
    found = logs.over_lanes("mean")
    assert found["x/mean"].tolist() == [1.5, 3.0, 4.5]
    np.testing.assert_array_equal(found.step["x/mean"], [0.0, 1.0, np.nan])
    (panel,) = logs.plot("x", band=band).axes
    assert panel.get_xlabel() == "step"


def test_nan_steps_of_different_rows_are_the_last_points():
    nan = np.nan
    values = [[1.0, 2.0, np.inf, 4.0], [2.0, 3.0, 4.0, 5.0]]
    logs = lanes_of(values, [[0.0, nan, 2.0, nan], [nan, 0.0, 1.0, 2.0]])
    with pytest.warns(lox.LoxWarning, match=r"in 1 of 2 lanes, from step 2\.0"):
        found = logs.over_lanes("mean", "count")
    np.testing.assert_array_equal(found.step["x/mean"], [0.0, 1.0, 2.0, nan, nan])
    assert found["x/mean"].tolist() == [2.0, 4.0, 5.0, 2.0, 4.0]
    assert found["x/count"].tolist() == [2, 1, 1, 2, 1]


def test_lanes_without_steps_are_aligned_by_position():
    values = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    mask = [[True, False, True], [True, True, True]]
    found = lanes_of(values, mask=mask).over_lanes("mean", "count")
    assert found["x/mean"].tolist() == [2.5, 4.0, 6.0]
    assert found["x/count"].tolist() == [2, 2, 1] and not found.steps


def test_equal_steps_keep_their_order_and_other_steps():
    steps = [[3, 1, 2], [3, 1, 2]]
    logs = lanes_of(random_values(2, 3), steps)
    found = logs.over_lanes("mean")
    assert found.step["x/mean"].tolist() == [3, 1, 2]
    assert found.to_pandas()["x/mean"].tolist() == found["x/mean"].tolist()


def train(x, start=0):
    def body(x, i):
        lox.log({"x": x, "tree": {"a": x, "b": jnp.ones(2) * x}}, step=start + i, t=i)
        return x / 2, None

    lox.log({"once": x}, tags=["setup"])
    return jax.lax.scan(body, x, jnp.arange(3))[0]


@functools.cache
def spooled(kind):
    xs = jnp.array([1.0, 2.0, 6.0])
    if kind == "outside":
        return jax.vmap(lox.spool(train))(xs)[1]
    if kind == "inside":
        return lox.spool(jax.vmap(train))(xs)[1]
    if kind == "two axes":
        return jax.vmap(lox.spool(jax.vmap(train)))(xs[:, None] * jnp.ones(2))[1]
    return jax.vmap(lox.spool(train))(xs, jnp.array([0, 1, 2]))[1]


@pytest.mark.parametrize("kind", ["outside", "inside", "two axes"])
def test_lane_axes_of_all_kinds_are_reduced(kind):
    found = spooled(kind).over_lanes("mean", "count")
    lanes = 6 if kind == "two axes" else 3
    assert found["x/mean"].tolist() == [3, 1.5, 0.75]
    assert found["x/count"].tolist() == [lanes] * 3
    assert found["once/mean"] == 3 and found["once/count"] == lanes
    assert found["tree/mean"]["b"].tolist() == [[3, 3], [1.5, 1.5], [0.75, 0.75]]
    assert found["tree/mean"]["a"].shape == (3,)
    assert found.step["x/mean"].tolist() == found.t["x/mean"].tolist() == [0, 1, 2]
    assert found.tags == {"once/mean": ("setup",), "once/count": ("setup",)}
    assert found.slice[-1]["x/mean"] == 0.75 and found.reduce("max")["x/mean"] == 3


def test_steps_on_which_lanes_disagree_are_left_out():
    shifted = spooled("shifted")
    found = shifted.over_lanes("mean", "count")
    assert found.step["x/count"].tolist() == [0, 1, 2, 3, 4]
    assert found["x/count"].tolist() == [1, 2, 3, 2, 1]
    assert set(found.steps) == {"step"}
    by_t = shifted.over_lanes("mean", step="t")
    assert by_t["x/mean"].tolist() == [3, 1.5, 0.75] and set(by_t.steps) == {"t"}
    last = shifted.reduce("last").over_lanes("mean")
    assert last["x/mean"] == 0.75 and set(last.steps) == {"t"}


def test_rows_that_name_their_lane_are_lanes():
    rows = []
    jax.vmap(lox.tap(train, rows.append, argnames="x"))(jnp.array([1.0, 2.0, 6.0]))
    jax.effects_barrier()
    logs = sum(rows, lox.logdict())
    assert set(logs.steps) == {"step", "t", "lane"}
    found = logs.over_lanes("mean", "count")
    assert found["x/mean"].tolist() == [3, 1.5, 0.75]
    assert found["x/count"].tolist() == [3, 3, 3] and set(found.steps) == {"step", "t"}


# --- NaN, dtypes, few lanes -------------------------------------------------


def test_values_that_are_not_finite_are_left_out_with_a_warning():
    values = np.arange(12.0).reshape(4, 3)
    values[1, 1:] = np.nan
    values[2, 2] = np.inf
    logs = lanes_of(values, np.tile([10, 20, 30], (4, 1)))
    message = "'x' has values that are not finite in 2 of 4 lanes, from step 20"
    with pytest.warns(lox.LoxWarning, match=message) as seen:
        found = logs.over_lanes(*ALL)
    assert len(seen) == 1 and seen[0].filename == __file__
    assert found["x/count"].tolist() == [4, 3, 2]
    assert found["x/mean"].tolist() == [4.5, 6.0, 6.5]
    assert found["x/max"].tolist() == [9, 10, 11]
    for name, values in found.items():
        assert np.isfinite(values).all(), name


def test_point_without_values_is_nan_and_one_value_has_no_spread():
    values = [[1.0, np.nan, 3.0], [np.nan, np.nan, 5.0]]
    with pytest.warns(lox.LoxWarning, match="from row 0"):
        found = lanes_of(values).over_lanes(*ALL)
    assert found["x/count"].tolist() == [1, 0, 2]
    for name in ("mean", "median", "iqm", "min", "max", "q25", "q75"):
        assert found[f"x/{name}"][0] == 1 and np.isnan(found[f"x/{name}"][1])
    for name in ("std", "sem", "low", "high"):
        assert np.isnan(found[f"x/{name}"][:2]).all()
        assert np.isfinite(found[f"x/{name}"][2])


def test_integers_stay_exact_and_other_dtypes_work():
    large = np.array([[2**62 + 1], [2**62 + 3]])
    found = lanes_of(large).over_lanes("min", "max", "mean")
    assert found["x/min"].tolist() == [2**62 + 1] and found["x/max"].dtype == np.int64
    for dtype in (np.uint8, np.float16, ml_dtypes.bfloat16, bool):
        found = lanes_of(np.array([[0], [1]], dtype)).over_lanes("mean", "max")
        assert found["x/mean"].tolist() == [0.5] and found["x/max"].tolist() == [1]
    with pytest.raises(
        lox.LoxTypeError, match="'x' has the dtype complex128.*`filter`"
    ):
        lanes_of(np.ones((2, 2), complex)).over_lanes()
    keys = jax.vmap(lox.spool(lambda x: lox.log({"k": jax.random.key(x)}) and None))
    with pytest.raises(lox.LoxTypeError, match=r"'k' has the dtype key<fry>"):
        keys(jnp.arange(2))[1].over_lanes()


def test_key_without_lanes_counts_once():
    def f(xs):
        lox.log({"before": xs.sum()})
        return jax.vmap(train)(xs)

    found = lox.spool(f)(jnp.array([1.0, 2.0, 6.0]))[1].over_lanes("mean", "count")
    assert found["before/mean"] == 9 and found["before/count"] == 1


@pytest.mark.parametrize("shape", [(2, 0), (2, 3, 0), (2, 0, 4), (0, 3), (0, 3, 4)])
def test_statistics_of_empty_arrays_are_empty(shape):
    steps = np.broadcast_to(np.arange(shape[1]), shape[:2])
    logs = make_logdict(
        {"x": np.zeros(shape)},
        Metadata(
            {"step": {"x": steps}}, info={"x": KeyInfo(True, 0, (len(shape) - 2,))}
        ),
    )
    found = logs.over_lanes(*ALL)
    assert {value.shape for value in found.values()} == {shape[1:]}
    assert np.isnan(found["x/mean"]).all() and not found["x/count"].any()
    if shape[0]:
        assert found.step["x/mean"].tolist() == list(range(shape[1]))


def test_statistics_of_a_loop_that_never_ran_are_empty():
    def never(x):
        return jax.lax.scan(lambda c, i: (lox.log({"x": c}, step=i), c)[::-1], x, EMPTY)

    logs = jax.vmap(lox.spool(never))(jnp.arange(2.0))[1]
    assert logs["x"].shape == (2, 0)
    assert logs.over_lanes("mean", "ci")["x/mean"].shape == (0,)
    assert "x" in logs._repr_html_()


EMPTY = jnp.arange(0)


def test_alignment_by_the_step_of_a_key_without_rows_is_that_of_other_keys():
    def program(limit):
        def body(carry, i):
            lox.log({"a": i}, epoch=i, when=i < limit)
            lox.log({"b": i}, step=i)
            return carry, None

        return jax.lax.scan(body, 0, jnp.arange(3))[0]

    for limit in (0, 3):
        logs = jax.vmap(lox.spool(program))(jnp.full(2, limit))[1]
        assert logs.over_lanes("mean", step="epoch")["b/mean"].tolist() == [0, 1, 2]
        with pytest.raises(lox.LoxKeyError, match=r"no such step; their steps are '"):
            logs.over_lanes("mean", step="epochs")


def test_bad_arguments_are_refused():
    logs = lanes_of(random_values())
    with pytest.raises(lox.LoxValueError, match="got 'avg'; the statistics are mean"):
        logs.over_lanes("avg")
    with pytest.raises(lox.LoxValueError, match="needs logs with lanes"):
        lox.logdict({"x": np.arange(3.0)}, stacked=True).over_lanes()
    with pytest.raises(lox.LoxKeyError, match="no such step; their steps are none"):
        logs.over_lanes(step="epoch")
    with pytest.raises(lox.LoxTypeError, match="outside `jax.jit`"):
        jax.jit(lambda logs: logs.over_lanes())(spooled("outside"))
    assert lox.logdict().over_lanes() == {}
    assert set(logs.over_lanes()) == {"x/mean", "x/low", "x/high", "x/count"}
    assert set(logs.over_lanes("mean", "mean")) == {"x/mean"}


def test_step_must_exist_to_align_by_it():
    key = spooled("outside")._key("x")
    with pytest.raises(lox.LoxValueError, match="'x' has no step 'epoch'.*'step', 't'"):
        align_lanes("x", key, "epoch")


# --- plots ------------------------------------------------------------------


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize(
    "band, low, high, label",
    [
        ("ci", "low", "high", "mean, 95 % CI (n = 5)"),
        ("range", "min", "max", "mean, min to max (n = 5)"),
        ("iqr", "q25", "q75", "median, quartiles (n = 5)"),
        ("std", None, None, "mean ± std (n = 5)"),
        ("sem", None, None, "mean ± sem (n = 5)"),
    ],
)
def test_plot_draws_band_and_says_n(band, low, high, label):
    logs = lanes_of(random_values(), np.tile(np.arange(7) * 10, (5, 1)))
    (axes,) = logs.plot("x", band=band).axes
    found = logs.over_lanes(*ALL)
    if low is None:
        bounds = [found["x/mean"] + sign * found[f"x/{band}"] for sign in (-1, 1)]
    else:
        bounds = [found[f"x/{low}"], found[f"x/{high}"]]
    assert legend_of(axes) == [label] and axes.get_xlabel() == "step"
    (area,) = axes.collections
    (path,) = area.get_paths()
    drawn = {(x, round(y, 9)) for x, y in path.vertices.tolist()}
    for bound in bounds:
        assert drawn >= set(zip(np.arange(7) * 10.0, bound.round(9), strict=True))
    middle = found["x/median" if band == "iqr" else "x/mean"]
    assert len(axes.lines) == 6
    np.testing.assert_allclose(axes.lines[-1].get_ydata(), middle)


def test_plot_says_what_is_missing_or_not_finite():
    values = random_values(4, 6)
    values[2, 3:] = np.nan
    mask = np.ones((4, 6), bool)
    mask[0, 2:] = False
    logs = lanes_of(values, np.tile(np.arange(6), (4, 1)), mask)
    (axes,) = logs.plot("x", band="ci").axes
    assert legend_of(axes) == ["mean, 95 % CI (n = 2 to 4; 1 of 4 not finite)"]
    dotted, solid = axes.lines[-2:]
    assert dotted.get_linestyle() == ":" and np.isfinite(dotted.get_ydata()).all()
    assert np.isfinite(solid.get_ydata()).sum() == 2  # where all lanes are


def test_figure_can_be_copied_and_shown_as_an_image():
    figure = lanes_of([[1.0, 2.0], [3.0, 4.0]]).plot(band="std")
    for same in (figure, pickle.loads(pickle.dumps(figure))):
        assert same._repr_png_().startswith(b"\x89PNG")


def test_plot_of_one_lane_has_no_band(tmp_path):
    logs = lox.logdict({"x": np.arange(1.0, 4)}, stacked=True)
    figure = logs.plot(band="ci", logy=True, logx=True)
    (axes,) = figure.axes
    assert legend_of(axes) == ["one lane (n = 1)"]
    assert axes.get_yscale() == axes.get_xscale() == "log"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(tmp_path / "figure.png")
    with pytest.raises(
        lox.LoxValueError, match="`band` of `plot` is 'sd'.*'ci', 'std'"
    ):
        logs.plot(band="sd")
    with pytest.raises(lox.LoxValueError, match="'x' has no step 'epoch'"):
        logs.plot(band="ci", x="epoch")


# --- notebooks --------------------------------------------------------------


def test_html_shows_mean_and_band_of_lanes():
    values = np.ones((5, 400))
    values[:, 200] = 7
    page = lanes_of(values)._repr_html_()
    assert page.count("<polyline") == page.count("<polygon") == 1
    assert "mean ± std of 5 lanes: 1 to 7" in page and "1 ± 0 (n = 5)" in page
    assert ",2.0" in page  # the peak is not lost
    values[3, 5:] = np.nan
    assert "(395 not finite, in 1 of 5 lanes)" in lanes_of(values)._repr_html_()
    once = jax.vmap(lox.spool(lambda x: lox.log({"x": x}) and None))(jnp.arange(3.0))[1]
    assert "1 ± 1 (n = 3)" in once._repr_html_()
    assert "..." in lox.logdict({"text": np.ones((9, 9))})._repr_html_()


@pytest.mark.parametrize("name", [r"$\frac{$", "a$b$c", "_x", "\ud800\x1b\n"])
@pytest.mark.parametrize("band", [None, "std"])
def test_plot_shows_any_name_as_it_is(name, band):
    values = np.arange(6.0).reshape(2, 3)
    logs = from_keys([(name, lanes_of(values)._key("x"))])
    figure = plot_groups({name: logs, "other": logs}, (), band=band)
    figure.savefig(io.BytesIO(), format="svg")
    (axes,) = figure.axes
    shown = axes.get_ylabel().strip().replace("\\$", "$")
    assert shown == name.replace("\ud800\x1b\n", r"\ud800\x1b\n")
    assert len(axes.get_legend().get_texts()) == 2


# --- multi-process jobs -------------------------------------------------


def job_with_equal_lanes(path):
    """Two processes, each with lanes 0 and 1 of its own, and rows without a lane."""
    for process, where in enumerate((path, path / "process-1")):
        for step in range(2):
            for lane in (0, 1, -1):
                value = 100.0 * process + 10 * lane + step
                logs = lox.logdict(
                    {"x": value}, {"step": {"x": step}, "lane": {"x": lane}}
                )
                lox.save(logs, where)
    return lox.load(path)


def test_equal_lanes_of_different_processes_are_separate_lanes(tmp_path):
    logs = job_with_equal_lanes(tmp_path / "run")
    found = logs.over_lanes("mean", "count", "max")
    assert found["x/count"].tolist() == [6, 6]
    assert found["x/mean"].tolist() == [50.0, 51.0]
    assert found["x/max"].tolist() == [110.0, 111.0]
    assert found.step["x/mean"].tolist() == [0, 1]
    assert "(n = 6)" in logs._repr_html_()
    (axes,) = logs.plot("x", band="std").axes
    assert "n = 6" in axes.get_legend().get_texts()[0].get_text()
    lanes = logs.lanes()
    assert [lane["x"].tolist() for lane in lanes] == [
        [0, 1],
        [100, 101],
        [10, 11],
        [110, 111],
        [-10, -9],
        [90, 91],
    ]
    (axes,) = logs.plot("x").axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[:2] == ["lane 0 of process 0", "lane 0 of process 1"]
    assert names[-1] == "no lane of process 1"


def test_runs_of_several_processes_are_joined_with_runs_of_one(tmp_path):
    job_with_equal_lanes(tmp_path / "store" / "a")
    logs = lox.logdict(
        {"x": np.array([4.0, 5.0])},
        {"step": {"x": np.arange(2)}, "lane": {"x": np.zeros(2, int)}},
        stacked=True,
    )
    lox.save(logs, tmp_path / "store" / "b")
    found = lox.runs(tmp_path / "store").load().over_lanes("count", "mean")
    assert found["x/count"].tolist() == [7, 7]
    np.testing.assert_allclose(found["x/mean"], [304 / 7, 311 / 7])


def test_lane_that_moves_to_another_process_counts_once_per_point(tmp_path):
    """A device of a `shard_map` may belong to another process after a resume."""
    for step, where in enumerate(("run", "run/process-1")):
        logs = lox.logdict({"x": 1.0 + step}, {"step": {"x": step}, "lane": {"x": 3}})
        lox.save(logs, tmp_path / where)
    found = lox.load(tmp_path / "run").over_lanes("count", "mean")
    assert found["x/count"].tolist() == [1, 1]
    assert found["x/mean"].tolist() == [1.0, 2.0]
