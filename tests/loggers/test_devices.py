"""Runs that several devices log to."""

import shutil

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

import lox
import lox.loggers
from tests.loggers.backends import MemoryLogger, on_devices, rows, scanned


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"interval": 1}], ids=str)
def test_devices_of_mesh_write_to_one_run(kind, options):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    spec = PartitionSpec("d")
    split = jax.shard_map(
        lambda x: scanned(x.sum())[None], mesh=mesh, in_specs=spec, out_specs=spec
    )
    xs = jax.device_put(jnp.arange(4.0), jax.sharding.NamedSharding(mesh, spec))
    logger = MemoryLogger()
    logger.tap(split, logger.init(0), **options)(xs)
    (calls,) = logger.runs.values()
    assert sorted(rows(calls)) == sorted(x * 2.0**i for x in range(4) for i in range(3))


def test_program_starts_and_finishes_run_that_its_devices_log_to():
    """Rows may arrive before `init` and after `finish`."""
    split = on_devices(lambda x: scanned(x.sum())[None])
    expected = sorted(x * 2.0**i for x in range(4) for i in range(3))
    for seed in range(5):
        logger = lox.loggers.SaveLogger("store", exists="resume")

        @jax.jit
        def run(key, xs, logger=logger):
            state = logger.init(key, config={"first": xs[1]})
            ys = logger.tap(split, state)(xs)
            logger.finish(state)
            return ys

        for count in (1, 2):
            run(jax.random.key(seed), jnp.arange(4.0))
            jax.effects_barrier()
            found = lox.load("store", key=seed)["x"]
            assert sorted(found.tolist()) == sorted(expected * count)
        assert lox.runs("store")[-1].config == {"first": 1.0}


def test_rows_of_state_without_init_are_kept():
    """As after a restart, on devices whose rows are unordered."""
    split = on_devices(lambda x: scanned(x.sum(), 40)[None])
    state = lox.loggers.LoggerState(jnp.array([0, 3], jnp.uint32))
    logger = lox.loggers.SaveLogger("store")
    jax.jit(logger.tap(split, state))(jnp.zeros(4))
    jax.effects_barrier()
    assert lox.load("store", key=3)["x"].tolist() == [0.0] * 160


@pytest.mark.parametrize(
    ("exists", "count"), [("resume", 8), ("overwrite", 4), ("new", None)]
)
def test_devices_that_restart_run_wait_for_its_end(exists, count):
    logger = lox.loggers.SaveLogger("store", exists=exists)

    @jax.jit
    @on_devices
    def run(x):
        state = logger.init(5)
        logger.tap(lambda x: lox.log({"x": x}), state)(x[0])
        logger.finish(state)
        return x

    def twice(between):
        run(jnp.arange(4.0))
        between()
        run(jnp.arange(4.0) + 100)
        jax.effects_barrier()

    with pytest.raises(lox.LoxValueError, match="Call `jax.effects_barrier"):
        twice(lambda: None)
    shutil.rmtree("store")
    if count is None:
        with pytest.raises(lox.StoreError, match="a run already exists at"):
            twice(jax.effects_barrier)
    else:
        twice(jax.effects_barrier)
        assert lox.load("store")["x"].size == count


@pytest.mark.parametrize(
    ("exists", "expected"), [("resume", [1, 2, 4, 2, 4, 8]), ("overwrite", [2, 4, 8])]
)
def test_unordered_run_can_start_again(exists, expected):
    logger = lox.loggers.SaveLogger("store", exists=exists)

    @jax.jit
    def run(x):
        state = logger.init(3)
        y = logger.tap(scanned, state, ordered=False)(x)
        logger.finish(state)
        return y

    run(1.0)
    run(2.0)
    jax.effects_barrier()
    assert sorted(lox.load("store")["x"].tolist()) == sorted(expected)


@pytest.mark.parametrize("check_vma", [True, False])
def test_log_in_shard_map_names_devices_as_lanes(check_vma):
    logger = MemoryLogger()
    state = logger.init(0)

    def log(x):
        logger.log(state, {"x": x[0]}, step=1)
        jax.vmap(lambda x: logger.log(state, {"lanes": x}))(x)
        lox.save({"x": x[1]}, "saved")
        return x

    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    jax.jit(
        jax.shard_map(
            log, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
        )
    )(jnp.arange(8.0))
    jax.effects_barrier()
    (calls,) = logger.runs.values()
    found = {
        key: {int(call.lane[key]): float(call[key]) for call in calls if key in call}
        for key in ("x", "lanes")
    }
    assert found["x"] == {0: 0.0, 1: 2.0, 2: 4.0, 3: 6.0}
    assert found["lanes"] == {lane: float(lane) for lane in range(8)}
    assert len(calls) == 4 + 8
    saved = lox.load("saved").sort("lane")
    assert saved["x"].tolist() == [1.0, 3.0, 5.0, 7.0]
    assert saved.lane["x"].tolist() == [0, 1, 2, 3]


def test_lanes_of_runs_that_devices_share_unequally_are_distinct():
    """A run has three lanes of the first device, and two of the second."""
    runs = jnp.array([0, 0, 0, 1, 0, 1, 0, 1])

    def save(run, x):
        jax.vmap(lambda run, x: lox.save({"x": x}, "saved", key=run))(run, x)
        return x

    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    split = jax.shard_map(save, mesh=mesh, in_specs=spec, out_specs=spec)
    jax.jit(split)(runs, jnp.arange(8.0))
    jax.effects_barrier()
    for run, values in (0, [0, 1, 2, 4, 6]), (1, [3, 5, 7]):
        saved = lox.load("saved", key=run).sort("lane")
        assert saved["x"].tolist() == values
        assert len(set(saved.lane["x"].tolist())) == len(values)
