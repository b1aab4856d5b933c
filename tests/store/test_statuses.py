"""The status, duration, rows and last rows of runs, read without loading them."""

import os
import pathlib
import platform
import shutil
import signal
import time

import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import owners
from lox._store.creating import open_run
from lox._store.format import read_json, write_json
from tests import programs
from tests.store.child_processes import fork, in_a_process, last_reported
from tests.store.test_format import GOLDEN
from tests.waiting import wait_until

TRAINS = """
    import sys
    import lox.loggers
    logger = lox.loggers.SaveLogger(sys.argv[1], exists="resume")
    state = logger.init(0)
    for i in range(3):
        logger.log(state, {"x": i}, step=i)
    print("ready", flush=True)
    sys.stdin.readline()
"""


def only_run(store):
    (run,) = lox.runs(store)
    return run


def edited(path, **changes):
    """Changes the file of an open writer, as if another process had written it."""
    content = read_json(path)
    write_json(path, {**content, "process": {**content["process"], **changes}})


@pytest.fixture
def training(tmp_path):
    """A process that has a run open."""
    process = programs.start(TRAINS, tmp_path, stdin=programs.PIPE)
    with process:
        assert process.stdout.readline().strip() == "ready"
        yield process
        process.kill()


# --- status -----------------------------------------------------------------


def test_run_is_running_until_its_process_is_killed(training, tmp_path):
    run = only_run(tmp_path)
    assert run.status == "running" and run.rows == 3 and run.last["x"] == 2
    assert run.duration >= 0
    os.kill(training.pid, signal.SIGKILL)
    training.wait()
    assert run.status == "killed" and run.error is None
    written = max(path.stat().st_mtime for path in run.path.rglob("*.npy"))
    assert run.duration == pytest.approx(written - run.started, abs=1e-6)
    assert run.unfinished_processes == [0]


def test_killed_run_that_is_resumed_is_running_and_then_finished(training, tmp_path):
    os.kill(training.pid, signal.SIGKILL)
    training.wait()
    logger = lox.loggers.SaveLogger(tmp_path, exists="resume")
    state = logger.init(0)
    assert only_run(tmp_path).status == "running"
    logger.log(state, {"x": 7}, step=9)
    logger.finish(state)
    run = only_run(tmp_path)
    assert run.status == "finished" and run.rows == 4
    assert run.last == {"x": 7} and run.last.step["x"] == 9


def test_one_of_several_writers_that_runs_is_enough(training, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path, exists="resume")
    state = logger.init(0)
    logger.log(state, {"x": 7}, step=9)
    logger.finish(state)
    assert only_run(tmp_path).status == "running"


def test_run_that_an_exception_ends_has_failed(tmp_path):
    program = TRAINS.replace("sys.stdin.readline()", "raise ValueError('no more data')")
    done = programs.run(program, tmp_path)
    assert done.returncode == 1
    run = only_run(tmp_path)
    assert run.status == "failed" and run.error == "ValueError: no more data"
    assert run.rows == 3 and run.duration > 0


def test_run_that_fails_before_its_first_row_has_failed(tmp_path):
    program = TRAINS.replace("range(3)", "()").replace("sys.stdin.readline()", "1 / 0")
    programs.run(program, tmp_path)
    run = only_run(tmp_path)
    assert run.status == "failed" and run.error == "ZeroDivisionError: division by zero"
    assert run.rows == 0 and run.last == {} and run.load() == {}
    assert run.unfinished_processes == []


def test_interrupted_run_was_killed(tmp_path):
    program = TRAINS.replace("sys.stdin.readline()", "raise KeyboardInterrupt")
    programs.run(program, tmp_path)
    run = only_run(tmp_path)
    assert run.status == "killed" and run.error == "KeyboardInterrupt"


def test_run_that_is_never_finished_by_its_program_is_finished_at_exit(tmp_path):
    done = programs.run(TRAINS, tmp_path)
    assert done.returncode == 0
    assert only_run(tmp_path).status == "finished"


