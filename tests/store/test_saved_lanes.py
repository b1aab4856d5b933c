"""`lox.save` of lanes: each way to save them gives the same runs."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from lox._store.keys import run_name


def counted(n):
    """Logs the numbers below `n`."""

    def body(carry, i):
        lox.log({"x": i}, when=i < n)
        return carry, None

    lax.scan(body, 0, jnp.arange(3))
    return n


def silent(n):
    return n


# --- an oracle -------------------------------------------------------------

COUNTS = {
    "one lane": np.array(2),
    "vmap": np.array([2, 0, 1]),
    "nested vmap": np.array([[0, 0], [1, 2]]),
    "three vmaps": np.array([[[0, 0], [0, 0]], [[0, 0], [1, 2]]]),
}


def save_at_once(program, counts, path, mode, keys):
    """Spools all lanes, and saves their logs in one call."""
    spooled = lox.spool(program)
    for _ in counts.shape:
        spooled = jax.vmap(spooled)
    lox.save(spooled(counts)[1], path, mode=mode, key=keys)


def save_per_lane(program, counts, path, mode, keys):
    """Saves in each lane of the `vmap`s."""

    def save(n, key):
        result, logs = lox.spool(program)(n)
        lox.save(logs, path, mode=mode, key=key)
        return result

    for _ in counts.shape:
        save = jax.vmap(save, in_axes=(0, None if keys is None else 0))
    save(counts, keys)


def run(way, jit, program, counts, path, mode, keys):
    def call(counts, keys):
        way(program, counts, path, mode, keys)

    (jax.jit(call) if jit else call)(jnp.array(counts), keys)
    jax.effects_barrier()


def rows_by_lane(logs, shape):
    """The rows of each lane, flat; for logs that name their lanes, or have axes."""
    lanes = [[] for _ in range(int(np.prod(shape)))]
    if not logs:
        return lanes
    if "lane" in logs.steps:
        for x, lane in zip(np.ravel(logs["x"]), np.ravel(logs.lane["x"]), strict=True):
            lanes[lane].append(int(x))
        return lanes
    if not shape:
        return [np.ravel(logs["x"]).tolist()]
    inner = [rows_by_lane(lane, shape[1:]) for lane in logs.lanes()]
    return [lane for outer in inner for lane in outer]


def expected(program, counts, times):
    rows = [list(range(n)) * times for n in counts.ravel().tolist()]
    return [[] for _ in rows] if program is silent else rows


@pytest.mark.parametrize("lanes", COUNTS)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("way", [save_at_once, save_per_lane])
@pytest.mark.parametrize("program", [counted, silent])
def test_every_way_to_save_lanes_writes_the_same_runs(
    tmp_path, program, way, jit, lanes
):
    counts = COUNTS[lanes]
    keys = jax.random.split(jax.random.key(0), counts.shape)
    words = np.asarray(jax.random.key_data(keys)).reshape(-1, 2)
    names = [run_name(each) for each in words]
    for mode, times in (("a", 2), ("w", 1), ("x", 1)):
        store, single = tmp_path / f"{mode}-store", tmp_path / f"{mode}-run"
        for path, of_lanes in ((store, keys), (single, None)):
            run(way, jit, program, counts, path, mode, of_lanes)
            if mode == "x":
                with pytest.raises(lox.StoreError, match="a run already exists"):
                    run(way, jit, program, counts, path, mode, of_lanes)
            else:
                run(way, jit, program, counts, path, mode, of_lanes)
        wanted = expected(program, counts, times)
        assert sorted(os.listdir(store)) == sorted(names)
        assert len(lox.runs(store)) == len(names)
        found = [rows_by_lane(lox.load(store / name), ()) for name in names]
        assert [rows for (rows,) in found] == wanted
        assert rows_by_lane(lox.load(single), counts.shape) == wanted


# --- modes -----------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("mode", "awx")
def test_modes_see_the_lanes_of_one_save_as_one(tmp_path, mode, jit):
    mapped = jax.vmap(lambda x: lox.save({"x": x}, tmp_path / "run", mode=mode))
    (jax.jit(mapped) if jit else mapped)(jnp.arange(3.0))
    jax.effects_barrier()
    logs = lox.load(tmp_path / "run")
    assert logs["x"].tolist() == [0, 1, 2] and logs.lane["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", "wx")
def test_modes_see_the_lanes_of_one_key_as_one(tmp_path, mode):
    keys = jax.random.key(0), jax.random.key(1)
    of_lanes = jnp.stack([keys[0], keys[1], keys[0]])
    logs = jax.vmap(lox.spool(lambda x: lox.log({"x": x})))(jnp.arange(3.0))[1]
    lox.save(logs, tmp_path / "eager", mode=mode, key=of_lanes)
    jax.vmap(lambda x, key: lox.save({"x": x}, tmp_path / "vmap", mode=mode, key=key))(
        jnp.arange(3.0), of_lanes
    )
    for store in ("eager", "vmap"):
        assert lox.load(tmp_path / store, key=keys[0])["x"].tolist() == [0, 2]
        assert lox.load(tmp_path / store, key=keys[1])["x"].tolist() == 1


def test_replacing_in_a_loop_keeps_all_lanes_of_the_last_iteration(tmp_path):
    def iteration(i, _):
        jax.vmap(lambda x: lox.save({"x": x}, tmp_path / "run", mode="w"))(
            10 * i + jnp.arange(3)
        )

    lax.fori_loop(0, 3, iteration, None)
    jax.effects_barrier()
    assert lox.load(tmp_path / "run")["x"].tolist() == [20, 21, 22]


def test_lane_that_does_not_save_leaves_the_mode_to_the_next(tmp_path):
    lox.save({"x": 9.0}, tmp_path / "run")

    def save(x):
        def saves(x):
            lox.save({"x": x}, tmp_path / "run", mode="w")
            return x

        return lax.cond(x > 0, saves, lambda x: x, x)

    jax.jit(jax.vmap(save))(jnp.arange(3.0))
    jax.effects_barrier()
    assert lox.load(tmp_path / "run")["x"].tolist() == [1, 2]


# --- lanes without rows ----------------------------------------------------


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_empty_logs_are_saved_only_in_lanes_that_happen(tmp_path, jit, happens):
    def save(x):
        def saves(x):
            lox.save({}, tmp_path / "run")
            return x

        return lax.cond(x > (1 if happens else 9), saves, lambda x: x, x)

    mapped = jax.vmap(save)
    (jax.jit(mapped) if jit else mapped)(jnp.arange(3))
    jax.effects_barrier()
    assert (tmp_path / "run").exists() == happens
    assert not happens or lox.load(tmp_path / "run") == {}


def test_number_of_keys_must_fit_the_lanes_even_if_some_logged_nothing(tmp_path):
    counts = jnp.array(COUNTS["nested vmap"])
    logs = jax.vmap(jax.vmap(lox.spool(counted)))(counts)[1]
    keys = jax.random.split(jax.random.key(0), (2, 3))
    with pytest.raises(lox.LoxValueError, match="3 keys for logs of 2 lane"):
        lox.save(logs, tmp_path / "store", key=keys)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("mode", ["w", "x"])
def test_mode_that_would_keep_one_device_only_is_refused_in_shard_map(tmp_path, mode):
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("d",), axis_types=auto)
    spec = jax.sharding.PartitionSpec("d")

    def split(mode):
        def save(x):
            lox.save({"x": x[0]}, tmp_path / "run", mode)
            return x

        return jax.shard_map(save, mesh=mesh, in_specs=spec, out_specs=spec)

    with pytest.raises(lox.LoxValueError, match="only those of one device"):
        jax.jit(split(mode))(jnp.arange(2.0))
    jax.jit(split("a"))(jnp.arange(2.0))
    jax.effects_barrier()
    assert sorted(lox.load(tmp_path / "run")["x"].tolist()) == [0.0, 1.0]
