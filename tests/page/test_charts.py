"""The data of charts: groups, statistics, axes, gaps and what is added to them."""

import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox._logs.lane_statistics import Sample
from lox._page.chart_requests import CannotExtendError, Request
from lox._page.charts import chart
from lox._page.grouping import MISSING, group_runs, is_seed
from lox._page.index import index_of
from lox._page.packing import narrow, pack
from lox._page.source import StoreSource
from lox._page.statistics import BANDS, band_of, mean_of
from lox._store.writer import Writer
from tests import programs, waiting

from .stores import logs, open_run, write_run, write_seeds, write_timed


def names_of(source, data):
    return [source.runs[number].run.name for number in data["lanes"]["runs"]]


# --- groups ------------------------------------------------------------------


def test_chart_groups_runs_by_everything_but_the_seed(tmp_path):
    write_seeds(tmp_path, seeds=3, lrs=(0.1, 0.001, 0.01))
    source = StoreSource(tmp_path)
    data = chart(source, Request("loss"))
    labels = [group["label"] for group in data["groups"]]
    assert labels == [f"lr={lr}" for lr in (0.001, 0.01, 0.1)]
    for group in data["groups"]:
        lr = group["label"].removeprefix("lr=")
        names = {names_of(source, data)[i] for i in group["lanes"]}
        assert names == {f"lr{lr}-seed{seed}" for seed in range(3)}


@pytest.mark.parametrize(
    "by, sizes",
    [(("@all",), [6]), (("seed",), [2, 2, 2]), (("seed", "width"), [2] * 3)],
)
def test_chart_groups_by_chosen_config_keys(tmp_path, by, sizes):
    write_seeds(tmp_path, seeds=3)
    data = chart(StoreSource(tmp_path), Request("loss", by=by))
    assert [len(group["lanes"]) for group in data["groups"]] == sizes


def test_index_offers_groupings_that_join_runs(tmp_path):
    write_seeds(tmp_path, seeds=3, lrs=(0.1,))
    write_run(tmp_path, "other", logs([0], loss=[1.0]), {"seed": 9, "all": 1})
    offered = index_of(StoreSource(tmp_path))["groupings"]
    ids = [grouping["id"] for grouping in offered]
    # not "seed", which is the same as each run
    assert ids == ["@auto", "optimizer/lr", "width", "all", "@all", "@run"]


@pytest.mark.parametrize(
    "key", ["seed", "rng/seed", "train_seed", "key", "random_state"]
)
def test_seed_like_config_keys_are_recognized(key):
    assert is_seed(key)


@pytest.mark.parametrize("key", ["seeded", "lr", "keyboard", "n_keys", "monkey"])
def test_other_config_keys_are_not_seeds(key):
    assert not is_seed(key)


def test_groups_are_in_the_order_of_their_values():
    values = [10, 9.5, "b", "a", True, None, 10**400]
    configs = dict(enumerate({"x": value} for value in values))
    labels = [group.label for group in group_runs({**configs, 9: {}}, ["x"])]
    assert labels[:3] == ["x=true", "x=9.5", "x=10"]
    assert labels[-1] == f"x={MISSING}"


def test_groups_of_page_are_those_of_group_by(tmp_path):
    values = [1, "1", 1.0, True, None, "null", [1, 2], "[1, 2]", [{"a": 1}], "\u2013"]
    values += [float("nan"), float("nan"), "nan", [float("nan")], [float("nan")]]
    for i, value in enumerate(values):
        write_run(tmp_path, f"{i:02}", logs([0], loss=[1.0]), {"x": value})
    write_run(tmp_path, "without", logs([0], loss=[1.0]), {"y": 1})
    source = StoreSource(tmp_path)
    groups = group_runs({i: run.config for i, run in source.runs.items()}, ["x"])
    names = [sorted(source.runs[i].run.name for i in group.runs) for group in groups]
    expected = lox.runs(tmp_path).group_by("x").values()
    assert sorted(names) == sorted([run.name for run in runs] for runs in expected)
    assert len({group.label for group in groups}) == len(groups)
    labels = {group.label: len(group.runs) for group in groups}
    assert labels["x=1"] == 3 and labels['x="1"'] == 1
    assert labels["x=\u2013"] == 2 and labels['x=[{"a": 1}]'] == 1


