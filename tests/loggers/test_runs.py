"""Runs: one per key and vmapped seed, under JAX transformations."""

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

import lox
import lox.loggers
from lox._source import user_source
from tests.loggers.backends import (
    METHODS,
    BrokenLogger,
    MemoryLogger,
    rows,
    scanned,
    words,
)
from tests.waiting import in_threads

# --- one run ----------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_run_receives_its_logs(method, wrap):
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


def test_init_and_finish_work_inside_jit_and_scan():
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


def test_logger_accepts_options_of_tap_and_spool():
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
def test_logger_does_not_change_results_or_gradients(method):
    logger = MemoryLogger()
    run = getattr(logger, method)(scanned, logger.init(0))
    assert jax.grad(run)(1.0) == 8
    jax.effects_barrier()
    assert rows(next(iter(logger.runs.values()))) == [1, 2, 4]


def test_logger_supports_static_arguments_and_keywords():
    logger = MemoryLogger()
    state = logger.init(0)
    run = logger.tap(scanned, state, static_argnums=1)
    assert run(1.0, 2) == 4
    run = logger.tap(scanned, state, static_argnames="n")
    assert run(x=1.0, n=1) == 2


# --- one run per lane ------------------------------------------------------


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
def test_vmap_logs_one_run_per_lane(jit, method, options, around):
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


def test_vmap_of_64_lanes_makes_one_host_call(monkeypatch):
    logger = MemoryLogger()
    keys = jax.random.split(jax.random.key(0), 64)
    states = jax.vmap(logger.init)(keys)
    jax.vmap(lambda s, x: logger.tap(scanned, s)(x))(states, jnp.arange(64.0))
    jax.effects_barrier()
    assert logger.calls == 64 * 3
    for i, key in enumerate(keys):
        assert rows(logger.runs[words(key)]) == [i, 2 * i, 4 * i]


def test_vmap_inside_run_logs_lanes_to_that_run():
    logger = MemoryLogger()
    key = jax.random.key(0)
    logger.tap(jax.vmap(scanned), logger.init(key))(jnp.array([1.0, 10.0]))
    assert sorted(rows(logger.runs[words(key)])) == [1, 2, 4, 10, 20, 40]


def test_state_of_wrong_shape_raises_error_with_remedy():
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))
    with pytest.raises(lox.LoxValueError, match=r"'x'.*\(2,\) lanes.*\(3,\) runs"):
        logger.tap(jax.vmap(scanned), states)(jnp.arange(2.0))
    with pytest.raises(lox.LoxValueError, match="2 lane.* 3 runs"):
        logger.spool(jax.vmap(scanned), states)(jnp.arange(2.0))
    with pytest.raises(
        lox.LoxTypeError, match="needs the state that its `init` returned"
    ):
        logger.tap(scanned, None)


# --- keys ------------------------------------------------------------------


def test_run_key_can_be_reused_only_after_finish():
    logger = MemoryLogger()
    state = logger.init(0)
    with pytest.raises(lox.LoxValueError, match="key 00000000-00000000.*own key"):
        logger.init(0)
    logger.finish(state)
    with pytest.raises(lox.LoxValueError, match=r"which is finished.*`init`"):
        logger.log(state, {"x": 1.0})
    with pytest.raises(lox.LoxValueError, match="which is finished"):
        logger.tap(scanned, state)(1.0)
    logger.log(logger.init(0), {"x": 1.0})


def test_init_without_key_creates_new_run():
    logger = MemoryLogger()
    first, second = logger.init(), logger.init()
    assert first.words.tolist() != second.words.tolist() and len(logger.runs) == 2
    with pytest.raises(lox.LoxTypeError, match="needs a `key` inside `jax.jit`"):
        jax.jit(lambda: logger.init())()


# --- on disk ---------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_saved_run_equals_spooled_logs(method):
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


def logs_in_many_places(x, n):
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
def test_saved_run_has_axes_of_spooled_logs(options, n, wrap):
    """Also if a loop logs a single row, which has a time axis."""
    logger = lox.loggers.SaveLogger("store")
    xs = jnp.float32(1.0) if wrap is not jax.vmap else jnp.arange(1.0, 4.0)
    states = wrap(logger.init)(xs.astype(int))
    f = partial(logs_in_many_places, n=n)
    wrap(lambda state, x: logger.tap(f, state, **options)(x))(states, xs)
    logger.finish(states)
    spooling = {k: v for k, v in options.items() if k != "buffer"}
    for x in np.ravel(xs):
        expected = lox.spool(f, **spooling)(x)[1].compact()
        found = lox.load("store", key=int(x))
        assert found == expected
        assert all(found[key].shape == expected[key].shape for key in expected)


def test_prng_keys_logged_by_program_are_saved_as_key_data():
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
def test_init_sets_config_per_run(jit):
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
            text_config = pathlib.Path(f"text/00000000-0000000{i}.config.json")
            assert json.loads(text_config.read_text()) == own
        shutil.rmtree("store")
        shutil.rmtree("text")
    state = logger.init(9, config={"lr": np.float32(0.1), "name": "one"})
    logger.finish(state)
    assert lox.runs("store")[0].config == {"net": "mlp", "lr": 0.1, "name": "one"}
    with pytest.raises(lox.LoxTypeError, match="a run's `config` must be .*not 3"):
        logger.init(10, config=3)


def test_unsent_rows_keep_config_of_their_run():
    logger = BrokenLogger({"net": "mlp"})
    with pytest.warns(lox.LoxWarning, match="no network"):
        jax.vmap(lambda k, lr: logger.tap(scanned, logger.init(k, {"lr": lr}))(lr))(
            jnp.arange(2), jnp.array([0.5, 1.0])
        )
    found = [run.config for run in lox.runs(".lox/unsent")]
    assert sorted(found, key=str) == [{"net": "mlp", "lr": lr} for lr in (0.5, 1.0)]


def test_existing_run_is_refused_unless_allowed():
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


# --- the line that a warning names -----------------------------------------


def test_warning_from_callback_names_line_of_program():
    def f(n):
        def body(i):
            lox.log({"i": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    logger = lox.loggers.MultiLogger()
    state = logger.init(jax.random.key(0))
    with pytest.warns(lox.LoxWarning, match="dropped: 3 rows of 'i'") as seen:
        jax.jit(logger.spool(f, state, capacity=2))(5)
        jax.effects_barrier()
    assert {warning.filename for warning in seen} == {__file__}
    assert all(warning.lineno > 1 for warning in seen)


def test_warning_on_thread_without_user_code_names_a_line():
    found = []
    # builtins have no frames
    in_threads(found.extend, [(map(user_source, [()]),)])
    (source,) = found
    assert source.line > 0
    assert source.file not in ("<unknown>", threading.__file__)
