"""`full="spill"`: logs wait on disk while the queue of a slow backend is full."""

import inspect
import os
import pathlib
import signal
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
import lox.wandb
from lox.loggers._console.view import Viewer
from lox.loggers._runs import spill as spill_module
from lox.loggers._trackers.functions import FunctionLogger
from lox.loggers._trackers.tracker import Tracker
from tests import programs
from tests.loggers.backends import MemoryLogger, rows, scanned
from tests.waiting import in_threads, join, wait_for, wait_until

UNSENT = pathlib.Path(".lox/unsent")
FULL = "its queue is full, because the backend is slower"


@pytest.fixture(autouse=True)
def small_queue(monkeypatch):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_JOBS", 4)


@pytest.fixture(autouse=True)
def nothing_waits_at_the_end():
    yield
    found = str(spill_module.waiting)
    spill_module.waiting.reset()
    assert found == ""


class SlowLogger(MemoryLogger):
    """A client that the test stops, and that may fail or hang at the n-th call."""

    background = True
    full = "spill"

    def __init__(self, fails_at=None, hangs_at=None):
        super().__init__()
        self.may_go_on, self.hanging = threading.Event(), threading.Event()
        self.may_end = threading.Event()
        self.fails_at, self.hangs_at, self.started = fails_at, hangs_at, 0

    def write(self, run, logs):
        self.may_go_on.wait()
        number, self.started = self.started, self.started + 1
        if number == self.hangs_at:
            self.hanging.set()
            self.may_end.wait()
            return
        if self.fails_at is not None and number >= self.fails_at:
            raise ConnectionError("no network")
        self.calls += 1
        self.runs[run].append(logs)

    def close(self, run):
        assert run not in self.closed
        super().close(run)


def spilled(logger, log, key=0):
    """Calls `log` with a state while the backend is stopped; returns the state."""
    state = logger.init(key)
    logger._wait()  # until it is open, which is a job in the queue as well
    with pytest.warns(lox.LoxWarning, match=FULL) as seen:
        log(state)
    assert len(seen) == 1  # however much is spilled
    assert logger.calls == 0
    return state


def numbers(logger, state, count):
    for i in range(count):
        logger.log(state, {"x": i}, step=i)


def sent(logger):
    (calls,) = logger.runs.values()
    return [int(x) for x in rows(calls)]


def unsent_rows():
    return [int(x) for run in lox.runs(UNSENT) for x in np.ravel(run.load()["x"])]


def test_spilled_rows_are_sent_in_order_before_the_run_is_closed():
    logger = SlowLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 50))
    assert str(spill_module.waiting) == "46 rows of SlowLogger waiting on disk"
    logger.may_go_on.set()
    logger.finish(state)
    assert sent(logger) == list(range(50)) and logger.closed
    assert lox.runs(UNSENT) == []  # nothing is left on disk


def test_program_does_not_wait_and_the_queue_stays_small():
    logger = SlowLogger()
    state = logger.init(0)
    run = logger.tap(scanned, state, static_argnames="n")
    with pytest.warns(lox.LoxWarning, match=FULL):
        run(1.0, n=500)
    assert logger.calls == 0
    assert len(logger._runs._queue.jobs()) <= 5  # also the job that opens the run
    logger.may_go_on.set()
    logger.finish(state)


