"""Rows of lanes that share a run have the step `lane`."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
from lox.loggers._trackers.tracker import Tracker

XS = jnp.array([10.0, 20.0, 30.0])


def environment(x):
    lox.log({"start": x})

    def body(c, i):
        lox.log({"reward": c + i, "i": i}, when=c + i < 31, step=i)
        return c, None

    return lax.scan(body, x, jnp.arange(3))[0]


def events(fun, xs):
    """The rows of each lane, from a run of that lane alone."""
    found = []
    for lane, x in enumerate(xs):
        calls = []
        lox.tap(fun, calls.append)(x)
        found += [(lane, call) for call in calls]
    return found


def by_lane(rows):
    """Rows sorted by lane, each with its lane and without the step."""
    split = []
    for row in rows:
        (lane,) = {int(number) for number in row.lane.values()}
        (alone,) = row.lanes()
        split.append((lane, alone))
    return sorted(split, key=lambda pair: pair[0])


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"ordered": False}], ids=str)
@pytest.mark.parametrize("around", [True, False], ids=["vmap(tap)", "tap(vmap)"])
def test_callback_rows_name_their_lane(options, around):
    calls = []

    def tap(fun):
        return lox.tap(fun, calls.append, **options)

    (jax.vmap(tap(environment)) if around else tap(jax.vmap(environment)))(XS)
    jax.effects_barrier()
    rows = [row for call in calls for row in call.rows()]
    found, wanted = by_lane(rows), events(environment, XS)
    if options:  # rows of different lines may come in another order
        found.sort(key=lambda pair: (pair[0], *map(float, pair[1].values())))
        wanted.sort(key=lambda pair: (pair[0], *map(float, pair[1].values())))
    assert found == wanted


def test_batched_callback_has_lane_axis_instead_of_step():
    calls = []
    lox.tap(jax.vmap(lambda x: lox.log({"x": x})), calls.append, batched=True)(XS)
    (logs,) = calls
    assert logs["x"].shape == (3,) and not logs.steps


def test_lanes_of_nested_vmaps_are_numbered_consecutively():
    calls = []
    grid = jnp.arange(6.0).reshape(2, 3)
    fun = jax.vmap(jax.vmap(lambda x: lox.log({"x": x})))
    lox.tap(fun, calls.append)(grid)
    assert [int(c.lane["x"]) for c in calls] == list(range(6))
    assert [float(c["x"]) for c in calls] == list(range(6))


def logs_some(x):
    lox.log({"x": x}, when=x > 3.5)


def test_outer_lane_that_logs_nothing_counts_its_inner_lanes():
    calls = []
    grid = jnp.arange(6.0).reshape(2, 3)
    lox.tap(jax.vmap(jax.vmap(logs_some)), calls.append)(grid)
    assert [(int(c.lane["x"]), float(c["x"])) for c in calls] == [(4, 4), (5, 5)]


@pytest.mark.parametrize("buffer", [None, 2])
def test_seed_that_logs_nothing_gets_no_rows_of_other_seeds(tmp_path, buffer):
    logger = lox.loggers.SaveLogger(tmp_path)

    def run(key, xs):
        state = logger.init(key, config={"first": xs[0]})
        logger.tap(jax.vmap(logs_some), state, buffer=buffer)(xs)
        logger.finish(state)

    keys = jax.random.split(jax.random.key(0), 2)
    jax.jit(jax.vmap(run))(keys, jnp.arange(6.0).reshape(2, 3))
    runs = {run.config["first"]: run.load() for run in lox.runs(tmp_path)}
    assert not runs[0]
    assert runs[3]["x"].tolist() == [4, 5] and runs[3].lane["x"].tolist() == [1, 2]


def test_step_called_lane_is_left_to_the_user():
    calls = []
    fun = jax.vmap(lambda x: lox.log({"x": x}, lane=x.astype(int)))
    lox.tap(fun, calls.append)(XS)
    assert [int(c.lane["x"]) for c in calls] == [10, 20, 30]


def on_devices(x):
    """Logs on two devices, with two lanes on each."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def each(x):
        def body(c, i):
            lox.log({"x": x + i}, step=i)
            return c, None

        lax.scan(body, 0, jnp.arange(3))
        return x

    spec = jax.sharding.PartitionSpec("d")
    return jax.shard_map(jax.vmap(each), mesh=mesh, in_specs=spec, out_specs=spec)(x)


