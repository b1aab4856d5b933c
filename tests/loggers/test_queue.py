"""The queue of slow backends: bounded, complete, and non-blocking."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from tests import programs
from tests.loggers.backends import METHODS, BrokenLogger, MemoryLogger, rows, scanned
from tests.waiting import wait_until


class SlowLogger(MemoryLogger):
    """A client that waits until the test lets it continue."""

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
def test_slow_backend_does_not_block_the_program(method):
    logger = SlowLogger()
    logger.may_go_on.clear()
    state = logger.init(0)
    run = getattr(logger, method)(scanned, state)
    assert jax.jit(run)(1.0) == 8  # although nothing has been written
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


def run_of(logger, x):
    state = logger.init(0)
    x = logger.tap(scanned, state)(x)
    logger.finish(state)
    return x


def run_without_order(logger, x):
    state = logger.init(0)
    x = logger.tap(scanned, state, ordered=False)(x)
    logger.finish(state)
    return x


def run_on_one_of_the_devices(logger, x):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "i")
    run = functools.partial(run_of, logger)
    none = jax.P()
    return jax.shard_map(
        run, mesh=mesh, in_specs=none, out_specs=none, check_vma=False
    )(x)


@pytest.mark.parametrize("run", [run_of, run_without_order, run_on_one_of_the_devices])
def test_barrier_after_finish_inside_jit_waits_for_the_queue(run):
    logger = SlowLogger()
    logger.may_go_on.clear()
    resume_when_the_program_waits(logger)
    jax.jit(functools.partial(run, logger))(1.0)
    jax.effects_barrier()
    assert len(logger.closed) == 1
    assert sorted(rows(next(iter(logger.runs.values())))) == [1, 2, 4]


def resume_when_the_program_waits(logger):
    def release():
        wait_until(lambda: (queue := logger._runs._queue) and queue._waiting)
        logger.may_go_on.set()

    threading.Thread(target=release, daemon=True).start()


def test_full_queue_blocks_the_program_and_drops_nothing(monkeypatch):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_JOBS", 4)
    logger = SlowLogger()
    logger.may_go_on.clear()
    state = logger.init(0)
    resume_when_the_program_waits(logger)
    logger.tap(scanned, state, static_argnames="n")(1.0, n=50)
    # there was no room for more than four
    assert logger.calls >= 50 - 5
    logger.finish(state)
    assert rows(next(iter(logger.runs.values()))) == [2.0**i for i in range(50)]


def test_queue_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_BYTES", 1000)
    logger = SlowLogger()
    logger.may_go_on.clear()
    state = logger.init(0)
    resume_when_the_program_waits(logger)
    for i in range(9):
        logger.log(state, {"x": np.full(100, i)})
    assert logger.calls >= 9 - 4
    logger.finish(state)
    assert len(rows(next(iter(logger.runs.values())))) == 900


@pytest.mark.parametrize("jobs", [2, 1000], ids=["full queue", "at the end"])
def test_backend_that_hangs_is_abandoned(monkeypatch, jobs):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_JOBS", jobs)
    logger, memory = SlowLogger(), MemoryLogger()
    logger.patience = 0.2
    logger.may_go_on.clear()
    both = lox.loggers.MultiLogger(logger, memory)
    state = both.init(7)
    with pytest.warns(lox.LoxWarning, match="SlowLogger: .*not responded for 0.2 s"):
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


def test_rows_kept_by_backend_are_sent_when_idle():
    logger = KeepingLogger()
    state = logger.init(0)
    logger.tap(scanned, state)(1.0)
    logger.finish(state)
    assert rows(logger.sent) == [1, 2, 4] and not logger.kept


def test_rows_that_backend_could_not_send_are_on_disk():
    logger = KeepingLogger(fails=True)
    state = logger.init(7)
    with pytest.warns(lox.LoxWarning, match="KeepingLogger: it failed.*no network"):
        logger.tap(scanned, state)(1.0)
        logger.finish(state)
    found = lox.load(".lox/unsent")
    assert found == lox.spool(scanned)(1.0)[1]


def test_queued_rows_are_sent_at_exit():
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


def test_forked_process_does_not_finish_runs_of_its_parent():
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


def test_queued_values_are_copies():
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


def test_queued_values_are_sent_with_their_steps():
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
    with pytest.raises(lox.LoxTypeError, match="already has its steps.*'step'"):
        logger.log(logger.init(7), lox.logdict({"x": 1.0}), step=3)


def test_runs_that_fail_for_one_reason_warn_once():
    logger = BrokenLogger()
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
    with pytest.warns(lox.LoxWarning, match="no network") as seen:
        jax.vmap(lambda s, x: logger.tap(scanned, s)(x))(states, jnp.arange(8.0))
        jax.effects_barrier()
    assert len(seen) == 1
    logger.finish(states)
    assert len(lox.runs(".lox/unsent")) == 8


def test_queue_works_without_threads(monkeypatch):
    """As in some versions of Python while they exit."""
    logger = SlowLogger()
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    logger._wait()
    logger._runs._queue._worker = None  # the thread has ended because there was no work

    def refuses(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    logger.log(state, {"x": 2.0})
    logger.finish(state)
    assert rows(next(iter(logger.runs.values()))) == [1, 2] and logger.closed
