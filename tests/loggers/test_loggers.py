"""Loggers: one run a vmapped seed, whatever JAX does around them."""

import json
import pathlib
import shutil
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import lox
import lox.loggers
from lox._source import user_source
from tests import programs
from tests.waiting import in_threads, wait_until


class MemoryLogger(lox.loggers.Logger):
    """Keeps everything in lists."""

    def __init__(self, config=None):
        super().__init__(config)
        self.runs, self.closed, self.calls = {}, [], 0

    def open(self, run):
        self.runs[run.key] = []
        return run.key

    def write(self, run, logs):
        assert all(isinstance(x, np.ndarray | np.generic) for x in logs.values())
        self.calls += 1
        self.runs[run].append(logs)

    def close(self, run):
        self.closed.append(run)


class BrokenLogger(lox.loggers.Logger):
    """A client that raises."""

    def open(self, run):
        return run

    def write(self, run, logs):
        raise ConnectionError("no network")


class DoublingLogger(lox.loggers.SaveLogger):
    """Writes something else than its base class."""

    def write(self, run, logs):
        doubled = lox.logdict(logs)
        doubled["x"] = logs["x"] * 2
        super().write(run, doubled)


def scanned(x, n=3):
    def body(carry, i):
        lox.log({"x": carry}, step=i)
        return carry * 2, None

    return lax.scan(body, x, jnp.arange(n))[0]


def rows(calls):
    return [float(x) for logs in calls for x in np.ravel(logs["x"])]


def words(key):
    return tuple(int(word) for word in jax.random.key_data(key))


METHODS = ["tap", "spool"]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- one run -----------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_run_gets_its_logs(method, wrap):
    logger = MemoryLogger()
    key = jax.random.key(3)
    state = logger.init(key)
    result = wrap(getattr(logger, method)(scanned, state))(1.0)
    jax.effects_barrier()
    assert result == 8
    assert rows(logger.runs[words(key)]) == [1, 2, 4]
    assert len(logger.runs[words(key)]) == (3 if method == "tap" else 1)
    steps = [int(s) for c in logger.runs[words(key)] for s in np.ravel(c.step["x"])]
    assert steps == [0, 1, 2]
    assert all(list(c.steps) == ["step"] for c in logger.runs[words(key)])
    logger.finish(state)
    assert logger.closed == [words(key)]


def test_init_and_finish_inside_jit_and_scan():
    logger = MemoryLogger()

    @jax.jit
    def f(key):
        state = logger.init(key)
        y, _ = lax.scan(
            lambda c, x: (logger.tap(scanned, state)(c), None), 1.0, jnp.arange(2)
        )
        logger.log(state, {"x": y})
        logger.finish(state)
        return y

    assert f(jax.random.key(0)) == 64
    jax.effects_barrier()
    (calls,) = logger.runs.values()
    assert rows(calls) == [1, 2, 4, 8, 16, 32, 64] and len(logger.closed) == 1


def test_options_are_those_of_tap_and_spool():
    logger = MemoryLogger()
    state = logger.init(0)
    (calls,) = logger.runs.values()

    def sent(method, **options):
        calls.clear()
        getattr(logger, method)(scanned, state, **options)(1.0)
        return [(list(c), np.ravel(next(iter(c.values()))).tolist()) for c in calls]

    assert sent("tap", interval=2) == [(["x"], [1]), (["x"], [4])]
    assert sent("tap", buffer=2) == [(["x"], [1, 2]), (["x"], [4])]
    assert sent("tap", reduce="sum", window=2) == [(["x"], [3]), (["x"], [4])]
    assert sent("tap", prefix="a/", reduce="sum") == [(["a/x"], [7])]
    assert sent("spool", reduce="sum") == [(["x"], [7])]
    assert sent("spool", interval=2, prefix="b/") == [(["b/x"], [1, 4])]
    with pytest.warns(lox.LoxWarning, match="'y', which no"):
        assert sent("tap", argnames="y") == []


@pytest.mark.parametrize("method", METHODS)
def test_results_and_gradients_are_untouched(method):
    logger = MemoryLogger()
    run = getattr(logger, method)(scanned, logger.init(0))
    assert jax.grad(run)(1.0) == 8
    jax.effects_barrier()
    assert rows(next(iter(logger.runs.values()))) == [1, 2, 4]


