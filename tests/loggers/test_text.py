"""Runs as text files, read back with pandas and `json`."""

import csv
import json
import os
import pathlib
import shutil
import socket
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from jax import lax

import lox
import lox.loggers
from tests import programs

KINDS = {"csv": lox.loggers.CSVLogger, "jsonl": lox.loggers.JSONLinesLogger}
both = pytest.mark.parametrize("kind", KINDS)


def read(path, kind):
    (file,) = path.glob(f"*.{kind}")
    if kind == "csv":
        return pandas.read_csv(file)
    return pandas.DataFrame(
        [json.loads(line) for line in file.read_text().splitlines()]
    )


def train(key, n=20):
    def step(w, i):
        lox.log({"loss": w * w, "w": w}, step=i, episode=i // 5)
        return w / 3, None

    return lax.scan(step, jax.random.normal(key), jnp.arange(n))[0]


@both
@pytest.mark.parametrize("method", ["tap", "spool"])
def test_vmap_writes_one_file_per_seed(tmp_path, kind, method):
    logger = KINDS[kind](tmp_path, config={"lr": 0.1})
    keys = jax.random.split(jax.random.key(0), 4)

    def run(key):
        state = logger.init(key)
        getattr(logger, method)(train, state)(key)
        logger.finish(state)

    jax.jit(jax.vmap(run))(keys)
    jax.effects_barrier()
    assert len(list(tmp_path.glob(f"*.{kind}"))) == 4
    for key in keys:
        name = "-".join(f"{int(w):08x}" for w in jax.random.key_data(key))
        file = tmp_path / f"{name}.{kind}"
        frame = (
            pandas.read_csv(file)
            if kind == "csv"
            else pandas.read_json(file, lines=True, precise_float=True)
        )
        _, logs = lox.spool(train)(key)
        assert list(frame) == ["step", "episode", "loss", "w"]
        assert frame.step.tolist() == list(range(20))
        assert frame.episode.tolist() == logs.episode["w"].tolist()
        for column in ("loss", "w"):
            np.testing.assert_array_equal(np.float32(frame[column]), logs[column])
        assert json.loads((tmp_path / f"{name}.config.json").read_text()) == {"lr": 0.1}


@both
def test_numbers_of_every_kind_are_read_back(tmp_path, kind):
    logger = KINDS[kind](tmp_path)
    state = logger.init(0)
    values = {
        "f32": np.float32([0.1, np.nan, np.inf, -np.inf, 1e-45, 3.4e38]),
        "f64": np.array([0.1, 1 / 3, 5e-324, 1e308, -0.0, 2.0]),
        "bf16": np.asarray(jnp.arange(6, dtype=jnp.bfloat16) / 3),
        "i64": np.array([2**62, -1, 0, 1, 2, 3]),
        "bool": np.arange(6) % 2 == 0,
    }
    logger.log(state, lox.logdict(values, stacked=True))
    logger.finish(state)
    frame = read(tmp_path, kind)
    for name, expected in values.items():
        found = frame[name].to_numpy()
        np.testing.assert_array_equal(found.astype(expected.dtype), expected)


@both
def test_prng_keys_are_written_as_key_data(tmp_path, kind):
    logger = lox.loggers.MultiLogger(KINDS[kind](tmp_path))
    state = logger.init(0)
    logger.log(state, {"key": jax.random.key(7)})
    logger.finish(state)
    found = read(tmp_path, kind)["key"][0]
    assert (json.loads(found) if kind == "csv" else found) == [0, 7]


@both
def test_keys_not_logged_together_have_separate_rows(tmp_path, kind):
    logger = KINDS[kind](tmp_path)
    state = logger.init(0)
    logger.log(state, {"a": 1, "w": np.arange(3.0), "net": {"b": [2, 3]}})
    logger.log(state, lox.logdict({"a": 2, "step": 5}, {"step": {"a": 7, "step": 7}}))
    logger.log(state, {"a, \"b\"\n'ключ'": 4})
    logger.finish(state)
    frame = read(tmp_path, kind)
    expected = ["a", "w", "net/b/0", "net/b/1", "step", "step_value"]
    assert list(frame) == [*expected, "a, \"b\"\n'ключ'"]
    assert frame.a.tolist()[:2] == [1, 2] and frame["step"].tolist()[1] == 7
    first = frame.w[0]
    assert (json.loads(first) if kind == "csv" else first) == [0, 1, 2]
    assert frame["step_value"].tolist()[1] == 5
    assert frame.iloc[2, -1] == 4 and frame.a.isna().tolist() == [False, False, True]


@both
def test_existing_run_is_refused_unless_allowed(tmp_path, kind):
    for exists, expected in (("new", [1]), ("resume", [1, 2]), ("overwrite", [3])):
        logger = KINDS[kind](tmp_path, exists=exists)
        state = logger.init(0)
        logger.log(state, {"x": max(expected)})
        logger.finish(state)
        assert read(tmp_path, kind).x.tolist() == expected
    with pytest.raises(
        lox.StoreError, match='a run already exists at .*`exists="resume"`'
    ):
        KINDS[kind](tmp_path).init(0)
    # a resumed run keeps its config, and one that is replaced does not
    for exists, config, expected in (
        ("overwrite", {"lr": 1}, {"lr": 1}),
        ("resume", {"lr": 2}, {"lr": 1}),
        ("overwrite", None, None),
    ):
        logger = KINDS[kind](tmp_path, config, exists)
        logger.finish(logger.init(0))
        found = list(tmp_path.glob("*.config.json"))
        assert [json.loads(file.read_text()) for file in found] == [expected] * bool(
            expected
        )
    with pytest.raises(lox.LoxValueError, match="`exists` of `.*Logger` is 'maybe'"):
        KINDS[kind](tmp_path, exists="maybe")


@both
def test_truncated_line_is_removed_on_resume(tmp_path, kind):
    logger = KINDS[kind](tmp_path)
    state = logger.init(0)
    for i in range(3):
        logger.log(state, {"x": i})  # the row is in the file at once
        assert read(tmp_path, kind).x.tolist() == list(range(i + 1))
    logger.finish(state)
    (file,) = tmp_path.glob(f"*.{kind}")
    with file.open("r+b") as torn:
        torn.truncate(file.stat().st_size - 1)
    logger = KINDS[kind](tmp_path, exists="resume")
    logger.log(logger.init(0), {"x": 9})
    assert read(tmp_path, kind).x.tolist() == [0, 1, 9]


def test_csv_table_is_widened_for_new_keys_only(tmp_path):
    logger = lox.loggers.CSVLogger(tmp_path)
    state = logger.init(0)
    for i in range(100):
        logger.log(state, {"x": i} if i % 2 else {"y": i})
    logger.finish(state)
    with next(tmp_path.glob("*.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[:2] == [{"y": "0", "x": ""}, {"y": "", "x": "1"}] and len(rows) == 100
    assert list(tmp_path.iterdir()) == list(tmp_path.glob("*.csv"))


# --- several processes, and directories that are removed -------------------


def in_two_processes(program, directory, kind):
    """Runs a program in two processes, "a" and "b", of which `meet` waits for both.

    Returns the words that each has printed.
    """
    head = """
        import os, sys, lox, lox.loggers
        me, directory, kind, other = sys.argv[1:]
        Logger = getattr(lox.loggers, kind)

        def meet():
            os.write(int(other), b".")
            assert os.read(int(other), 1) == b"."
    """
    program = textwrap.dedent(head) + textwrap.dedent(program)
    processes = []
    for me, end in zip("ab", socket.socketpair(), strict=True):
        with end:
            descriptor = end.fileno()
            given = (me, directory, KINDS[kind].__name__, descriptor)
            process = programs.start(program, *given, pass_fds=(descriptor,))
            processes.append(process)
    outputs = [process.communicate() for process in processes]
    assert [errors for _, errors in outputs] == ["", ""]
    return [out.split() for out, _ in outputs]


@both
def test_processes_that_write_one_run_lose_no_row(tmp_path, kind):
    program = """
    logger = Logger(directory, exists="resume")
    meet()
    state = logger.init(0)
    for i in range(3000):
        new = {f"{me}{i // 100}": 1} if i % 100 == 99 else {}
        logger.log(state, {me: i, **new})
    logger.finish(state)
    """
    in_two_processes(program, tmp_path, kind)
    frame = read(tmp_path, kind)
    for me in "ab":
        assert frame[me].dropna().tolist() == list(range(3000))
        assert [frame[f"{me}{i}"].sum() for i in range(30)] == [1] * 30
    assert len(frame) == 6000
    assert len(list(tmp_path.iterdir())) == 1


@both
def test_one_of_two_processes_that_create_run_at_once_is_refused(tmp_path, kind):
    program = """
    logger = Logger(directory, config={"who": me})
    for i in range(300):
        meet()
        try:
            state = logger.init(i)
        except lox.StoreError as error:
            assert "a run already exists at" in str(error), error
        else:
            logger.log(state, {"i": i})
            print(i)
    """
    begun = dict(zip("ab", in_two_processes(program, tmp_path, kind), strict=True))
    assert sorted(map(int, begun["a"] + begun["b"])) == list(range(300))
    for who, numbers in begun.items():
        for i in numbers:
            file = tmp_path / f"00000000-{int(i):08x}.config.json"
            assert json.loads(file.read_text()) == {"who": who}


@both
def test_failed_creation_of_run_leaves_no_files(tmp_path, kind):
    resource = pytest.importorskip("resource")
    logger = KINDS[kind](tmp_path, config={"lr": 0.1})
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, hard))
    try:
        with pytest.raises(lox.StoreError, match="cannot create a run at .*too large"):
            logger.init(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert not list(tmp_path.iterdir())
    logger.finish(logger.init(0))
    (config,) = tmp_path.glob("*.config.json")
    assert json.loads(config.read_text()) == {"lr": 0.1}


@both
def test_rows_of_removed_run_are_kept(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = KINDS[kind]("there")
    state = logger.init(0)
    logger.log(state, {"x": 0})
    shutil.rmtree("there")
    with pytest.warns(lox.LoxWarning, match="removed while it was being writ") as seen:
        for i in (1, 2, 3):
            logger.log(state, {"x": i})
        logger.finish(state)
    assert len(seen) == 1
    assert lox.load(".lox/unsent")["x"].tolist() == [1, 2, 3]
    assert not pathlib.Path("there").exists()


@both
def test_relative_path_is_resolved_at_construction(tmp_path, kind, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    logger = KINDS[kind]("there", config={"lr": 0.1})
    before = logger.init(0)
    logger.log(before, {"x": 0})
    os.chdir(tmp_path / "second")
    after = logger.init(1)
    for i in range(3):
        logger.log(before, {"x": i, f"y{i}": i})
        logger.log(after, {"x": i, f"y{i}": i})
    logger.finish(before)
    logger.finish(after)
    with pytest.raises(lox.StoreError, match=r"a run already exists at \.\./first/"):
        KINDS[kind]("../first/there").init(1)
    assert not list((tmp_path / "second").iterdir())
    there = tmp_path / "first" / "there"
    lengths = [len(file.read_text().splitlines()) for file in there.glob(f"*.{kind}")]
    assert sorted(lengths) == ([4, 5] if kind == "csv" else [3, 4])
    assert len(list(there.glob("*.config.json"))) == 2


@both
@pytest.mark.parametrize("buffer", [None, 3])
def test_subnormal_numbers_are_kept(tmp_path, kind, buffer):
    """XLA's threads flush them to zero."""
    numbers = np.array([1e-40, -1e-45, 0.1, 0.0, -0.0], np.float32)
    logger = KINDS[kind](tmp_path)
    state = logger.init(0)

    def f(xs):
        lax.scan(lambda c, x: (c, lox.log({"x": x})), 0, xs)

    jax.jit(logger.tap(f, state, buffer=buffer))(numbers)
    logger.finish(state)
    found = read(tmp_path, kind)["x"].to_numpy()
    np.testing.assert_array_equal(found.astype(np.float32), numbers)