def test_chart_joins_equal_integers_and_floats(tmp_path):
    for i, lr in enumerate([1, 1.0, 2]):
        write_run(tmp_path, f"{i}", logs([0], loss=[1.0]), {"lr": lr, "seed": i})
    data = chart(StoreSource(tmp_path), Request("loss"))
    assert [(g["label"], len(g["lanes"])) for g in data["groups"]] == [
        ("lr=1", 2),
        ("lr=2", 1),
    ]


# --- statistics ----------------------------------------------------------------


def test_group_statistics_are_those_of_numpy(tmp_path):
    curves = write_seeds(tmp_path, seeds=5, rows=20, lrs=(0.1,))
    data = chart(StoreSource(tmp_path), Request("loss"))
    (group,) = data["groups"]
    lanes = np.array([curve["loss"] for curve in curves.values()], np.float64)
    mean, std = lanes.mean(0), lanes.std(0, ddof=1)
    expected = {
        "std": (mean - std, mean + std),
        "sem": (mean - std / 5**0.5, mean + std / 5**0.5),
        "minmax": (lanes.min(0), lanes.max(0)),
        "iqr": np.quantile(lanes, [0.25, 0.75], axis=0),
    }
    np.testing.assert_allclose(group["first"], mean, rtol=1e-6)
    assert group["n"].tolist() == [5] * 20
    for name, limits in expected.items():
        np.testing.assert_allclose(group["bands"][name], limits, rtol=1e-5, atol=1e-6)


def test_confidence_interval_is_a_bootstrap_of_the_mean():
    lanes = np.random.default_rng(3).normal(size=(20, 3))
    mean = mean_of(lanes, None)
    low, high = band_of("ci", lanes, None, mean)
    draws = np.random.default_rng(1).integers(0, 20, (20_000, 20))
    expected = np.quantile(lanes[draws].mean(axis=1), [0.025, 0.975], axis=0)
    np.testing.assert_allclose([low, high], expected, atol=0.04)
    again = band_of("ci", lanes, None, mean)
    assert np.array_equal(again, [low, high])


def test_mean_and_std_are_those_of_over_lanes():
    lanes = np.random.default_rng(5).normal(size=(6, 40)) + 1e3
    finite = np.random.default_rng(6).random(lanes.shape) < 0.6
    finite[:, 0] = False
    for valid in (None, finite):
        mean = mean_of(lanes, valid)
        known = np.ones(lanes.shape, bool) if valid is None else valid
        sample = Sample(lanes.T, known.T)
        np.testing.assert_allclose(mean.mean, sample.mean, rtol=1e-12)
        np.testing.assert_allclose(mean.std, sample.std, rtol=1e-9)
        assert mean.n.tolist() == sample.count.tolist()


def test_statistics_ignore_values_that_are_not_finite():
    lanes = np.random.default_rng(5).normal(size=(6, 40))
    finite = np.random.default_rng(6).random(lanes.shape) < 0.6
    finite[:, 0] = False
    finite[1:, 1] = False
    spoiled = np.where(finite, lanes, np.inf)
    mean = mean_of(spoiled, finite)
    assert mean.n.tolist() == finite.sum(axis=0).tolist()
    assert np.isnan(mean.mean[0])
    for name in BANDS:
        low, high = band_of(name, spoiled, finite, mean)
        for i in range(40):
            column = lanes[finite[:, i], i][:, None]
            if len(column) < 2:
                assert np.isnan(low[i]) and np.isnan(high[i])
                continue
            alone = mean_of(column, None)
            np.testing.assert_allclose(mean.mean[i], alone.mean[0])
            a, b = band_of(name, column, None, alone)
            np.testing.assert_allclose([low[i], high[i]], [a[0], b[0]])