def test_static_arguments_and_keywords():
    logger = MemoryLogger()
    state = logger.init(0)
    run = logger.tap(scanned, state, static_argnums=1)
    assert run(1.0, 2) == 4
    run = logger.tap(scanned, state, static_argnames="n")
    assert run(x=1.0, n=1) == 2


# --- one run a lane ----------------------------------------------------------


def ragged(n):
    def body(i):
        lox.log({"x": i})
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "method, options",
    [
        ("tap", {}),
        ("tap", {"buffer": 2}),
        ("tap", {"interval": 1}),
        ("spool", {"capacity": 9}),
    ],
)
@pytest.mark.parametrize("around", [True, False])
def test_every_lane_is_a_run_of_its_own(jit, method, options, around):
    logger = MemoryLogger()
    keys = jax.random.split(jax.random.key(0), 4)
    ns = jnp.array([3, 0, 1, 5])

    def one(key, n):
        return getattr(logger, method)(ragged, logger.init(key), **options)(n)

    def all_of_them(keys, ns):
        states = jax.vmap(logger.init)(keys)
        return getattr(logger, method)(jax.vmap(ragged), states, **options)(ns)

    run = jax.vmap(one) if around else all_of_them
    assert (jax.jit(run) if jit else run)(keys, ns).tolist() == ns.tolist()
    jax.effects_barrier()
    assert len(logger.runs) == 4
    for key, n in zip(keys, ns.tolist(), strict=True):
        assert rows(logger.runs[words(key)]) == list(range(n))


def test_sixty_four_lanes_are_one_call_of_the_host(monkeypatch):
    logger = MemoryLogger()
    keys = jax.random.split(jax.random.key(0), 64)
    states = jax.vmap(logger.init)(keys)
    jax.vmap(lambda s, x: logger.tap(scanned, s)(x))(states, jnp.arange(64.0))
    jax.effects_barrier()
    assert logger.calls == 64 * 3
    for i, key in enumerate(keys):
        assert rows(logger.runs[words(key)]) == [i, 2 * i, 4 * i]


def test_lanes_inside_a_run_belong_to_it():
    logger = MemoryLogger()
    key = jax.random.key(0)
    logger.tap(jax.vmap(scanned), logger.init(key))(jnp.array([1.0, 10.0]))
    assert sorted(rows(logger.runs[words(key)])) == [1, 2, 4, 10, 20, 40]


def test_states_that_do_not_fit_are_explained():
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))
    with pytest.raises(lox.LoxValueError, match=r"'x'.*\(2,\) lanes.*\(3,\) runs"):
        logger.tap(jax.vmap(scanned), states)(jnp.arange(2.0))
    with pytest.raises(lox.LoxValueError, match="2 lane.* 3 runs"):
        logger.spool(jax.vmap(scanned), states)(jnp.arange(2.0))
    with pytest.raises(lox.LoxTypeError, match="needs the state that its `init` gave"):
        logger.tap(scanned, None)


# --- keys --------------------------------------------------------------------


def test_one_key_is_one_run():
    logger = MemoryLogger()
    state = logger.init(0)
    with pytest.raises(lox.LoxValueError, match="00000000-00000000 open.*own"):
        logger.init(0)
    logger.finish(state)
    with pytest.raises(lox.LoxValueError, match=r"which is finished.*`init`"):
        logger.log(state, {"x": 1.0})
    with pytest.raises(lox.LoxValueError, match="which is finished"):
        logger.tap(scanned, state)(1.0)
    logger.log(logger.init(0), {"x": 1.0})


def test_without_a_key_a_run_is_new():
    logger = MemoryLogger()
    first, second = logger.init(), logger.init()
    assert first.words.tolist() != second.words.tolist() and len(logger.runs) == 2
    with pytest.raises(lox.LoxTypeError, match="needs a `key` inside `jax.jit`"):
        jax.jit(lambda: logger.init())()


# --- on disk -----------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_saved_runs_are_what_was_spooled(method):
    logger = lox.loggers.SaveLogger("store", config={"lr": 0.1})
    keys = jax.random.split(jax.random.key(0), 3)
    states = jax.vmap(logger.init)(keys)
    run = getattr(logger, method)
    jax.vmap(lambda s, x: run(scanned, s)(x))(states, jnp.arange(3.0))
    logger.finish(states)
    jax.effects_barrier()
    assert len(lox.runs("store")) == 3
    for i in range(3):
        found = lox.load("store", key=keys[i])
        assert found == lox.spool(scanned)(1.0 * i)[1]
    assert lox.runs("store")[0].config == {"lr": 0.1}


