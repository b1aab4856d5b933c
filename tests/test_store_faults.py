"""The store when things go wrong: processes that die, disks that fill, files that lie.

Each fault is a real one. Some need a process of their own: `in_a_process(f, ...)` calls
`f` there.
"""

import base64
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import tracemalloc
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
from lox._store.creating import create_run, open_run
from lox._store.writer import Writer

from . import programs
from .waiting import in_threads, wait_until

SEED = 20240229
GOLDEN = pathlib.Path(__file__).parent / "data" / "store-v1"
# each file as base64, by its path
GOLDEN_LOGGER = GOLDEN.with_name("store-v1-logger.json")


def in_a_process(function, *arguments, before=()):
    """Calls a function of this file in another process; returns what it printed."""
    done = programs.run(programs.calling(function), *arguments, before=before)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


# --- killed processes --------------------------------------------------------


def call_of(child, i):
    """What the `i`-th call of a process writes; its values say whose they are."""
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
    """One number for each row of each key; and all that a row has must agree."""
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
    """All that was acknowledged is there, in its order, and at most one call more."""
    found = columns_of(logs)
    expected = {}
    for child, count in acknowledged.items():
        for i in range(count):
            for name, rows in columns_of(call_of(child, i)).items():
                expected.setdefault(name, []).extend(rows)
        # what was being written may be there, or its first rows, or nothing of it
        for name, rows in columns_of(call_of(child, count)).items():
            known = expected.setdefault(name, [])
            for row in rows:
                if found.get(name, [])[len(known) : len(known) + 1] != [row]:
                    break
                known.append(row)
    assert found == {name: rows for name, rows in expected.items() if rows}


def row_writer(writer):
    """Writes single rows as programs hand them over, and other logs as they are."""
    openers = {}

    def write(logs):
        if any(info.stacked for info in metadata_of(logs).info.values()):
            writer.write(logs)
            return
        leaves, tree = jax.tree.flatten(dict(logs))
        steps = [next(iter(of.values())) for of in metadata_of(logs).steps.values()]
        form = tree, tuple(metadata_of(logs).steps)
        if form not in openers:
            openers[form] = row_opener(*form)
        writer.write_row(openers[form], [*leaves, *steps])

    return write


def row_opener(tree, names):
    def open_row(arrays):
        values = tree.unflatten(arrays[: tree.num_leaves])
        steps = zip(names, arrays[tree.num_leaves :], strict=True)
        return lox.logdict(values, {n: dict.fromkeys(values, x) for n, x in steps})

    return open_row


def without_fsync():
    """Killing a process loses nothing that the system has; and waiting takes long."""
    os.fsync = lambda descriptor: None


