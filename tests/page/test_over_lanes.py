"""The numbers of a chart are those of `logs.over_lanes`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._page import lane_table
from lox._page.chart_requests import Request
from lox._page.charts import chart
from lox._page.source import StoreSource

from .stores import logs, write_run

BANDS = {
    "ci": ("low", "high"),
    "iqr": ("q25", "q75"),
    "minmax": ("min", "max"),
}


def write_random(store, seed, runs, rows):
    """Runs that repeat some steps, lack others, and have values that are not finite."""
    generator = np.random.default_rng(seed)
    for i in range(runs):
        steps = np.arange(rows)[generator.random(rows) < 0.8]
        if i % 2:  # resumed from a checkpoint
            steps = np.concatenate([steps, steps[len(steps) // 2 :] + i % 3])
        repeated = steps[generator.integers(0, len(steps), rows // 10)]
        steps = np.sort(np.concatenate([steps, repeated]), kind="stable")
        if i == 2:  # in another order
            steps = generator.permutation(steps)
        values = generator.normal(1e3, 1, len(steps))
        values[generator.random(len(steps)) < 0.1] = generator.choice(
            [np.nan, np.inf, -np.inf]
        )
        write_run(store, f"run-{i}", logs(steps, loss=values), {"seed": i})


def over_lanes(store):
    """The steps and statistics over the runs of a store, in ascending order."""
    names = "mean", "std", "sem", "min", "max", "iqr", "ci", "count"
    with pytest.warns(lox.LoxWarning, match="not finite"):
        found = lox.runs(store).load("loss").over_lanes(*names)
    steps = found.step["loss/mean"]
    order = np.argsort(steps, kind="stable")
    values = {
        name.removeprefix("loss/"): np.asarray(found[name], np.float64)[order]
        for name in found
    }
    return steps[order], values


def band_limits(values, name):
    """The limits of a band at each point; NaN for fewer than two runs."""
    if name in BANDS:
        low, high = (values[limit] for limit in BANDS[name])
    else:
        low, high = (
            values["mean"] - values[name],
            values["mean"] + values[name],
        )
    several = values["count"] > 1
    return np.where(several, low, np.nan), np.where(several, high, np.nan)


@pytest.mark.parametrize("seed", range(4))
def test_every_point_of_a_chart_is_that_of_over_lanes(tmp_path, seed):
    write_random(tmp_path, seed, runs=5, rows=60)
    steps, values = over_lanes(tmp_path)
    data = chart(StoreSource(tmp_path), Request("loss"))
    (group,) = data["groups"]
    assert not data["binned"] and data["width"] == 0
    assert data["from"].tolist() == steps.tolist()
    assert group["n"].tolist() == values["count"].tolist()
    mean = np.where(np.isnan(values["mean"]), np.inf, values["mean"])  # a gap
    np.testing.assert_allclose(group["first"], mean, rtol=1e-12)
    assert set(group["bands"]) == {"ci", "std", "sem", "minmax", "iqr"}
    for name, limits in group["bands"].items():
        for found, expected in zip(limits, band_limits(values, name), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9)


def by_bucket(function, column, steps, data):
    return function.reduceat(column, np.searchsorted(steps, data["from"]))


def test_buckets_of_a_chart_keep_the_extremes_of_over_lanes(tmp_path):
    write_random(tmp_path, 0, runs=4, rows=1500)
    steps, values = over_lanes(tmp_path)
    data = chart(StoreSource(tmp_path), Request("loss", buckets=50))
    (group,) = data["groups"]
    assert not data["binned"] and data["width"] > 0
    count = values["count"]
    assert group["n"].tolist() == by_bucket(np.minimum, count, steps, data).tolist()
    assert group["n2"].tolist() == by_bucket(np.maximum, count, steps, data).tolist()
    pairs = np.sort([group["first"], group["second"]], axis=0)
    for found, function in zip(pairs, (np.fmin, np.fmax), strict=True):
        expected = by_bucket(function, values["mean"], steps, data)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    for name, limits in group["bands"].items():
        expected = band_limits(values, name)
        for found, each, function in zip(
            limits, expected, (np.fmin, np.fmax), strict=True
        ):
            limit = by_bucket(function, each, steps, data)
            np.testing.assert_allclose(found, limit, rtol=1e-9)


def test_intervals_of_long_curves_are_among_those_of_over_lanes(tmp_path, monkeypatch):
    monkeypatch.setattr(lane_table, "MAX_EXACT", 100)
    write_random(tmp_path, 1, runs=4, rows=1000)
    steps, values = over_lanes(tmp_path)
    data = chart(StoreSource(tmp_path), Request("loss", buckets=50))
    (group,) = data["groups"]
    starts = np.searchsorted(steps, data["from"])
    for found, each in zip(
        group["bands"]["ci"], band_limits(values, "ci"), strict=True
    ):
        for limit, part in zip(found, np.split(each, starts[1:]), strict=True):
            known = part[np.isfinite(part)]
            if len(known):
                assert np.abs(known - limit).min() < 1e-9 * abs(limit)
            else:
                assert np.isnan(limit)


def test_equal_lanes_of_different_processes_are_separate_curves(tmp_path):
    for process, where in enumerate(("run", "run/process-1")):
        for step in range(2):
            for lane in (0, 1, -1):
                value = 100.0 * process + 10 * lane + step
                steps = {"step": {"x": step}, "lane": {"x": lane}}
                lox.save(lox.logdict({"x": value}, steps), tmp_path / where)
    data = chart(StoreSource(tmp_path), Request("x"))
    found = lox.runs(tmp_path).load("x").over_lanes("mean", "count")
    assert data["lanes"]["names"] == [
        f"{lane} of process {process}"
        for lane in ("lane 0", "lane 1", "no lane")
        for process in range(2)
    ]
    assert data["lanes"]["first"].tolist() == [
        [0, 1],
        [100, 101],
        [10, 11],
        [110, 111],
        [-10, -9],
        [90, 91],
    ]
    (group,) = data["groups"]
    assert group["n"].tolist() == found["x/count"].tolist() == [6, 6]
    assert group["first"].tolist() == found["x/mean"].tolist()


def test_rows_without_steps_are_counted_per_lane(tmp_path):
    lanes = {"lane": {"x": np.array([0, 1, 0, 1, 0])}}
    rows = lox.logdict({"x": np.arange(5.0)}, lanes, stacked=True)
    lox.save(rows, tmp_path / "named" / "run")
    fun = jax.vmap(lambda x: [lox.log({"x": x + i}, when=x != i) for i in range(3)])
    masked = lox.spool(fun)(jnp.array([0.0, 1.0, 10.0]))[1]
    lox.save(masked, tmp_path / "masked" / "run")
    for name, count in (("named", [2, 2, 1]), ("masked", [3, 3, 1])):
        found = lox.runs(tmp_path / name).load("x").over_lanes("mean", "count")
        source = StoreSource(tmp_path / name)
        (group,) = chart(source, Request("x"))["groups"]
        assert group["n"].tolist() == found["x/count"].tolist() == count
        np.testing.assert_allclose(group["first"], found["x/mean"], rtol=1e-6)
        # what is added to a chart, too
        (group,) = chart(source, Request("x", after=1.0, width=0))["groups"]
        assert group["n"].tolist() == count[1:]