def logs_now_and_then(x, n):
    """Logs before a loop and in it, in branches, and twice in a row."""

    def branch(factor):
        return lambda: lox.log({"branch": factor * x})

    lox.log({"once": x, "both": 0.0}, step=0)
    lax.scan(lambda c, i: (c, lox.log({"both": x * i}, step=i)), 0, jnp.arange(n))
    for _ in range(2):
        jax.jit(lambda: lox.log({"twice": x}))()
    lax.cond(x > 1, branch(2), branch(3))
    scanned(x, n)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("options", "wrap"),
    [
        ({}, jax.vmap),
        ({"interval": 2}, jax.jit),
        ({"buffer": 2}, jax.vmap),
        ({"reduce": "mean"}, jax.jit),
        ({"reduce": "mean", "window": 2}, jax.jit),
        ({"reduce": {"x": "mean"}, "window": 2, "buffer": 2}, jax.vmap),
        ({"argnames": ["x", "both"], "prefix": "p/"}, jax.jit),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_what_is_saved_has_the_axes_of_what_is_spooled(options, n, wrap):
    """Also where a loop has given a single row, which has a time axis."""
    logger = lox.loggers.SaveLogger("store")
    xs = jnp.float32(1.0) if wrap is not jax.vmap else jnp.arange(1.0, 4.0)
    states = wrap(logger.init)(xs.astype(int))
    f = partial(logs_now_and_then, n=n)
    wrap(lambda state, x: logger.tap(f, state, **options)(x))(states, xs)
    logger.finish(states)
    spooling = {k: v for k, v in options.items() if k != "buffer"}
    for x in np.ravel(xs):
        expected = lox.spool(f, **spooling)(x)[1].compact()
        found = lox.load("store", key=int(x))
        assert found == expected
        assert all(found[key].shape == expected[key].shape for key in expected)


def test_prng_keys_are_saved_as_their_data_by_a_program():
    def f(xs):
        def body(carry, x):
            lox.log({"key": jax.random.key(x), "x": x}, step=x)
            return carry, None

        lax.scan(body, None, xs)

    expected = jax.random.key_data(jax.vmap(jax.random.key)(jnp.arange(3)))
    for number, method in enumerate(METHODS):
        logger = lox.loggers.SaveLogger("store")
        jax.jit(getattr(logger, method)(f, logger.init(number)))(jnp.arange(3))
        jax.effects_barrier()
        found = lox.load("store", key=number)
        np.testing.assert_array_equal(found["key"], expected)
        assert found["x"].tolist() == [0, 1, 2] and found.step["key"].shape == (3,)
    jax.jit(lambda xs: lox.save(lox.spool(f)(xs)[1], "saved"))(jnp.arange(3))
    jax.effects_barrier()
    np.testing.assert_array_equal(lox.load("saved")["key"], expected)


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_every_run_can_have_a_config_of_its_own(jit):
    saved = lox.loggers.SaveLogger("store", config={"net": "mlp", "lr": 0})
    text = lox.loggers.JSONLinesLogger("text")
    logger = lox.loggers.MultiLogger(saved, text)

    @jit
    @jax.vmap
    def run(key, lr):
        config = {"lr": lr, "sizes": [lr * 2, 3], "by": {"name": "adam", "b": (lr,)}}
        state = logger.init(key, config)
        logger.tap(scanned, state)(lr)
        logger.finish(state)

    for _ in range(2):
        run(jnp.arange(3), jnp.array([0.5, 1.0, 2.0]))
        jax.effects_barrier()
        for i, lr in enumerate([0.5, 1.0, 2.0]):
            own = {"lr": lr, "sizes": [lr * 2, 3], "by": {"name": "adam", "b": [lr]}}
            assert lox.runs("store")[i].config == {"net": "mlp", **own}
            beside = pathlib.Path(f"text/00000000-0000000{i}.config.json")
            assert json.loads(beside.read_text()) == own
        shutil.rmtree("store")
        shutil.rmtree("text")
    state = logger.init(9, config={"lr": np.float32(0.1), "name": "one"})
    logger.finish(state)
    assert lox.runs("store")[0].config == {"net": "mlp", "lr": 0.1, "name": "one"}
    with pytest.raises(lox.LoxTypeError, match="a run's `config` must be .*not 3"):
        logger.init(10, config=3)


def test_what_is_not_sent_has_the_config_of_its_run():
    logger = BrokenLogger({"net": "mlp"})
    with pytest.warns(lox.LoxWarning, match="no network"):
        jax.vmap(lambda k, lr: logger.tap(scanned, logger.init(k, {"lr": lr}))(lr))(
            jnp.arange(2), jnp.array([0.5, 1.0])
        )
    found = [run.config for run in lox.runs(".lox/unsent")]
    assert sorted(found, key=str) == [{"net": "mlp", "lr": lr} for lr in (0.5, 1.0)]


def test_a_run_that_exists_is_refused_unless_asked_for():
    for exists, expected in (("new", [1]), ("resume", [1, 2]), ("overwrite", [3])):
        logger = lox.loggers.SaveLogger("store", exists=exists)
        state = logger.init(0)
        logger.log(state, {"x": max(expected)})
        logger.finish(state)
        assert np.atleast_1d(lox.load("store")["x"]).tolist() == expected
    with pytest.raises(lox.StoreError, match="a run already exists at store"):
        lox.loggers.SaveLogger("store").init(0)
    with pytest.raises(lox.LoxValueError, match="`exists` of `SaveLogger` is 'maybe'"):
        lox.loggers.SaveLogger("store", exists="maybe")


# --- several, and failing ones -----------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_several_loggers_get_the_same(method):
    first, second = MemoryLogger(), MemoryLogger()
    logger = lox.loggers.MultiLogger(first, second)
    key = jax.random.key(0)
    state = logger.init(key)
    getattr(logger, method)(scanned, state)(1.0)
    logger.finish(state)
    assert first.runs.keys() == second.runs.keys() == {words(key)}
    count = 3 if method == "tap" else 1
    for one in (first, second):
        assert rows(one.runs[words(key)]) == [1, 2, 4] and one.calls == count
        assert one.closed == [words(key)]
    with pytest.raises(lox.LoxTypeError, match="takes loggers"):
        lox.loggers.MultiLogger(first, "disk")


def test_one_that_fails_stops_neither_the_program_nor_the_others():
    memory = MemoryLogger()
    logger = lox.loggers.MultiLogger(BrokenLogger(), memory)
    state = logger.init(7)
    with pytest.warns(
        lox.LoxWarning, match="BrokenLogger: it failed.*no network"
    ) as seen:
        assert logger.tap(scanned, state)(1.0) == 8
    assert len(seen) == 1
    assert rows(next(iter(memory.runs.values()))) == [1, 2, 4]
    logger.finish(state)
    # and its rows are kept
    found = lox.load(".lox/unsent")
    assert found == lox.spool(scanned)(1.0)[1]


def test_of_several_loggers_all_begin_or_none():
    lox.loggers.SaveLogger("store").init(0)
    memory = MemoryLogger()
    logger = lox.loggers.MultiLogger(memory, lox.loggers.SaveLogger("store"))
    with pytest.raises(lox.StoreError, match="a run already exists at store"):
        logger.init(0)
    assert not memory.runs


@pytest.mark.parametrize("several", [False, True])
def test_a_subclass_of_a_logger_may_write_otherwise(several):
    logger = DoublingLogger("store")
    if several:
        logger = lox.loggers.MultiLogger(logger, MemoryLogger())
    state = logger.init(0)
    assert logger.tap(scanned, state)(1.0) == 8
    logger.finish(state)
    found = lox.load("store")
    assert found["x"].tolist() == [2, 4, 8] and found.step["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["SaveLogger", "CSVLogger", "JSONLinesLogger"])
def test_a_run_that_one_refuses_is_begun_by_no_other(kind):
    logger = getattr(lox.loggers, kind)
    logger("second").init(1)
    both = lox.loggers.MultiLogger(logger("first"), logger("second"))
    with pytest.raises(lox.StoreError, match="a run already exists at second"):
        both.init(1)
    with pytest.raises(lox.StoreError, match="a run already exists at second"):
        logger("second").init(jnp.array([[0, 0], [0, 1]], jnp.uint32))
    assert not pathlib.Path("first").exists()
    assert len(list(pathlib.Path("second").iterdir())) == 1
    # so that, once the user has said what to do, it begins
    other = lox.loggers.MultiLogger(logger("first"), logger("second", exists="resume"))
    other.finish(other.init(1))


def test_a_run_that_one_refuses_in_a_program_goes_to_the_others():
    lox.save({"x": 0.0}, "store", key=1)
    memory = MemoryLogger()
    saved = lox.loggers.SaveLogger("store", config={"lr": 0.1})
    logger = lox.loggers.MultiLogger(saved, memory)

    def run(seed):
        logger.tap(scanned, logger.init(seed))(1.0 * seed)

    with pytest.warns(
        lox.LoxWarning, match="a run already exists .* kept in '.lox/unsent'"
    ):
        jax.block_until_ready(jax.jit(jax.vmap(run))(jnp.arange(3)))
        with pytest.raises(lox.StoreError, match="a run already exists at"):
            jax.effects_barrier()
    expected = {seed: [seed, 2 * seed, 4 * seed] for seed in range(3)}
    assert {key[1]: rows(found) for key, found in memory.runs.items()} == expected
    assert lox.load("store", key=2)["x"].tolist() == expected[2]
    assert lox.load("store", key=1)["x"].tolist() == 0.0
    (unsent,) = lox.runs(".lox/unsent")
    assert unsent.load()["x"].tolist() == expected[1] and unsent.config == {"lr": 0.1}


def test_lanes_of_one_key_are_told_of_at_once():
    logger = MemoryLogger()
    run = jax.jit(jax.vmap(lambda x: logger.tap(scanned, logger.init(7))(x)))
    with pytest.warns(lox.LoxWarning, match="each lane of a `jax.vmap`") as seen:
        jax.block_until_ready(run(jnp.arange(3.0)))
        with pytest.raises(lox.LoxValueError, match="fold_in"):
            jax.effects_barrier()
    assert len(seen) == 1
    assert len(rows(logger.runs[0, 7])) == 9  # and nothing is lost


def test_a_store_that_is_removed_while_it_is_written_is_reported():
    logger = lox.loggers.SaveLogger("store")
    state = logger.init(0)
    logger.log(state, {"x": 1})
    shutil.rmtree("store")
    with pytest.warns(lox.LoxWarning, match="SaveLogger: it failed.*was removed"):
        logger.log(state, {"x": 2})
    logger.finish(state)
    assert lox.load(".lox/unsent") == {"x": 2}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"interval": 1}], ids=str)