def fork(work):
    """A child that does the work and tells of each call that has returned."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    code = 1
    try:
        os.close(read)
        work(lambda count: os.write(write, struct.pack("<I", count)))
        code = 0
    finally:
        os._exit(code)


def last_told(pipe):
    told = b""
    while more := os.read(pipe, 1 << 16):
        told += more
    os.close(pipe)
    return len(told) // 4


def kill_at_random_moments(directory, kills, seed):
    without_fsync()
    rng = np.random.default_rng(int(seed))
    path, acknowledged, cut = pathlib.Path(directory) / "0", {}, 0
    for child in range(int(kills)):
        if child % 10 == 0:  # a new run, which is then resumed nine times
            shutil.rmtree(path, ignore_errors=True)
            path, acknowledged = pathlib.Path(directory) / str(child), {}

        def work(tell, path=path, child=child):
            writer = Writer(create_run(path, "a"))
            write = row_writer(writer) if child % 2 else writer.write
            for i in range(10_000):
                write(call_of(child, i))
                tell(i + 1)

        process, pipe = fork(work)
        # by what it has done and not by the clock, so that a slow machine does as well
        told, wanted = b"", 4 * int(rng.integers(0, 40))
        while len(told) < wanted and (more := os.read(pipe, wanted - len(told))):
            told += more
        for _ in range(int(rng.integers(0, 20_000))):
            pass
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        acknowledged[child] = len(told) // 4 + last_told(pipe)
        try:
            logs = lox.load(path)
        except lox.StoreError:  # before there was a run
            assert not any(acknowledged.values())
            acknowledged = {}
            continue
        check_rows(logs, acknowledged)
        cut += sum(acknowledged.values()) > 0
    print(cut)


def test_a_process_killed_at_any_moment_loses_nothing_that_it_had_written(tmp_path):
    told = in_a_process(kill_at_random_moments, tmp_path, 100, SEED)
    assert int(told) > 50, f"seed {SEED}"


def killed_at_operation(number, work):
    """Kills a process before its n-th operation on files; true if it had so many."""

    def counted(tell):
        left = number

        def hook(event, arguments):
            nonlocal left
            if event == "open" or (event.startswith("os.") and event != "os.kill"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work(tell)

    process, pipe = fork(counted)
    told = last_told(pipe)
    _, status = os.waitpid(process, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        return False, told
    return True, told


def kill_at_each_operation(directory):
    """Before each file that a run needs is made, renamed or removed."""
    without_fsync()
    directory = pathlib.Path(directory)

    def write(path, mode, child, tell=lambda count: None):
        writer = Writer(create_run(path, mode))
        for i in range(5):
            writer.write(call_of(child, i))
            tell(i + 1)
        writer.sync()
        writer.close()

    for mode in "axw":
        for number in range(1000):
            path = directory / f"{mode}-{number}"
            if mode == "w":
                write(path, "x", 0)
            killed, told = killed_at_operation(
                number, lambda tell, path=path, mode=mode: write(path, mode, 1, tell)
            )
            before = columns_of(call_of(0, 0))["x"][0] if mode == "w" else -1
            with contextlib.suppress(lox.StoreError), lost_records_allowed():
                found = lox.load(path)
                if told:  # nothing of the old run is between
                    check_rows(found, {1: told})
                elif mode == "w" and "x" in found:
                    assert columns_of(found)["x"][0] in (before, 100_000)
            if mode != "w" and not [*path.glob("writer-*"), *path.glob("run.json")]:
                write(path, "x", 2)  # nobody has written there: it is no run yet
                check_rows(lox.load(path), {2: 5})
            elif mode == "w":
                write(path, "w", 2)
                check_rows(lox.load(path), {2: 5})
            else:
                write(path, "a", 2)
                check_rows(lox.load(path), {1: told, 2: 5})
            shutil.rmtree(path)
            if not killed:
                break
        print(mode, number)


def test_a_process_killed_before_any_operation_leaves_a_run_to_go_on_with(tmp_path):
    lines = in_a_process(kill_at_each_operation, tmp_path).split("\n")[:-1]
    counts = {mode: int(number) for mode, number in map(str.split, lines)}
    # three files and a renaming for each of five segments, and some for the run
    assert counts.keys() == set("axw") and min(counts.values()) > 20


@pytest.mark.parametrize("exists", ["new", "resume", "overwrite"])
def test_a_run_whose_making_was_cut_off_is_taken_over(tmp_path, exists):
    run = tmp_path / "00000000-00000000"
    run.mkdir()
    (run / "run.json.123.456~").write_text('{"crc32": 1, "con')
    logger = lox.loggers.SaveLogger(tmp_path, exists=exists)
    state = logger.init(0)
    logger.log(state, {"x": 1})
    logger.finish(state)
    assert lox.load(tmp_path, key=0) == {"x": 1}


def test_rows_without_a_file_about_their_run_are_not_lost(tmp_path):
    lox.save({"x": 1}, tmp_path, key=0)
    (run,) = (path for path in tmp_path.iterdir())
    (run / "run.json").unlink()
    with pytest.raises(lox.StoreError, match="not a run: it has no 'run.json'"):
        lox.load(tmp_path, key=0)
    with pytest.warns(lox.LoxWarning, match="left out: .*has no 'run.json'"):
        assert lox.runs(tmp_path) == []
    with pytest.raises(lox.StoreError, match="a run already exists at"):
        lox.save({"x": 2}, tmp_path, "x", key=0)
    lox.save({"x": 2}, tmp_path, key=0)
    assert lox.load(tmp_path, key=0)["x"].tolist() == [1, 2]


def test_nothing_is_added_to_a_run_that_cannot_be_read(tmp_path):
    run = create_run(tmp_path / "run", "x")
    path = run / "run.json"
    whole = path.read_text()
    for text in ("", whole[:-9], whole.replace('"version": 1', '"version": 99')):
        path.write_text(text)
        with pytest.raises(lox.StoreError, match=r"run\.json.*damaged.*remove it"):
            create_run(run, "a")
    store_format.write_json(path, {"version": 99})
    with pytest.raises(lox.StoreError, match=r"run\.json has the format version 99"):
        create_run(run, "a")
    path.unlink()
    assert lox.load(create_run(run, "a")) == {}
    path.write_text("")
    assert lox.load(create_run(run, "w")) == {}


def test_replacing_a_run_leaves_the_files_of_others(tmp_path):
    lox.save({"x": 1}, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("precious")
    (tmp_path / "run" / "writer-0000").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "writer-0000").symlink_to(tmp_path / "elsewhere")
    lox.save({"y": 2}, tmp_path / "run", mode="w")
    assert lox.load(tmp_path / "run") == {"y": 2}
    assert (tmp_path / "run" / "notes.txt").read_text() == "precious"
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3


def test_a_writer_whose_run_was_replaced_does_not_touch_the_new_one(tmp_path):
    old = Writer(create_run(tmp_path / "run", "x"))
    old.write(lox.logdict({"x": np.float64(1)}))
    new = Writer(create_run(tmp_path / "run", "w"))
    new.write(lox.logdict({"y": np.int8(2)}))
    with pytest.raises(FileNotFoundError, match="was removed"):
        old.write(lox.logdict({"x": np.float64(1)}))
    old.write(lox.logdict({"z": np.int8(3)}))  # in a directory of its own
    new.write(lox.logdict({"u": np.int8(4)}))
    old.close()
    new.close()
    assert lox.load(tmp_path / "run") == {"y": 2, "z": 3, "u": 4}
    keys = [
        [key["name"] for key in store_format.read_json(path)["schema"]["keys"]]
        for path in sorted((tmp_path / "run").glob("writer-*/*.json"))
    ]
    assert keys == [["y"], ["u"], ["z"]]


@pytest.mark.parametrize("mode", ["a", "x", "w"])
def test_replacing_a_run_does_not_follow_a_link(tmp_path, mode):
    lox.save({"x": 1}, tmp_path / "run")
    store = tmp_path / "store"
    store.mkdir()
    (store / "00000000-00000000").symlink_to(tmp_path / "run")
    exists = {"a": "resume", "x": "new", "w": "overwrite"}[mode]
    logger = lox.loggers.SaveLogger(store, exists=exists)
    if mode == "a":
        lox.save({"x": 2}, store, mode, key=0)
        assert lox.load(tmp_path / "run")["x"].tolist() == [1, 2]
        return
    what = "is a symbolic link" if mode == "w" else "a run already exists at"
    for write in (
        lambda: lox.save({"x": 2}, store, mode, key=0),
        lambda: logger.init(0),
        lambda: Writer(create_run(store / "00000000-00000000", mode)),
    ):
        with pytest.raises(lox.StoreError, match=what):
            write()
    assert lox.load(tmp_path / "run") == {"x": 1}


@pytest.mark.parametrize("mode", ["a", "x", "w"])
def test_a_link_that_leads_nowhere_is_explained(tmp_path, mode):
    (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    with pytest.raises(lox.StoreError, match="cannot create a run at|symbolic link"):
        lox.save({"x": 1}, tmp_path / "run", mode)
    assert not (tmp_path / "nowhere").exists()


# --- writers that replace each other -----------------------------------------


def overwriter(store):
    logger = lox.loggers.SaveLogger(store, exists="overwrite")
    return logger, logger.init(3)


def log_rows(logger, state, first, count=5):
    for i in range(count):
        logger.log(state, {"x": first + i}, step=i)


@pytest.mark.parametrize("rows_before", [0, 2])
def test_overwriting_tells_the_writer_before(tmp_path, monkeypatch, rows_before):
    monkeypatch.chdir(tmp_path)
    old, old_state = overwriter("store")
    log_rows(old, old_state, 0, rows_before)
    new, new_state = overwriter("store")
    with pytest.warns(lox.LoxWarning, match="another writer has replaced the run"):
        for i in range(5):
            log_rows(old, old_state, 100 + i, 1)
            log_rows(new, new_state, 200 + i, 1)
    old.finish(old_state)
    new.finish(new_state)
    assert lox.load("store", key=3)["x"].tolist() == [200, 201, 202, 203, 204]
    assert lox.load(".lox/unsent")["x"].tolist() == [100, 101, 102, 103, 104]


def test_overwriting_leaves_a_writer_that_only_finishes_in_peace(tmp_path):
    old, old_state = overwriter(tmp_path)
    log_rows(old, old_state, 0)
    new, new_state = overwriter(tmp_path)
    log_rows(new, new_state, 10)
    old.finish(old_state)
    new.finish(new_state)
    assert lox.load(tmp_path, key=3)["x"].tolist() == [10, 11, 12, 13, 14]
    run = tmp_path / "00000000-00000003"
    assert sorted(path.name for path in run.glob("writer-*")) == [
        "writer-0001",
        "writer-0001.json",
    ]


def test_overwriting_leaves_a_writer_without_rows_in_peace(tmp_path):
    old, old_state = overwriter(tmp_path)
    new, new_state = overwriter(tmp_path)
    old.finish(old_state)
    log_rows(new, new_state, 0)
    new.finish(new_state)
    assert lox.load(tmp_path, key=3)["x"].tolist() == [0, 1, 2, 3, 4]


def removes(path):
    """A logger that removes a directory at the third row."""

    class Removes(lox.loggers.Logger):
        def open(self, run):
            return run

        def write(self, run, logs):
            if logs.step["x"] == 2:
                shutil.rmtree(path)

    return Removes()


@pytest.mark.parametrize("lanes", [False, True])
def test_a_run_removed_while_its_program_runs_is_told_at_the_next_row(
    tmp_path, monkeypatch, lanes
):
    monkeypatch.chdir(tmp_path)
    saves = lox.loggers.SaveLogger("store")
    logger = lox.loggers.MultiLogger(saves, removes("store/00000000-00000003"))

    def run(seed):
        return logger.tap(scanned, logger.init(seed), argnames="x")(0.0)

    with pytest.warns(lox.LoxWarning, match="was removed while it was being written"):
        jax.vmap(run)(jnp.array([3])) if lanes else jax.jit(run)(3)
        jax.effects_barrier()
    (unsent,) = lox.runs(".lox/unsent")
    assert unsent.load().step["x"].tolist() == list(range(3, 50))
    assert not os.path.exists("store/00000000-00000003")


def test_saving_in_place_of_a_run_tells_its_logger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, old_state = overwriter("store")
    lox.save({"x": 7}, "store", mode="w", key=3)
    with pytest.warns(lox.LoxWarning, match="another writer has replaced the run"):
        log_rows(old, old_state, 0)
    assert lox.load("store", key=3) == {"x": 7}
    assert lox.load(".lox/unsent")["x"].tolist() == [0, 1, 2, 3, 4]


def test_saving_to_a_run_that_was_replaced_raises_once(tmp_path):
    lox.save({"x": 1}, tmp_path / "run")
    open_run(tmp_path / "run", "w").close()
    with pytest.raises(lox.StoreError, match="another writer has replaced the run"):
        lox.save({"x": 2}, tmp_path / "run")
    lox.save({"x": 3}, tmp_path / "run")
    assert lox.load(tmp_path / "run") == {"x": 3}


def test_numbers_of_writers_are_not_used_again(tmp_path):
    """Of whom a writer may still be there that has not written yet."""
    old = [Writer(create_run(tmp_path / "run", "w"))]
    for i in range(4):
        writer = Writer(create_run(tmp_path / "run", "w"))
        if i % 2:
            writer.write(lox.logdict({"x": np.int8(i)}))
        old.append(writer)
    assert len({writer.number for writer in old}) == len(old)
    last = old.pop()
    for writer in old:
        with pytest.raises(FileNotFoundError, match="was removed"):
            writer.write(lox.logdict({"x": np.int8(100)}))
    assert lox.load(tmp_path / "run") == {"x": 3}
    last.close()


@pytest.mark.parametrize("removed", ["run", "run/writer-0000"])
@pytest.mark.parametrize("first", ["old", "new"])
def test_a_directory_made_anew_is_not_shared(tmp_path, removed, first):
    """Somebody deletes a run without rows, and another writer takes its place."""
    old = Writer(create_run(tmp_path / "run", "x"))
    shutil.rmtree(tmp_path / removed)
    new = Writer(create_run(tmp_path / "run", "a"))
    assert new.number == old.number
    told = []
    for name in ("old", "new") if first == "old" else ("new", "old"):
        try:
            {"old": old, "new": new}[name].write(lox.logdict({name: np.int8(1)}))
        except FileNotFoundError:
            told.append(name)
    assert told == ["old"] if removed == "run" else len(told) == 1
    assert lox.load(tmp_path / "run") == dict.fromkeys({"old", "new"} - {*told}, 1)


def overwriting_process(store, first):
    """Begins a run, and writes a row for each line that it reads."""
    os.chdir(store)
    logger, state = overwriter("store")
    print("ready", flush=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i, line in enumerate(sys.stdin):
            if line == "finish\n":
                break
            logger.log(state, {"x": int(first) + i}, step=i)
            print("written", flush=True)
        logger.finish(state)
    print(json.dumps([str(one.message) for one in seen]), flush=True)


class Process:
    """A process of this file that is told what to do, a line at a time."""

    def __init__(self, function, *arguments):
        self.popen = programs.start(
            programs.calling(function), *arguments, stdin=programs.PIPE
        )
        assert self.popen.stdout.readline() == "ready\n"

    def tell(self, line):
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()
        return self.popen.stdout.readline()

    def finish(self):
        told = json.loads(self.tell("finish"))
        assert self.popen.communicate() == ("", "")
        assert self.popen.returncode == 0
        return told


@pytest.mark.parametrize("order", ["abababab", "bbbbaaaa"])
def test_two_processes_that_overwrite_one_run_do_not_mix(tmp_path, order):
    processes = {
        "a": Process(overwriting_process, tmp_path, 100),
        "b": Process(overwriting_process, tmp_path, 200),
    }
    for name in order:
        assert processes[name].tell("write") == "written\n"
    told = {name: processes[name].finish() for name in ("ba" if order < "b" else "ab")}
    assert len(told["a"]) == 1 and "has replaced the run" in told["a"][0]
    assert told["b"] == []
    found = lox.load(tmp_path / "store", key=3)
    assert found["x"].tolist() == [200, 201, 202, 203]
    unsent = lox.load(tmp_path / ".lox" / "unsent")
    assert unsent["x"].tolist() == [100, 101, 102, 103]


def overwrite_all_at_once(directory, rounds, count):
    """All begin at once; when all have, all write. One has the run, others know it."""
    without_fsync()
    for number in range(int(rounds)):
        path = pathlib.Path(directory) / str(number)
        if number % 2:
            lox.save({"x": -1}, path)
        begin, write = os.pipe(), os.pipe()
        ready = os.pipe()

        def work(tell, child, path=path, begin=begin, write=write, ready=ready):
            os.close(begin[1])
            os.close(write[1])
            os.read(begin[0], 1)  # until nobody can write there any more
            writer = open_run(path, "w")
            os.write(ready[1], b".")
            os.read(write[0], 1)
            for i in range(3):
                with contextlib.suppress(FileNotFoundError):
                    writer.write(lox.logdict({"x": np.int64(10 * child + i)}))
                    tell(i)
                    continue
                break
            writer.close()

        children = [
            fork(lambda tell, child=child: work(tell, child))
            for child in range(int(count))
        ]
        os.close(begin[1])
        for _ in children:
            assert os.read(ready[0], 1) == b"."
        os.close(write[1])
        told = [last_told(pipe) for _, pipe in children]
        for child, _ in children:
            assert os.waitpid(child, 0)[1] == 0
        for pipe in (begin[0], write[0], *ready):
            os.close(pipe)
        assert sorted(told) == [0] * (int(count) - 1) + [3], told
        winner = told.index(3)
        assert lox.load(path)["x"].tolist() == [10 * winner + i for i in range(3)]
    print("done")


def test_one_of_many_processes_that_overwrite_at_once_has_the_run(tmp_path):
    assert in_a_process(overwrite_all_at_once, tmp_path, 40, 4) == "done\n"


def test_one_of_many_threads_that_overwrite_at_once_has_the_run(tmp_path):
    for number in range(20):
        path, count = tmp_path / str(number), 4
        barrier = threading.Barrier(count)
        told, failures = set(), []

        def work(i, path=path, barrier=barrier, told=told, failures=failures):
            try:
                barrier.wait()
                writer = open_run(path, "w")
                barrier.wait()
                try:
                    writer.write(lox.logdict({"x": np.int64(i)}))
                except FileNotFoundError:
                    told.add(i)
                writer.close()
            except BaseException as error:
                failures.append(error)
                barrier.abort()

        in_threads(work, [(i,) for i in range(count)])
        assert not failures
        (winner,) = {*range(count)} - told
        assert lox.load(path) == {"x": winner}


def test_rows_of_a_run_that_was_replaced_are_no_part_of_the_new_one(tmp_path):
    """Also if whoever replaced it was killed before it could remove them."""
    run = tmp_path / "run"
    lox.save({"x": 1}, run)
    shutil.copytree(run / "writer-0000", tmp_path / "kept")
    lox.save({"y": 2}, run, mode="w")
    shutil.copytree(tmp_path / "kept", run / "writer-0000")
    assert lox.load(run) == {"y": 2}
    lox.save({"z": 3}, run, mode="w")
    assert lox.load(run) == {"z": 3} and not (run / "writer-0000").exists()


# --- disks -------------------------------------------------------------------


def in_a_namespace(*setup):
    """What to put before a command so that it may mount; skips if nobody may."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no `unshare` to mount a small or read-only disk with")
    script = " && ".join([*setup, 'exec "$@"'])
    before = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "-",
    ]
    tried = subprocess.run([*before, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no disk can be mounted here: {tried.stderr}")
    return before


def bound_by_permissions():
    """What to put before a command that even the superuser may not do all in."""
    if os.geteuid() != 0:
        return ()
    before = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*before, "true"]).returncode:
        pytest.skip("permissions do not bind the superuser, and there is no `setpriv`")
    return before