def test_long_curves_keep_the_extremes_of_runs_mean_and_bands(tmp_path):
    generator = np.random.default_rng(0)
    lanes = generator.normal(size=(3, 5000)).astype(np.float32)
    lanes[1, 1234] = 1e6
    lanes[2, 4321] = -1e7
    for i, lane in enumerate(lanes):
        write_run(tmp_path, f"r{i}", logs(np.arange(5000), loss=lane), {"seed": i})
    data = chart(StoreSource(tmp_path), Request("loss", buckets=40))
    assert data["width"] > 0 and len(data["from"]) < 200
    first, second = data["lanes"]["first"], data["lanes"]["second"]
    every = np.concatenate([first, second], axis=1)
    assert sorted(every.min(axis=1)) == sorted(lanes.min(axis=1))
    assert sorted(every.max(axis=1)) == sorted(lanes.max(axis=1))
    (group,) = data["groups"]
    mean = lanes.mean(axis=0, dtype=np.float64)
    both = np.concatenate([group["first"], group["second"]])
    assert both.min() == np.float32(mean.min()) and both.max() == np.float32(mean.max())
    x = np.concatenate([group["x"], group["x2"]])
    assert x[both.argmax()] == 1234 and x[both.argmin()] == 4321
    std = lanes.std(axis=0, ddof=1, dtype=np.float64)
    low, high = group["bands"]["std"]
    np.testing.assert_allclose(low.min(), (mean - std).min(), rtol=1e-5)
    np.testing.assert_allclose(high.max(), (mean + std).max(), rtol=1e-5)
    np.testing.assert_allclose(group["bands"]["minmax"][0].min(), lanes.min())


# --- axes ----------------------------------------------------------------------


def test_runs_of_different_lengths_and_steps_are_aligned_by_step(tmp_path):
    write_run(tmp_path, "a", logs([0, 1, 2, 3], loss=[1.0, 2, 3, 4]), {"seed": 0})
    write_run(tmp_path, "b", logs([2, 3, 4], loss=[5.0, 6, 7]), {"seed": 1})
    data = chart(StoreSource(tmp_path), Request("loss"))
    (group,) = data["groups"]
    assert data["from"].tolist() == [0, 1, 2, 3, 4]
    assert group["first"].tolist() == [1, 2, 4, 5, 7]
    assert group["n"].tolist() == [1, 1, 2, 2, 1]
    assert np.isnan(group["bands"]["std"][0][0])


def test_repeated_steps_of_a_resumed_run_are_separate_points(tmp_path):
    write_run(tmp_path, "a", logs([0, 1, 2, 1, 2, 3], loss=[0.0, 1, 2, 10, 20, 30]))
    write_run(tmp_path, "b", logs([0, 1, 2, 3], loss=[0.0, 3, 4, 50]))
    data = chart(StoreSource(tmp_path), Request("loss"))
    assert data["from"].tolist() == [0, 1, 1, 2, 2, 3]
    first, second = data["lanes"]["first"]
    assert first.tolist() == [0, 1, 10, 2, 20, 30]
    np.testing.assert_array_equal(second, [0, 3, np.nan, 4, np.nan, 50])
    (group,) = data["groups"]
    assert group["first"].tolist() == [0, 2, 10, 3, 20, 40]
    assert group["n"].tolist() == [2, 2, 1, 2, 1, 2]


def test_x_axis_can_be_rows_or_another_key(tmp_path):
    columns = {"loss": [3.0, 2.0, 1.0], "tokens": [10.0, 30.0, 20.0]}
    write_run(tmp_path, "a", logs([5, 6, 7], **columns))
    source = StoreSource(tmp_path)
    data = chart(source, Request("loss", x="#row"))
    assert (data["axes"], data["from"].tolist()) == (["#row"], [0, 1, 2])
    data = chart(source, Request("loss", x="key:tokens"))
    assert (data["axes"], data["from"].tolist()) == (["tokens"], [10, 20, 30])
    assert data["lanes"]["first"].tolist() == [[3, 1, 2]]
    data = chart(source, Request("loss", x="epoch"))  # which it does not have
    assert data["axes"] == ["step"]


def test_runs_without_common_x_are_averaged_in_bins(tmp_path):
    generator = np.random.default_rng(0)
    for i in range(4):
        x = np.sort(generator.random(300))
        rows = logs(np.arange(300), time=x, loss=np.full(300, float(i)))
        write_run(tmp_path, f"r{i}", rows, {"seed": i})
    data = chart(StoreSource(tmp_path), Request("loss", x="key:time", buckets=20))
    (group,) = data["groups"]
    assert data["binned"]
    assert group["n"].max() == 4
    np.testing.assert_allclose(group["first"][group["n"] == 4], 1.5)