def test_devices_of_a_mesh_write_to_one_run(kind, options):
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


def on_devices(f, count=4):
    mesh = jax.make_mesh((count,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)


def test_a_program_begins_and_ends_a_run_that_its_devices_log_to():
    """Their rows may come before `init`, and after `finish`."""
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


def test_logs_of_a_state_that_nobody_has_begun_here_are_kept():
    """As after a restart, of devices without order."""
    split = on_devices(lambda x: scanned(x.sum(), 40)[None])
    state = lox.loggers.LoggerState(jnp.array([0, 3], jnp.uint32))
    logger = lox.loggers.SaveLogger("store")
    jax.jit(logger.tap(split, state))(jnp.zeros(4))
    jax.effects_barrier()
    assert lox.load("store", key=3)["x"].tolist() == [0.0] * 160


@pytest.mark.parametrize(
    ("exists", "count"), [("resume", 8), ("overwrite", 4), ("new", None)]
)
def test_devices_that_begin_a_run_again_wait_for_its_end(exists, count):
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
def test_a_run_without_order_may_begin_again(exists, expected):
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


# --- slow backends -----------------------------------------------------------


class SlowLogger(MemoryLogger):
    """A client that waits until it may go on."""

    background = True

    def __init__(self):
        super().__init__()
        self.may_go_on, self.threads = threading.Event(), set()
        self.may_go_on.set()

    def write(self, run, logs):
        self.threads.add(threading.current_thread())
        self.may_go_on.wait()
        super().write(run, logs)


@pytest.mark.parametrize("method", METHODS)
def test_a_slow_backend_does_not_keep_the_program_waiting(method):
    logger = SlowLogger()
    logger.may_go_on.clear()
    state = logger.init(0)
    run = getattr(logger, method)(scanned, state)
    assert jax.jit(run)(1.0) == 8  # although nothing can have been written
    jax.effects_barrier()
    assert logger.calls == 0
    logger.may_go_on.set()
    logger.finish(state)
    assert rows(next(iter(logger.runs.values()))) == [1, 2, 4]
    assert logger.closed and threading.main_thread() not in logger.threads


def test_finish_inside_jit_waits_for_every_lane():
    logger = SlowLogger()

    @jax.vmap
    def f(key):
        state = logger.init(key)
        y = logger.tap(scanned, state, static_argnames="n")(1.0, n=20)
        logger.finish(state)
        return y

    jax.jit(f)(jax.random.split(jax.random.key(0), 8))
    jax.effects_barrier()
    assert len(logger.closed) == 8
    for calls in logger.runs.values():
        assert rows(calls) == [2.0**i for i in range(20)]


def goes_on_when_the_program_waits(logger):
    def release():
        wait_until(lambda: (queue := logger._runs._queue) and queue._waiting)
        logger.may_go_on.set()

    threading.Thread(target=release, daemon=True).start()


def test_a_full_queue_makes_the_program_wait_and_drops_nothing(monkeypatch):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_JOBS", 4)
    logger = SlowLogger()
    logger.may_go_on.clear()
    state = logger.init(0)
    goes_on_when_the_program_waits(logger)
    logger.tap(scanned, state, static_argnames="n")(1.0, n=50)
    # there was no room for more than four
    assert logger.calls >= 50 - 5
    logger.finish(state)
    assert rows(next(iter(logger.runs.values()))) == [2.0**i for i in range(50)]


def test_a_queue_is_bounded_in_bytes_too(monkeypatch):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_BYTES", 1000)
    logger = SlowLogger()
    logger.may_go_on.clear()
    state = logger.init(0)
    goes_on_when_the_program_waits(logger)
    for i in range(9):
        logger.log(state, {"x": np.full(100, i)})
    assert logger.calls >= 9 - 4
    logger.finish(state)
    assert len(rows(next(iter(logger.runs.values())))) == 900


@pytest.mark.parametrize("jobs", [2, 1000], ids=["full queue", "at the end"])
def test_a_backend_that_hangs_is_given_up(monkeypatch, jobs):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_JOBS", jobs)
    logger, memory = SlowLogger(), MemoryLogger()
    logger.patience = 0.2
    logger.may_go_on.clear()
    both = lox.loggers.MultiLogger(logger, memory)
    state = both.init(7)
    with pytest.warns(lox.LoxWarning, match="SlowLogger: .*not answered for 0.2 s"):
        assert both.tap(scanned, state)(1.0) == 8
        both.finish(state)
    assert rows(next(iter(memory.runs.values()))) == [1, 2, 4]
    # not one row is lost
    found = lox.load(".lox/unsent")
    assert found == lox.spool(scanned)(1.0)[1]
    logger.may_go_on.set()


class KeepingLogger(MemoryLogger):
    """A client that sends rows in batches, until it fails."""

    background = True

    def __init__(self, fails=False):
        super().__init__()
        self.fails, self.kept, self.sent = fails, [], []

    def write(self, run, logs):
        self.kept.append(logs)

    def flush(self, run):
        if self.fails:
            raise ConnectionError("no network")
        self.sent += self.kept
        self.kept = []


def test_what_a_backend_keeps_back_is_sent_when_there_is_time():
    logger = KeepingLogger()
    state = logger.init(0)
    logger.tap(scanned, state)(1.0)
    logger.finish(state)
    assert rows(logger.sent) == [1, 2, 4] and not logger.kept


def test_what_a_backend_kept_back_and_could_not_send_is_on_disk():
    logger = KeepingLogger(fails=True)
    state = logger.init(7)
    with pytest.warns(lox.LoxWarning, match="KeepingLogger: it failed.*no network"):
        logger.tap(scanned, state)(1.0)
        logger.finish(state)
    found = lox.load(".lox/unsent")
    assert found == lox.spool(scanned)(1.0)[1]


def test_what_waits_in_the_queue_is_sent_when_python_ends():
    program = """
    import atexit, threading
    import lox.loggers

    ending = threading.Event()

    class Slow(lox.loggers.Logger):
        background = True

        def open(self, run):
            # as a client does, which must not close before the rows are there
            atexit.register(print, "client closed")

        def write(self, run, logs):
            ending.wait()
            print(logs["x"])

        def close(self, run):
            print("run closed")

    logger = Slow()
    state = logger.init(0)
    logger._wait()
    for i in range(20):
        logger.log(state, {"x": i})
    ending.set()
    raise ValueError("the user's own")
    """
    run = programs.run(program)
    expected = [*map(str, range(20)), "run closed", "client closed"]
    assert run.stdout.split("\n")[:-1] == expected
    assert "the user's own" in run.stderr and "LoxWarning" not in run.stderr


def test_a_process_that_is_forked_does_not_end_the_runs_of_its_parent():
    program = """
    import os, sys, warnings
    import lox.loggers

    warnings.simplefilter("ignore")  # those of `fork`

    class Says(lox.loggers.Logger):
        def open(self, run): ...
        def write(self, run, logs): ...
        def close(self, run):
            print("closed by", os.getpid() == parent, flush=True)

    parent = os.getpid()
    state = Says().init(0)
    if os.fork():
        os.wait()
    else:  # without JAX, which may wait for ever there
        lox.loggers._runs.exit._close_all()
        os._exit(0)
    """
    run = programs.run(program)
    assert run.stdout == "closed by True\n", run.stderr


def test_values_that_wait_are_those_that_were_logged():
    logger = SlowLogger()
    logger.may_go_on.clear()
    state = logger.init(0)
    x = np.zeros(3)
    for _ in range(3):
        x += 1
        logger.log(state, {"x": x})
    logger.may_go_on.set()
    logger.finish(state)
    assert rows(next(iter(logger.runs.values()))) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_values_are_sent_with_their_steps():
    logger = MemoryLogger()

    @jax.vmap
    def f(key):
        state = logger.init(key)
        logger.log(state, {"x": 1.0, "y": 2.0}, step=3, episode=1)

    f(jax.random.split(jax.random.key(0), 2))
    jax.effects_barrier()
    for calls in logger.runs.values():
        (logs,) = calls
        assert logs.step["x"] == logs.step["y"] == 3 and logs.episode["x"] == 1
    with pytest.raises(lox.LoxTypeError, match="has steps of its own.*'step'"):
        logger.log(logger.init(7), lox.logdict({"x": 1.0}), step=3)


def test_many_runs_that_fail_for_one_reason_say_so_once():
    logger = BrokenLogger()
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
    with pytest.warns(lox.LoxWarning, match="no network") as seen:
        jax.vmap(lambda s, x: logger.tap(scanned, s)(x))(states, jnp.arange(8.0))
        jax.effects_barrier()
    assert len(seen) == 1
    logger.finish(states)
    assert len(lox.runs(".lox/unsent")) == 8


def test_a_queue_works_where_no_thread_can_be_started(monkeypatch):
    """As some versions of Python have it while they exit."""
    logger = SlowLogger()
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    logger._wait()
    logger._runs._queue._worker = None  # it has gone, for want of work

    def refuses(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    logger.log(state, {"x": 2.0})
    logger.finish(state)
    assert rows(next(iter(logger.runs.values()))) == [1, 2] and logger.closed


def test_an_empty_multi_logger_does_nothing():
    def f(x):
        lox.log({"x": x})
        return x + 1

    logger = lox.loggers.MultiLogger()
    state = logger.init(jax.random.key(0))
    for call in (logger.tap, logger.spool):
        assert call(f, state)(1.0) == 2.0
        assert jax.jit(call(f, state))(1.0) == 2.0
    logger.log(state, {"x": 1.0})
    jax.effects_barrier()
    logger.finish(state)


# --- the line that a warning names -------------------------------------------


def test_a_warning_from_a_callback_names_a_line_of_the_program():
    def f(n):
        def body(i):
            lox.log({"i": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    logger = lox.loggers.MultiLogger()
    state = logger.init(jax.random.key(0))
    with pytest.warns(lox.LoxWarning, match="3 rows of 'i' were dropped") as seen:
        jax.jit(logger.spool(f, state, capacity=2))(5)
        jax.effects_barrier()
    assert {warning.filename for warning in seen} == {__file__}
    assert all(warning.lineno > 1 for warning in seen)


def test_a_line_is_named_on_a_thread_without_one():
    found = []
    # builtins have no frames
    in_threads(found.extend, [(map(user_source, [()]),)])
    (source,) = found
    assert source.line > 0
    assert source.file not in ("<unknown>", threading.__file__)