def test_saved_runs_and_runs_without_rows_are_finished(tmp_path):
    lox.save({"x": 1}, tmp_path, key=0)
    logger = lox.loggers.SaveLogger(tmp_path)
    logger.finish(logger.init(1))
    saved, empty = lox.runs(tmp_path)
    assert saved.status == empty.status == "finished"
    assert (saved.rows, empty.rows) == (1, 0) and empty.duration >= 0
    assert not [*tmp_path.rglob("*.open.json")]


def test_process_with_a_reused_number_is_another_one(training, tmp_path):
    (path,) = tmp_path.rglob("*.open.json")
    run = only_run(tmp_path)
    started = read_json(path)["process"]["started"]
    if started is None:
        pytest.skip("this system does not say when a process has started")
    edited(path, started=started - 1)
    assert run.status == "killed"


def leave_a_zombie(directory):
    def work(tell):
        writer = open_run(pathlib.Path(directory) / "run", "a", tracked=True)
        writer.write(lox.logdict({"x": 1}))
        tell(1)

    child, pipe = fork(work)
    assert last_reported(pipe) == 1  # the pipe is closed: the child is ending
    run = only_run(directory)
    wait_until(lambda: run.status == "killed")
    os.waitpid(child, 0)
    assert run.status == "killed"


def test_process_that_has_ended_but_was_not_waited_for_is_gone(tmp_path):
    in_a_process(leave_a_zombie, tmp_path)


def test_run_of_another_machine_is_running_while_it_writes_and_then_stale(
    training, tmp_path
):
    (path,) = tmp_path.rglob("*.open.json")
    run = only_run(tmp_path)
    for change in (
        {"host": "another"},
        {"namespace": "pid:[1]"},
        {"boot": "x", "machine": "y"},
    ):
        edited(path, **{"host": platform.node(), **change})
        assert run.status == "running"
        for file in [run.path / "writer-0000", *run.path.rglob("*.npy")]:
            os.utime(file, (0, time.time() - 10_000))
        assert run.status == "stale"
        assert run.duration == 0  # the files say that it ended before it began
        os.utime(next(run.path.rglob("*.npy")))


def test_run_of_an_earlier_boot_of_this_machine_was_killed(training, tmp_path):
    (path,) = tmp_path.rglob("*.open.json")
    if read_json(path)["process"]["machine"] is None:
        edited(path, boot="earlier")
        assert only_run(tmp_path).status == "running"  # as on another machine
    else:
        edited(path, boot="earlier")
        assert only_run(tmp_path).status == "killed"


def test_hidden_process_of_another_user_is_running(training, tmp_path, monkeypatch):
    monkeypatch.setattr(
        owners, "_start_of", lambda pid: None if pid == training.pid else 1
    )
    assert only_run(tmp_path).status == "killed"

    def refuse(pid, signum):
        assert (pid, signum) == (training.pid, 0)
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert only_run(tmp_path).status == "running"
    monkeypatch.undo()


def test_damaged_file_of_an_open_writer_does_not_hide_the_run(training, tmp_path):
    (path,) = tmp_path.rglob("*.open.json")
    for text in ("", "{", '{"crc32": 0, "content": 1}'):
        path.write_text(text)
        assert only_run(tmp_path).status == "running"  # it has just written
    write_json(path, {"version": 1, "process": {"pid": -1, "host": platform.node()}})
    assert only_run(tmp_path).status == "running"


def test_invalid_file_of_a_finished_writer_does_not_break_the_status(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"x": 1})
    logger.finish(state)
    run = only_run(tmp_path)
    path = run.path / "writer-0000.json"
    content = read_json(path)
    assert content["status"] == "finished" and content["ended"] > run.started
    for status, ended, error in (("?", "x", 1), (None, -1, []), ([], 1e300, {})):
        write_json(path, {**content, "status": status, "ended": ended, "error": error})
        assert run.status == "finished" and run.error is None and run.duration >= 0
    path.write_text("{")
    with pytest.warns(lox.LoxWarning, match="missing rows cannot be detected"):
        assert run.rows == 1
    path.unlink()
    assert run.status == "finished" and run.rows == 1


