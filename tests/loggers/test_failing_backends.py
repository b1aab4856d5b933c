"""Refused runs and failing backends: no row is lost, and other runs continue."""

import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from tests import programs
from tests.loggers.backends import BrokenNumberLogger, NumberLogger, counting
from tests.waiting import in_threads, join


def test_refused_run_does_not_affect_other_runs():
    lox.save({"x": 9.0}, "store", key=1)
    logger = lox.loggers.SaveLogger("store")

    @jax.jit
    @jax.vmap
    def f(seed):
        state = logger.init(jax.random.key(seed))
        logger.tap(counting, state)(1.0 * seed)
        logger.finish(state)

    f(jnp.arange(4))
    with pytest.raises(
        lox.StoreError, match="a run already exists at store/00000000-000000"
    ):
        jax.effects_barrier()
    f(jnp.arange(10, 14))
    jax.effects_barrier()
    for seed in (0, 2, 3, 10, 11, 12, 13):
        found = lox.load("store", key=seed)["x"]
        assert found.tolist() == [seed, seed + 1, seed + 2]
    # the rows of the refused run are kept, too
    assert lox.load("store", key=1) == {"x": 9.0}
    assert lox.load(".lox/unsent")["x"].tolist() == [1, 2, 3]


def test_run_refused_in_later_program_loses_no_row():
    lox.save({"x": 9.0}, "store", key=1)
    states = lox.loggers.LoggerState(jnp.array([[0, 0], [0, 1], [0, 2]], jnp.uint32))
    logger = lox.loggers.SaveLogger("store")
    with pytest.raises(
        lox.StoreError, match="a run already exists at store/00000000-000000"
    ):
        logger.tap(jax.vmap(counting), states)(jnp.arange(3.0))
    logger.finish(states)
    assert lox.load("store", key=0)["x"].tolist() == [0, 1, 2]
    assert lox.load("store", key=2)["x"].tolist() == [2, 3, 4]
    assert lox.load(".lox/unsent")["x"].tolist() == [1, 2, 3]


def test_refused_init_under_vmap_raises_immediately():
    lox.save({"x": 9.0}, "store", key=1)
    logger = lox.loggers.SaveLogger("store")
    with pytest.raises(
        lox.StoreError, match='a run already exists at.*`exists="resume"`'
    ):
        jax.vmap(logger.init)(jax.vmap(jax.random.key)(jnp.arange(3)))


def test_threads_that_abandon_backend_together_lose_no_row(monkeypatch):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_JOBS", 5)
    forever = threading.Event()

    class Hangs(NumberLogger):
        background, patience = True, 0.2

        def write(self, run, logs):
            forever.wait()

    logger = Hangs()
    state = logger.init(0)

    def work(first):
        for i in range(20):
            logger.log(state, {"x": float(first + i)})

    with pytest.warns(lox.LoxWarning, match="not responded for 0.2 s") as seen:
        in_threads(work, [(100 * k,) for k in range(5)])
        logger.finish(state)
    forever.set()
    assert len(seen) == 1
    expected = sorted(float(100 * k + i) for k in range(5) for i in range(20))
    assert sorted(lox.load(".lox/unsent")["x"].tolist()) == expected


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_warnings_as_errors_lose_no_row_of_working_backends(background, order):
    """These tests, like those of many users, turn warnings into errors."""
    broken = BrokenNumberLogger(background=background)
    saved = lox.loggers.SaveLogger("store")
    logger = lox.loggers.MultiLogger(*(broken, saved)[::order])
    states = [logger.init(seed) for seed in range(2)]
    raised = []

    def trying(call, *args):
        try:
            call(*args)
        except lox.LoxWarning as warning:
            raised.append(str(warning))

    for i in range(20):
        for state in states:
            trying(lambda s=state, i=i: logger.log(s, {"x": float(i)}, step=i))
    states.append(logger.init(2))
    for state in states:
        trying(logger.tap(counting, state), 20.0)
        trying(logger.finish, state)
    assert len(raised) == 1 and "no network" in raised[0]
    for seed in range(2):
        found = lox.load("store", key=seed)["x"].tolist()
        assert found == [*range(20), 20, 21, 22]
    assert lox.load("store", key=2)["x"].tolist() == [20, 21, 22]
    unsent = lox.runs(".lox/unsent")
    assert len(unsent) == 3 and all(run.name.startswith("Broken") for run in unsent)
    assert sorted(len(run.load()["x"]) for run in unsent) == [3, 23, 23]


