"""Loggers when things go wrong: no row is lost, and no run suffers for another."""

import dataclasses
import gc
import json
import pathlib
import pickle
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import lox
import lox.loggers

from . import programs
from .waiting import in_threads, join


class MemoryLogger(lox.loggers.Logger):
    """Keeps the numbers called `x` of every run."""

    def __init__(self, **attributes):
        super().__init__()
        self.runs, self.closed = {}, []
        self.__dict__ |= attributes

    def open(self, run):
        self.runs[run.key] = []
        return run.key

    def write(self, run, logs):
        self.runs[run] += np.ravel(logs["x"]).tolist()

    def close(self, run):
        self.closed.append(run)


class BrokenLogger(MemoryLogger):
    def write(self, run, logs):
        raise ConnectionError("no network")


def scanned(x, n=3):
    def body(carry, i):
        lox.log({"x": carry}, step=i)
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(n))[0]


@jax.jit
def slowly(x):
    """Takes a while, so that what comes after it is still running when it returns."""
    return lax.fori_loop(0, 40, lambda i, a: jnp.sin(a @ a), jnp.ones((600, 600)) * x)


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- programs that are still running -----------------------------------------


def test_finish_and_log_come_after_what_runs():
    logger = MemoryLogger()
    state = logger.init(0)
    run = jax.jit(lambda state, x: logger.tap(scanned, state)(x[0, 0] * 0))
    x = slowly(1.0)
    run(state, x)
    x = slowly(1.0)
    run(state, x)
    logger.log(state, {"x": 9.0})
    run(state, slowly(1.0))
    logger.finish(state)
    assert list(logger.runs.values()) == [[0, 1, 2, 0, 1, 2, 9, 0, 1, 2]]


def test_rows_of_a_program_that_runs_when_python_ends_are_there(tmp_path):
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


def test_a_logger_can_be_called_in_a_callback():
    logger = MemoryLogger()
    state = logger.init(0)
    tapped = lox.tap(scanned, lambda logs: logger.log(state, logs))
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
def test_a_run_is_finished_after_what_has_no_order(background):
    logger = MemoryLogger(background=background)

    @jax.jit
    @jax.vmap
    def f(key):
        state = logger.init(key)
        logger.tap(scanned, state, ordered=False)(0.0)
        logger.finish(state)

    f(jax.random.split(jax.random.key(0), 4))
    jax.effects_barrier()
    logger._wait()
    assert len(logger.closed) == 4
    assert [sorted(x) for x in logger.runs.values()] == [[0, 1, 2]] * 4


