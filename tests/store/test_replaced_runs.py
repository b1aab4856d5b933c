"""Runs that are replaced while another writer has them open."""

import contextlib
import json
import os
import pathlib
import shutil
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import format as store_format
from lox._store.creating import create_run, open_run
from lox._store.writer import Writer
from tests import programs
from tests.store.child_processes import fork, in_a_process, last_reported, without_fsync
from tests.store.written_runs import scanned
from tests.waiting import in_threads


def overwriter(store):
    logger = lox.loggers.SaveLogger(store, exists="overwrite")
    return logger, logger.init(3)


def log_rows(logger, state, first, count=5):
    for i in range(count):
        logger.log(state, {"x": first + i}, step=i)


@pytest.mark.parametrize("rows_before", [0, 2])
def test_overwriting_is_reported_to_previous_writer(tmp_path, monkeypatch, rows_before):
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


def test_overwriting_is_not_reported_to_writer_that_only_finishes(tmp_path):
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


def test_overwriting_is_not_reported_to_writer_without_rows(tmp_path):
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
def test_run_removed_while_program_runs_is_reported_at_next_row(
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


def test_save_over_run_is_reported_to_its_logger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, old_state = overwriter("store")
    lox.save({"x": 7}, "store", mode="w", key=3)
    with pytest.warns(lox.LoxWarning, match="another writer has replaced the run"):
        log_rows(old, old_state, 0)
    assert lox.load("store", key=3) == {"x": 7}
    assert lox.load(".lox/unsent")["x"].tolist() == [0, 1, 2, 3, 4]


def test_save_to_replaced_run_raises_once(tmp_path):
    lox.save({"x": 1}, tmp_path / "run")
    open_run(tmp_path / "run", "w").close()
    with pytest.raises(lox.StoreError, match="another writer has replaced the run"):
        lox.save({"x": 2}, tmp_path / "run")
    lox.save({"x": 3}, tmp_path / "run")
    assert lox.load(tmp_path / "run") == {"x": 3}


def test_writer_numbers_are_not_reused(tmp_path):
    """A writer that has not written yet may still use the number."""
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
def test_recreated_directory_is_not_shared(tmp_path, removed, first):
    """A run without rows is deleted, and another writer takes its place."""
    old = Writer(create_run(tmp_path / "run", "x"))
    shutil.rmtree(tmp_path / removed)
    new = Writer(create_run(tmp_path / "run", "a"))
    assert new.number == old.number
    reported = []
    for name in ("old", "new") if first == "old" else ("new", "old"):
        try:
            {"old": old, "new": new}[name].write(lox.logdict({name: np.int8(1)}))
        except FileNotFoundError:
            reported.append(name)
    assert reported == ["old"] if removed == "run" else len(reported) == 1
    assert lox.load(tmp_path / "run") == dict.fromkeys({"old", "new"} - {*reported}, 1)


def overwriting_process(store, first):
    """Starts a run, and writes a row for each line of its input."""
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
    """A process that calls a function of this file and reads commands line by line."""

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
        reported = json.loads(self.tell("finish"))
        assert self.popen.communicate() == ("", "")
        assert self.popen.returncode == 0
        return reported


@pytest.mark.parametrize("order", ["abababab", "bbbbaaaa"])
def test_processes_that_overwrite_one_run_do_not_mix(tmp_path, order):
    processes = {
        "a": Process(overwriting_process, tmp_path, 100),
        "b": Process(overwriting_process, tmp_path, 200),
    }
    for name in order:
        assert processes[name].tell("write") == "written\n"
    reported = {
        name: processes[name].finish() for name in ("ba" if order < "b" else "ab")
    }
    assert len(reported["a"]) == 1 and "has replaced the run" in reported["a"][0]
    assert reported["b"] == []
    found = lox.load(tmp_path / "store", key=3)
    assert found["x"].tolist() == [200, 201, 202, 203]
    unsent = lox.load(tmp_path / ".lox" / "unsent")
    assert unsent["x"].tolist() == [100, 101, 102, 103]


def overwrite_all_at_once(directory, rounds, count):
    """All start a run, then all write: one owns it, and the others are notified."""
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
            os.read(begin[0], 1)  # until no process can write there
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
        reported = [last_reported(pipe) for _, pipe in children]
        for child, _ in children:
            assert os.waitpid(child, 0)[1] == 0
        for pipe in (begin[0], write[0], *ready):
            os.close(pipe)
        assert sorted(reported) == [0] * (int(count) - 1) + [3], reported
        winner = reported.index(3)
        assert lox.load(path)["x"].tolist() == [10 * winner + i for i in range(3)]
    print("done")


def test_processes_that_overwrite_at_once_leave_one_owner(tmp_path):
    assert in_a_process(overwrite_all_at_once, tmp_path, 40, 4) == "done\n"


def replaced(path, started):
    """The description of a run that replaces another."""
    return {
        "version": 1,
        "name": path.name,
        "key": None,
        "config": {"started": started},
        "started": started,
        "versions": {},
    }


def test_writer_that_replaces_run_late_does_not_replace_a_later_writer(tmp_path):
    """Its number must not be used again: two writers would share a directory."""
    path = tmp_path / "run"
    lox.save({"x": -1}, path)
    late, early = Writer(path, replaces=True), Writer(path, replaces=True)
    assert late.number < early.number
    early.begin_run(replaced(path, 2.0))
    shutil.rmtree(late.directory)  # as the process does that has replaced the run
    late.begin_run(replaced(path, 1.0))
    assert lox.runs(tmp_path)[0].config == {"started": 2.0}
    early.close()  # without rows, its directory is gone as well
    other = Writer(path)
    assert other.number >= early.number
    other.write(lox.logdict({"x": np.int8(1)}))
    with pytest.raises(FileNotFoundError, match="was removed"):
        late.write(lox.logdict({"x": np.int8(2)}))
    assert lox.load(path) == {"x": 1}
    other.close()


def test_config_that_is_set_late_is_not_that_of_the_replacing_run(tmp_path):
    path = tmp_path / "run"
    late = open_run(path, "w", config={"lr": 1})
    open_run(path, "w", config={"lr": 1}).close()
    late.set_config({"lr": 2}, before={"lr": 1})
    assert lox.runs(tmp_path)[0].config == {"lr": 1}
    assert Writer(path).number > late.number
    late.close()


@pytest.mark.skipif(os.name != "posix", reason="Windows cannot lock directories")
def test_writers_that_replace_run_do_so_one_after_another(tmp_path, monkeypatch):
    import fcntl

    path, refused = tmp_path / "run", []
    lox.save({"x": -1}, path)

    def write_json(*arguments, **options):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refused.append(path)
        finally:
            os.close(descriptor)
        return store_format.write_json(*arguments, **options)

    monkeypatch.setattr("lox._store.writer.write_json", write_json)
    open_run(path, "w").close()
    assert refused == [path]
    write_json(path / "other.json", {"version": 1})
    assert refused == [path]  # it is unlocked again


def test_threads_that_overwrite_at_once_leave_one_owner(tmp_path):
    for number in range(20):
        path, count = tmp_path / str(number), 4
        barrier = threading.Barrier(count)
        reported, failures = set(), []

        def work(i, path=path, barrier=barrier, reported=reported, failures=failures):
            try:
                barrier.wait()
                writer = open_run(path, "w")
                barrier.wait()
                try:
                    writer.write(lox.logdict({"x": np.int64(i)}))
                except FileNotFoundError:
                    reported.add(i)
                writer.close()
            except BaseException as error:
                failures.append(error)
                barrier.abort()

        in_threads(work, [(i,) for i in range(count)])
        assert not failures
        (winner,) = {*range(count)} - reported
        assert lox.load(path) == {"x": winner}


def test_rows_of_replaced_run_are_not_in_the_new_one(tmp_path):
    """Also if the process that replaced it was killed before it removed them."""
    run = tmp_path / "run"
    lox.save({"x": 1}, run)
    shutil.copytree(run / "writer-0000", tmp_path / "kept")
    lox.save({"y": 2}, run, mode="w")
    shutil.copytree(tmp_path / "kept", run / "writer-0000")
    assert lox.load(run) == {"y": 2}
    lox.save({"z": 3}, run, mode="w")
    assert lox.load(run) == {"z": 3} and not (run / "writer-0000").exists()
