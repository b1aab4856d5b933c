"""`MultiLogger`, also when some of its loggers fail."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import pytest

import lox
import lox.loggers
from tests.loggers.backends import (
    METHODS,
    BrokenLogger,
    DoublingLogger,
    MemoryLogger,
    rows,
    scanned,
    words,
)

# --- several loggers --------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_multi_logger_sends_same_rows_to_all_loggers(method):
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


def test_multi_logger_continues_when_one_logger_fails():
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


def test_multi_logger_opens_run_in_all_loggers_or_none():
    lox.loggers.SaveLogger("store").init(0)
    memory = MemoryLogger()
    logger = lox.loggers.MultiLogger(memory, lox.loggers.SaveLogger("store"))
    with pytest.raises(lox.StoreError, match="a run already exists at store"):
        logger.init(0)
    assert not memory.runs


@pytest.mark.parametrize("several", [False, True])
def test_subclass_can_override_write(several):
    logger = DoublingLogger("store")
    if several:
        logger = lox.loggers.MultiLogger(logger, MemoryLogger())
    state = logger.init(0)
    assert logger.tap(scanned, state)(1.0) == 8
    logger.finish(state)
    found = lox.load("store")
    assert found["x"].tolist() == [2, 4, 8] and found.step["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["SaveLogger", "CSVLogger", "JSONLinesLogger"])
def test_multi_logger_refuses_run_that_one_logger_refuses(kind):
    logger = getattr(lox.loggers, kind)
    logger("second").init(1)
    both = lox.loggers.MultiLogger(logger("first"), logger("second"))
    with pytest.raises(lox.StoreError, match="a run already exists at second"):
        both.init(1)
    with pytest.raises(lox.StoreError, match="a run already exists at second"):
        logger("second").init(jnp.array([[0, 0], [0, 1]], jnp.uint32))
    assert not pathlib.Path("first").exists()
    assert len(list(pathlib.Path("second").iterdir())) == 1
    # so the run can start once the user has decided what to do
    other = lox.loggers.MultiLogger(logger("first"), logger("second", exists="resume"))
    other.finish(other.init(1))


def test_multi_logger_in_program_sends_refused_run_to_other_loggers():
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


def test_repeated_key_under_vmap_is_reported_immediately():
    logger = MemoryLogger()
    run = jax.jit(jax.vmap(lambda x: logger.tap(scanned, logger.init(7))(x)))
    with pytest.warns(lox.LoxWarning, match="each lane of a `jax.vmap`") as seen:
        jax.block_until_ready(run(jnp.arange(3.0)))
        with pytest.raises(lox.LoxValueError, match="fold_in"):
            jax.effects_barrier()
    assert len(seen) == 1
    assert len(rows(logger.runs[0, 7])) == 9  # and nothing is lost


def test_store_removed_while_writing_is_reported():
    logger = lox.loggers.SaveLogger("store")
    state = logger.init(0)
    logger.log(state, {"x": 1})
    shutil.rmtree("store")
    with pytest.warns(lox.LoxWarning, match="SaveLogger: it failed.*was removed"):
        logger.log(state, {"x": 2})
    logger.finish(state)
    assert lox.load(".lox/unsent") == {"x": 2}


# --- slow backends ---------------------------------------------------------


def test_multi_logger_without_loggers_does_nothing():
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
