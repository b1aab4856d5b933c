"""Sending runs of a store to a tracker: order, what is new, failures."""

import json
import pathlib
import shutil
import threading

import jax
import numpy as np
import pytest

import lox
import lox.cli
import lox.loggers
from lox._store.creating import create_run
from lox._store.processes import part_path
from lox._store.writer import Writer
from tests.cli.stores import name, save_run, sweep
from tests.waiting import join, wait_for

from .memory import failing_after


def sync(*arguments):
    return lox.cli.main(["sync", *map(str, arguments), "--to", "memory"])


def notes(store="store"):
    return sorted(pathlib.Path(store).glob("*/sent-memory-*.json"))


def test_rows_are_sent_in_the_order_in_which_they_were_logged(server):
    logger = lox.loggers.SaveLogger("store", config={"lr": 0.1})
    state = logger.init(3)
    for i in range(3):
        logger.log(state, {"a": i, "b": -i}, step=10 * i)
        logger.log(state, {"c": i})
    logger.log(state, {"key": jax.random.key(3), "s": 1.5}, step=7)
    logger.finish(state)
    assert sync("store") == 0
    ((rows, run),) = zip(server.rows.values(), server.runs.values(), strict=True)
    assert rows == [
        *(("a", 0, 0), ("b", 0, 0), ("c", 0, 0)),
        *(("a", 1, 10), ("b", -1, 10), ("c", 1, 1)),
        *(("a", 2, 20), ("b", -2, 20), ("c", 2, 2)),
        ("s", 1.5, 7),
    ]
    assert (run.name, run.key, run.config) == (name(3), (0, 3), {"lr": 0.1})
    assert list(server.endings.values()) == ["finished"]