def mixed_logs(logger, state):
    """Logs of many forms: keys that alternate, buffers, lanes, trees and dtypes."""

    def program(x):
        def body(carry, i):
            lox.log({"x": carry}, step=i, tags="t")
            lox.log({"tree": {"a": carry, "b": [i, carry]}}, step=i, epoch=i // 2)
            lox.log({"rare": carry.astype(jnp.bfloat16)}, when=i % 3 == 1)
            return carry * 2, None

        carry, _ = jax.lax.scan(body, x, jnp.arange(5))
        lox.log({"end": carry})
        return carry

    logger.tap(program, state)(jnp.float32(1))
    logger.tap(program, state, buffer=3, prefix="buffered/")(jnp.float32(1))
    logger.tap(jax.vmap(program), state, prefix="lanes/")(jnp.arange(2.0))
    logger.spool(jax.vmap(program), state, prefix="spooled/")(jnp.arange(2.0))
    logger.log(state, {"y": np.arange(3), "z": True, "empty": np.zeros((0, 2))})


def test_spilled_logs_are_the_logs_that_a_waiting_logger_sends():
    expected = SlowLogger()
    expected.full = "wait"
    expected.may_go_on.set()
    state = expected.init(0)
    mixed_logs(expected, state)
    expected.finish(state)
    logger = SlowLogger()
    state = spilled(logger, lambda state: mixed_logs(logger, state))
    logger.may_go_on.set()
    logger.finish(state)
    (expected_calls,), (calls,) = expected.runs.values(), logger.runs.values()
    assert len(calls) == len(expected_calls)
    for logs, other in zip(calls, expected_calls, strict=True):
        assert logs == other
        assert logs.tags == other.tags
        for key in logs:
            ours, theirs = (jax.tree.leaves(x[key]) for x in (logs, other))
            assert [(x.dtype, x.shape) for x in ours] == [
                (x.dtype, x.shape) for x in theirs
            ]


def test_rows_go_to_the_queue_again_after_the_spilled_ones():
    logger = SlowLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 20))
    logger.may_go_on.set()
    wait_until(lambda: not lox.runs(UNSENT) and logger.calls == 20)
    for i in range(20, 40):
        logger.log(state, {"x": i}, step=i)
        logger._wait()
    assert lox.runs(UNSENT) == []
    logger.finish(state)
    assert sent(logger) == list(range(40))


def test_rows_logged_while_spilled_ones_are_sent_keep_their_order(monkeypatch):
    monkeypatch.setattr(spill_module, "_MAX_CHUNK_ROWS", 7)
    logger = SlowLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 100))
    assert len(lox.runs(UNSENT)) == 14
    logger.may_go_on.set()
    for i in range(100, 1000):
        logger.log(state, {"x": i}, step=i)
    logger.finish(state)
    assert sent(logger) == list(range(1000))
    assert lox.runs(UNSENT) == []


def test_many_runs_spill_at_once():
    logger = SlowLogger()
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
    with pytest.warns(lox.LoxWarning, match=FULL):
        jax.vmap(lambda s, x: logger.tap(scanned, s, static_argnames="n")(x, n=20))(
            states, jnp.arange(1.0, 9.0)
        )
        jax.effects_barrier()
    assert logger.calls == 0
    assert len({run.key.tobytes() for run in lox.runs(UNSENT)}) == 8
    logger.may_go_on.set()
    logger.finish(states)
    assert len(logger.closed) == 8
    starts = set()
    for calls in logger.runs.values():
        start = rows(calls)[0]
        assert rows(calls) == [start * 2.0**i for i in range(20)]
        starts.add(start)
    assert starts == set(range(1, 9))


def test_threads_that_log_to_their_own_runs_keep_their_order():
    logger = SlowLogger()
    states = [logger.init(i) for i in range(4)]

    def work(state):
        numbers(logger, state, 100)

    with pytest.warns(lox.LoxWarning, match=FULL):
        in_threads(work, [(state,) for state in states])
    logger.may_go_on.set()
    for state in states:
        logger.finish(state)
    for calls in logger.runs.values():
        assert rows(calls) == list(range(100))


@pytest.mark.parametrize("fails_at", [0, 2, 3, 4, 20, 49])
def test_backend_that_fails_gets_no_row_twice_and_loses_none(fails_at):
    logger = SlowLogger(fails_at=fails_at)
    state = spilled(logger, lambda state: numbers(logger, state, 50))
    logger.may_go_on.set()
    with pytest.warns(lox.LoxWarning, match="SlowLogger: it failed.*no network") as w:
        logger.finish(state)
    assert len(w) == 1 and ".lox/unsent" in str(w[0].message)
    assert sent(logger) == list(range(fails_at))
    assert unsent_rows() == list(range(fails_at, 50))
    assert len(lox.runs(UNSENT)) == 1  # one run, in order