def test_x_axis_can_be_the_time_of_rows(tmp_path):
    times = [1.0, 11.0, 31.0, 1000.0]
    write_timed(tmp_path, "a", times, loss=np.arange(4.0))
    source = StoreSource(tmp_path)
    started = source.runs[0].run.started
    assert index_of(source)["keys"][0]["times"]
    data = chart(source, Request("loss", x="#time"))
    assert data["axes"] == ["#time"] and not data["problems"]
    np.testing.assert_allclose(data["from"], times, atol=1e-5)
    assert data["lanes"]["first"].tolist() == [[0, 1, 2, 3]]
    data = chart(source, Request("loss", x="#clock"))
    np.testing.assert_allclose(data["from"] - started, times, atol=1e-5)
    data = chart(source, Request("loss", x="#time", low=10, high=12))
    np.testing.assert_allclose(data["from"], times[:3], atol=1e-5)
    with pytest.raises(CannotExtendError):
        chart(source, Request("loss", x="#time", after=1.0, width=0.0))


def test_runs_of_different_speed_are_averaged_over_time(tmp_path):
    for i, speed in enumerate([1.0, 1.1, 1.3]):
        times = np.arange(1, 201) / speed
        write_timed(tmp_path, f"r{i}", times, {"seed": i}, loss=0 * times + i)
    data = chart(StoreSource(tmp_path), Request("loss", x="#time"))
    (group,) = data["groups"]
    assert data["binned"]
    ended = np.searchsorted(data["to"], 150)  # the fastest run is over
    assert group["n"][1:ended].tolist() == [3] * (ended - 1)
    assert group["first"][1:ended].tolist() == [1] * (ended - 1)
    assert group["n"][-2] == 1


def test_binned_run_without_seeds_keeps_its_extremes(tmp_path):
    for i in range(2):
        times = np.arange(1, 2001) / (1 + 0.1 * i)
        loss = np.zeros(2000)
        loss[777] = 10.0 + i
        write_timed(tmp_path, f"r{i}", times, {"lr": i}, loss=loss)
    data = chart(StoreSource(tmp_path), Request("loss", x="#time", buckets=50))
    assert data["binned"]
    for i, group in enumerate(data["groups"]):
        assert np.nanmax([group["first"], group["second"]]) == 10 + i


def test_runs_and_rows_without_times_are_reported(tmp_path):
    for i in range(3):
        write_timed(tmp_path, f"r{i}", [1.0, 2.0, 4.0], {"seed": i}, loss=np.zeros(3))
    (tmp_path / "r0" / "writer-0000" / "times").unlink()
    writer = Writer(tmp_path / "r1")  # for less than a second
    writer.write(logs([3, 4], loss=[0.0, 0.0]))
    writer.close()
    data = chart(StoreSource(tmp_path), Request("loss", x="#time"))
    assert len(data["lanes"]["runs"]) == 2
    assert data["problems"] == [
        "1 run has no times, and cannot be shown",
        "2 rows have no times, and cannot be shown",
    ]
    data = chart(StoreSource(tmp_path), Request("loss"))
    assert len(data["lanes"]["runs"]) == 3 and not data["problems"]


def test_runs_one_after_the_other_are_not_averaged(tmp_path):
    for i in range(4):
        steps = np.arange(100) + 1000 * i
        write_run(tmp_path, f"r{i}", logs(steps, loss=1.0 * steps), {"seed": i})
    data = chart(StoreSource(tmp_path), Request("loss", buckets=1000))
    assert not data["binned"] and len(data["from"]) == 400
    assert data["groups"][0]["n"].tolist() == [1] * 400


def test_rows_that_name_their_lane_are_separate_curves(tmp_path):
    steps = {"step": {"y": np.repeat(np.arange(3), 2)}}
    lanes = {"lane": {"y": np.tile([0, 1], 3)}}
    rows = lox.logdict({"y": np.arange(6.0)}, {**steps, **lanes}, stacked=True)
    write_run(tmp_path, "r", rows)
    data = chart(StoreSource(tmp_path), Request("y"))
    assert data["lanes"]["names"] == ["lane 0", "lane 1"]
    assert data["lanes"]["first"].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert data["groups"][0]["n"].tolist() == [2, 2, 2]


def test_last_value_is_that_of_the_last_event_of_all_segments(tmp_path):
    rows = [logs([0], x=[1.0]), logs([1], x=[2.0], y=[2.0]), logs([2], x=[3.0])]
    write_run(tmp_path, "r", rows)
    found = StoreSource(tmp_path).runs[0].description["last"]
    assert found == {"x": 3.0, "y": 2.0} == dict(lox.runs(tmp_path)[0].last)