@pytest.mark.parametrize("axes", [{"d"}, {"d", "e"}], ids=["some axes", "all axes"])
def test_devices_share_a_run_until_the_last_has_logged(axes):
    mesh = jax.make_mesh((2, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    logger = MemoryLogger()

    def f(x):
        state = logger.init(0)
        logger.tap(scanned, state)(x.sum())
        logger.finish(state)
        return x

    spec = PartitionSpec(tuple(sorted(axes)))
    split = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=axes)
    jax.jit(split)(jnp.arange(4.0))
    jax.effects_barrier()
    logger._wait()
    ((run, rows),) = logger.runs.items()
    expected = range(4) if len(axes) == 2 else [1, 5]
    assert sorted(rows) == sorted(x + i for x in expected for i in range(3))
    assert logger.closed == [run]


# --- runs that are refused, and backends that fail ---------------------------


def test_a_run_that_is_refused_stops_no_other():
    lox.save({"x": 9.0}, "store", key=1)
    logger = lox.loggers.SaveLogger("store")

    @jax.jit
    @jax.vmap
    def f(seed):
        state = logger.init(jax.random.key(seed))
        logger.tap(scanned, state)(1.0 * seed)
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
    # what the refused one was given is kept, too
    assert lox.load("store", key=1) == {"x": 9.0}
    assert lox.load(".lox/unsent")["x"].tolist() == [1, 2, 3]


def test_a_state_whose_run_is_refused_later_loses_no_row():
    lox.save({"x": 9.0}, "store", key=1)
    states = lox.loggers.LoggerState(jnp.array([[0, 0], [0, 1], [0, 2]], jnp.uint32))
    logger = lox.loggers.SaveLogger("store")
    with pytest.raises(
        lox.StoreError, match="a run already exists at store/00000000-000000"
    ):
        logger.tap(jax.vmap(scanned), states)(jnp.arange(3.0))
    logger.finish(states)
    assert lox.load("store", key=0)["x"].tolist() == [0, 1, 2]
    assert lox.load("store", key=2)["x"].tolist() == [2, 3, 4]
    assert lox.load(".lox/unsent")["x"].tolist() == [1, 2, 3]


def test_a_refused_init_under_vmap_is_raised_at_once():
    lox.save({"x": 9.0}, "store", key=1)
    logger = lox.loggers.SaveLogger("store")
    with pytest.raises(
        lox.StoreError, match='a run already exists at.*`exists="resume"`'
    ):
        jax.vmap(logger.init)(jax.vmap(jax.random.key)(jnp.arange(3)))


def test_threads_that_give_up_a_backend_together_lose_nothing(monkeypatch):
    monkeypatch.setattr(lox.loggers._runs.queue, "_MAX_JOBS", 5)
    forever = threading.Event()

    class Hangs(MemoryLogger):
        background, patience = True, 0.2

        def write(self, run, logs):
            forever.wait()

    logger = Hangs()
    state = logger.init(0)

    def work(first):
        for i in range(20):
            logger.log(state, {"x": float(first + i)})

    with pytest.warns(lox.LoxWarning, match="not answered for 0.2 s") as seen:
        in_threads(work, [(100 * k,) for k in range(5)])
        logger.finish(state)
    forever.set()
    assert len(seen) == 1
    expected = sorted(float(100 * k + i) for k in range(5) for i in range(20))
    assert sorted(lox.load(".lox/unsent")["x"].tolist()) == expected


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_warnings_as_errors_lose_no_row_of_those_that_work(background, order):
    """As they are in these tests, and in those of many users."""
    broken = BrokenLogger(background=background)
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
        trying(logger.tap(scanned, state), 20.0)
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


def test_at_exit_one_that_fails_stops_no_other():
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


def test_ctrl_c_while_it_finishes_loses_nothing():
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


def test_a_backend_that_exits_is_one_that_fails():
    class Exits(MemoryLogger):
        background = True

        def write(self, run, logs):
            sys.exit("enough")

    logger = Exits()
    state = logger.init(0)
    with pytest.warns(lox.LoxWarning, match=r"failed with SystemExit\('enough'\)"):
        logger.tap(scanned, state)(0.0)
        logger.finish(state)
    assert lox.load(".lox/unsent")["x"].tolist() == [0, 1, 2]


def test_finish_does_not_wait_for_what_others_log_later():
    logger = MemoryLogger(background=True)
    first, second = logger.init(0), logger.init(1)
    done = threading.Event()

    def flood():
        while not done.is_set():
            logger.log(first, {"x": 0.0})

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    logger.log(second, {"x": 1.0})
    logger.finish(second)  # or it would never come back
    done.set()
    join(thread)
    assert (0, 1) in logger.closed and logger.runs[0, 1] == [1.0]
    logger.finish(first)


def test_what_loggers_could_not_send_is_kept_apart():
    with pytest.warns(lox.LoxWarning, match="no network"):
        for value in (1.0, 2.0):
            logger = BrokenLogger()
            logger.log(logger.init(0), {"x": value})
    assert [run.load()["x"] for run in lox.runs(".lox/unsent")] == [1.0, 2.0]


def test_what_one_run_cannot_have_together_is_kept_in_two():
    logger = BrokenLogger()
    state = logger.init(0)
    with pytest.warns(lox.LoxWarning, match="no network"):
        logger.log(state, {"x": 1.0}, step=1)
        logger.log(state, {"x": 2.0})
        logger.log(state, {"x": np.ones(3)})
    assert len(lox.runs(".lox/unsent")) == 3


def test_a_forked_process_has_runs_of_its_own():
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


# --- what a user may give ----------------------------------------------------


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    sizes: tuple = (1, 2)


LOGGERS = {
    "save": lambda path, **o: lox.loggers.SaveLogger(path, **o),
    "csv": lambda path, **o: lox.loggers.CSVLogger(path, **o),
    "tensorboard": lambda path, **o: lox.loggers.TensorBoardLogger(path, **o),
}


@pytest.mark.parametrize("name", LOGGERS)
def test_a_config_may_be_what_people_have(name):
    config = {
        "lr": jnp.float32(0.5),
        "np": np.float32(0.25),
        "seed": np.int64(3),
        "shape": (1, 2),
        "array": jnp.arange(2),
        "nested": Config(),
        "function": jnp.sin,
        1: None,
    }
    logger = LOGGERS[name]("there", config=config)
    logger.finish(logger.init(0))
    assert json.loads(json.dumps(logger.config)) == {
        "lr": 0.5,
        "np": 0.25,
        "seed": 3,
        "shape": [1, 2],
        "array": [0, 1],
        "nested": {"rate": 0.1, "sizes": [1, 2]},
        "function": "jax.numpy.sin",
        "1": None,
    }
    assert LOGGERS[name]("there", config=Config()).config["rate"] == 0.1


def test_a_config_that_is_traced_is_refused():
    def f(lr):
        lox.loggers.SaveLogger("store", config={"lr": lr})

    with pytest.raises(
        lox.LoxTypeError, match=r"`config` contains .*`logger.init\(key"
    ):
        jax.jit(f)(0.1)
    with pytest.raises(lox.LoxTypeError, match="must be a dict or a dataclass, not 3"):
        lox.loggers.SaveLogger("store", config=3)


def test_numbers_that_differ_are_runs_that_differ():
    logger = MemoryLogger()
    numbers = [7, 7 + 2**32, 2**64 - 1, np.int64(8), jnp.int32(9)]
    for number in numbers:
        logger.init(number)
    assert len(logger.runs) == len(numbers)
    jax.vmap(logger.init)(jnp.arange(20, 23))
    assert len(logger.runs) == len(numbers) + 3
    for number in (-1, 2**64):
        with pytest.raises(lox.LoxValueError, match=r"from 0 to 2\*\*64 - 1"):
            logger.init(number)
    with pytest.raises(lox.LoxTypeError, match="must be a `jax.random` key"):
        logger.init(1.5)


def test_bad_logs_are_refused_and_the_run_goes_on():
    logger = lox.loggers.SaveLogger("store")
    state = logger.init(0)
    logger.log(state, {"x": 1.0}, step=0)
    for logs, steps, match in [
        ({"x": "text"}, {}, "`SaveLogger.log` at .*test_logger_faults.py"),
        ({"x": None}, {}, "holds no array"),
        ({"x": 1.0}, {"step": None}, "the step 'step' must be a number"),
        ({"x": 1.0}, {"step": np.arange(3)}, "the step 'step' must be a number"),
        (3.0, {}, "takes a state and values by name"),
        ({"x": np.ones(3)}, {"step": 1}, "'x' was saved with the shape"),
    ]:
        with pytest.raises(lox.LoxError, match=match):
            logger.log(state, logs, **steps)
    logger.log(state, {"x": 2.0}, step=1)
    logger.finish(state)
    assert lox.load("store")["x"].tolist() == [1, 2]
    assert not pathlib.Path(".lox").exists()


def test_logs_of_a_program_that_no_run_can_have_are_set_aside():
    logger = lox.loggers.SaveLogger("store")

    def f(x):
        lox.log({"x": x, "y": x}, step=0)
        lox.log({"x": x + 1, "z": x})  # without a step
        lox.log({"x": x + 2, "y": x}, step=1)

    state = logger.init(0)
    with pytest.warns(
        lox.LoxWarning, match="could not write some logs: ShapeError.*'x'"
    ):
        jax.jit(logger.tap(f, state))(0.0)
        jax.effects_barrier()
    logger.finish(state)
    # all the others are there, once
    found = lox.load("store")
    assert found["x"].tolist() == [0, 2] and found["y"].tolist() == [0, 0]
    assert "z" not in found
    assert lox.load(".lox/unsent") == {"x": np.array([1.0]), "z": 0.0}


def test_states_of_other_loggers_are_refused():
    state = lox.loggers.SaveLogger("store").init(0)
    with pytest.raises(
        lox.LoxValueError, match="one of SaveLogger, and not of MemoryLogger"
    ):
        MemoryLogger().log(state, {"x": 1.0})
    with pytest.raises(lox.LoxValueError, match="one of another SaveLogger"):
        lox.loggers.SaveLogger("other").tap(scanned, state)
    assert not pathlib.Path("other").exists()


def test_a_state_whose_logger_is_gone_goes_on_with_another(tmp_path):
    program = """
    import pickle, sys
    import lox.loggers
    logger = lox.loggers.SaveLogger("store", exists="resume")
    state = logger.init(3)
    logger.log(state, {"x": 1.0}, step=0)
    pickle.dump(state, open("state", "wb"))
    """
    assert programs.run(program).returncode == 0
    state = pickle.loads(pathlib.Path("state").read_bytes())
    logger = lox.loggers.SaveLogger("store", exists="resume")
    logger.tap(scanned, state)(2.0)
    logger.finish(state)
    assert lox.load("store", key=3)["x"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda logger, s: logger.tap(s, scanned), r"first.*`logger.tap\(f, state\)"),
        (lambda logger, s: logger.spool(s, scanned), r"`logger.spool\(f, state\)"),
        (
            lambda logger, s: logger.spool(np.arange(1000), s),
            r"array\(\[.{,60} of type ndarray.*not `logger.spool\(f\(x\), state\)`",
        ),
        (lambda logger, s: logger.log({"x": 1.0}, s), r"`logger.log\(state, logs\)`"),
        (lambda logger, s: lox.loggers.MultiLogger([logger]), r"\(\*loggers\)"),
    ],
)
def test_mistakes_are_explained(call, message):
    logger = MemoryLogger()
    with pytest.raises(lox.LoxTypeError, match=message):
        call(logger, logger.init(0))


