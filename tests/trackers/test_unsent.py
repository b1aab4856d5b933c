"""Logs that a logger could not send are sent by `lox sync`, to the same run."""

import json
import pathlib
import warnings

import pytest

import lox
import lox.cli
import lox.loggers
from lox._store.format import read_json, write_json
from lox._store.local_files import LocalLocation
from tests import programs
from tests.cli.stores import name, save_run

from .memory import MemoryLogger, failing_after

UNSENT = ".lox/unsent"


@pytest.fixture(autouse=True)
def ignore_warnings_of_loggers():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*kept in '.lox/unsent'", lox.LoxWarning)
        yield


def sync(*arguments):
    return lox.cli.main(["sync", *map(str, arguments), "--to", "memory"])


def log(logger, state, numbers):
    for i in numbers:
        logger.log(state, {"x": i})


def failed_run(server, accepted, method="write", count=10, seed=0):
    """A run whose tracker fails after some rows."""
    server.fails = failing_after(accepted, method)
    logger = MemoryLogger(server, config={"lr": 1})
    state = logger.init(seed)
    log(logger, state, range(count))
    logger.finish(state)
    server.fails = lambda what: None


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("accepted", [0, 1, 7])
def test_unsent_rows_continue_the_run_of_the_logger(server, accepted, tells, capsys):
    server.tells = tells
    failed_run(server, accepted)
    assert server.values() == [list(range(accepted))]
    assert sync(".lox", "--dry-run") == 0
    assert server.values() == [list(range(accepted))]
    assert sync(".lox") == 0
    ((run, rows),) = server.rows.items()
    assert run == f"live-{name(0)}" and server.runs[run].config == {"lr": 1}
    # rows without a step are numbered on
    assert rows == [("x", i, i) for i in range(10)]
    assert lox.runs(UNSENT) == []
    rows = f"{10 - accepted} rows that loggers could not send to memory"
    assert capsys.readouterr().out == f"would send {rows}\nsent {rows}\n"


@pytest.mark.parametrize(
    "change",
    [
        {"tracker": 3},
        {"name": None},
        {"settings": []},
        {"token": {}},
        {"run": "x"},
        {"run": {}},
        {"run": {"id": 3}},
        {"run": {"id": "x", "sent": "1"}},
        {"run": {"id": "x", "counts": {"x": None}}},
        {"unknown": 1},
    ],
)
def test_damaged_file_of_unsent_logs_does_not_hold_up_others(server, change, capsys):
    for seed in range(2):
        failed_run(server, 0, seed=seed)
    damaged, intact = lox.runs(UNSENT)
    path = damaged.path / "tracker.json"
    write_json(path, {**read_json(LocalLocation(path)), **change})
    assert sync(".lox") == 1
    assert f"{path} does not name a tracker" in capsys.readouterr().err
    assert [run.name for run in lox.runs(UNSENT)] == [damaged.name]


def test_settings_that_fail_do_not_hold_up_logs_with_others(server, capsys):
    for seed in range(4):
        failed_run(server, 0, seed=seed)
    for run in lox.runs(UNSENT)[:2]:
        path = run.path / "tracker.json"
        content = read_json(LocalLocation(path))
        write_json(path, {**content, "settings": {"nonsense": 1}})
    assert sync(".lox") == 1
    assert capsys.readouterr().err.count("TypeError") == 1  # and not for each run
    assert len(lox.runs(UNSENT)) == 2


def test_rows_of_a_call_that_failed_in_the_middle_are_sent_once(server):
    server.fails = failing_after(5)
    logger = MemoryLogger(server)
    state = logger.init(0)
    for i in range(3):
        values = {f"k{j}": float(i) for j in range(3)}
        logger.log(state, values, step=i)
    logger.finish(state)
    server.fails = lambda what: None
    assert sync(".lox") == 0
    (rows,) = server.rows.values()
    assert rows == [(f"k{j}", i, i) for i in range(3) for j in range(3)]


def test_run_that_could_not_be_opened_is_created(server):
    failed_run(server, 0, "open")
    assert server.rows == {}
    assert sync(UNSENT) == 0
    ((run, rows),) = server.rows.items()
    assert run.startswith(f"{name(0)}-") and server.runs[run].name == name(0)
    assert rows == [("x", i, i) for i in range(10)]


@pytest.mark.parametrize("tells", [True, False])
def test_logs_in_several_directories_are_sent_in_order(server, tells):
    server.tells = tells
    server.fails = failing_after(0, "open")
    logger = MemoryLogger(server)
    state = logger.init(0)
    for i in range(12):  # other types of values do not fit into one run
        logger.log(state, {"x": i if i % 2 else {"y": i}})
    logger.finish(state)
    server.fails = lambda what: None
    assert len(lox.runs(UNSENT)) == 12
    assert sync(".lox") == 0
    (rows,) = server.rows.values()
    assert [value for _, value, _ in rows] == list(range(12))
    assert [step for key, _, step in rows if key == "x"] == list(range(6))


@pytest.mark.parametrize("tells", [True, False])
def test_several_directories_are_continued_by_another_command(server, tells):
    server.tells = tells
    server.fails = failing_after(2)
    logger = MemoryLogger(server)
    state = logger.init(0)
    for i in range(6):  # the first call fails at its second value
        logger.log(state, {"x": i, "y": -i} if i < 3 else {"x": {"z": i}})
    logger.log(state, {"x": {"z": 6}})
    logger.finish(state)
    assert len(lox.runs(UNSENT)) == 2
    calls = []

    def fail(what):
        calls.extend(["open"] if what == "open" else [])
        if len(calls) == 2:
            raise ConnectionError("no network")

    server.fails = fail
    assert sync(".lox") == 1
    assert len(lox.runs(UNSENT)) == 1
    server.fails = lambda what: None
    assert sync(".lox") == 0
    (rows,) = server.rows.values()
    first = [
        (key, i * sign, i) for i in range(3) for key, sign in (("x", 1), ("y", -1))
    ]
    assert rows == [*first, *(("x/z", i, i - 3) for i in range(3, 7))]