@pytest.mark.parametrize("hangs_at", [0, 4, 30])
def test_backend_that_hangs_while_rows_wait_on_disk(hangs_at):
    logger = SlowLogger(hangs_at=hangs_at)
    logger.patience = 0.2
    state = spilled(logger, lambda state: numbers(logger, state, 50))
    logger.may_go_on.set()
    wait_for(logger.hanging)
    with pytest.warns(lox.LoxWarning, match="not responded for 0.2 s"):
        logger.finish(state)
    assert sent(logger) == list(range(hangs_at))
    assert unsent_rows() == list(range(hangs_at, 50))
    worker = next(t for t in threading.enumerate() if t.name == "SlowLogger")
    logger.may_end.set()
    join(worker)  # what it finds is not sent again
    assert sent(logger) == list(range(hangs_at))
    assert unsent_rows() == list(range(hangs_at, 50))


def test_slow_backend_that_makes_progress_does_not_count_as_hanging(monkeypatch):
    """One chunk may take longer than `patience`, but not one call."""
    logger = SlowLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 50))
    now = [0.0]

    class Clock:
        @staticmethod
        def monotonic():
            now[0] += 1.0  # each look takes a second
            return now[0]

    monkeypatch.setattr(lox.loggers._runs.queue, "time", Clock)
    logger.patience = logger._runs._queue._patience = 20.0
    queue = logger._runs._queue
    before = queue._progress()
    logger.may_go_on.set()
    logger.finish(state)
    # more than one per job: the opening, four rows, one chunk, and the closing
    assert queue._progress() - before >= 50
    assert sent(logger) == list(range(50))


def test_disk_that_cannot_be_written_makes_the_program_wait(monkeypatch):
    logger = SlowLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 20))

    def refuse(self, logs, size):
        raise OSError("no space left on device")

    def resume():
        wait_until(lambda: logger._runs._queue._waiting)
        logger.may_go_on.set()

    with monkeypatch.context() as patch:
        patch.setattr(spill_module.Spill, "write", refuse)
        thread = threading.Thread(target=resume, daemon=True)
        thread.start()
        with pytest.warns(lox.LoxWarning, match="written to disk.*no space left"):
            for i in range(20, 60):
                logger.log(state, {"x": i}, step=i)
        join(thread)
    logger.finish(state)
    assert sent(logger) == list(range(60))


def test_keys_that_change_their_shape_are_sent_in_order():
    logger = SlowLogger()

    def log(state):
        numbers(logger, state, 10)
        for i in range(10, 20):
            logger.log(state, {"x": np.full(1 + i % 2, i)}, step=i)

    state = spilled(logger, log)
    logger.may_go_on.set()
    logger.finish(state)
    expected = [[i] * (1 + (i % 2 if i >= 10 else 0)) for i in range(20)]
    assert sent(logger) == [x for each in expected for x in each]


class BufferingLogger(SlowLogger):
    """A client that sends its rows in `flush`."""

    def __init__(self):
        super().__init__()
        self.kept, self.on_disk = [], []

    def write(self, run, logs):
        self.may_go_on.wait()
        self.kept += [int(x) for x in np.ravel(logs["x"])]

    def flush(self, run):
        self.on_disk.append((len(lox.runs(UNSENT)), len(self.kept)))
        self.runs[run] += self.kept
        self.kept = []


def test_rows_stay_on_disk_until_a_buffering_backend_has_sent_them():
    logger = BufferingLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 50))
    logger.may_go_on.set()
    logger.finish(state)
    (found,) = logger.runs.values()
    assert found == list(range(50))
    assert all(runs == 1 for runs, kept in logger.on_disk if kept)


def test_rows_that_cannot_be_read_back_stay_on_disk():
    logger = SlowLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 20))
    (path,) = UNSENT.rglob("0000.json")
    path.write_text("{")
    logger.may_go_on.set()
    with pytest.warns(lox.LoxWarning, match="logs were not sent, and stay in"):
        logger.finish(state)
    assert sent(logger) == list(range(4)) and logger.closed and path.exists()