def test_last_value_leaves_out_lanes_that_did_not_log(tmp_path):
    fun = jax.vmap(lambda x: lox.log({"x": x, "y": x}, when=x > 1))
    lox.save(lox.spool(fun)(jnp.array([1.0, 5.0, 9.0]))[1], tmp_path / "r")
    found = StoreSource(tmp_path).runs[0].description["last"]
    assert found == {"x": 7.0, "y": 7.0}


def test_vmapped_logs_of_one_run_are_separate_curves(tmp_path):
    def program(x):
        def body(carry, i):
            lox.log({"y": carry}, step=i)
            lox.log({"late": carry}, when=carry > 1, step=i)
            return carry + x, None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    _, inside = jax.vmap(lox.spool(program))(jnp.arange(2.0))
    lox.save(inside, tmp_path / "outer" / "run")
    _, outside = lox.spool(jax.vmap(program))(jnp.arange(2.0))
    lox.save(outside, tmp_path / "inner" / "run")
    for store in ("outer", "inner"):
        source = StoreSource(tmp_path / store)
        data = chart(source, Request("y"))
        assert data["lanes"]["first"].tolist() == [[0, 0, 0], [1, 2, 3]]
        assert data["from"].tolist() == [0, 1, 2]
        data = chart(source, Request("late"))  # rows that only one lane has logged
        assert data["lanes"]["first"].tolist() == [[2, 3]]
        assert data["from"].tolist() == [1, 2]


def test_zoomed_chart_has_detail_and_one_row_beyond(tmp_path):
    write_run(tmp_path, "a", logs(np.arange(10_000), loss=np.arange(10_000.0)))
    source = StoreSource(tmp_path)
    data = chart(source, Request("loss", low=5000, high=5100, buckets=200))
    assert data["width"] == 0
    assert data["from"].tolist() == list(range(4999, 5102))
    assert data["extent"] == [0, 9999]


def test_key_in_several_segments_is_one_curve(tmp_path):
    parts = [
        logs([0], loss=[0.0]),
        logs([1], loss=[1.0], other=[1.0]),
        logs([2], loss=[2.0]),
    ]
    write_run(tmp_path, "a", parts)
    data = chart(StoreSource(tmp_path), Request("loss"))
    assert data["from"].tolist() == [0, 1, 2]
    assert data["lanes"]["first"].tolist() == [[0, 1, 2]]


# --- gaps ------------------------------------------------------------------------


def test_values_that_are_not_finite_are_gaps_and_are_counted(tmp_path):
    nan, inf = np.nan, np.inf
    write_run(tmp_path, "a", logs(np.arange(4), loss=[1, nan, inf, 4.0]), {"seed": 0})
    write_run(tmp_path, "b", logs(np.arange(4), loss=[3, nan, 2, 6.0]), {"seed": 1})
    data = chart(StoreSource(tmp_path), Request("loss"))
    (group,) = data["groups"]
    assert group["first"].tolist() == [2, inf, 2, 5]
    assert group["n"].tolist() == [2, 0, 1, 2]
    assert group["bad"].tolist() == [0, 2, 1, 0]


def test_key_with_only_nan_has_no_finite_values(tmp_path):
    write_run(tmp_path, "a", logs(np.arange(3000), loss=np.full(3000, np.nan)))
    data = chart(StoreSource(tmp_path), Request("loss", buckets=20))
    (group,) = data["groups"]
    assert not np.isfinite(group["first"]).any()
    assert group["bad"].sum() == 3000


# --- following -------------------------------------------------------------------


def extended(source, request, data):
    news = Request(
        **{
            **request.__dict__,
            "after": float(data["from"][-1]),
            "width": data["width"],
        }
    )
    return chart(source, news)