@pytest.mark.parametrize("tells", [True, False])
def test_growing_run_is_continued(server, tells, capsys):
    server.tells = tells
    logger, state = save_run("store", 0, rows=3, finish=False)
    assert sync("store") == 0
    assert list(server.endings.values()) == ["running"]
    assert sync("store") == 0
    assert len(server.opened) == 1
    logger.log(state, {"loss": 5.0}, step=9)
    logger.finish(state)
    assert sync("store", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["runs"] == {name(0): 1}
    assert sync("store") == 0
    ((*_, last),) = server.rows.values()
    assert last == ("loss", 5.0, 9)
    assert server.values("loss") == [[1.0, 0.5, np.float32(1 / 3), 5.0]]
    assert list(server.endings.values()) == ["finished"]


def test_run_that_ends_without_new_rows_is_ended(server, capsys):
    logger, state = save_run("store", 0, finish=False)
    assert sync("store") == 0
    logger.finish(state)
    assert sync("store") == 0
    assert capsys.readouterr().out.endswith(
        "sent 0 rows of 1 run to memory (project store)\n"
    )
    assert list(server.endings.values()) == ["finished"]
    assert [len(rows) for rows in server.rows.values()] == [4]


@pytest.mark.parametrize("method", ["open", "write", "end"])
@pytest.mark.parametrize("tells", [True, False])
def test_failure_is_reported_and_continued(server, capsys, method, tells):
    server.tells = tells
    for seed in range(3):
        save_run("store", seed)
    server.fails = failing_after({"open": 1, "write": 6, "end": 1}[method], method)
    assert sync("store") == 1
    captured = capsys.readouterr()
    errors = captured.err.splitlines()
    assert captured.out == "sent 4 rows of 1 run to memory (project store)\n"
    if method == "open":  # other runs would fail as well
        assert errors == ["lox: error: memory: ConnectionError: no network"]
    else:
        assert errors == [
            f"lox: error: {name(seed)}: memory: ConnectionError: no network"
            for seed in (1, 2)
        ]
    server.fails = lambda what: None
    assert sync("store") == 0
    assert (
        capsys.readouterr().out == "sent 8 rows of 2 runs to memory (project store)\n"
    )
    found = server.values("loss")
    if tells or method == "open":
        assert [len(values) for values in found] == [4, 4, 4]
    # nothing is lost in any case
    assert [values[-4:] for values in found] == [
        (seed + 1 / (1 + np.arange(4, dtype=np.float32))).tolist() for seed in range(3)
    ]


def test_rows_that_the_tracker_has_lost_are_sent_again(server):
    logger, state = save_run("store", 0, finish=False)
    assert sync("store") == 0
    ((_, rows),) = server.rows.items()
    del rows[2:]
    logger.finish(state)
    assert sync("store") == 0
    assert [step for _, _, step in rows] == [0, 1, 2, 3]


def test_each_project_gets_all_rows_and_copies_continue_one_run(server):
    save_run("store", 0)
    assert sync("store", "--project", "a") == sync("store", "--project", "b") == 0
    assert len(notes()) == 2
    assert lox.cli.main(["sync", "store", "--to", "copy"]) == 0
    assert notes("copy") == []  # it is a copy of the rows only
    assert sync("copy", "--project", "a") == 0
    assert [len(rows) for rows in server.rows.values()] == [4]


def test_replaced_run_becomes_another_one(server):
    save_run("store", 0)
    assert sync("store") == 0
    logger = lox.loggers.SaveLogger("store", exists="overwrite")
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    logger.finish(state)
    assert sync("store") == 0
    assert [len(rows) for rows in server.rows.values()] == [4, 1]


def test_again_sends_everything_as_new_runs(server):
    save_run("store", 0)
    for _ in range(3):
        assert sync("store", "--again") == 0
    assert sync("store") == 0
    assert [len(rows) for rows in server.rows.values()] == [4, 4, 4]
    assert len({run.name for run in server.runs.values()}) == 1


def test_damaged_sent_file_is_an_error_and_an_empty_one_is_not(server, capsys):
    save_run("store", 0)
    assert sync("store") == 0
    (note,) = notes()
    content = note.read_text()
    note.write_text(content.replace("items", "stems"))
    assert sync("store") == 1
    assert "its checksum does not match" in capsys.readouterr().err
    note.write_text("")  # a crash of the machine may leave it so
    assert sync("store") == 0
    assert [len(rows) for rows in server.rows.values()] == [4]


def write_part(process, values):
    path = part_path(pathlib.Path("store/run"), process)
    writer = Writer(create_run(path, "a"))
    for value in values:
        writer.write(lox.logdict({"x": np.float32(value)}))
    writer.finish()
    writer.close()


@pytest.mark.parametrize("tells", [True, False])
def test_run_of_several_processes_grows_in_any_of_them(server, tells):
    server.tells = tells
    write_part(0, [1, 2])
    write_part(1, [11])
    assert sync("store") == 0
    write_part(0, [3])
    write_part(1, [12])
    assert sync("store") == 0
    write_part(0, [4])
    assert sync("store") == 0
    (rows,) = server.rows.values()
    assert [value for _, value, _ in rows] == [1, 2, 11, 3, 12, 4]
    assert [step for _, _, step in rows] == [0, 1, 2, 3, 4, 5]


def test_two_commands_do_not_send_a_run_at_once(server, capsys):
    save_run("store", 0)
    entered, may_go_on = threading.Event(), threading.Event()

    def wait(what):
        if what == "end" and not entered.is_set():
            entered.set()
            wait_for(may_go_on)

    server.fails = wait
    codes = []
    thread = threading.Thread(target=lambda: codes.append(sync("store")))
    thread.start()
    wait_for(entered)
    assert sync("store") == 1
    may_go_on.set()
    join(thread)
    assert codes == [0]
    assert "another `lox sync` is sending store/" in capsys.readouterr().err
    assert [len(rows) for rows in server.rows.values()] == [4]


def test_followed_runs_stay_open_until_they_are_finished(server, monkeypatch, capsys):
    logger, state = save_run("store", 0, rows=1, finish=False)
    waits = []

    def wait(seconds):
        """What happens between two updates."""
        waits.append(seconds)
        if len(waits) < 3:
            logger.log(state, {"loss": float(len(waits))}, step=0)
        elif len(waits) == 4:
            logger.finish(state)
        assert len(waits) < 5

    monkeypatch.setattr("time.sleep", wait)
    assert sync("store", "--follow", "--interval", "7") == 0
    assert waits == [7.0] * 4
    assert server.opened == [name(0)] and server.values("loss") == [[1, 1, 2]]
    assert list(server.endings.values()) == ["finished"]
    rows = "sent 1 row of 1 run to memory (project store); 1 run not finished"
    end = "sent 0 rows of 1 run to memory (project store)"
    assert capsys.readouterr().out.splitlines() == [rows, rows, rows, end]
    assert sync("store") == 0
    assert server.opened == [name(0)]


def test_interrupted_follow_can_be_continued(server, monkeypatch, capsys):
    server.tells = False
    logger, state = save_run("store", 0, rows=2, finish=False)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert sync("store", "--follow") == 130
    assert list(server.endings.values()) == ["running"]
    logger.finish(state)
    assert sync("store") == 0
    assert [len(rows) for rows in server.rows.values()] == [2]


# --- the command line --------------------------------------------------------


def test_runs_are_selected_by_name_and_pattern(server, capsys):
    sweep("store")
    assert sync("store", "*1", name(2)) == 0
    assert {run.name for run in server.runs.values()} == {name(1), name(2)}
    assert sync("store/" + name(3)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "sent 8 rows of 2 runs to memory (project store)",
        "sent 4 rows of 1 run to memory (project store)",
    ]
    assert sync("store", "x*") == 1
    names = ", ".join(map(name, range(4)))
    message = f"lox: error: no run in store matches 'x*'; available: {names}.\n"
    assert capsys.readouterr().err == message


def test_path_that_is_not_a_store_is_an_error(server, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for store in ("missing", "file"):
        assert sync(store) == 1
        assert capsys.readouterr().err == f"lox: error: there is no store at {store}.\n"
    assert sync("empty") == 1
    assert capsys.readouterr().err == "lox: error: there are no runs in empty.\n"
    assert sync("memory://a/store") == 1
    assert "Copy it to one first: `lox sync memory://a" in capsys.readouterr().err
    assert server.opened == []


def test_damaged_run_does_not_stop_the_others(server, capsys):
    sweep("store", 2)
    (note,) = pathlib.Path("store", name(0)).glob("writer-0000/*.json")
    note.write_text("damaged")
    assert sync("store") == 1
    captured = capsys.readouterr()
    assert captured.out == "sent 4 rows of 1 run to memory (project store)\n"
    assert captured.err.count("\n") == 1 and "is damaged" in captured.err


@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow"])
def test_missing_package_is_named(capsys, monkeypatch, tracker):
    save_run("store", 0)
    monkeypatch.setitem(__import__("sys").modules, tracker, None)
    assert lox.cli.main(["sync", "store", "--to", tracker]) == 1
    assert capsys.readouterr().err == (
        f"lox: error: `lox sync` needs {tracker}, which is not installed: "
        f"`pip install 'jax-lox[{tracker}]'`.\n"
    )
    assert not list(pathlib.Path("store").glob("*/sent-*"))


def test_arrays_are_sent_if_they_are_selected(server, capsys):
    logger = lox.loggers.SaveLogger("store")
    state = logger.init(0)
    logger.log(state, {"x": 1.0, "w": np.arange(3.0)}, step=2)
    logger.finish(state)
    assert sync("store") == 0
    assert capsys.readouterr().err == (
        "lox: warning: `lox sync` leaves out 'w', which is float64 of shape (3,): it "
        "plots real scalars only. To send it, pass `--histograms w` or `--images w`.\n"
    )
    assert sync("store", "--again", "--histograms", "w") == 0
    assert capsys.readouterr().err == ""
    assert sync("store", "--again", "--histograms", "z*", "--histograms", "w") == 0
    message = "lox: not sent: no key matches 'z*'; available: 'x', 'w'.\n"
    assert capsys.readouterr().err == message
    assert sync("store", "--again", "--step", "epoch") == 0
    assert "no step 'epoch'" in capsys.readouterr().err
    assert sync("store", "--images", "w") == 2
    assert "--images: not for memory" in capsys.readouterr().err


def test_default_project_is_the_name_of_the_store(server, capsys):
    for store in ("a/.lox", "b", "c/.lox/d"):
        save_run(store, 0)
        assert sync(store) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("(")[2] for line in lines] == [
        "project a)",
        "project b)",
        "project d)",
    ]
    shutil.copytree("b", "other/b")
    assert sync("other/b") == 0  # with the notes of what was sent there
    assert len(server.opened) == 3
