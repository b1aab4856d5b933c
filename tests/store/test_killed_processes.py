"""Processes that are killed while they write lose no written row."""

import contextlib
import os
import pathlib
import shutil
import signal
import sys

import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import format as store_format
from lox._store.creating import create_run, open_run
from lox._store.syncing import flush_to_disk
from lox._store.writer import Writer
from tests.store.child_processes import fork, in_a_process, last_reported, without_fsync
from tests.store.written_runs import (
    SEED,
    call_of,
    check_rows,
    columns_of,
    lost_records_allowed,
    row_writer,
)


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
        # chosen by its progress, not by time, so that slow machines do the same
        reported, wanted = b"", 4 * int(rng.integers(0, 40))
        while len(reported) < wanted and (
            more := os.read(pipe, wanted - len(reported))
        ):
            reported += more
        for _ in range(int(rng.integers(0, 20_000))):
            pass
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        acknowledged[child] = len(reported) // 4 + last_reported(pipe)
        try:
            logs = lox.load(path)
        except lox.StoreError:  # before there was a run
            assert not any(acknowledged.values())
            acknowledged = {}
            continue
        check_rows(logs, acknowledged)
        cut += sum(acknowledged.values()) > 0
    print(cut)


def test_process_killed_at_any_moment_loses_no_written_row(tmp_path):
    reported = in_a_process(kill_at_random_moments, tmp_path, 60, SEED)
    assert int(reported) > 30, f"seed {SEED}"


def killed_at_operation(number, work):
    """Kills a process before its n-th file operation; true if it had that many."""

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
    reported = last_reported(pipe)
    _, status = os.waitpid(process, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        return False, reported
    return True, reported


def kill_at_each_operation(directory):
    """Kills it before each file is created, renamed or removed."""
    without_fsync()
    directory = pathlib.Path(directory)

    def write(path, mode, child, tell=lambda count: None):
        writer = open_run(path, mode, tracked=True)
        for i in range(5):
            writer.write(call_of(child, i))
            tell(i + 1)
        flush_to_disk(writer.paths())
        writer.close()

    for mode in "axw":
        for number in range(1000):
            path = directory / f"{mode}-{number}"
            if mode == "w":
                write(path, "x", 0)
            killed, reported = killed_at_operation(
                number, lambda tell, path=path, mode=mode: write(path, mode, 1, tell)
            )
            before = columns_of(call_of(0, 0))["x"][0] if mode == "w" else -1
            with contextlib.suppress(lox.StoreError), lost_records_allowed():
                found = lox.load(path)
                if reported:  # no rows of the old run are mixed in
                    check_rows(found, {1: reported})
                elif mode == "w" and "x" in found:
                    assert columns_of(found)["x"][0] in (before, 100_000)
            if mode != "w" and not [*path.glob("writer-*"), *path.glob("run.json")]:
                write(path, "x", 2)  # nothing was written there: it is not a run yet
                check_rows(lox.load(path), {2: 5})
            elif mode == "w":
                write(path, "w", 2)
                check_rows(lox.load(path), {2: 5})
            else:
                write(path, "a", 2)
                check_rows(lox.load(path), {1: reported, 2: 5})
            shutil.rmtree(path)
            if not killed:
                break
        print(mode, number)


def test_process_killed_before_any_file_operation_leaves_usable_run(tmp_path):
    lines = in_a_process(kill_at_each_operation, tmp_path).split("\n")[:-1]
    counts = {mode: int(number) for mode, number in map(str.split, lines)}
    # three files and a renaming for each of five segments, and some for the run
    assert counts.keys() == set("axw") and min(counts.values()) > 20


@pytest.mark.parametrize("exists", ["new", "resume", "overwrite"])
def test_run_whose_creation_was_interrupted_is_taken_over(tmp_path, exists):
    run = tmp_path / "00000000-00000000"
    run.mkdir()
    (run / "run.json.123.456~").write_text('{"crc32": 1, "con')
    logger = lox.loggers.SaveLogger(tmp_path, exists=exists)
    state = logger.init(0)
    logger.log(state, {"x": 1})
    logger.finish(state)
    assert lox.load(tmp_path, key=0) == {"x": 1}


def test_rows_of_run_without_run_file_are_not_lost(tmp_path):
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


def test_run_that_is_created_while_its_store_is_listed_is_found(tmp_path, monkeypatch):
    lox.save({"x": 1}, tmp_path, key=0)
    (run,) = tmp_path.iterdir()
    hidden = (run / "run.json").rename(tmp_path / "hidden~")
    listed = os.listdir

    def listdir(path):
        if pathlib.Path(path) == run and hidden.exists():
            hidden.rename(run / "run.json")
        return listed(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert [found.name for found in lox.runs(tmp_path)] == [run.name]
    assert not hidden.exists()


def test_writer_that_has_not_begun_its_run_is_not_a_run_yet(tmp_path):
    run = tmp_path / "store" / "run"
    run.mkdir(parents=True)
    Writer(run, tracked=True)
    assert lox.runs(tmp_path / "store") == []


def test_unreadable_run_is_not_appended_to(tmp_path):
    run = create_run(tmp_path / "run", "x")
    path = run / "run.json"
    whole = path.read_text()
    for text in ("{", whole[:-9], whole.replace('"version": 1', '"version": 99')):
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


def test_replacing_run_keeps_files_of_others(tmp_path):
    lox.save({"x": 1}, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("precious")
    (tmp_path / "run" / "writer-0000").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "writer-0000").symlink_to(tmp_path / "elsewhere")
    lox.save({"y": 2}, tmp_path / "run", mode="w")
    assert lox.load(tmp_path / "run") == {"y": 2}
    assert (tmp_path / "run" / "notes.txt").read_text() == "precious"
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3


def test_writer_of_replaced_run_does_not_touch_the_new_one(tmp_path):
    old = Writer(create_run(tmp_path / "run", "x"))
    old.write(lox.logdict({"x": np.float64(1)}))
    new = Writer(create_run(tmp_path / "run", "w"))
    new.write(lox.logdict({"y": np.int8(2)}))
    with pytest.raises(FileNotFoundError, match="was removed"):
        old.write(lox.logdict({"x": np.float64(1)}))
    old.write(lox.logdict({"z": np.int8(3)}))  # in its own directory
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
def test_replacing_run_does_not_follow_symlink(tmp_path, mode):
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
def test_dangling_symlink_raises_error_with_remedy(tmp_path, mode):
    (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    with pytest.raises(lox.StoreError, match="cannot create a run at|symbolic link"):
        lox.save({"x": 1}, tmp_path / "run", mode)
    assert not (tmp_path / "nowhere").exists()