def test_mistakes_in_a_backend_are_explained():
    class Misspelt(lox.loggers.Logger):
        def open(self, run): ...

        def wirte(self, run, logs): ...

    with pytest.raises(lox.LoxTypeError, match="Misspelt has no method `write`"):
        Misspelt().init(0)

    class Mistaken(lox.loggers.Logger):
        def open(self, run):
            return {}

        def write(self, run, logs):
            run["nothing"]

    logger = Mistaken()
    line = Mistaken.write.__code__.co_firstlineno + 1
    at = rf"KeyError\('nothing'\) at .*test_logger_faults.py:{line}\. The program"
    with pytest.warns(lox.LoxWarning, match=at):
        logger.log(logger.init(0), {"x": 1.0})


def test_a_config_has_functions_by_their_names():
    config = {"act": jnp.tanh, "loss": scanned, "kind": float}
    logger = lox.loggers.SaveLogger("store", config)
    assert logger.config["act"] == "jax.numpy.tanh"
    assert logger.config["loss"].endswith("test_logger_faults.scanned")
    assert logger.config["kind"] == "builtins.float"


@pytest.mark.parametrize("name", LOGGERS)
def test_a_path_that_is_a_file_is_said_at_once(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(lox.StoreError, match="cannot create a run at file/00000000"):
        LOGGERS[name]("file").init(0)


def test_functions_that_log_nothing_are_no_reason_to_fail():
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(jnp.arange(2))
    logger.spool(jax.vmap(lambda x: x), states)(jnp.arange(2))

    def seldom(x):
        lax.cond(x > 9, lambda: lox.log({"x": x}) and None, lambda: None)
        return x

    assert logger.spool(jax.vmap(seldom), states)(jnp.arange(2)).tolist() == [0, 1]
    assert logger.tap(jax.vmap(seldom), states)(jnp.arange(2)).tolist() == [0, 1]


def test_names_that_meet_on_a_path_stay_apart():
    logger = lox.loggers.JSONLinesLogger("there")
    state = logger.init(0)
    logs = {"net": {"w": 1.0}, "net/w": 2.0, "step": 3.0, "step_value": 4.0}
    logger.log(state, logs, step=5)
    logger.finish(state)
    text = pathlib.Path("there/00000000-00000000.jsonl").read_text()
    assert json.loads(text) == {
        "step": 5,
        "net/w": 1.0,
        "net/w_value": 2.0,
        "step_value": 3.0,
        "step_value_value": 4.0,
    }


def test_several_writers_of_one_table_lose_no_row():
    loggers = [lox.loggers.CSVLogger("there", exists="resume") for _ in range(3)]
    states = [logger.init(0) for logger in loggers]
    for i in range(10):
        for j, (logger, state) in enumerate(zip(loggers, states, strict=True)):
            logger.log(state, {"i": i, f"only_{j}": j, f"late_{i // 5}": i})
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv("there/00000000-00000000.csv")
    assert sorted(frame["i"]) == sorted(list(range(10)) * 3)
    for logger, state in zip(loggers, states, strict=True):
        logger.finish(state)


def test_tables_are_widened_whatever_is_in_them():
    logger = lox.loggers.CSVLogger("there")
    state = logger.init(0)
    logger.log(state, {"large": np.arange(30_000)})
    logger.log(state, {'odd\r\nname, "x"': 1})
    logger.log(state, {"more": 2})
    logger.finish(state)
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv("there/00000000-00000000.csv")
    assert list(frame) == ["large", 'odd\r\nname, "x"', "more"]
    assert json.loads(frame["large"][0]) == list(range(30_000))
    assert frame.iloc[1, 1] == 1 and frame.iloc[2, 2] == 2


def test_what_is_logged_once_is_sent_once_whatever_lanes_there_are():
    def f(xs):
        lox.log({"rate": 0.5})
        jax.vmap(lambda x: lox.log({"pair": x}) and None)(xs[:2])
        return jax.vmap(scanned)(xs)

    for method in ("tap", "spool"):
        logger = lox.loggers.JSONLinesLogger(method)
        state = logger.init(0)
        getattr(logger, method)(f, state)(jnp.arange(3.0))
        logger.finish(state)
        text = pathlib.Path(f"{method}/00000000-00000000.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        assert [row["rate"] for row in rows if "rate" in row] == [0.5]
        assert [row["pair"] for row in rows if "pair" in row] == [0, 1]
        found = sorted((row["step"], row["x"]) for row in rows if "x" in row)
        assert found == sorted((i, x + i) for x in range(3) for i in range(3))


def test_trackers_look_at_logs_that_seem_to_be_like_those_before():
    tracker = lox.loggers.TensorBoardLogger("there")
    logs = lox.logdict({"x": np.float32(1.0)}, {"step": {"x": np.int32(3)}})
    for _ in range(2):
        ((length, steps, scalars),) = (
            (table.length, table.steps, table.scalars) for table in tracker.tables(logs)
        )
        assert (length, steps["step"].tolist(), scalars["x"].tolist()) == (1, [3], [1])
    # the same description, but other values
    logs["x"] = jnp.bfloat16(2.0)
    (table,) = tracker.tables(logs)
    assert table.scalars["x"].tolist() == [2.0]
    dict.__setitem__(logs, "x", np.ones((2, 3)))
    assert lox.loggers._trackers.tracker._scalar_table(logs) is None


# --- an `init` that rows of other devices overtake ---------------------------


def overtaken(logger, words=(0, 7), rows=5):
    """What comes of `init` in a program around a `shard_map`, rows first."""
    logger._unordered = logger._devices = logger._opens_inside = True
    for i in range(rows):
        logger._runs.write(words, lox.logdict({"x": np.float32(i)}), late=True)
    logger._runs.open(words, late=True, config={"lr": 0.1})
    logger._runs.close_late(words)
    jax.effects_barrier()


@pytest.mark.parametrize("most", [100, 2], ids=["early", "begun by itself"])
@pytest.mark.parametrize("background", [False, True])
def test_a_late_init_adopts_the_run_and_its_config(most, background, monkeypatch):
    monkeypatch.setattr("lox.loggers._runs.open_runs._MAX_EARLY", most)
    logger = lox.loggers.SaveLogger("store", config={"model": "mlp"})
    logger.background = background
    overtaken(logger)
    (run,) = lox.runs("store")
    assert run.config == {"model": "mlp", "lr": 0.1}
    assert run.load()["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_late_init_reaches_all_of_several_loggers(monkeypatch):
    monkeypatch.setattr("lox.loggers._runs.open_runs._MAX_EARLY", 2)
    text = lox.loggers.JSONLinesLogger("lines")
    saved = lox.loggers.SaveLogger("store")
    overtaken(lox.loggers.MultiLogger(saved, text))
    assert lox.runs("store")[0].config == {"lr": 0.1}
    (config,) = pathlib.Path("lines").glob("*.config.json")
    assert json.loads(config.read_text()) == {"lr": 0.1}


def test_a_config_that_comes_too_late_for_a_backend_is_reported(monkeypatch):
    monkeypatch.setattr("lox.loggers._runs.open_runs._MAX_EARLY", 2)
    logger = MemoryLogger()
    with pytest.warns(lox.LoxWarning, match="without its config"):
        overtaken(logger)
    assert logger.runs == {(0, 7): [0, 1, 2, 3, 4]} and logger.closed == [(0, 7)]


def test_a_run_that_no_program_begins_is_written_at_once():
    """As after a restart, when a state comes from a checkpoint."""
    logger = MemoryLogger()
    logger._unordered = True
    logger._runs.write((0, 7), lox.logdict({"x": np.float32(1)}), late=True)
    assert logger.runs == {(0, 7): [1.0]}


# --- which calls come from a callback, and what tracing leaves behind --------


def test_init_under_tree_map_is_not_taken_for_a_call_from_a_callback():
    """It waits for programs that still run, and raises what it has to say."""
    logger = MemoryLogger()
    states = jax.tree.map(logger.init, [1, 2])
    with pytest.raises(lox.LoxError, match="open"):
        jax.tree.map(logger.init, [3, 1])
    f = jax.jit(logger.tap(lambda x: scanned(x, 300), states[0]))
    f(1.0)
    jax.tree.map(lambda i: logger.finish(states[i]), [0, 1])
    assert len(logger.runs[0, 1]) == 300
    assert logger.closed == [(0, 1), (0, 2)]


@pytest.mark.parametrize("callback", [jax.debug.callback, jax.pure_callback])
def test_a_logger_may_be_used_in_a_callback_of_jax(callback):
    logger = MemoryLogger()

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


def test_tracing_a_tapped_function_changes_nothing_of_the_logger():
    logger = MemoryLogger()
    state = logger.init(0)
    before = dict(vars(logger))
    jax.make_jaxpr(logger.tap(scanned, state, ordered=False))(1.0)
    jax.eval_shape(logger.tap(scanned, state, ordered=False), 1.0)
    jax.make_jaxpr(lambda x: logger.tap(scanned, logger.init(5), ordered=False)(x))(1.0)
    assert vars(logger) == before


# --- loggers that are made anew for each run ---------------------------------


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"ordered": False}], ids=str)
def test_loggers_made_anew_share_a_compiled_program(options):
    traced, loggers = [], [MemoryLogger() for _ in range(4)]

    def program(x):
        traced.append(x)
        return scanned(x)

    for i, logger in enumerate(loggers):
        state = logger.init(i)
        logger.tap(program, state, **options)(10.0 * i)
        logger.finish(state)
    assert len(traced) == 1
    for i, logger in enumerate(loggers):
        ((words, rows),) = logger.runs.items()
        assert words == (0, i) and list(rows) == [10 * i, 10 * i + 1, 10 * i + 2]


def test_a_logger_is_garbage_when_its_run_is_finished():
    gone = []

    def program(x):
        return scanned(x)

    for i in range(3):
        logger = MemoryLogger()
        weakref.finalize(logger, gone.append, i)
        state = logger.init(i)
        logger.tap(program, state)(0.0)
        logger.finish(state)
    del logger
    gc.collect()
    assert sorted(gone) == [0, 1, 2]


def test_two_loggers_in_two_threads_share_a_program():
    loggers = [MemoryLogger() for _ in range(2)]

    def program(x):
        return scanned(x, 200)

    def run(logger):
        state = logger.init(0)
        for _ in range(5):
            logger.tap(program, state)(0.0)
        logger.finish(state)

    in_threads(run, [(logger,) for logger in loggers])
    for logger in loggers:
        assert logger.runs == {(0, 0): list(range(200)) * 5}