@pytest.mark.parametrize("method", ["open", "write", "end"])
def test_rows_are_removed_only_after_the_tracker_has_them(server, method, capsys):
    failed_run(server, 3)
    server.fails = failing_after(2 if method == "write" else 0, method)
    assert sync(".lox") == 1
    assert "ConnectionError: no network" in capsys.readouterr().err
    (run,) = lox.runs(UNSENT)
    assert run.load()["x"].tolist() == [3, 4, 5, 6, 7, 8, 9]
    server.fails = lambda what: None
    assert sync(".lox") == 0
    assert server.values() == [list(range(10))] and lox.runs(UNSENT) == []


def test_store_is_sent_as_well_unless_unsent_logs_are_named(server, capsys):
    failed_run(server, 3)
    save_run(".lox", 1)
    save_run("store", 2)
    assert sync(UNSENT) == 0
    assert len(server.rows) == 1
    assert sync(UNSENT) == sync("missing/.lox/unsent") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["nothing new for memory"] * 2
    assert sync(".lox") == 0
    assert len(server.rows) == 2
    failed_run(server, 3)  # in this directory, whatever the store is
    pathlib.Path("empty").mkdir()
    assert sync("empty") == 1
    assert "there are no runs in empty" in capsys.readouterr().err
    assert sync("store", "*2") == 0
    assert len(lox.runs(UNSENT)) == 1
    assert sync("store", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(report["unsent"].values()) == [7] and report["runs"] == {}
    assert lox.runs(UNSENT) == []


def test_unsent_logs_can_be_moved(server):
    failed_run(server, 3)
    pathlib.Path(".lox").rename("from another machine")
    assert sync("from another machine/unsent") == 0
    assert server.values() == [list(range(10))]
    save_run("unsent", 1)  # a store of this name
    assert sync("unsent") == 0
    assert len(server.rows) == 2


def test_warning_of_the_logger_names_the_command(server):
    with pytest.warns(lox.LoxWarning) as seen:
        failed_run(server, 3)
    command = "kept in '.lox/unsent' (`lox sync .lox/unsent --to memory`)."
    assert command in str(seen[0].message)


def test_logs_of_other_loggers_are_left(server, capsys):
    failed_run(server, 3)

    class Broken(lox.loggers.Logger):
        def open(self, run):
            raise OSError

        def write(self, run, logs):
            raise AssertionError

    logger = Broken()
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    logger.finish(state)
    assert sync(".lox") == 0
    assert capsys.readouterr().err == (
        "lox: not sent: 1 of 2 runs in .lox/unsent: logs of Broken, which does not "
        "send to memory.\n"
    )
    assert len(lox.runs(UNSENT)) == 1


def test_logs_of_a_running_program_wait(server, capsys):
    server.fails = failing_after(2)
    logger = MemoryLogger(server)
    state = logger.init(0)
    log(logger, state, range(5))
    logger._wait()
    server.fails = lambda what: None
    assert sync(".lox") == 0
    assert "1 run not finished" in capsys.readouterr().out
    log(logger, state, range(5, 7))
    logger.finish(state)
    assert sync(".lox") == 0
    assert server.values() == [list(range(7))]


def test_names_and_settings_of_the_logger_are_used(server):
    server.fails = failing_after(0, "open")
    logger = MemoryLogger(server, "their project", histograms=["w*"], step="epoch")
    state = logger.init(0)
    logger.log(state, {"x": 1.0, "w": [1.0, 2.0]}, step=1, epoch=2)
    logger.finish(state)
    server.fails = lambda what: None
    assert sync(".lox", "--project", "another") == 0
    (rows,) = server.rows.values()
    assert ("x", 1.0, 2) in rows
    assert not list(pathlib.Path(".lox").rglob("sent-*"))


KILLED = """
    import os, pathlib, signal, threading, warnings
    import lox.loggers
    from lox.loggers._runs import queue
    from tests.trackers.memory import MemoryLogger, Server

    queue._MAX_JOBS = 4
    warnings.simplefilter("ignore")
    server, calls, may_go_on = Server(), [], threading.Event()

    def wait(what):
        may_go_on.wait()
        calls.append(what)
        if len(calls) == 20:  # some of the logs that wait on disk are sent
            pathlib.Path("sent").write_text(str(len(server.values()[0])))
            os.kill(os.getpid(), signal.SIGKILL)

    server.fails = wait
    logger = MemoryLogger(server, full="spill")
    state = logger.init(0)
    for i in range(50):
        logger.log(state, {"x": i}, step=i)
    may_go_on.set()
    logger.finish(state)
"""


def test_spilled_rows_of_a_killed_process_are_sent_once(server):
    assert programs.run(KILLED).returncode == -9
    sent = int(pathlib.Path("sent").read_text())
    assert 10 < sent < 20
    # what the tracker had received of the process
    server.rows[f"live-{name(0)}"] = [("x", i, i) for i in range(sent)]
    assert sync(".lox") == 0
    assert server.values() == [list(range(50))] and lox.runs(UNSENT) == []


def test_damaged_origin_is_reported(server, capsys):
    failed_run(server, 3)
    (run,) = lox.runs(UNSENT)
    (run.path / "tracker.json").write_text("damaged")
    assert sync(".lox") == 1
    assert "tracker.json is damaged" in capsys.readouterr().err
    assert len(lox.runs(UNSENT)) == 1