def set_size_limit(size):
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))


def wide(i):
    """Rows that are cut in the middle."""
    return stacked(wide=np.full((2, 500), i, np.float32))


def in_turn(i):
    """Two schemas in turn, so that each row needs a place."""
    return lox.logdict({"x": np.int64(i)} | ({"odd": np.int8(1)} if i % 2 else {}))


def check_filled(run, count):
    found = lox.load(run)
    if "wide" in run.name:
        rows = found.get("wide", np.zeros((0, 500)))
        assert (rows == np.repeat(np.arange(count), 2)[:, None]).all()
        assert len(rows) == 2 * count
    else:
        assert np.ravel(found.get("x", [])).tolist() == list(range(count))
        assert np.ravel(found.get("odd", [])).tolist() == [1] * (count // 2)


def fill(run, write, logs, ballast, room):
    """Writes until there is no room, makes some, and goes on."""
    if ballast is None:
        set_size_limit(room)
    else:
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(512)):
                pass
        os.truncate(ballast, max(ballast.stat().st_size - room, 0))
    error, count = None, 0
    while error is None:
        try:
            write(logs(count))
            count += 1
        except (lox.StoreError, OSError) as raised:
            error = raised
    assert "File too large" in str(error) or "No space left" in str(error), error
    check_filled(run, count)
    set_size_limit(None)
    if ballast is not None:
        ballast.unlink()
    for _ in range(3):
        write(logs(count))
        count += 1
        check_filled(run, count)
    return error


def fill_the_disk(directory, way):
    directory = pathlib.Path(directory)
    ballast = None if way == "limit" else directory / "ballast"
    for room in (50, 150, 401, 3_001, 20_011, 100_003):
        for logs in (wide, in_turn):
            run = directory / f"{logs.__name__}-saved"
            lox.save({"begun": 1}, run)
            error = fill(run, lambda x, run=run: lox.save(x, run), logs, ballast, room)
            assert isinstance(error, lox.StoreError), error
            shutil.rmtree(run)
            for way_of in (lambda writer: writer.write, row_writer):
                other = create_run(directory / f"{logs.__name__}-written", "x")
                writer = Writer(other)
                error = fill(other, way_of(writer), logs, ballast, room)
                assert isinstance(error, OSError), error
                writer.close()
                shutil.rmtree(other)
    print("done")


@pytest.mark.parametrize("way", ["limit", "small disk"])
def test_a_full_disk_is_reported_and_loses_nothing_before(tmp_path, way):
    disk = tmp_path / "disk"
    disk.mkdir()
    before = ()
    if way == "small disk":
        before = in_a_namespace(f"mount -t tmpfs -o size=400k none '{disk}'")
    assert in_a_process(fill_the_disk, disk, way, before=before) == "done\n"


def scanned(x, n=50):
    def body(carry, i):
        lox.log({"x": jnp.full(100, carry)}, step=i)
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(n))[0]