@pytest.mark.parametrize("rows", [60, 5000])
def test_extended_chart_equals_a_new_one(tmp_path, rows):
    generator = np.random.default_rng(0)
    values = generator.normal(size=rows).astype(np.float32)
    steps = np.arange(rows)
    cut = rows // 2
    request = Request("loss", buckets=100)
    with open_run(tmp_path, "a") as writer:
        writer.write(logs(steps[:cut], loss=values[:cut]))
        source = StoreSource(tmp_path)
        before = chart(source, request)
        writer.write(logs(steps[cut:], loss=values[cut:]))
        assert source.refresh()
        news = extended(source, request, before)
    width = {**request.__dict__, "width": before["width"] or None}
    whole = chart(source, Request(**width))
    for name in ("from", "to"):
        joined = np.concatenate([before[name][:-1], news[name]])
        assert joined.tolist() == whole[name].tolist()
    for name in ("first", "average", "n", "bad"):
        parts = before["groups"][0][name][:-1], news["groups"][0][name]
        assert np.concatenate(parts).tolist() == whole["groups"][0][name].tolist()


def test_chart_with_rows_before_its_end_cannot_be_extended(tmp_path):
    with open_run(tmp_path, "a") as writer:
        writer.write(logs([0, 1, 2, 3], loss=[0.0, 1, 2, 3]))
        source = StoreSource(tmp_path)
        before = chart(source, Request("loss"))
        writer.write(logs([1, 2], loss=[5.0, 6]))
        source.refresh()
        with pytest.raises(CannotExtendError):
            extended(source, Request("loss"), before)


def test_chart_of_a_resumed_run_is_extended_after_the_repeated_steps(tmp_path):
    steps = np.arange(2000)
    write_run(tmp_path, "a", logs(steps, loss=1.0 * steps))
    writer = Writer(tmp_path / "a")  # from a checkpoint
    writer.write(logs(np.arange(1000, 3000), loss=np.zeros(2000)))
    source = StoreSource(tmp_path)
    request = Request("loss", buckets=100, width=64)
    before = chart(source, request)
    writer.write(logs(np.arange(3000, 4000), loss=np.ones(1000)))
    writer.close()
    source.refresh()
    news = extended(source, request, before)
    assert news["from"][0] == before["from"][-1]
    assert news["extent"][1] == news["to"][-1] == 3999
    whole = chart(source, request)
    assert news["from"].tolist() == whole["from"][-len(news["from"]) :].tolist()


@pytest.mark.parametrize("x", ["step", "#row"])
def test_slower_runs_are_extended_too(tmp_path, x):
    request = Request("loss", x=x)
    with open_run(tmp_path, "slow", {"seed": 0}) as slow:
        slow.write(logs(np.arange(3), loss=np.zeros(3)))
        write_run(tmp_path, "fast", logs(np.arange(9), loss=np.ones(9)), {"seed": 1})
        source = StoreSource(tmp_path)
        slow.write(logs(np.arange(3, 6), loss=np.full(3, 2.0)))
        source.refresh()
        news = chart(source, Request("loss", x=x, after=2.0, width=0.0))
    whole = chart(source, request)
    assert news["from"].tolist() == list(range(2, 9))
    for name in ("first", "n"):
        parts = (data["groups"][0][name].tolist() for data in (news, whole))
        assert next(parts) == next(parts)[2:]


def test_refresh_finds_new_rows_runs_and_removed_runs(tmp_path):
    source = StoreSource(tmp_path)
    assert (source.version, source.runs) == (0, {})
    with open_run(tmp_path, "a", finish=False) as writer:
        writer.write(logs([0], loss=[1.0]))
        assert source.refresh() and not source.refresh()
        (run,) = source.runs.values()
        assert run.rows == 1
        writer.write(logs([1], loss=[2.0]))
        assert source.refresh()
        assert index_of(source)["runs"][0]["last"] == {"loss": 2.0}
    source.refresh()
    version = source.version
    write_run(tmp_path, "b", logs([0], loss=[1.0]))
    assert source.refresh()
    index = index_of(source, since=version)
    assert [run["name"] for run in index["runs"]] == ["b"]  # only what is new
    assert index["groupings"]
    assert "groupings" not in index_of(source, since=source.version)
    assert len(index["order"]) == 2
    for path in sorted((tmp_path / "a").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "a").rmdir()
    assert source.refresh()
    assert [run.run.name for run in source.runs.values()] == ["b"]


def test_status_of_runs_is_followed(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"loss": 1.0}, step=0)
    source = StoreSource(tmp_path)
    assert [run.status for run in source.runs.values()] == ["running"]
    logger.finish(state)
    assert source.refresh()
    assert [run.status for run in source.runs.values()] == ["finished"]


