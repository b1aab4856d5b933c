"""Configs, logs and states of every kind that a logger accepts or refuses."""

import dataclasses
import json
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
from tests import programs
from tests.loggers.backends import NumberLogger, counting


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
def test_config_can_be_any_common_object(name):
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


def test_traced_config_is_refused():
    def f(lr):
        lox.loggers.SaveLogger("store", config={"lr": lr})

    with pytest.raises(
        lox.LoxTypeError, match=r"`config` contains .*`logger.init\(key"
    ):
        jax.jit(f)(0.1)
    with pytest.raises(lox.LoxTypeError, match="must be a dict or a dataclass, not 3"):
        lox.loggers.SaveLogger("store", config=3)


def test_different_seeds_mean_different_runs():
    logger = NumberLogger()
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


def test_bad_logs_are_refused_and_the_run_continues():
    logger = lox.loggers.SaveLogger("store")
    state = logger.init(0)
    logger.log(state, {"x": 1.0}, step=0)
    for logs, steps, match in [
        ({"x": "text"}, {}, "`SaveLogger.log` at .*test_bad_input.py"),
        ({"x": None}, {}, "contains no array"),
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


def test_logs_of_program_that_do_not_fit_run_are_kept_as_unsent():
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
    # all others are there, once
    found = lox.load("store")
    assert found["x"].tolist() == [0, 2] and found["y"].tolist() == [0, 0]
    assert "z" not in found
    assert lox.load(".lox/unsent") == {"x": np.array([1.0]), "z": 0.0}


def test_state_of_another_logger_is_refused():
    state = lox.loggers.SaveLogger("store").init(0)
    with pytest.raises(
        lox.LoxValueError, match="belongs to SaveLogger, not to NumberLogger"
    ):
        NumberLogger().log(state, {"x": 1.0})
    with pytest.raises(lox.LoxValueError, match="belongs to another SaveLogger"):
        lox.loggers.SaveLogger("other").tap(counting, state)
    assert not pathlib.Path("other").exists()


def test_state_of_deleted_logger_continues_with_new_logger(tmp_path):
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
    logger.tap(counting, state)(2.0)
    logger.finish(state)
    assert lox.load("store", key=3)["x"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda logger, s: logger.tap(s, counting), r"first.*`logger.tap\(f, state\)"),
        (lambda logger, s: logger.spool(s, counting), r"`logger.spool\(f, state\)"),
        (
            lambda logger, s: logger.spool(np.arange(1000), s),
            r"array\(\[.{,60} of type ndarray.*not `logger.spool\(f\(x\), state\)`",
        ),
        (lambda logger, s: logger.log({"x": 1.0}, s), r"`logger.log\(state, logs\)`"),
        (lambda logger, s: lox.loggers.MultiLogger([logger]), r"\(\*loggers\)"),
    ],
)
def test_misuse_raises_error_with_remedy(call, message):
    logger = NumberLogger()
    with pytest.raises(lox.LoxTypeError, match=message):
        call(logger, logger.init(0))


def test_error_in_backend_names_its_line():
    class Misspelled(lox.loggers.Logger):
        def open(self, run): ...

        def wirte(self, run, logs): ...

    with pytest.raises(lox.LoxTypeError, match="Misspelled has no method `write`"):
        Misspelled().init(0)

    class Mistaken(lox.loggers.Logger):
        def open(self, run):
            return {}

        def write(self, run, logs):
            run["nothing"]

    logger = Mistaken()
    line = Mistaken.write.__code__.co_firstlineno + 1
    at = rf"KeyError\('nothing'\) at .*test_bad_input.py:{line}\. The program"
    with pytest.warns(lox.LoxWarning, match=at):
        logger.log(logger.init(0), {"x": 1.0})


def test_config_stores_functions_by_name():
    config = {"act": jnp.tanh, "loss": counting, "kind": float}
    logger = lox.loggers.SaveLogger("store", config)
    assert logger.config["act"] == "jax.numpy.tanh"
    assert logger.config["loss"].endswith("backends.counting")
    assert logger.config["kind"] == "builtins.float"