def test_replaced_run_has_the_status_of_the_new_one(training, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path, exists="overwrite")
    state = logger.init(0)
    logger.log(state, {"y": 1})
    logger.finish(state)
    run = only_run(tmp_path)
    assert run.status == "finished" and run.keys == ["y"] and run.rows == 1
    assert not [*tmp_path.rglob("*.open.json")]


def test_replaced_writer_that_is_left_over_is_not_unfinished(tmp_path):
    """Its files are left if the process that replaced the run was killed."""
    run = tmp_path / "run"
    open_run(run, "x").write(lox.logdict({"x": np.int8(1)}))
    shutil.copytree(run / "writer-0000", tmp_path / "kept")
    writer = open_run(run, "w")
    writer.write(lox.logdict({"x": np.int8(2)}))
    writer.finish()
    writer.close()
    shutil.copytree(tmp_path / "kept", run / "writer-0000")
    assert lox.runs(tmp_path)[0].unfinished_processes == []


def test_writer_that_is_closed_without_rows_leaves_no_file(tmp_path):
    writer = open_run(tmp_path / "run", "a", tracked=True)
    assert len([*tmp_path.rglob("*.open.json")]) == 1
    assert only_run(tmp_path).status == "running"
    writer.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_writer_that_finishes_while_its_status_is_read_was_not_killed(
    tmp_path, monkeypatch
):
    """It finishes after the files were listed, and its process ends at once."""
    for finish in ("before", "after"):
        path = tmp_path / finish
        logger = lox.loggers.SaveLogger(path)
        state = logger.init(0)
        logger.log(state, {"x": 1})
        summary = only_run(path).summary()
        if finish == "before":
            logger.finish(state)
        else:  # after the file of the open writer was read

            def ends(process, logger=logger, state=state):
                logger.finish(state)
                return False

            monkeypatch.setattr(owners, "_runs", ends)
        assert summary.status == "finished"


# --- runs of several processes ----------------------------------------------


def test_run_is_failed_or_running_if_one_of_its_processes_is(tmp_path):
    for seed in range(2):
        logger = lox.loggers.SaveLogger(tmp_path)
        state = logger.init(seed)
        logger.log(state, {"x": seed}, step=seed)
        logger.finish(state)
    run, other = lox.runs(tmp_path)
    part = run.path / "process-1"
    shutil.copytree(other.path, part)
    assert run.status == "finished" and run.rows == 2
    assert run.last == {"x": 1} and run.last.step["x"] == 1
    path = part / "writer-0000.json"
    failed = {**read_json(path), "status": "failed", "error": "OSError: lost"}
    write_json(path, failed)
    assert run.status == "failed" and run.error == "OSError: lost"
    process = {"version": 1, "process": owners._this_process(os.getpid())}
    write_json(run.path / "writer-0001.open.json", process)
    assert run.status == "running"
    shutil.rmtree(part)
    part.symlink_to(other.path)
    with pytest.warns(lox.LoxWarning, match="symbolic link"):
        assert run.rows == 1


# --- last rows --------------------------------------------------------------


def assert_last_rows_are_those_of_load(run):
    logs = run.load()
    last = run.last
    for name, value in last.items():
        loaded = logs.slice[-1] if name not in logs.mask else logs.lanes()[0].slice[-1]
        assert value == loaded[name], name
        for step, by_key in last.steps.items():
            if name in by_key:
                assert by_key[name] == loaded.steps[step][name]
    return last


def test_last_rows_are_those_that_load_gives(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path, exists="resume")
    for start in (0, 10):  # two writers
        state = logger.init(0)
        for i in range(start, start + 5):
            logger.log(state, {"loss": 1 / (i + 1), "acc": jnp.bfloat16(i)}, step=i)
            if i % 3 == 0:  # the key is in two segments
                logger.log(
                    state, {"loss": -1.0 * i, "tree": {"a": i, "b": (i, i)}}, step=i
                )
            logger.log(state, {"vector": np.arange(3) * i}, step=i)
        if start == 0:
            logger.log(state, {"once": True})
        logger.finish(state)
    run = only_run(tmp_path)
    last = assert_last_rows_are_those_of_load(run)
    assert set(last) == {"loss", "acc", "tree", "once"} and "vector" in run.keys
    assert (
        last["tree"] == {"a": 12, "b": (12, 12)}
        and last["acc"].dtype.name == "bfloat16"
    )
    assert last["loss"] == 1 / 15 and last.step["loss"] == 14


