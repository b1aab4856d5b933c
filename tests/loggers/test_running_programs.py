"""Loggers while a program runs: `finish`, late `init`, and calls from callbacks."""

import gc
import json
import pathlib
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import lox
import lox.loggers
from tests import programs
from tests.loggers.backends import NumberLogger, counting
from tests.waiting import in_threads


@jax.jit
def slowly(x):
    """Is slow, so that a program that uses its result still runs when `jit` returns."""
    return lax.fori_loop(0, 40, lambda i, a: jnp.sin(a @ a), jnp.ones((600, 600)) * x)


# --- programs that are still running ---------------------------------------


def test_finish_and_log_wait_for_running_program():
    logger = NumberLogger()
    state = logger.init(0)
    run = jax.jit(lambda state, x: logger.tap(counting, state)(x[0, 0] * 0))
    x = slowly(1.0)
    run(state, x)
    x = slowly(1.0)
    run(state, x)
    logger.log(state, {"x": 9.0})
    run(state, slowly(1.0))
    logger.finish(state)
    assert list(logger.runs.values()) == [[0, 1, 2, 0, 1, 2, 9, 0, 1, 2]]


def test_program_running_at_exit_loses_no_row(tmp_path):
    program = """
    import jax, jax.numpy as jnp, lox

    logger = lox.loggers.SaveLogger("store")
    state = logger.init(0)

    def train(x):
        def body(carry, i):
            lox.log({"x": i})
            return carry, None
        jax.lax.scan(body, x, jnp.arange(500))

    slowly = jax.jit(lambda a: jax.lax.fori_loop(0, 40, lambda i, a: jnp.sin(a @ a), a))
    run = jax.jit(lambda state, x: logger.tap(train, state)(x[0, 0]))
    run(state, slowly(jnp.ones((600, 600))))
    """
    run = programs.run(program)
    assert run.returncode == 0 and not run.stderr, run.stderr
    assert len(lox.load("store")["x"]) == 500


