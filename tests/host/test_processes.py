"""Forks, signals, threads and system limits lose no row."""

import os
import signal
import sys

import numpy as np
import pytest

import lox
import lox.loggers
from tests import programs
from tests.waiting import HANG, wait_until


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def python(program, *arguments):
    """Runs a program that must succeed."""
    done = programs.run(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done


# --- forks -----------------------------------------------------------------

only_with_fork = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="there are no forks on this system"
)


@only_with_fork
def test_forked_process_does_not_touch_files_of_its_parent():
    python(
        """
        import os, sys
        import lox

        for i in range(5):
            lox.save({"x": i}, "run")
        for child in range(2):
            if os.fork() == 0:
                for k in range(70 * child):  # more than may stay open
                    lox.save({"x": k}, f"children/{k}")
                sys.exit(0)
            assert os.wait()[1] == 0
            lox.save({"x": 5 + child}, "run")
        """
    )
    assert lox.load("run")["x"].tolist() == list(range(7))
    found = [int(run.load()["x"]) for run in lox.runs("children")]
    assert sorted(found) == list(range(70))


@only_with_fork
def test_process_can_be_forked_while_threads_write():
    run = python(
        """
        import os, signal, sys, threading
        import lox

        ended = threading.Event()

        def work():
            while not ended.is_set():
                lox.save({"x": 1.0}, "parent")

        threading.Thread(target=work, daemon=True).start()
        for i in range(20):
            if os.fork() == 0:
                signal.alarm(int(sys.argv[1]))  # kills it, should it wait for ever
                lox.save({"x": i}, f"children/{i}")
                os._exit(0)
            assert os.wait()[1] == 0
        ended.set()
        print("done")
        """,
        int(HANG),
    )
    assert "done" in run.stdout
    assert len(lox.runs("children")) == 20


def test_save_imports_no_module_while_it_writes():
    # a process that is forked during an import would wait for it forever
    python(
        """
        import sys
        import lox

        save, before = lox.save, set(sys.modules)
        save({"x": 1.0}, "run")
        assert not set(sys.modules) - before, set(sys.modules) - before
        """
    )


# --- signals ---------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no such signals")
def test_signal_handler_can_log_during_another_log():
    run = python(
        """
        import signal
        import lox, lox.loggers

        logger = lox.loggers.SaveLogger("logged")
        state = logger.init(0)
        counts = {"handler": 0, "main": 0}

        def both(name):
            lox.save({name: counts[name]}, "saved")
            logger.log(state, {name: counts[name]})
            counts[name] += 1

        def handler(*_):
            if not handler.busy:
                handler.busy = True
                both("handler")
                handler.busy = False

        handler.busy = False
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        while counts["handler"] < 200:
            both("main")
        signal.setitimer(signal.ITIMER_REAL, 0)
        logger.finish(state)
        print(counts["handler"], counts["main"])
        """
    )
    handled, logged = map(int, run.stdout.split())
    assert handled >= 200
    for store in ("saved", "logged"):
        found = lox.load(store)
        assert found["main"].tolist() == list(range(logged))
        assert found["handler"].tolist() == list(range(handled))


