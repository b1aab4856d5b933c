"""`lox sync`."""

import json
import shutil

import fsspec
import numpy as np
import pytest

import lox
import lox.cli
import lox.loggers
from lox._store import copy_store
from lox._store.creating import create_run
from lox._store.writer import Writer


def sync(*arguments):
    return lox.cli.main(["sync", *map(str, arguments)])


@pytest.fixture
def store(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path / "store", config={"lr": 0.1})
    for seed in range(2):
        state = logger.init(seed)
        for i in range(5):
            logger.log(state, {"loss": np.float32(i)}, step=i)
        logger.finish(state)
    return tmp_path / "store"


def test_sync_copies_a_store_and_says_what_was_sent(store, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert sync(store, "--to", copy) == 0
    assert capsys.readouterr().out.endswith(" files of 2 runs\n")
    assert [run.load() for run in lox.runs(copy)] == [
        run.load() for run in lox.runs(store)
    ]
    assert sync(store, "--to", copy) == 0
    assert capsys.readouterr().out == "nothing new\n"
    assert sync(lox.runs(store)[1].path, "--to", tmp_path / "one") == 0
    assert lox.load(tmp_path / "one") == lox.load(store, key=1)


def test_sync_copies_to_and_from_urls(store, tmp_path, capsys):
    assert sync(store, "--to", "memory://sync/store") == 0
    assert lox.runs("memory://sync/store")[0].config == {"lr": 0.1}
    assert sync("memory://sync/store", "--to", tmp_path / "back") == 0
    assert lox.load(tmp_path / "back", key=1) == lox.load(store, key=1)
    fsspec.filesystem("memory").rm("/sync", recursive=True)


def test_sync_prints_json(store, tmp_path, capsys):
    (store / "latest").symlink_to(store)
    assert sync(store / ".." / "store", "--to", tmp_path / "copy", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    files = [x for x in (tmp_path / "copy").rglob("*") if x.is_file()]
    assert report["found"] == 2 and report["files"] >= len(files)
    assert report["bytes"] >= sum(x.stat().st_size for x in files)
    assert report["runs"] == [run.name for run in lox.runs(store)]
    assert report["errors"] == {} and report["unfinished"] == []


def test_sync_reports_runs_that_cannot_be_copied(store, tmp_path, capsys):
    first, second = (run.path for run in lox.runs(store))
    (second / "run.json").write_text("damaged")
    (store / "latest").symlink_to(first)
    assert sync(store, "--to", tmp_path / "copy") == 1
    captured = capsys.readouterr()
    errors = captured.err.splitlines()
    assert errors[0] == f"lox: not copied: {store / 'latest'} is a symbolic link."
    assert errors[1].startswith(f"lox: error: {second / 'run.json'} is damaged")
    assert len(errors) == 2 and captured.out.endswith("of 1 run\n")


def test_sync_follows_until_runs_are_finished(tmp_path, capsys, monkeypatch):
    store, copy = tmp_path / "store", tmp_path / "copy"
    store.mkdir()
    waits = []

    def wait(seconds):
        """What happens between two updates."""
        waits.append(seconds)
        if len(waits) == 1:
            wait.writer = Writer(create_run(store / "run", "x"))
        if len(waits) < 4:
            wait.writer.write(lox.logdict({"x": np.float32(len(waits))}))
        elif len(waits) == 4:
            wait.writer.finish()
            wait.writer.close()
        assert len(waits) < 5

    monkeypatch.setattr("time.sleep", wait)
    assert sync(store, "--to", copy, "--follow", "--interval", "7") == 0
    assert waits == [7.0] * 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no runs yet"
    assert ["1 run not finished" in line for line in lines[1:]] == [True] * 3 + [False]
    assert lox.load(copy)["x"].tolist() == [1, 2, 3]


def test_sync_follows_despite_errors(store, tmp_path, capsys, monkeypatch):
    """Each is reported once, also if the place of the copy cannot be reached."""
    copy = tmp_path / "copy"
    path = lox.runs(store)[0].path / "run.json"
    content = path.read_text()
    path.write_text("damaged")
    waits = []
    update = copy_store.StoreCopy.update

    def unreachable(copy):
        if len(waits) == 2:
            raise lox.StoreError("the server cannot be reached.")
        return update(copy)

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            path.write_text(content)
        assert len(waits) < 4

    monkeypatch.setattr(copy_store.StoreCopy, "update", unreachable)
    monkeypatch.setattr("time.sleep", wait)
    assert sync(store, "--to", copy, "--follow") == 0
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and "run.json is damaged" in errors[0]
    assert errors[1] == "lox: error: the server cannot be reached."
    assert len(lox.runs(copy)) == 2


def test_sync_replaces_other_runs_only_if_asked_to(store, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert sync(store, "--to", copy) == 0
    shutil.rmtree(store)
    lox.save({"other": 1.0}, store, key=1)
    assert sync(store, "--to", copy) == 1
    assert "`--overwrite`" in capsys.readouterr().err
    assert set(lox.load(copy, key=1)) == {"loss"}
    assert sync(store, "--to", copy, "--overwrite") == 0
    assert lox.load(copy, key=1) == {"other": 1.0}
    assert set(lox.load(copy, key=0)) == {"loss"}