def test_last_rows_are_read_from_files_of_version_1():
    for run in lox.runs(GOLDEN):
        assert run.status == "finished" and run.duration >= 0 and run.error is None
        assert_last_rows_are_those_of_load(run)
        assert run.keys == list(run.load())
    assert lox.runs(GOLDEN).where(name="scalars")[0].last


def test_last_rows_of_large_records_are_scalars_only(tmp_path):
    logs = lox.logdict(
        {"image": np.zeros((3, 200, 200)), "x": np.arange(3.0)}, stacked=True
    )
    lox.save(logs, tmp_path / "run")
    run = only_run(tmp_path)
    assert run.last == {"x": 2.0} and run.keys == ["image", "x"] and run.rows == 3


def test_last_row_of_a_torn_file_is_the_one_before(tmp_path):
    logs = lox.logdict({"x": np.arange(5.0)}, {"step": {"x": np.arange(5)}}, True)
    lox.save(logs, tmp_path / "run")
    (path,) = tmp_path.rglob("*.npy")
    os.truncate(path, path.stat().st_size - 3)
    run = only_run(tmp_path)
    assert run.last == {"x": 3.0} and run.rows == 4
    os.truncate(path, 10)
    assert run.last == {} and run.rows == 0 and run.keys == []
    path.unlink()
    assert run.last == {} and run.rows == 0


def test_last_rows_leave_out_damaged_segments(tmp_path):
    lox.save({"x": 1.5}, tmp_path / "run")
    lox.save({"y": 2.5}, tmp_path / "run")
    run = only_run(tmp_path)
    first, _ = sorted(tmp_path.rglob("0*.json"))
    text = first.read_text()
    first.write_text("{")
    with pytest.warns(lox.LoxWarning, match="a segment is left out.*damaged"):
        assert run.last == {"y": 2.5}
    first.write_text(text)
    path = first.with_suffix(".npy")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"<f4", b"<i4"))
    with pytest.warns(lox.LoxWarning, match="header does not match its schema"):
        assert run.last == {"y": 2.5}
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(lox.LoxWarning, match="not a regular file"):
        assert run.last == {"y": 2.5}
    write_json(first, {"version": 1, "schema": {}})
    with pytest.warns(lox.LoxWarning, match="does not describe records"):
        assert run.last == {"y": 2.5}


def test_linked_writer_is_not_read(tmp_path):
    lox.save({"x": 1.5}, tmp_path / "run")
    shutil.move(tmp_path / "run" / "writer-0000", tmp_path / "elsewhere")
    (tmp_path / "run" / "writer-0000").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(lox.StoreError, match="symbolic link"):
        lox.runs(tmp_path)[0].last  # noqa: B018


def test_listing_runs_opens_few_files(tmp_path):
    count = 20
    rows = lox.logdict({"x": np.arange(5000.0), "y": np.arange(5000)}, stacked=True)
    for seed in range(count):
        logger = lox.loggers.SaveLogger(tmp_path)
        state = logger.init(seed)
        logger.log(state, rows)
        logger.finish(state)
    program = """
        import collections, sys
        import lox
        lox.runs
        events = collections.Counter()
        sys.addaudithook(lambda name, arguments: events.update([name]))
        runs = lox.runs(sys.argv[1])
        listed = events["open"], events["os.listdir"] + events["os.scandir"]
        summaries = [run.summary() for run in runs]
        assert {s.status for s in summaries} == {"finished"}
        assert {s.rows for s in summaries} == {5000}
        status = events["open"]
        assert all(s.last == {"x": 4999, "y": 4999} for s in summaries)
        print(*listed, status, events["open"])
    """
    done = programs.run(program, tmp_path, fresh=True)
    opened, listed, status, last = map(int, done.stdout.split())
    assert opened <= count and listed <= count + 1  # `run.json`
    assert status <= 2 * count  # the list of the finished writer
    assert last <= 4 * count  # a schema, and the end of the records