_CONFIG_OF_OBJECTS = """
import argparse, functools, json, pathlib, types
import jax, numpy as np
from lox.loggers._runs.config import plain_config

class Thing:
    def __call__(self): ...

print(json.dumps(plain_config({
    "partial": functools.partial(jax.nn.leaky_relu, negative_slope=.1),
    "nested": functools.partial(map, functools.partial(jax.nn.relu), "x", [Thing]),
    "tree": jax.tree_util.Partial(jax.numpy.add, 1),
    "namespace": types.SimpleNamespace(f=jax.nn.relu),
    "arguments": argparse.Namespace(lr=.1),
    "object": object(),
    "callable": Thing(),
    "method": "x".upper,
    "array": np.array([jax.nn.relu, 1], dtype=object),
    "set": {"aa", "bb", "cc", "dd"},
    "frozenset": frozenset({3, 1, "b", "a", (2, "x")}),
    jax.nn.relu: 1,
    (1, 2): 2,
    pathlib.PurePosixPath("a"): 3,
})))
"""


def test_config_is_the_same_in_every_process():
    texts = {
        programs.run(
            _CONFIG_OF_OBJECTS, fresh=True, env={"PYTHONHASHSEED": str(seed)}
        ).stdout
        for seed in range(2)
    }
    (text,) = texts
    nn = jax.nn.relu.__module__
    assert json.loads(text) == {
        "partial": f"functools.partial({nn}.leaky_relu, negative_slope=0.1)",
        "nested": "functools.partial(builtins.map, "
        f"functools.partial({nn}.relu), 'x', ['__main__.Thing'])",
        "tree": "functools.partial(jax.numpy.add, 1)",
        "namespace": {"f": f"{nn}.relu"},
        "arguments": {"lr": 0.1},
        "object": "<object object>",
        "callable": "<__main__.Thing object>",
        "method": "str.upper",
        "array": [f"{nn}.relu", 1],
        "set": ["aa", "bb", "cc", "dd"],
        "frozenset": ["a", "b", 1, 3, [2, "x"]],
        f"{nn}.relu": 1,
        "(1, 2)": 2,
        "a": 3,
    }


def test_config_that_contains_itself_is_cut_off():
    config = {"lr": 0.1, "both": [[1]] * 2}
    config["self"] = config
    config["list"] = [config["both"], config]
    config["partial"] = jax.tree_util.Partial(max, config)
    assert lox.loggers.SaveLogger("store", config).config == {
        "lr": 0.1,
        "both": [[1], [1]],
        "self": "...",
        "list": [[[1], [1]], "..."],
        "partial": "functools.partial(builtins.max, ...)",
    }


@pytest.mark.parametrize("name", LOGGERS)
def test_path_that_is_a_file_raises_immediately(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(lox.StoreError, match="cannot create a run at file/00000000"):
        LOGGERS[name]("file").init(0)


def test_function_without_logs_works():
    logger = NumberLogger()
    states = jax.vmap(logger.init)(jnp.arange(2))
    logger.spool(jax.vmap(lambda x: x), states)(jnp.arange(2))

    def seldom(x):
        lax.cond(x > 9, lambda: lox.log({"x": x}) and None, lambda: None)
        return x

    assert logger.spool(jax.vmap(seldom), states)(jnp.arange(2)).tolist() == [0, 1]
    assert logger.tap(jax.vmap(seldom), states)(jnp.arange(2)).tolist() == [0, 1]


def test_names_with_same_path_stay_separate():
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


def test_concurrent_writers_of_one_table_lose_no_row():
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


def test_csv_table_with_any_content_is_widened():
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


def test_value_logged_once_is_sent_once_whatever_the_lanes():
    def f(xs):
        lox.log({"rate": 0.5})
        jax.vmap(lambda x: lox.log({"pair": x}) and None)(xs[:2])
        return jax.vmap(counting)(xs)

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


def test_trackers_check_logs_that_resemble_earlier_ones():
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
    assert lox._trackers.tables._scalar_table(logs) is None


@pytest.mark.parametrize("option", ["histograms", "images"])
def test_patterns_of_trackers_must_be_strings(tmp_path, option):
    with pytest.raises(lox.LoxTypeError, match=rf"`{option}` must be a string.* not 3"):
        lox.loggers.TensorBoardLogger(tmp_path, **{option: 3})