def test_killed_run_is_noticed_without_a_change_of_its_files(tmp_path, monkeypatch):
    program = f"""
        import lox.loggers
        logger = lox.loggers.SaveLogger({str(tmp_path)!r})
        logger.log(logger.init(0), {{"loss": 1.0}}, step=0)
        print("ready", flush=True)
        input()
    """
    process = programs.start(program, stdin=programs.PIPE)
    assert process.stdout.readline() == "ready\n"
    monkeypatch.setattr("lox._page.source._STATUS_SECONDS", 0.0)
    source = StoreSource(tmp_path)
    assert [run.status for run in source.runs.values()] == ["running"]
    process.kill()
    process.communicate()
    waiting.wait_until(source.refresh)
    assert [run.status for run in source.runs.values()] == ["killed"]


# --- bad stores --------------------------------------------------------------------


def test_store_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(lox.StoreError, match="there is no store at"):
        StoreSource(tmp_path / "missing")


def test_damaged_and_newer_runs_are_named_and_left_out(tmp_path):
    write_run(tmp_path, "good", logs([0], loss=[1.0]))
    write_run(tmp_path, "damaged", logs([0], loss=[1.0]))
    (tmp_path / "damaged" / "run.json").write_text("{")
    write_run(tmp_path, "torn", logs([0, 1], loss=[1.0, 2.0]))
    (data,) = (tmp_path / "torn").glob("*/*.npy")
    data.write_bytes(data.read_bytes()[:-3])
    source = StoreSource(tmp_path)
    assert sorted(run.run.name for run in source.runs.values()) == ["good", "torn"]
    assert len(source.problems) == 2
    assert any("damaged" in problem for problem in source.problems)
    assert any("has lost records" in problem for problem in source.problems)
    assert len(chart(source, Request("loss"))["lanes"]["runs"]) == 2


def test_single_run_is_a_store_of_one(tmp_path):
    write_run(tmp_path, "a", logs([0, 1], loss=[1.0, 2.0]))
    source = StoreSource(tmp_path / "a")
    assert [run.run.name for run in source.runs.values()] == ["a"]


def test_symbolic_links_are_not_followed(tmp_path):
    write_run(tmp_path / "secret", "a", logs([0], password=[1.0]))
    store = tmp_path / "store"
    write_run(store, "b", logs([0], loss=[1.0]))
    (store / "link").symlink_to(tmp_path / "secret" / "a")
    source = StoreSource(store)
    assert [run.run.name for run in source.runs.values()] == ["b"]


# --- transport ---------------------------------------------------------------------


def unpacked(data):
    """Decodes packed bytes, as data.js does."""
    (size,) = struct.unpack("<I", data[:4])
    body = data[4 + size :]

    def restore(node):
        if "$" not in node:
            return node
        kind, shape, offset = node["$"]
        dtype = np.dtype(f"<{kind}")
        count = int(np.prod(shape))
        raw = np.frombuffer(body, np.uint8, count * dtype.itemsize, offset)
        planes = raw.reshape(dtype.itemsize, count)
        return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)

    return json.loads(data[4 : 4 + size], object_hook=restore)


def test_packed_arrays_come_back():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": [np.array([np.nan, np.inf, 1e300])],
        "c": np.zeros(0, np.uint32),
        "d": {"text": "</script>\ud800", "n": float("nan"), "none": None},
    }
    back = unpacked(pack(arrays))
    assert back["a"].tolist() == arrays["a"].tolist()
    np.testing.assert_array_equal(back["b"][0], arrays["b"][0])
    assert back["c"].shape == (0,)
    assert back["d"] == {"text": "</script>\ud800", "n": "nan", "none": None}


def test_narrow_rounds_only_digits_that_are_not_visible():
    assert narrow([1.0, 2.0]).dtype == np.float32
    assert narrow([1e9, 1e9 + 1]).dtype == np.float64
    assert narrow([1e300, 0.0]).dtype == np.float64
    assert narrow([1e-40, 0.0]).dtype == np.float64


def test_runs_with_float64_values_keep_every_bit(tmp_path):
    values = np.array([0.1, 1 / 3, 1e300])
    write_run(tmp_path, "a", logs(np.arange(3), loss=values))
    data = chart(StoreSource(tmp_path), Request("loss"))
    assert data["lanes"]["first"].dtype == np.float64
    assert data["lanes"]["first"][0].tolist() == values.tolist()