DEVICE_XS = jnp.array([[0.0, 10.0, 20.0, 30.0], [40.0, 50.0, 60.0, 70.0]])


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"reduce": "max"}], ids=str)
@pytest.mark.parametrize("vmapped", [False, True])
def test_devices_of_shard_map_are_lanes(options, vmapped):
    calls = []
    fun = lox.tap(on_devices, calls.append, **options)
    if vmapped:
        jax.vmap(fun)(DEVICE_XS)
    else:
        fun(DEVICE_XS[0])
    jax.effects_barrier()
    rows = [row for call in calls for row in call.rows()]
    found = sorted((float(r["x"]), int(r.lane["x"]), int(r.step["x"])) for r in rows)
    steps = [2] if "reduce" in options else range(3)
    lanes = range(8 if vmapped else 4)
    assert found == [(10.0 * lane + i, lane, i) for lane in lanes for i in steps]


@pytest.mark.parametrize("options", [{}, {"buffer": 2}], ids=str)
def test_store_keeps_lanes_of_devices(tmp_path, options):
    logger = lox.loggers.SaveLogger(tmp_path)
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
    jax.vmap(lambda state, x: logger.tap(on_devices, state, **options)(x))(
        states, DEVICE_XS
    )
    jax.effects_barrier()
    logger.finish(states)
    for run, offset in zip(lox.runs(tmp_path), (0, 40), strict=True):
        lanes = [lane.sort("step") for lane in run.load().lanes()]
        assert [lane["x"].tolist() for lane in lanes] == [
            [offset + 10.0 * i + step for step in range(3)] for i in range(4)
        ]


@pytest.mark.parametrize("options", [{}, {"buffer": 2}], ids=str)
def test_store_restores_lanes_of_one_run(tmp_path, options):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.tap(jax.vmap(environment), state, **options)(XS)
    logger.finish(state)
    logs = lox.load(tmp_path)
    for lane, x in zip(logs.lanes(), XS, strict=True):
        wanted = lox.spool(environment)(x)[1]
        assert lane["reward"].tolist() == wanted["reward"].tolist()
        assert lane.step["reward"].tolist() == wanted.step["reward"].tolist()
        assert lane["start"].tolist() == [wanted["start"]]


def test_rows_inside_and_outside_vmap_are_loaded_together(tmp_path):
    def log(x):
        lox.log({"x": x})

    def fun(xs):
        jax.vmap(log)(xs)
        log(xs[0])

    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.tap(fun, state)(XS)
    logger.finish(state)
    logs = lox.load(tmp_path)
    assert logs["x"].tolist() == [10, 20, 30, 10]
    assert logs.lane["x"].tolist() == [0, 1, 2, -1]
    assert [lane["x"].tolist() for lane in logs.lanes()] == [[10], [20], [30], [10]]


@pytest.mark.parametrize("jit", [False, True])
def test_seeds_are_runs_and_inner_lanes_are_rows(tmp_path, jit):
    logger = lox.loggers.SaveLogger(tmp_path)

    def run(key, scale):
        state = logger.init(key)
        logger.tap(jax.vmap(lambda x: lox.log({"x": x * scale})), state)(XS)
        logger.finish(state)

    run = jax.vmap(run)
    keys = jax.random.split(jax.random.key(0), 2)
    (jax.jit(run) if jit else run)(keys, jnp.array([1.0, 2.0]))
    jax.effects_barrier()
    for run, scale in zip(lox.runs(tmp_path), (1, 2), strict=True):
        logs = run.load()
        assert logs["x"].tolist() == [10 * scale, 20 * scale, 30 * scale]
        assert logs.lane["x"].tolist() == [0, 1, 2]


def test_seeds_with_separate_runs_have_no_lane(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))
    logger.tap(jax.vmap(lambda x: lox.log({"x": x}, step=1)), states)(XS)
    jax.vmap(lambda state, x: logger.log(state, {"y": x}))(states, XS)
    logger.finish(states)
    for run in lox.runs(tmp_path):
        assert list(run.load().steps) == ["step"]


@pytest.mark.parametrize("jit", [False, True])
def test_log_and_save_inside_vmap_name_lanes(tmp_path, jit):
    logger = lox.loggers.SaveLogger(tmp_path / "logger")
    state = logger.init(0)

    def each(x):
        logger.log(state, {"x": x}, when=x > 15)
        lox.save({"x": x}, tmp_path / "save")
        lox.save({"x": x}, tmp_path / "keyed", key=0)

    each = jax.vmap(each)
    (jax.jit(each) if jit else each)(XS)
    jax.effects_barrier()
    logger.finish(state)
    logs = lox.load(tmp_path / "logger")
    assert logs["x"].tolist() == [20, 30] and logs.lane["x"].tolist() == [1, 2]
    for name in ("save", "keyed"):
        logs = lox.load(tmp_path / name)
        assert logs["x"].tolist() == [10, 20, 30]
        assert logs.lane["x"].tolist() == [0, 1, 2]


