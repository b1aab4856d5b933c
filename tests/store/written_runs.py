"""Runs that the tests of the store write, and what they compare with them."""

import contextlib
import json
import pathlib
import shutil
import warnings
import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
from lox._logs.access import key_of, metadata_of
from lox._store import format as store_format
from lox._store.creating import create_run
from lox._store.writer import Writer

SEED = 20240229


def stacked(**values):
    return lox.logdict(values, stacked=True)


def sidecar(run):
    (path,) = pathlib.Path(run).glob("writer-*/*.json")
    return path


def plain(logs):
    """Values as lists, to be compared by `==`."""
    return jax.tree.map(lambda x: np.asarray(x).tolist(), dict(logs))


@contextlib.contextmanager
def lost_records_allowed():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*has lost records", lox.LoxWarning)
        yield


# --- killed processes ------------------------------------------------------


def call_of(child, i):
    """What the `i`-th call of a process writes; the values identify the process."""
    number = child * 10_000 + i
    row = np.int64(number * 10)
    rows = row + np.arange(3)
    if i % 5 == 0:
        return lox.logdict({"x": row}, {"step": {"x": row}})
    if i % 5 == 1:
        steps = {"step": {"x": rows, "y": rows}}
        return lox.logdict({"x": rows, "y": rows / 2}, steps, stacked=True)
    if i % 5 == 2:
        return lox.logdict({"large": np.full(2**16, number, np.float32)})
    if i % 5 == 3:
        return stacked(buffer=np.repeat(rows, 2**12).reshape(3, 2**12))
    tree = {"a": np.full(2, number % 128, ml_dtypes.bfloat16), "b": (row,)}
    return lox.logdict({"tree": tree})


def columns_of(logs):
    """One number per row of each key, after checking that the row is consistent."""
    columns = {}
    for name, value in logs.items():
        rows = np.asarray(value["b"][0] if name == "tree" else value)
        if not key_of(logs, name).info.stacked:
            rows = rows[None]
        if name == "tree":
            bits = np.asarray(value["a"]).reshape(-1, 2)
            assert (bits == rows[:, None] // 10 % 128).all(), name
        if name in ("large", "buffer"):
            assert (rows == rows[:, :1]).all(), name
            rows = rows[:, 0]
        if name in ("x", "y"):
            step = np.atleast_1d(logs.step[name])
            assert (rows * (2 if name == "y" else 1) == step).all(), name
        columns[name] = rows.tolist()
    return columns


def check_rows(logs, acknowledged):
    """Asserts that all acknowledged calls are there in order, and at most one more."""
    found = columns_of(logs)
    expected = {}
    for child, count in acknowledged.items():
        for i in range(count):
            for name, rows in columns_of(call_of(child, i)).items():
                expected.setdefault(name, []).extend(rows)
        # of the call being written there may be all rows, the first rows, or none
        for name, rows in columns_of(call_of(child, count)).items():
            known = expected.setdefault(name, [])
            for row in rows:
                if found.get(name, [])[len(known) : len(known) + 1] != [row]:
                    break
                known.append(row)
    assert found == {name: rows for name, rows in expected.items() if rows}


def row_writer(writer):
    """Writes single rows as programs deliver them, and other logs unchanged."""
    converters = {}

    def write(logs):
        if any(info.stacked for info in metadata_of(logs).info.values()):
            writer.write(logs)
            return
        leaves, tree = jax.tree.flatten(dict(logs))
        steps = [next(iter(of.values())) for of in metadata_of(logs).steps.values()]
        form = tree, tuple(metadata_of(logs).steps)
        if form not in converters:
            converters[form] = row_converter(*form)
        writer.write_row(converters[form], [*leaves, *steps])

    return write


def row_converter(tree, names):
    def to_logs(arrays):
        values = tree.unflatten(arrays[: tree.num_leaves])
        steps = zip(names, arrays[tree.num_leaves :], strict=True)
        return lox.logdict(values, {n: dict.fromkeys(values, x) for n, x in steps})

    return to_logs


# --- disks -----------------------------------------------------------------


def scanned(x, n=50):
    def body(carry, i):
        lox.log({"x": jnp.full(100, carry)}, step=i)
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(n))[0]


# --- damaged files ---------------------------------------------------------


def two_segments(run, count=6):
    """A run whose key `x` alternates between two segments."""
    writer = Writer(create_run(run, "x"))
    for i in range(count):
        writer.write(lox.logdict({"x": np.int16(i)} | ({"odd": 1.0} if i % 2 else {})))
    writer.close()
    return {"x": list(range(count)), "odd": [1.0] * (count // 2)}


def finished_run(store, finish=True):
    """A run of a logger, with two segments; and its writer's directory.

    If it is not finished, it looks like the run of a killed process.
    """
    at_work = store if finish else store / "at work"
    logger = lox.loggers.SaveLogger(at_work)
    state = logger.init(0)
    for i in range(30):
        logger.log(state, {"x": np.float32(i)}, step=i)
    for i in range(10):
        logger.log(state, {"y": np.float32(i), "z": i}, step=i)
    run = store / "00000000-00000000"
    if not finish:
        shutil.copytree(at_work / run.name, run)
    logger.finish(state)
    return run / "writer-0000"


# --- untrusted files -------------------------------------------------------


def changed(run, change):
    """Changes the schema of a run and updates the checksum."""
    path = sidecar(run)
    content = store_format.read_json(path)
    change(content["schema"])
    store_format.write_json(path, content)


def with_field(name, value):
    def change(schema):
        *path, last = name.split(".")
        for part in path:
            schema = schema[int(part) if part.isdigit() else part]
        schema[int(last) if last.isdigit() else last] = value

    return pytest.param(change, id=f"{name}={value!r:.40}")


def with_checksum(content_text):
    """The text of a `write_json` file, also for content that it would refuse."""
    try:
        text = json.dumps(json.loads(content_text), sort_keys=True)
    except (RecursionError, ValueError):
        text = ""
    return f'{{"crc32": {zlib.crc32(text.encode())}, "content": {content_text}}}'


# --- formats ---------------------------------------------------------------


def _ragged(n):
    def body(i):
        lox.log({"i": i}, step=i)
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)