def train_on_a_full_disk(directory):
    os.chdir(directory)
    logger = lox.loggers.SaveLogger("store")
    state = logger.init(0)
    train = jax.jit(logger.tap(scanned, state))
    assert train(0.0) == 50
    jax.effects_barrier()
    whole = len(lox.load("store")["x"])
    set_size_limit(30_000)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert train(50.0) == 100
        jax.effects_barrier()
    set_size_limit(None)
    logger.finish(state)
    kept = np.asarray(lox.load("store")["x"])[:, 0].tolist()
    unsent = np.asarray(lox.load(".lox/unsent")["x"])
    assert whole == 50 and len(kept) > 50
    assert kept + unsent[:, 0].tolist() == list(range(100))
    print(*(str(one.message) for one in seen))


def test_training_goes_on_when_the_disk_is_full(tmp_path):
    told = in_a_process(train_on_a_full_disk, tmp_path)
    assert "SaveLogger: it failed with OSError(27, 'File too large')" in told


def write_where_nothing_can_be_written(directory):
    store = pathlib.Path(directory)
    assert lox.load(store, key=0) == {"x": 1}
    for key, message in ((0, "cannot write to the run"), (1, "cannot create a run")):
        logger = lox.loggers.SaveLogger(store, exists="resume")
        for write in (
            lambda key=key: lox.save({"x": 1}, store, key=key),
            lambda key=key, logger=logger: logger.init(key),
        ):
            with pytest.raises(lox.StoreError, match=message):
                write()
    assert lox.load(store, key=0) == {"x": 1}
    print("done")


@pytest.mark.parametrize("way", ["mount", "permissions"])
def test_a_read_only_store_is_explained(tmp_path, way):
    store, before = tmp_path / "store", ()
    lox.save({"x": 1}, store, key=0)
    if way == "mount":
        before = in_a_namespace(
            f"mount --bind '{store}' '{store}'",
            f"mount -o remount,bind,ro '{store}'",
        )
    else:
        before = bound_by_permissions()
        for path in (store, *store.iterdir()):
            path.chmod(0o500)
    try:
        done = in_a_process(write_where_nothing_can_be_written, store, before=before)
    finally:
        for path in (store, *store.iterdir()):
            path.chmod(0o700)
    assert done == "done\n"


def test_a_place_where_no_store_can_be_is_explained(tmp_path):
    (tmp_path / "file").write_text("no directory")
    for path in (tmp_path / "file" / "store", tmp_path / ("x" * 300)):
        with pytest.raises(lox.StoreError, match="cannot create a run at"):
            lox.save({"x": 1}, path, key=0)
        for exists in ("new", "resume", "overwrite"):
            with pytest.raises(lox.StoreError, match="cannot create a run at"):
                lox.loggers.SaveLogger(path, exists=exists).init(0)
        with pytest.raises(lox.StoreError, match="there is no store at"):
            lox.load(path)
    with pytest.raises(lox.StoreError, match="is not a run of lox"):
        lox.save({"x": 1}, tmp_path / "file")


def test_a_run_that_was_removed_begins_anew(tmp_path):
    for i in range(3):
        lox.save({"x": i}, tmp_path / "run")
        assert lox.load(tmp_path / "run") == {"x": i}
        shutil.rmtree(tmp_path / "run")
    lox.save({"x": 3}, tmp_path / "run")
    # all but the file by which it is known
    shutil.rmtree(tmp_path / "run" / "writer-0000")
    with pytest.raises(lox.StoreError, match="cannot write to .*was removed"):
        lox.save({"x": 4}, tmp_path / "run")
    lox.save({"x": 5}, tmp_path / "run")
    assert lox.load(tmp_path / "run") == {"x": 5}


def test_finishing_waits_for_the_files_and_for_their_names(tmp_path, monkeypatch):
    logger = lox.loggers.SaveLogger(tmp_path / "store")
    state = logger.init(0)
    logger.log(state, {"x": 1})
    waited = set()
    fsync = os.fsync

    def remember(descriptor):
        waited.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    logger.finish(state)
    store = tmp_path / "store"
    for path in (store.parent, store, *store.rglob("*")):
        if path.suffix != ".json":  # which was waited for when it was written
            assert path.stat().st_ino in waited, path


# --- several at once ---------------------------------------------------------