def test_text_files_have_a_column_of_lanes(tmp_path):
    for kind in (lox.loggers.CSVLogger, lox.loggers.JSONLinesLogger):
        logger = kind(tmp_path)
        state = logger.init(0)
        logger.tap(jax.vmap(environment), state)(XS)
        # logs with a lane axis, and with two
        logger.log(state, lox.spool(jax.vmap(environment))(XS)[1].filter("start"))
        two = jax.vmap(jax.vmap(lambda x: lox.log({"two": x})))
        logger.log(state, lox.spool(two)(jnp.arange(4).reshape(2, 2))[1])
        logger.finish(state)
    (path,) = tmp_path.glob("*.csv")
    with path.open(newline="") as file:
        in_csv = list(csv.DictReader(file))
    (path,) = tmp_path.glob("*.jsonl")
    rows = list(map(json.loads, path.read_text().splitlines()))
    for found in (in_csv, rows):
        starts = [(int(r["lane"]), float(r["start"])) for r in found if r.get("start")]
        assert starts == 2 * [(0, 10), (1, 20), (2, 30)]
        two = [(int(r["lane"]), int(r["two"])) for r in found if r.get("two", "") != ""]
        assert two == [(0, 0), (1, 1), (2, 2), (3, 3)]
    rewards = [(r["lane"], r["step"], r["reward"]) for r in rows if "reward" in r]
    assert sorted(rewards) == [
        (0, 0, 10.0),
        (0, 1, 11.0),
        (0, 2, 12.0),
        (1, 0, 20.0),
        (1, 1, 21.0),
        (1, 2, 22.0),
        (2, 0, 30.0),
    ]


class CurveTracker(Tracker):
    """Keeps the points of every curve."""

    background = False

    def open(self, run):
        return {}

    def write(self, run, logs):
        for table in self.tables(logs):
            x = self.step_of(table)
            steps = [None] * table.length if x is None else x[1].tolist()
            for name, column in {**table.scalars, **table.images}.items():
                points = zip(steps, column.tolist(), strict=True)
                run.setdefault(name, []).extend(points)
        self.curves = run

    def close(self, run):
        pass


@pytest.mark.parametrize("options", [{}, {"buffer": 2}], ids=str)
def test_trackers_plot_a_curve_per_lane(options):
    def fun(x):
        def body(c, i):
            lox.log({"x": c * i, "image": jnp.full((1, 1), c)}, step=i)
            return c, None

        lax.scan(body, x, jnp.arange(2))

    tracker = CurveTracker(images="image")
    state = tracker.init(0)
    tracker.tap(jax.vmap(fun), state, **options)(XS)
    tracker.tap(fun, state, **options)(jnp.float32(5))
    tracker.finish(state)
    assert tracker.curves == {
        "x/lane_0": [(0, 0.0), (1, 10.0)],
        "x/lane_1": [(0, 0.0), (1, 20.0)],
        "x/lane_2": [(0, 0.0), (1, 30.0)],
        "x": [(0, 0.0), (1, 5.0)],
        "image/lane_0": [(0, [[10.0]]), (1, [[10.0]])],
        "image/lane_1": [(0, [[20.0]]), (1, [[20.0]])],
        "image/lane_2": [(0, [[30.0]]), (1, [[30.0]])],
        "image": [(0, [[5.0]]), (1, [[5.0]])],
    }


def loaded(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.tap(jax.vmap(environment), state)(XS)
    logger.finish(state)
    return lox.load(tmp_path)


def test_exports_of_one_run_separate_lanes(tmp_path):
    logs = loaded(tmp_path).filter(["start", "reward"])
    frame = logs.to_pandas()
    rewards = frame[frame["reward"].notna()]
    assert rewards["lane"].tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert rewards["step"].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert logs.to_xarray()["reward"].shape == (7,)
    lines = {
        line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist())
        for line in logs.plot("reward").axes[0].get_lines()
    }
    assert lines == {
        "lane 0": ([0, 1, 2], [10, 11, 12]),
        "lane 1": ([0, 1, 2], [20, 21, 22]),
        "lane 2": ([0], [30]),
    }
    np.testing.assert_array_equal(
        logs.sort("lane").lane["reward"], sorted(logs.lane["reward"])
    )