LONG_PROGRAM = """
import signal, sys
import jax
import lox, lox.loggers

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))

class Sends(lox.loggers.Logger):
    background = True
    def open(self, run):
        return lox.loggers.SaveLogger("sent"), []
    def write(self, run, logs):
        logger, state = run
        state or state.append(logger.init(0))
        logger.log(state[0], logs)
    def close(self, run):
        logger, state = run
        logger.finish(state[0])

kind, mode = sys.argv[1:]
logger = lox.loggers.SaveLogger("sent")
if kind == "queue":
    logger = lox.loggers.MultiLogger(Sends(), lox.loggers.SaveLogger("saved"))
if kind == "console":
    logger = lox.loggers.MultiLogger(logger, lox.loggers.ConsoleLogger())
state = logger.init(0)

def step(i, c):
    lox.log({"c": c}, step=i)
    return c + 1

def train(x):  # for hours
    return jax.lax.fori_loop(0, 2**31 - 1, step, x)

train = logger.tap(train, state)
train = jax.jit(train) if mode == "jit" else train
try:
    jax.block_until_ready(train(0))
except BaseException as error:
    print("raised", type(error).__name__, flush=True)
    raise
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    "kind, mode, signum",
    [
        ("save", "eager", signal.SIGTERM),
        ("save", "jit", signal.SIGINT),
        ("save", "jit", signal.SIGTERM),
        ("queue", "eager", signal.SIGINT),
        ("queue", "jit", signal.SIGTERM),
        ("console", "jit", signal.SIGINT),
    ],
)
def test_interrupted_program_keeps_all_logged_rows(kind, mode, signum):
    def rows_that_were_sent():
        assert process.poll() is None, process.communicate()
        if not (os.path.isdir("sent") and lox.runs("sent")):
            return 0
        rows = len(np.atleast_1d(lox.load("sent").get("c", [])))
        return rows if rows >= 100 else 0

    with programs.start(LONG_PROGRAM, kind, mode) as process:
        seen = wait_until(rows_that_were_sent)
        process.send_signal(signum)
        output, errors = process.communicate()
    name = "KeyboardInterrupt" if signum == signal.SIGINT else "SystemExit"
    assert f"raised {name}" in output, (output, errors)
    assert process.returncode == (-signum if signum == signal.SIGINT else 3), errors
    stores = ("sent", "saved") if kind == "queue" else ("sent",)
    found = [lox.load(store) for store in stores]
    rows = len(found[0]["c"])
    assert seen <= rows < 2**31 - 1
    for one in found:
        assert one["c"].tolist() == one.step["c"].tolist() == list(range(rows))


# --- threads ---------------------------------------------------------------


def test_thread_that_outlives_main_thread_can_log():
    run = python(
        """
        import concurrent.futures, threading, time
        import jax, jax.numpy as jnp
        import lox, lox.loggers

        class Slow(lox.loggers.Logger):
            background = True
            def open(self, run): ...
            def write(self, run, logs):
                print(int(logs["x"]), flush=True)

        logger = lox.loggers.MultiLogger(lox.loggers.SaveLogger("store"), Slow())
        states = [logger.init(seed) for seed in range(3)]

        def work(state, numbers, until_python_ends):
            for i in numbers:
                if i % 10 == 5:
                    until_python_ends()
                logger.log(state, {"x": i})

        def until_pools_end():
            try:
                while True:
                    pool.submit(int)
                    time.sleep(0.001)
            except RuntimeError as error:
                assert "after interpreter shutdown" in str(error)

        def f(numbers):
            jax.lax.scan(lambda c, i: (c, lox.log({"x": i})), 0, numbers)

        # which is over before those threads are waited for that are not of a pool
        main = threading.main_thread()
        threading.Thread(target=work, args=(states[0], range(20), main.join)).start()
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.submit(work, states[1], range(20, 30), until_pools_end)
        pool.submit(jax.jit(logger.tap(f, states[2])), jnp.arange(30, 40))
        """
    )
    assert run.stderr == ""
    assert sorted(map(int, run.stdout.split())) == list(range(40))
    found = [lox.load("store", key=seed)["x"].tolist() for seed in range(3)]
    assert found == [[*range(20)], [*range(20, 30)], [*range(30, 40)]]


# --- limits ----------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_save_logger_writes_more_files_than_may_be_open():
    python(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        import jax, jax.numpy as jnp
        import lox, lox.loggers

        logger = lox.loggers.SaveLogger("store")

        def train(x):
            def step(x, i):
                for k in range(4):
                    lox.log({f"x{k}": x}, step=i + k)
                return x + 1, None
            return jax.lax.scan(step, x, jnp.arange(3))[0]

        def run(seed):
            return logger.tap(train, logger.init(seed))(1.0 * seed)

        jax.block_until_ready(jax.jit(jax.vmap(run))(jnp.arange(40)))
        jax.effects_barrier()
        state = logger.init(100)
        for i in range(140):
            logger.log(state, {f"key{i}": i, "all": i}, step=i)
            lox.save({f"key{i}": i, "all": i}, "saved")
        """
    )
    assert not os.path.exists(".lox")
    for seed in range(40):
        found = lox.load("store", key=seed)
        assert len(found) == 4
        assert all(x.tolist() == [seed, seed + 1, seed + 2] for x in found.values())
    for found in (lox.load("store", key=100), lox.load("saved")):
        assert found["all"].tolist() == list(range(140)) and len(found) == 141


