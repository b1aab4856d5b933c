"""Threads and processes that write and read one run at the same time."""

import os
import pathlib
import signal

import jax.numpy as jnp
import numpy as np
from jax import lax

import lox
import lox.loggers
from lox._store import local_files
from lox._store.creating import create_run
from lox._store.writer import Writer
from tests import programs
from tests.store.child_processes import fork, in_a_process, last_reported, without_fsync
from tests.store.written_runs import call_of, columns_of
from tests.waiting import in_threads, wait_until


def test_threads_write_to_one_run(tmp_path):
    def work(i):
        for j in range(20):
            lox.save({"x": 100 * i + j}, tmp_path / "run")

    in_threads(work, [(i,) for i in range(4)])
    found = lox.load(tmp_path / "run")["x"].tolist()
    for i in range(4):  # the rows of each thread in order, and none lost
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
    print(last_reported(processes[2][1]))


def test_processes_write_to_one_run_while_another_reads(tmp_path):
    assert int(in_a_process(write_together, tmp_path)) > 0


def interrupted_training(directory):
    # background processes ignore it by default
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


def test_reader_does_not_report_a_loss_if_the_writer_ends_while_it_reads(
    tmp_path, monkeypatch
):
    """The header says how many records there were when the file was closed."""
    writer = Writer(create_run(tmp_path / "run", "x", None, {}))
    row = lox.logdict({"x": np.arange(3)}, stacked=True)
    writer.write(row)
    read = local_files._read

    def end_before_header(descriptor, start, count):
        is_header = start == 0 and os.path.sameopenfile(descriptor, records)
        if is_header and writer.count == 3:
            writer.write(row)
            writer.finish()
            writer.close()
        return read(descriptor, start, count)

    monkeypatch.setattr(local_files, "_read", end_before_header)
    with (writer.directory / "0000.npy").open("rb") as file:
        records = file.fileno()
        # a loss would be a warning, and warnings are errors
        assert lox.load(tmp_path / "run")["x"].tolist() == [0, 1, 2, 0, 1, 2]
    assert writer.count == 6


def test_reader_sees_no_row_after_one_of_a_segment_created_while_it_reads(
    tmp_path, monkeypatch
):
    writer = Writer(create_run(tmp_path / "run", "x", None, {}))
    writer.write(lox.logdict({"x": 0}))
    names_of = local_files.LocalLocation.names

    def write_after_listing(location):
        names = names_of(location)
        if location.path == writer.directory and writer.count == 1:
            writer.write(lox.logdict({"y": 1}))
            writer.write(lox.logdict({"x": 2}))
        return names

    monkeypatch.setattr(local_files.LocalLocation, "names", write_after_listing)
    run = lox.runs(tmp_path)[0]
    assert {k: np.ravel(v).tolist() for k, v in run.load().items()} == {"x": [0]}
    assert writer.count == 3
    found = {k: np.ravel(v).tolist() for k, v in run.load().items()}
    assert found == {"x": [0, 2], "y": [1]}
    writer.finish()
    writer.close()


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
        printed, errors = process.communicate()
    assert printed == "interrupted\n" and "KeyboardInterrupt" in errors, errors
    assert process.returncode in (1, -signal.SIGINT, 128 + signal.SIGINT)
    found = lox.load(tmp_path)
    count = len(found["x"])
    assert count >= delivered
    assert found["x"].tolist() == [i % 20_000 for i in range(count)]
    assert found.step["x"].tolist() == found["x"].tolist()