def test_spilled_rows_are_sent_at_exit():
    program = """
    import warnings
    import lox.loggers, threading

    warnings.simplefilter("ignore")
    lox.loggers._runs.queue._MAX_JOBS = 4
    ending = threading.Event()

    class Slow(lox.loggers.Logger):
        background, full = True, "spill"

        def open(self, run): ...

        def write(self, run, logs):
            ending.wait()
            print(logs["x"])

        def close(self, run):
            print("run closed")

    logger = Slow()
    state = logger.init(0)
    for i in range(50):
        logger.log(state, {"x": i})
    ending.set()
    raise ValueError("the user's own")
    """
    run = programs.run(program)
    assert run.stdout.split("\n")[:-1] == [*map(str, range(50)), "run closed"]
    assert "the user's own" in run.stderr
    assert lox.runs(UNSENT) == []


def test_spilled_rows_of_a_killed_process_are_unsent_rows():
    program = """
    import sys, warnings
    import lox.loggers, threading

    warnings.simplefilter("ignore")
    lox.loggers._runs.queue._MAX_JOBS = 4

    class Stuck(lox.loggers.Logger):
        background, full = True, "spill"

        def open(self, run): ...

        def write(self, run, logs):
            threading.Event().wait()

    logger = Stuck({"lr": 0.1})
    state = logger.init(7)
    logger._wait()
    for i in range(50):
        logger.log(state, {"x": i}, step=i)
    print("logged", flush=True)
    sys.stdin.read()
    """
    read, write = os.pipe()
    with programs.start(program, stdin=read) as process:
        assert process.stdout.readline() == "logged\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    os.close(read)
    os.close(write)
    (run,) = lox.runs(UNSENT)
    assert run.key.tolist() == [0, 7] and run.config == {"lr": 0.1}
    logs = run.load()
    assert logs["x"].tolist() == logs.step["x"].tolist() == list(range(4, 50))


def test_forked_process_leaves_spilled_rows_to_its_parent():
    logger = SlowLogger()
    state = spilled(logger, lambda state: numbers(logger, state, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of `fork`
        child = os.fork()
    if not child:
        code = 1
        try:
            code = int(str(spill_module.waiting) != "")
            logger._runs.close_all()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    logger.may_go_on.set()
    logger.finish(state)
    assert sent(logger) == list(range(20))


def test_console_shows_rows_that_wait_on_disk(tmp_path):
    with open(tmp_path / "out", "w") as file:
        logger = SlowLogger()
        console = lox.loggers.ConsoleLogger(file=file, every=1000)
        both = lox.loggers.MultiLogger(logger, console)
        state = both.init(0)
        logger._wait()
        with pytest.warns(lox.LoxWarning, match=FULL):
            for _ in range(4 + 3):
                both.log(state, lox.logdict({"x": np.arange(1040)}, stacked=True))
        console._display.refresh()
        logger.may_go_on.set()
        both.finish(state)
    shown = (tmp_path / "out").read_text()
    assert "3,120 rows of SlowLogger waiting on disk)" in shown
    assert "waiting" not in Viewer(None, False).view([]).line()


def test_full_must_be_wait_or_spill():
    class Wrong(MemoryLogger):
        full = "drop"

    with pytest.raises(lox.LoxValueError, match="`full` of `Wrong` is 'drop'; .*spill"):
        Wrong().init(0)
    with pytest.raises(lox.LoxValueError, match="`full` of `Tracker` is 'drop'"):
        Tracker(full="drop")


@pytest.mark.parametrize("name", ["Wandb", "Trackio", "MLflow", "Neptune"])
def test_trackers_take_the_option_and_wait_by_default(name):
    tracker = getattr(lox.loggers, f"{name}Logger")
    assert inspect.signature(tracker).parameters["full"].default == "wait"
    assert lox.loggers.Logger.full == "wait"


def test_functions_of_a_tracker_spill_per_run():
    may_go_on = threading.Event()
    written = []

    class FakeTracker(Tracker):
        def open(self, run):
            return run.key

        def write(self, run, logs):
            may_go_on.wait()
            written.append(int(logs["x"]))

    logger = FunctionLogger(FakeTracker, "fake")
    state = logger.init(0, full="spill")
    with pytest.warns(lox.LoxWarning, match=f"FakeTracker: {FULL}"):
        numbers(logger, state, 20)
    assert not written
    may_go_on.set()
    logger.finish(state)
    assert written == list(range(20))
    assert not logger._runs._open and logger._full_of((0, 1)) == "wait"