@pytest.mark.parametrize("background", [False, True])
def test_warnings_as_errors_lose_no_state(background):
    class NotThere(lox.loggers.Logger):
        def open(self, run):
            raise ConnectionError("no network")

        def write(self, run, logs): ...

    NotThere.background = background
    logger = NotThere()
    state = logger.init(0)
    logger._runs._queue is None or logger._runs._queue.join()
    other = logger.init(1)
    with pytest.raises(lox.LoxWarning, match="no network"):
        logger.log(state, {"x": 1.0})
    logger.log(other, {"x": 2.0})
    logger.finish(state)
    logger.finish(other)
    kept = [run.load()["x"].item() for run in lox.runs(".lox/unsent")]
    assert sorted(kept) == [1.0, 2.0]


def test_logger_that_fails_at_exit_does_not_affect_others():
    program = """
    import warnings
    import lox

    warnings.simplefilter("error", lox.LoxWarning)

    class Broken(lox.loggers.Logger):
        background = True
        def open(self, run): ...
        def write(self, run, logs): ...
        def close(self, run):
            raise ConnectionError("no network")

    class Slow(lox.loggers.Logger):
        background = True
        def open(self, run): ...
        def write(self, run, logs):
            print(int(logs["x"]), flush=True)

    loggers = [Broken(), Slow(), Broken()]
    for logger in loggers:
        state = logger.init(0)
    state = loggers[1].init(1)
    for i in range(20):
        loggers[1].log(state, {"x": i})
    """
    run = programs.run(program)
    assert run.stdout.split() == [str(i) for i in range(20)]
    assert "no network" in run.stderr


def test_ctrl_c_during_finish_loses_no_row():
    program = """
    import os, signal, threading
    import lox

    finishing = threading.Event()

    class Slow(lox.loggers.Logger):
        background = True
        def open(self, run): ...
        def write(self, run, logs):
            finishing.wait()
            if logs["x"] == 50:
                os.kill(os.getpid(), signal.SIGINT)
            print(int(logs["x"]), flush=True)
        def finish(self, state):
            finishing.set()
            super().finish(state)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    logger = Slow()
    state = logger.init(0)
    for i in range(100):
        logger.log(state, {"x": i})
    logger.finish(state)
    """
    run = programs.run(program)
    assert "KeyboardInterrupt" in run.stderr
    assert run.stdout.split() == [str(i) for i in range(100)]


def test_backend_that_calls_exit_counts_as_failed():
    class Exits(NumberLogger):
        background = True

        def write(self, run, logs):
            sys.exit("enough")

    logger = Exits()
    state = logger.init(0)
    with pytest.warns(lox.LoxWarning, match=r"failed with SystemExit\('enough'\)"):
        logger.tap(counting, state)(0.0)
        logger.finish(state)
    assert lox.load(".lox/unsent")["x"].tolist() == [0, 1, 2]


def test_finish_does_not_wait_for_later_rows_of_other_runs():
    logger = NumberLogger(background=True)
    first, second = logger.init(0), logger.init(1)
    done = threading.Event()

    def flood():
        while not done.is_set():
            logger.log(first, {"x": 0.0})

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    logger.log(second, {"x": 1.0})
    logger.finish(second)  # must return although the other run keeps logging
    done.set()
    join(thread)
    assert (0, 1) in logger.closed and logger.runs[0, 1] == [1.0]
    logger.finish(first)


def test_unsent_rows_are_kept_per_logger():
    with pytest.warns(lox.LoxWarning, match="no network"):
        for value in (1.0, 2.0):
            logger = BrokenNumberLogger()
            logger.log(logger.init(0), {"x": value})
    assert [run.load()["x"] for run in lox.runs(".lox/unsent")] == [1.0, 2.0]


def test_unsent_rows_that_do_not_fit_together_are_kept_in_two_runs():
    logger = BrokenNumberLogger()
    state = logger.init(0)
    with pytest.warns(lox.LoxWarning, match="no network"):
        logger.log(state, {"x": 1.0}, step=1)
        logger.log(state, {"x": 2.0})
        logger.log(state, {"x": np.ones(3)})
    assert len(lox.runs(".lox/unsent")) == 3


def test_forked_process_has_its_own_runs():
    program = """
    import os, warnings
    import lox

    warnings.simplefilter("ignore")  # those of `fork`

    class Says(lox.loggers.Logger):
        background = True
        def open(self, run):
            return run.name[-1]
        def write(self, run, logs):
            print(os.getpid() == parent, run, float(logs["x"]), flush=True)

    parent = os.getpid()
    logger = Says()
    state = logger.init(0)
    logger.log(state, {"x": 1})
    logger._wait()
    if os.fork():
        os.wait()
        logger.log(state, {"x": 3})
    else:  # without JAX, which may wait for ever there
        logger._runs.write((0, 1), lox.logdict({"x": 2}))
        logger._runs.close_all()
        os._exit(0)
    """
    run = programs.run(program)
    assert run.stdout.splitlines() == ["True 0 1.0", "False 1 2.0", "True 0 3.0"]