def test_logger_can_be_called_in_tap_callback():
    logger = NumberLogger()
    state = logger.init(0)
    tapped = lox.tap(counting, lambda logs: logger.log(state, logs))
    tapped(0.0)
    jax.jit(tapped)(3.0)
    jax.effects_barrier()

    @jax.jit
    def other(x):
        jax.debug.callback(lambda x: logger.log(state, {"x": x}), x)

    other(6.0)
    jax.effects_barrier()
    assert list(logger.runs.values()) == [[0, 1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("background", [False, True])
def test_finish_waits_for_unordered_rows(background):
    logger = NumberLogger(background=background)

    @jax.jit
    @jax.vmap
    def f(key):
        state = logger.init(key)
        logger.tap(counting, state, ordered=False)(0.0)
        logger.finish(state)

    f(jax.random.split(jax.random.key(0), 4))
    jax.effects_barrier()
    assert len(logger.closed) == 4
    assert [sorted(x) for x in logger.runs.values()] == [[0, 1, 2]] * 4


@pytest.mark.parametrize("axes", [{"d"}, {"d", "e"}], ids=["some axes", "all axes"])
def test_finish_waits_for_all_devices(axes):
    mesh = jax.make_mesh((2, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    logger = NumberLogger()

    def f(x):
        state = logger.init(0)
        logger.tap(counting, state)(x.sum())
        logger.finish(state)
        return x

    spec = PartitionSpec(tuple(sorted(axes)))
    split = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=axes)
    jax.jit(split)(jnp.arange(4.0))
    jax.effects_barrier()
    ((run, rows),) = logger.runs.items()
    expected = range(4) if len(axes) == 2 else [1, 5]
    assert sorted(rows) == sorted(x + i for x in expected for i in range(3))
    assert logger.closed == [run]


# --- rows of other devices that arrive before `init` -----------------------


def overtaken(logger, words=(0, 7), rows=5):
    """Rows that arrive before `init`, as in a program with a `shard_map`."""
    logger._unordered = logger._devices = logger._opens_inside = True
    for i in range(rows):
        logger._runs.write(words, lox.logdict({"x": np.float32(i)}), late=True)
    logger._runs.open(words, late=True, config={"lr": 0.1})
    logger._runs.close_late(words)
    jax.effects_barrier()


@pytest.mark.parametrize("most", [100, 2], ids=["early", "begun by itself"])
@pytest.mark.parametrize("background", [False, True])
def test_late_init_adopts_run_and_config(most, background, monkeypatch):
    monkeypatch.setattr("lox.loggers._runs.open_runs._MAX_EARLY", most)
    logger = lox.loggers.SaveLogger("store", config={"model": "mlp"})
    logger.background = background
    overtaken(logger)
    (run,) = lox.runs("store")
    assert run.config == {"model": "mlp", "lr": 0.1}
    assert run.load()["x"].tolist() == [0, 1, 2, 3, 4]


def test_late_init_reaches_all_loggers_of_multi_logger(monkeypatch):
    monkeypatch.setattr("lox.loggers._runs.open_runs._MAX_EARLY", 2)
    text = lox.loggers.JSONLinesLogger("lines")
    saved = lox.loggers.SaveLogger("store")
    overtaken(lox.loggers.MultiLogger(saved, text))
    assert lox.runs("store")[0].config == {"lr": 0.1}
    (config,) = pathlib.Path("lines").glob("*.config.json")
    assert json.loads(config.read_text()) == {"lr": 0.1}


def test_late_config_that_backend_cannot_set_is_reported(monkeypatch):
    monkeypatch.setattr("lox.loggers._runs.open_runs._MAX_EARLY", 2)
    logger = NumberLogger()
    with pytest.warns(lox.LoxWarning, match="without its config"):
        overtaken(logger)
    assert logger.runs == {(0, 7): [0, 1, 2, 3, 4]} and logger.closed == [(0, 7)]


def test_run_without_init_is_written_immediately():
    """As after a restart, when a state comes from a checkpoint."""
    logger = NumberLogger()
    logger._unordered = True
    logger._runs.write((0, 7), lox.logdict({"x": np.float32(1)}), late=True)
    assert logger.runs == {(0, 7): [1.0]}


# --- which calls come from a callback, and what tracing leaves behind ------


def test_init_under_tree_map_is_not_mistaken_for_callback():
    """It waits for running programs and raises their errors."""
    logger = NumberLogger()
    states = jax.tree.map(logger.init, [1, 2])
    with pytest.raises(lox.LoxError, match="open"):
        jax.tree.map(logger.init, [3, 1])
    f = jax.jit(logger.tap(lambda x: counting(x, 300), states[0]))
    f(1.0)
    jax.tree.map(lambda i: logger.finish(states[i]), [0, 1])
    assert len(logger.runs[0, 1]) == 300
    assert logger.closed == [(0, 1), (0, 2)]


@pytest.mark.parametrize("callback", [jax.debug.callback, jax.pure_callback])
def test_logger_can_be_called_in_jax_callback(callback):
    logger = NumberLogger()

    def host(x):
        state = logger.init(int(x))
        logger.log(state, {"x": np.asarray(x)})
        logger.finish(state)
        return np.float32(x)

    def f(x):
        if callback is jax.pure_callback:
            return callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)
        callback(host, x)
        return x

    assert jax.jit(f)(3.0) == 3
    jax.effects_barrier()
    assert logger.runs == {(0, 3): [3.0]}


def test_tracing_does_not_change_the_logger():
    logger = NumberLogger()
    state = logger.init(0)
    before = dict(vars(logger))
    jax.make_jaxpr(logger.tap(counting, state, ordered=False))(1.0)
    jax.eval_shape(logger.tap(counting, state, ordered=False), 1.0)
    jax.make_jaxpr(lambda x: logger.tap(counting, logger.init(5), ordered=False)(x))(
        1.0
    )
    assert vars(logger) == before


# --- a new logger per run --------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"ordered": False}], ids=str)
def test_new_loggers_share_a_compiled_program(options):
    traced, loggers = [], [NumberLogger() for _ in range(4)]

    def program(x):
        traced.append(x)
        return counting(x)

    for i, logger in enumerate(loggers):
        state = logger.init(i)
        logger.tap(program, state, **options)(10.0 * i)
        logger.finish(state)
    assert len(traced) == 1
    for i, logger in enumerate(loggers):
        ((words, rows),) = logger.runs.items()
        assert words == (0, i) and list(rows) == [10 * i, 10 * i + 1, 10 * i + 2]


def test_logger_is_collected_after_its_run_is_finished():
    gone = []

    def program(x):
        return counting(x)

    for i in range(3):
        logger = NumberLogger()
        weakref.finalize(logger, gone.append, i)
        state = logger.init(i)
        logger.tap(program, state)(0.0)
        logger.finish(state)
    del logger
    gc.collect()
    assert sorted(gone) == [0, 1, 2]


def test_loggers_in_two_threads_share_a_program():
    loggers = [NumberLogger() for _ in range(2)]

    def program(x):
        return counting(x, 200)

    def run(logger):
        state = logger.init(0)
        for _ in range(5):
            logger.tap(program, state)(0.0)
        logger.finish(state)

    in_threads(run, [(logger,) for logger in loggers])
    for logger in loggers:
        assert logger.runs == {(0, 0): list(range(200)) * 5}