def test_threads_write_to_one_run(tmp_path):
    def work(i):
        for j in range(20):
            lox.save({"x": 100 * i + j}, tmp_path / "run")

    in_threads(work, [(i,) for i in range(4)])
    found = lox.load(tmp_path / "run")["x"].tolist()
    for i in range(4):  # each thread's rows in its order, and none lost
        assert [x for x in found if x // 100 == i] == [100 * i + j for j in range(20)]
    assert len(found) == 80


def write_together(directory):
    """Two processes write to a run, two threads each, while a third one reads it."""
    without_fsync()
    path = pathlib.Path(directory) / "run"
    calls = 150

    def write(child):
        save = lambda logs: lox.save(logs, path)  # noqa: E731
        if child >= 2:
            save = Writer(create_run(path, "a")).write
        for i in range(calls):
            save(call_of(child, i))

    def work(first):
        in_threads(write, [(first,), (first + 1,)])

    def read(tell):
        seen = 0
        while seen < 4 * calls * 4 // 5:
            if not (path / "run.json").exists():
                continue
            rows = columns_of(lox.load(path, ["x", "y"])).get("x", [])
            assert len(rows) >= seen, (len(rows), seen)
            seen = len(rows)
            for child in range(4):
                mine = [row for row in rows if row // 100_000 == child]
                assert mine == sorted(mine)
            tell(seen)

    processes = [fork(lambda tell: work(0)), fork(lambda tell: work(2)), fork(read)]
    for process, _ in processes:
        assert os.waitpid(process, 0)[1] == 0
    found = columns_of(lox.load(path))
    for child in range(4):
        expected = {}
        for i in range(calls):
            for name, rows in columns_of(call_of(child, i)).items():
                expected.setdefault(name, []).extend(rows)
        for name, rows in expected.items():
            scale = {"x": 10, "y": 5, "buffer": 10, "tree": 10, "large": 1}[name]
            mine = [row for row in found[name] if row // (scale * 10_000) == child]
            assert mine == rows, (child, name)
    print(last_told(processes[2][1]))


def test_processes_write_to_one_run_while_another_reads_it(tmp_path):
    assert int(in_a_process(write_together, tmp_path)) > 0


def interrupted_training(directory):
    # a process that was started in the background would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logger = lox.loggers.SaveLogger(directory)
    state = logger.init(0)

    def step(carry, i):
        lox.log({"x": carry}, step=i)
        return carry + 1, None

    train = logger.tap(lambda: lax.scan(step, 0, jnp.arange(20_000))[0], state)
    try:
        while True:
            train()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise


def test_ctrl_c_ends_training_and_loses_no_row(tmp_path):
    def rows_that_were_delivered():
        assert process.poll() is None, process.communicate()
        if not lox.runs(tmp_path):
            return 0
        rows = len(np.atleast_1d(lox.load(tmp_path).get("x", [])))
        return rows if rows >= 100 else 0

    with programs.start(programs.calling(interrupted_training), tmp_path) as process:
        delivered = wait_until(rows_that_were_delivered)
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate()
    assert told == "interrupted\n" and "KeyboardInterrupt" in errors, errors
    assert process.returncode in (1, -signal.SIGINT, 128 + signal.SIGINT)
    found = lox.load(tmp_path)
    count = len(found["x"])
    assert count >= delivered
    assert found["x"].tolist() == [i % 20_000 for i in range(count)]
    assert found.step["x"].tolist() == found["x"].tolist()


# --- damaged files -----------------------------------------------------------


def two_segments(run, count=6):
    """A run whose key `x` is in two segments, in turn."""
    writer = Writer(create_run(run, "x"))
    for i in range(count):
        writer.write(lox.logdict({"x": np.int16(i)} | ({"odd": 1.0} if i % 2 else {})))
    writer.close()
    return {"x": list(range(count)), "odd": [1.0] * (count // 2)}


def assert_right_or_explained(run, path, expected):
    """Either what was written comes back, or an error names the file."""
    try:
        found = plain(lox.load(run))
    except lox.StoreError as error:
        assert str(path) in str(error)
    else:
        assert found == expected


def test_numpy_reads_a_closed_segment(tmp_path):
    logs = lox.logdict({"x": np.arange(4.0), "once": 3}, stacked=["x"])
    run = create_run(tmp_path / "run", "x")
    writer = Writer(run)
    writer.write(logs)
    assert lox.load(run) == logs  # while it is being written
    writer.sync()
    writer.close()
    lengths = sorted(len(np.load(path)) for path in run.rglob("*.npy"))
    assert lengths == [1, 4]


def test_of_a_segment_that_was_cut_off_the_whole_records_count(tmp_path):
    writer = Writer(create_run(tmp_path / "run", "x"))
    writer.write(stacked(x=np.arange(5), y=np.arange(5.0)))
    writer.close()
    (path,) = (tmp_path / "run").rglob("*.npy")
    whole = path.read_bytes()
    head = len(whole) - 5 * 16
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with lost_records_allowed():
            found = plain(lox.load(tmp_path / "run"))
        count = max(size - head, 0) // 16
        if count == 0:
            assert found == {}
        else:
            rows = list(range(count))
            assert found == {"x": rows, "y": rows}
    path.write_bytes(whole + b"\1\2\3")
    assert plain(lox.load(tmp_path / "run"))["x"] == list(range(5))


def test_records_that_are_known_to_be_lost_are_reported(tmp_path):
    two_segments(tmp_path / "run")
    first, second = sorted((tmp_path / "run").rglob("*.npy"))
    whole = first.read_bytes()
    for size in (0, 10, len(whole) - 4):
        first.write_bytes(whole[:size])
        with pytest.warns(lox.LoxWarning, match=f"{first.name} has lost records"):
            lox.load(tmp_path / "run")
    first.unlink()
    with pytest.warns(lox.LoxWarning, match=f"{first.name} has lost records"):
        assert plain(lox.load(tmp_path / "run")) == {"x": [1, 3, 5], "odd": [1.0] * 3}


def finished_run(store, finish=True):
    """A run of a logger, with two segments; and its writer's directory.

    If it is not to be finished, it is as a killed process would leave it.
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


def move(path, name):
    path.rename(path.with_name(name))


def all_of_a_segment(writer):
    for suffix in ("json", "npy", "places"):
        (writer / f"0000.{suffix}").unlink()


# what is done to a run; what the warnings say then, if it is finished and if it is not;
# and which keys are left
LOSSES = {
    "records cut off": (
        lambda w: os.truncate(w / "0000.npy", (w / "0000.npy").stat().st_size - 120),
        ["0000.npy has lost records of 'x': 20 are left of 30"],
        None,
        {"x": 20, "y": 10, "z": 10},
    ),
    "records empty": (
        lambda w: os.truncate(w / "0001.npy", 0),
        ["0001.npy has lost records of 'y', 'z': 0 are left of 10"],
        ["0001.npy has lost records of 'y', 'z': 0 are left of an unknown number"],
        {"x": 30},
    ),
    "schema deleted": (
        lambda w: (w / "0000.json").unlink(),
        ["0000.json is missing. Without it, 30 records of 'x' in 0000.npy"],
        ["0000.json is missing. Without it, 30 records in 0000.npy cannot be read"],
        {"y": 10, "z": 10},
    ),
    "schema renamed": (
        lambda w: move(w / "0001.json", "0005.json"),
        [
            "0001.json is missing. Without it, 10 records of 'y', 'z' in 0001.npy",
            "0005.npy has lost records of 'y', 'z': the file is missing, with an "
            "unknown number",
        ],
        [
            "0001.json is missing. Without it, 10 records in 0001.npy cannot be read",
            "0005.npy has lost records of 'y', 'z': the file is missing, with an "
            "unknown number",
        ],
        {"x": 30},
    ),
    "records deleted": (
        lambda w: (w / "0000.npy").unlink(),
        ["0000.npy has lost records of 'x': the file is missing, with 30"],
        ["0000.npy has lost records of 'x': the file is missing, with an unknown"],
        {"y": 10, "z": 10},
    ),
    "records and places deleted": (
        lambda w: [(w / f"0000.{x}").unlink() for x in ("npy", "places")],
        ["0000.npy has lost records of 'x': the file is missing, with 30"],
        ["0000.npy has lost records of 'x': the file is missing, with an unknown"],
        {"y": 10, "z": 10},
    ),
    "schema and records deleted": (
        lambda w: [(w / f"0000.{x}").unlink() for x in ("npy", "json")],
        ["0000.json is missing. Without it, 30 records of 'x' in 0000.npy"],
        ["0000.json is missing. Without it, an unknown number of records in 0000.npy"],
        {"y": 10, "z": 10},
    ),
    "segment deleted": (
        all_of_a_segment,
        ["0000.json is missing. Without it, 30 records of 'x' in 0000.npy"],
        None,  # nothing tells that it was there
        {"y": 10, "z": 10},
    ),
    "writer deleted": (
        shutil.rmtree,
        ["writer-0000 is missing, with 40 records of 'x', 'y', 'z'"],
        None,
        {},
    ),
    "writer renamed": (
        lambda w: move(w, "elsewhere"),
        ["writer-0000 is missing, with 40 records of 'x', 'y', 'z'"],
        None,
        {},
    ),
    "places deleted": (  # which only keys in several segments need
        lambda w: (w / "0000.places").unlink(),
        None,
        None,
        {"x": 30, "y": 10, "z": 10},
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("finished", [True, False])
def test_what_is_missing_is_said_once(tmp_path, loss, finished):
    damage, if_finished, if_not, left = LOSSES[loss]
    damage(finished_run(tmp_path, finished))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = lox.load(tmp_path, key=0)
    messages = [str(one.message) for one in seen if one.category is lox.LoxWarning]
    expected = (if_finished if finished else if_not) or []
    assert len(messages) == len(expected), messages
    for message, part in zip(messages, expected, strict=True):
        assert part in message
    assert {name: len(rows) for name, rows in found.items()} == left
    for name, rows in found.items():  # and what is left is right
        assert rows.tolist() == list(range(left[name])), name


def test_a_finished_run_that_is_whole_is_quiet(tmp_path):
    writer = finished_run(tmp_path)
    assert writer.with_suffix(".json").exists()
    assert lox.load(tmp_path)["x"].tolist() == list(range(30))
    logger = lox.loggers.SaveLogger(tmp_path, exists="resume")
    logger.finish(logger.init(0))  # one that writes nothing leaves nothing
    assert sorted(path.name for path in writer.parent.iterdir()) == [
        "run.json",
        "writer-0000",
        "writer-0000.json",
    ]
    logger = lox.loggers.SaveLogger(tmp_path, exists="overwrite")
    state = logger.init(0)
    logger.log(state, {"x": 1})
    assert lox.load(tmp_path) == {"x": 1}
    assert not writer.with_suffix(".json").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 1}', '{"version": 1, "segments": [[0, 1]]}']
)
def test_what_a_finished_writer_says_may_be_damaged(tmp_path, content):
    path = finished_run(tmp_path).with_suffix(".json")
    path.write_text(with_checksum(content))
    with pytest.warns(lox.LoxWarning, match="cannot be detected: .*writer-0000.json"):
        assert lox.load(tmp_path)["x"].tolist() == list(range(30))
    path.unlink()
    assert lox.load(tmp_path)["x"].tolist() == list(range(30))


def test_a_segment_that_could_not_be_begun_is_not_missed(tmp_path, monkeypatch):
    writer = Writer(create_run(tmp_path / "run", "x"))
    writer.write(lox.logdict({"x": np.int8(1)}))
    with monkeypatch.context() as patch:
        patch.setattr("lox._store.segment_writer.write_json", failing)
        with pytest.raises(OSError, match="no room"):
            writer.write(lox.logdict({"y": np.int8(1)}))
    writer.write(lox.logdict({"z": np.int8(1)}))
    assert lox.load(tmp_path / "run") == {"x": 1, "z": 1}
    writer.finish()
    writer.close()
    assert lox.load(tmp_path / "run") == {"x": 1, "z": 1}


def test_a_segment_that_is_not_intact_counts_in_a_finished_run(tmp_path, monkeypatch):
    writer = Writer(create_run(tmp_path / "run", "x"))
    writer.write(lox.logdict({"x": np.int8(1)}))
    with monkeypatch.context() as patch:
        # neither written nor cut off
        patch.setattr("lox._store.growing_file.GrowingFile.append", failing)
        patch.setattr("lox._store.segment_writer.SegmentWriter._size", failing)
        with pytest.raises(OSError, match="no room"):
            writer.write(lox.logdict({"x": np.int8(2)}))
    writer.write(lox.logdict({"x": np.int8(3)}))
    writer.finish()
    writer.close()
    said = store_format.read_json(tmp_path / "run" / "writer-0000.json")["segments"]
    assert said == [[0, 1, ["x"]], [1, 1, ["x"]]]
    assert lox.load(tmp_path / "run")["x"].tolist() == [1, 3]


def failing(*args, **options):
    raise OSError("no room")


def test_two_writers_in_one_directory_are_told_from_damage(tmp_path):
    """Such as older versions of lox could leave."""
    for name in ("a", "b"):
        two_segments(tmp_path / name)
    directories = [tmp_path / name / "writer-0000" for name in ("a", "b")]
    for path in directories[1].iterdir():
        path.rename(directories[0] / f"1{path.name[1:]}")
    with pytest.raises(lox.StoreError, match="two writers have shared the directory"):
        lox.load(tmp_path / "a")


def damage_at_random(rng, store):
    """Damages one file; true if the numbers in records may be others afterwards."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    path, other = (files[i] for i in rng.integers(len(files), size=2))
    whole = path.read_bytes()
    way = rng.choice(["flip", "cut", "delete", "rename", "swap", "directory", "link"])
    if way == "flip" and whole:
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
    elif way == "cut":
        path.write_bytes(whole[: rng.integers(len(whole) + 1)])
    elif way == "rename":
        stem = rng.choice(["0000", "0001", "0007", "run", "writer-0000", "x"])
        path.rename(path.with_name(stem + rng.choice([".json", ".npy", ".places"])))
    elif way == "swap":
        path.write_bytes(other.read_bytes())
        other.write_bytes(whole)
    elif way != "flip":
        path.unlink()
        if way == "directory":
            path.mkdir()
        elif way == "link":
            path.symlink_to(other)
    return ".npy" in (path.suffix, other.suffix) and way in ("flip", "swap", "rename")


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_never_silent(tmp_path, seed):
    """A file is damaged: the truth is loaded, or a part and a warning, or an error."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    finished_run(store)
    logger = lox.loggers.SaveLogger(store, exists="resume")
    state = logger.init(0)
    for i in range(6):
        tree = {"a": np.full(3, i), "b": (np.float16(i),)}
        logger.log(state, {"x": np.float32(i)} | ({"tree": tree} if i % 2 else {}))
    logger.finish(state)
    with pytest.raises(lox.StoreError, match="written in two incompatible forms"):
        lox.load(store, "x")
    names = ["y", "z", "tree"]
    truth = lox.load(store, names)
    rng = np.random.default_rng(SEED + seed)
    for i in range(100):
        shutil.copytree(store, copy)
        other_numbers = damage_at_random(rng, copy)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                found = lox.load(copy, names)
            except lox.LoxError:
                found = None
        if found is not None and not seen:
            shapes = [jax.tree.map(np.shape, dict(logs)) for logs in (found, truth)]
            assert shapes[0] == shapes[1], (seed, i)
            assert other_numbers or found == truth, (seed, i)
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["run.json", "0000.json", "0000.places"])
def test_flipped_bytes_are_never_believed(tmp_path, name):
    run = tmp_path / "run"
    expected = two_segments(run)
    (path,) = run.rglob(name)
    whole = path.read_bytes()
    rng = np.random.default_rng(SEED)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        assert_right_or_explained(run, path, expected)
    for _ in range(100):
        damaged = np.frombuffer(whole, np.uint8).copy()
        where = rng.integers(0, len(whole), rng.integers(2, 20))
        damaged[where] = rng.integers(0, 256, len(where))
        path.write_bytes(damaged.tobytes())
        assert_right_or_explained(run, path, expected)
    path.write_bytes(whole)
    assert plain(lox.load(run)) == expected


@pytest.mark.parametrize("name", ["run.json", "0000.json", "0000.places"])
def test_files_that_lost_their_ends_are_never_believed(tmp_path, name):
    run = tmp_path / "run"
    expected = two_segments(run)
    (path,) = run.rglob(name)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(lox.StoreError) as raised:
            lox.load(run)
        assert str(path) in str(raised.value)
    path.write_bytes(whole + b"\0" * 7)
    assert_right_or_explained(run, path, expected)
    path.unlink()
    if name == "0000.json":
        with pytest.warns(lox.LoxWarning, match="0000.json is missing.* 3 records"):
            assert plain(lox.load(run)) == {"x": [1, 3, 5], "odd": [1.0] * 3}
    else:
        with pytest.raises(lox.StoreError, match=name):
            lox.load(run)


def test_keys_in_one_segment_need_no_places(tmp_path):
    two_segments(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.places"):
        path.write_bytes(os.urandom(100))
    assert lox.load(tmp_path / "run", "odd")["odd"].tolist() == [1.0] * 3
    with pytest.raises(lox.StoreError, match=r"\.places is damaged"):
        lox.load(tmp_path / "run", "x")


def test_records_under_the_head_of_others_are_not_read(tmp_path):
    two_segments(tmp_path / "run")
    first, second = sorted((tmp_path / "run").rglob("*.npy"))
    whole = first.read_bytes()
    for head in (os.urandom(128), bytes(128), second.read_bytes()[:128]):
        first.write_bytes(head + whole[128:])
        with pytest.raises(lox.StoreError, match=f"{first.name} is damaged: its head"):
            lox.load(tmp_path / "run")
    first.write_bytes(whole)
    lox.load(tmp_path / "run")


def test_a_damaged_run_does_not_hide_the_others(tmp_path):
    for seed in range(2):
        lox.save({"x": seed}, tmp_path, key=seed)
    (lox.runs(tmp_path)[0].path / "run.json").write_text("{")
    with pytest.warns(lox.LoxWarning, match="a run is left out: .*run.json.*damaged"):
        (run,) = lox.runs(tmp_path)
    assert run.load() == {"x": 1}


def test_what_lox_does_not_know_is_ignored(tmp_path):
    run = tmp_path / "run"
    expected = two_segments(run)
    for directory in (run, run / "writer-0000"):
        for name in (".DS_Store", "notes.txt", "0000.json.1.2~", "0000.npy.bak", "1"):
            (directory / name).write_text("garbage")
        (directory / "writer-x").mkdir()
        (directory / "checkpoints").mkdir()
    (run / "writer-0001").mkdir()
    assert plain(lox.load(run)) == expected


def test_many_writers_need_few_open_files(tmp_path):
    run = create_run(tmp_path / "run", "x")
    for i in range(60):
        writer = Writer(run)
        writer.write(lox.logdict({"x": np.int64(i), "y": 1.0}))
        writer.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(map(int, os.listdir("/dev/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, limits[1]))
        found = lox.load(run)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found["x"].tolist() == list(range(60))


# --- files of strangers ------------------------------------------------------


def changed(run, change):
    """Makes a change to the schema of a run, and lets the checksum fit."""
    path = sidecar(run)
    content = store_format.read_json(path)
    change(content["schema"])
    store_format.write_json(path, content)


def evil(name, value):
    def change(schema):
        *path, last = name.split(".")
        for part in path:
            schema = schema[int(part) if part.isdigit() else part]
        schema[int(last) if last.isdigit() else last] = value

    return pytest.param(change, id=f"{name}={value!r:.40}")


DEEP = "[" * 100_000 + "]" * 100_000
COLUMN = "keys.0.columns.0"
EVIL = [
    *(
        evil(f"{COLUMN}.0", dtype)
        for dtype in (
            "object",
            "O",
            "V8",
            "S4",
            "datetime64[s]",
            "i4,i4",
            "(1000000000,)f8",
            ">f8",
            "f8",
            "finfo",
            "__name__",
            "__import__('os').abort()",
            "x" * 100_000,
            [["a", "<f8"]],
            {"names": ["a"], "formats": ["O"]},
            None,
            8,
        )
    ),
    *(
        evil(f"{COLUMN}.1", shape)
        for shape in (
            [10**18],
            [10**6] * 3,
            [2**31],
            [2**29],
            [0, 10**18],
            [-1],
            [1.5],
            [float("nan")],
            [10**400],
            [True],
            [1] * 65,
            ["2"],
            3,
            None,
        )
    ),
    *(evil(f"{COLUMN}.2", impl) for impl in ("nonsense", "threefry2x32", 3, ["rbg"])),
    *(
        evil("keys.0.tree", tree)
        for tree in (
            "",
            "1",
            "-1",
            "true",
            "NaN",
            "[]",
            "{}",
            DEEP,
            '{"dict": 3}',
            '{"dict": [[[], 0]]}',
            '{"dict": [["a", 0], ["a", 1]]}',
            '{"set": [0]}',
            '{"list": [0], "tuple": [0]}',
            '{"list": [0, 0]}',
            '{"tuple": "dict"}',
            "__import__('os').abort()",
            0,
            None,
        )
    ),
    *(
        evil(f"keys.0.{name}", value)
        for name in ("lanes", "outer")
        for value in (1, -1, 10**30, 0.5, float("nan"), "0", None)
    ),
    evil("keys.0.name", None),
    evil("keys.0.columns", []),
    evil("keys", None),
    evil("keys", {"a": 1}),
    evil("keys", [[]]),
    evil("keys", DEEP[:400]),
    evil("steps", None),
    evil("steps", [["s", ["float64", [], "rbg"]]]),
    evil("steps", [[1, 2, 3]]),
    evil("mask", 3),
]


@pytest.mark.parametrize("change", EVIL)
def test_a_schema_that_cannot_be_is_refused(tmp_path, change):
    lox.save({"x": np.float64(1)}, tmp_path / "run")
    changed(tmp_path / "run", change)
    tracemalloc.start()
    try:
        with pytest.raises(lox.StoreError, match=r"0000\.json|0000\.npy"):
            lox.load(tmp_path / "run")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


def with_checksum(content_text):
    """A file as `write_json` makes it, of content that it would not take."""
    try:
        text = json.dumps(json.loads(content_text), sort_keys=True)
    except (RecursionError, ValueError):
        text = ""
    return f'{{"crc32": {zlib.crc32(text.encode())}, "content": {content_text}}}'


ABOUT = {"version": 1, "name": "", "key": None, "config": {}, "started": 0.0}
ABOUT["versions"] = {}


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "1" * 10_000,
        "[]",
        "null",
        "{}",
        *(
            json.dumps({**ABOUT, name: value})
            for name, value in [
                ("version", float("nan")),
                ("version", "1"),
                ("version", None),
                ("version", 0),
                ("version", 1.5),
                ("version", True),
                ("started", float("nan")),
                ("started", 10**400),
                ("started", "now"),
                ("key", [-1]),
                ("key", [2**32]),
                ("key", [0.5]),
                ("key", "ab"),
                ("name", 3),
                ("config", []),
                ("versions", None),
            ]
        ),
    ],
    ids=lambda text: text[-60:],
)
def test_a_file_about_a_run_that_cannot_be_is_refused(tmp_path, content):
    lox.save({"x": 1}, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(with_checksum(content))
    with pytest.raises(lox.StoreError, match=r"run\.json"):
        lox.load(tmp_path / "run")
    with pytest.warns(lox.LoxWarning, match=r"left out: .*run\.json"):
        assert lox.runs(tmp_path) == []
    path.write_text(with_checksum(json.dumps(ABOUT)))
    assert lox.load(tmp_path / "run") == {"x": 1}


class Bomb:
    def __reduce__(self):
        return os.abort, ()


def test_pickles_are_not_opened(tmp_path):
    lox.save({"x": np.float64(1)}, tmp_path / "run")
    (path,) = (tmp_path / "run").rglob("*.npy")
    np.save(path, np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(lox.StoreError, match=f"{path.name} is damaged: its head"):
        lox.load(tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    ["run.json", "writer-0000", *(f"0000.{x}" for x in ("json", "npy", "places"))],
)
@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "directory", "device"])
def test_links_and_pipes_are_not_followed(tmp_path, name, kind):
    two_segments(tmp_path / "run")
    (path,) = (tmp_path / "run").rglob(name)
    outside = tmp_path / "outside"
    path.rename(outside)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif name == "writer-0000":
        path.write_text("no directory")
    else:
        path.mkdir()
    with pytest.raises(lox.StoreError, match=name):
        lox.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..", "a/b", "\0", "~"])
def test_names_in_the_files_of_strangers_are_only_names(tmp_path, name):
    run = tmp_path / "a" / "b" / "run"
    lox.save({"x": 1.5}, run)
    changed(run, lambda schema: schema["keys"][0].update(name=name))
    path = run / "run.json"
    store_format.write_json(path, {**store_format.read_json(path), "name": name})
    assert lox.load(run) == {name: 1.5} and lox.runs(run.parent)[0].name == name
    lox.save({"y": 1}, run)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_dir()) == sorted(
        ["a", "b", "run", "writer-0000"]
    )


def test_no_more_than_what_is_asked_for_is_read(tmp_path):
    """Of files that are far larger than memory; they are holes, and so all zeros."""
    run = create_run(tmp_path / "run", "x")
    writer = Writer(run)
    writer.write(lox.logdict({"small": np.int64(7)}))
    large = np.zeros(2**17, np.float32)
    writer.write(lox.logdict({"large": large}))
    both = {"wide": large, "narrow": np.int32(0), "half": large.astype("bfloat16")}
    writer.write(lox.logdict({**both, "last": {"a": np.float64(0)}}))
    writer.close()
    rows = 2**14
    for path in sorted(run.rglob("*.npy"))[1:]:
        size = np.load(path, mmap_mode="r").dtype.itemsize
        os.truncate(path, path.stat().st_size + (rows - 1) * size)
        assert path.stat().st_size > 2**33 > 100 * path.stat().st_blocks * 512
    tracemalloc.start()
    try:
        assert lox.load(run, "small") == {"small": 7}
        found = lox.load(run, ["large", "wide", "half"])
        assert {x.shape for x in found.values()} == {(rows, 2**17)}
        assert not found["large"][-3:].any() and not found["wide"][1000].any()
        assert not found["half"][rows // 2, :10].any()
        assert found["half"].dtype == "bfloat16"
        assert not found.slice[-1]["wide"].any()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


def peak_memory(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [10**6, 3 * 10**9, 10**12])
@pytest.mark.parametrize("name", ["0000.places", "0001.places"])
def test_places_are_bounded_by_the_records(tmp_path, size, name):
    expected = two_segments(tmp_path / "run")
    path = tmp_path / "run" / "writer-0000" / name
    os.truncate(path, size)  # the end is a hole

    def load():
        with pytest.raises(lox.StoreError, match=rf"{name} is damaged"):
            lox.load(tmp_path / "run")
        assert plain(lox.load(tmp_path / "run", "odd")) == {"odd": expected["odd"]}

    assert peak_memory(load) < 2**22


def test_places_that_fit_are_bounded_by_the_records(tmp_path):
    """More places than records, whose checksums are right."""
    expected = two_segments(tmp_path / "run")
    path = tmp_path / "run" / "writer-0000" / "0000.places"
    with open(path, "ab") as file:
        file.write(
            b"".join(store_format.encode_place(i, 2 * i) for i in range(3, 10_000))
        )
    with pytest.warns(lox.LoxWarning, match="lost records of 'x': 3 are left of at"):
        assert plain(lox.load(tmp_path / "run")) == expected


@pytest.mark.parametrize("size", [3 * 10**9, 10**12])
def test_records_that_are_holes_are_not_joined_in_memory(tmp_path, size):
    two_segments(tmp_path / "run")
    path = tmp_path / "run" / "writer-0000" / "0001.npy"
    os.truncate(path, size)

    def load():
        with pytest.raises(
            lox.StoreError, match=f"{path.name} is damaged: its size is"
        ):
            lox.load(tmp_path / "run", "x")
        assert len(lox.load(tmp_path / "run", "odd")["odd"]) > 10**8  # on disk

    assert peak_memory(load) < 2**22


@pytest.mark.parametrize("kind", ["mask", "key"])
def test_holes_are_not_read_for_masks_and_prng_keys(tmp_path, kind):
    run = tmp_path / "run"
    logs = lox.logdict({"x": jax.random.key(1)})
    if kind == "mask":
        logs = lox.spool(jax.vmap(_ragged), capacity=4)(jnp.array([1, 3]))[1]
    lox.save(logs, run)
    (path,) = run.rglob("*.npy")
    os.truncate(path, 10**12)
    with pytest.raises(lox.StoreError, match=f"{path.name} is damaged: its size is"):
        lox.load(run)


def test_few_numbers_of_many_large_records_stay_on_disk(tmp_path):
    run = tmp_path / "run"
    lox.save({"small": np.int8(1), "wide": np.zeros(2**12, np.int8)}, run)
    (path,) = run.rglob("*.npy")
    os.truncate(path, 2**24 * (2**12 + 1))  # holes, of which each row would be a page
    found = lox.load(run, "small")["small"]
    assert 2**23 < len(found) <= 2**24 and not found.flags.owndata


# what to repeat how often between a beginning and an end
BOMBS = {
    "lists": ("[", "[],", 15_000_000, "[]]"),
    "numbers": ("[", "-9,", 10_000_000, "1]"),
    "strings": ("[", '"ab",', 6_000_000, "1]"),
    "quotes": ("", '"', 20_000_000, ""),
    "backslashes": ('["', '\\"', 10_000_000, ""),
    "depth": ("[" * 10_000, "]", 10_000, ""),
}


def bomb(kind, size=None):
    begin, part, times, end = BOMBS[kind]
    return (begin + part * times + end)[:size]


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("name", ["run.json", "0000.json", "writer-0000.json"])
def test_json_that_would_fill_memory_is_refused(tmp_path, kind, name):
    writer = finished_run(tmp_path)
    path = writer / name if name == "0000.json" else writer.parent / name
    path.write_text(f'{{"crc32": 1, "content": {bomb(kind)}}}')

    def load():
        if name == "writer-0000.json":
            with pytest.warns(lox.LoxWarning, match=rf"{name} is damaged"):
                lox.load(tmp_path, key=0)
        else:
            with pytest.raises(lox.StoreError, match=rf"{name} is damaged"):
                lox.load(tmp_path, key=0)

    assert peak_memory(load) < 2**28


@pytest.mark.parametrize("kind", ["lists", "numbers", "depth"])
def test_a_structure_that_would_fill_memory_is_refused(tmp_path, kind):
    lox.save({"x": np.float64(1)}, tmp_path / "run")
    tree = f'{{"list": {bomb(kind, 20_000_000)}}}'
    changed(tmp_path / "run", lambda schema: schema["keys"][0].update(tree=tree))

    def load():
        with pytest.raises(lox.StoreError, match="0000.json .*is not a tree struct"):
            lox.load(tmp_path / "run")

    assert peak_memory(load) < 2**28


def test_recursion_may_go_deep_and_json_may_not(tmp_path):
    """With a high limit, the parser itself would overflow the stack."""
    lox.save({"x": 1}, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(f'{{"content": {"[" * 10**6}{"]" * 10**6}}}')
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(lox.StoreError, match="lists and dicts"):
            lox.load(tmp_path / "run")
    finally:
        sys.setrecursionlimit(limit)


def test_a_config_that_could_not_be_read_is_not_written(tmp_path):
    config = {"lr": 0.1, "table": "x" * 2**25}
    logger = lox.loggers.SaveLogger(tmp_path, config=config)
    with pytest.raises(lox.StoreError, match="more than .* bytes.*and not in a config"):
        logger.init(0)
    config["table"] = list(range(10_000))
    logger = lox.loggers.SaveLogger(tmp_path, config=config)
    logger.finish(logger.init(1))
    (run,) = lox.runs(tmp_path)
    assert run.config == config


# --- formats -----------------------------------------------------------------


def golden_calls():
    """What `tests/data/store-v1` was written from, a list for each run and writer."""
    steps = np.arange(3)
    bits = np.array([[1, 2.5], [-0.5, 3e38]], ml_dtypes.bfloat16)
    scalars = [
        lox.logdict({"loss": np.float32(0.5)}, {"step": {"loss": np.int32(0)}}),
        lox.logdict({"loss": np.float32(0.25)}, {"step": {"loss": np.int32(1)}}),
        lox.logdict({"seed": np.uint64(2**64 - 1), "done": np.bool_(True)}),
    ]
    resumed = [
        lox.logdict(
            {"loss": np.float32([0.125, 2]), "lr": np.float64([0.1, 0.2])},
            {"step": dict.fromkeys(["loss", "lr"], np.int32([2, 3]))},
            stacked=True,
        ),
        lox.logdict({"loss": np.float32(-1)}, {"step": {"loss": np.int32(4)}}),
    ]
    trees = [
        lox.logdict(
            {
                "tree": {"w": np.arange(6, dtype=np.int8).reshape(3, 2), "b": (steps,)},
                "bits": bits[[0, 1, 1]],
            },
            {"step": dict.fromkeys(["tree", "bits"], steps)},
            stacked=True,
        ),
        lox.logdict({"list": [np.int16(1), None, np.complex64(2j)], "": np.float16(3)}),
        lox.logdict(
            {
                "../ß\0": np.zeros((2, 0), np.float32),
                "four": np.array(7, ml_dtypes.int4),
            }
        ),
        lox.logdict({"key": jax.random.key(3)}),
    ]
    logged = lox.spool(jax.vmap(_ragged), capacity=4)(jnp.array([1, 0, 3]))[1]
    around = jax.vmap(lox.spool(_ragged, capacity=4))(jnp.array([2, 2]))[1]
    return {
        "scalars": [scalars, resumed],
        "trees": [trees],
        "lanes": [[logged], [logged]],
        "lanes-around": [[around]],
    }


def _ragged(n):
    def body(i):
        lox.log({"i": i}, step=i)
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


def write_golden(directory):
    for name, writers in golden_calls().items():
        run = create_run(pathlib.Path(directory) / name, "x", [0, 7], {"lr": 0.1})
        for calls in writers:
            writer = Writer(create_run(run, "a"))
            for logs in calls:
                writer.write(jax.tree.map(_to_host, logs))
            writer.close()


def _to_host(x):
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def test_a_store_of_version_1_loads(tmp_path):
    found = {run.name: run for run in lox.runs(GOLDEN)}
    assert sorted(found) == ["lanes", "lanes-around", "scalars", "trees"]
    for run in found.values():
        assert run.key.tolist() == [0, 7] and run.config == {"lr": 0.1}
        assert run.versions["lox"] == "0.1.0" and run.started > 1.7e9

    scalars = found["scalars"].load()
    assert plain(scalars) == {
        "loss": [0.5, 0.25, 0.125, 2, -1],
        "seed": 2**64 - 1,
        "done": True,
        "lr": [0.1, 0.2],
    }
    assert plain(scalars.step) == {"loss": [0, 1, 2, 3, 4], "lr": [2, 3]}
    assert scalars["loss"].dtype == np.float32 and scalars.step["lr"].dtype == np.int32

    trees = found["trees"].load()
    assert trees["tree"]["w"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert trees["tree"]["w"].dtype == np.int8 and type(trees["tree"]["b"]) is tuple
    assert trees["tree"]["b"][0].tolist() == [0, 1, 2]
    assert trees.step["bits"].tolist() == [0, 1, 2]
    assert trees["bits"].dtype == ml_dtypes.bfloat16
    words = [[0x3F80, 0x4020], [0xBF00, 0x7F62], [0xBF00, 0x7F62]]
    assert trees["bits"].view(np.uint16).tolist() == words
    assert trees["list"] == [1, None, 2j] and trees["list"][2].dtype == np.complex64
    assert trees[""] == 3 and trees[""].dtype == np.float16
    assert trees["../ß\0"].shape == (2, 0)
    assert trees["four"] == 7 and trees["four"].dtype == ml_dtypes.int4
    assert jax.random.key_data(trees["key"]).tolist() == [0, 3]

    lanes = found["lanes"].load()
    assert [plain(lane) for lane in lanes.lanes()] == [
        {"i": [0, 0]},
        {},
        {"i": [0, 1, 2, 0, 1, 2]},
    ]
    assert lanes.lanes()[2].step["i"].tolist() == [0, 1, 2, 0, 1, 2]
    around = found["lanes-around"].load()
    assert [plain(lane) for lane in around.lanes()] == [{"i": [0, 1]}] * 2


def test_what_is_written_today_is_what_was_written_then(tmp_path):
    """If this fails, the format has changed: then it needs a new version."""
    write_golden(tmp_path)
    then = sorted(p for p in GOLDEN.rglob("*") if p.is_file())
    assert [path.relative_to(GOLDEN) for path in then] == sorted(
        path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()
    )
    for path in then:
        if path.suffix in (".npy", ".places"):
            today = tmp_path / path.relative_to(GOLDEN)
            assert today.read_bytes() == path.read_bytes(), path


def test_runs_of_an_earlier_logger_load_without_warnings(tmp_path):
    """Finished, resumed, replaced and killed ones, and such as a full disk left."""
    for name, content in json.loads(GOLDEN_LOGGER.read_text()).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    (tmp_path / "00000000-00000001" / "writer-0001").mkdir()  # which was never used
    found = {int(run.key[1]): run for run in lox.runs(tmp_path)}
    rows = {1: 6, 2: 5, 3: 4, 4: 4, 5: [0, 2, 3, 4], 6: 2}
    assert found.keys() == rows.keys()
    for key, run in found.items():
        logs = run.load()
        expected = [*range(rows[key])] if isinstance(rows[key], int) else rows[key]
        assert run.config == {"lr": 0.1}
        assert logs["x"].tolist() == logs.step["x"].tolist() == expected
        odd = [x for x in expected if x % 2] if key != 6 else []
        assert np.ravel(logs.step.get("odd", [])).tolist() == odd
        # and they go on
        logger = lox.loggers.SaveLogger(tmp_path, exists="resume")
        state = logger.init(key)
        logger.log(state, {"x": np.float32(9)}, step=np.int32(9))
        logger.finish(state)
        assert run.load()["x"].tolist() == [*expected, 9]


@pytest.mark.parametrize("name", ["run.json", "0000.json"])
def test_a_format_of_the_future_says_so(tmp_path, name):
    lox.save({"x": 1}, tmp_path / "run")
    (path,) = (tmp_path / "run").rglob(name)
    content = store_format.read_json(path)
    store_format.write_json(path, {**content, "version": 99})
    with pytest.raises(lox.StoreError, match=r"format version 99.*Update jax-lox"):
        lox.load(tmp_path / "run")