def test_file_removed_while_closed_is_reported(monkeypatch):
    monkeypatch.setattr(lox._store.growing_file, "_max_open", lambda: 1)
    logger = lox.loggers.SaveLogger("store")
    first, second = logger.init(1), logger.init(2)
    logger.log(first, {"x": 1})
    logger.log(second, {"x": 2})  # files of the first logger are closed for these
    os.rename("store/00000000-00000001/writer-0000/0000.npy", "elsewhere")
    with pytest.warns(lox.LoxWarning, match="No such file"):
        logger.log(first, {"x": 3})
    logger.log(second, {"x": 4})
    logger.finish(first)
    logger.finish(second)
    assert lox.load("store", key=2)["x"].tolist() == [2, 4]
    assert lox.load(".lox/unsent")["x"].tolist() == 3


def test_process_can_change_its_directory(tmp_path, monkeypatch):
    logger = lox.loggers.SaveLogger("store")
    state = logger.init(1)
    logger.log(state, {"x": 1})
    lox.save({"x": 1}, "saved")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    logger.log(state, {"y": 2})
    lox.save({"y": 2}, tmp_path / "saved")
    logger.finish(state)
    logger.log(logger.init(2), {"x": 3})
    assert lox.load(tmp_path / "store", key=1) == {"x": 1, "y": 2}
    assert lox.load(tmp_path / "saved") == {"x": 1, "y": 2}
    assert lox.load(tmp_path / "store", key=2) == {"x": 3}
    assert not list((tmp_path / "below").iterdir())


def test_run_is_created_by_one_of_two_processes():
    program = """
    import lox, lox.loggers

    logger = lox.loggers.SaveLogger("store")
    print("ready", flush=True)
    input()
    for key in range(200):
        try:
            logger.init(key)
            print(key)
        except lox.StoreError as error:
            assert "a run already exists at" in str(error), error
    """
    both = [programs.start(program, stdin=programs.PIPE) for _ in range(2)]
    for one in both:
        assert one.stdout.readline() == "ready\n"
    for one in both:
        one.stdin.write("go\n")
        one.stdin.flush()
    begun = [key for one in both for key in one.communicate()[0].split()]
    assert [one.returncode for one in both] == [0, 0]
    assert sorted(map(int, begun)) == list(range(200))


def test_notebook_cell_that_runs_twice_replaces_its_run():
    first = lox.loggers.SaveLogger("store", exists="overwrite")
    old = first.init(0)
    first.log(old, {"x": 1.0})
    second = lox.loggers.SaveLogger("store", exists="overwrite")
    new = second.init(0)
    first.finish(old)
    second.log(new, {"x": 2.0})
    second.finish(new)
    assert lox.load("store")["x"].tolist() == 2.0


def test_closed_stderr_does_not_fail_the_program():
    python(
        """
        import sys
        import lox, lox.loggers

        class Broken(lox.loggers.Logger):
            def open(self, run): ...
            def write(self, run, logs):
                raise ConnectionError("no network")

        class Slow(Broken):
            background = True

        sys.stderr.close()
        saved = lox.loggers.SaveLogger("store")
        logger = lox.loggers.MultiLogger(Broken(), Slow(), saved)
        state = logger.init(0)
        for i in range(5):
            logger.log(state, {"x": i})
        logger.finish(state)
        """
    )
    assert lox.load("store")["x"].tolist() == [0, 1, 2, 3, 4]
    for run in lox.runs(".lox/unsent"):
        assert run.load()["x"].tolist() == [0, 1, 2, 3, 4]


def test_rows_kept_until_flush_are_bounded():
    sizes = []

    class Keeps(lox.loggers.Logger):
        background = True

        def open(self, run):
            return []

        def write(self, run, logs):
            run.append(logs["x"].nbytes)

        def flush(self, run):
            sizes.append(sum(run))
            run.clear()

    logger = Keeps()
    state = logger.init(0)
    for _ in range(40):
        logger.log(state, {"x": np.zeros(2**20, np.uint8)})
    logger.finish(state)
    assert sum(sizes) == 40 * 2**20 and max(sizes) <= 16 * 2**20
