"""What is on disk when the machine crashes, and what can be read then."""

import errno
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import format as store_format, syncing
from lox._store.creating import create_run
from lox._store.writer import Writer
from tests import programs
from tests.store.written_runs import plain, two_segments


@pytest.fixture
def synced(monkeypatch):
    """The files and directories that were synced, by inode."""
    found, fsync = [], os.fsync

    def remember(descriptor):
        found.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    return found


@pytest.fixture
def flushes(monkeypatch):
    """How many paths each call of `flush_to_disk` has flushed."""
    found, flush = [], syncing.flush_to_disk

    def remember(paths):
        paths = list(paths)
        if paths:
            found.append(len(set(paths)))
        flush(paths)

    monkeypatch.setattr("lox.loggers._save.flush_to_disk", remember)
    return found


def assert_all_synced(store, synced):
    for path in (store.parent, store, *store.rglob("*")):
        assert path.stat().st_ino in synced, path


def test_finish_syncs_files_and_directories(tmp_path, synced):
    store = tmp_path / "store"
    logger = lox.loggers.SaveLogger(store)
    state = logger.init(0)
    logger.log(state, {"x": 1})
    logger.log(state, {"y": 1})  # another segment
    assert not synced  # a killed process loses nothing either way
    logger.finish(state)
    assert_all_synced(store, synced)
    assert len(synced) == len(set(synced))  # each of them once


def run_of(logger):
    def run(key):
        state = logger.init(key)
        logger.log(state, {"x": jnp.float32(1)}, step=0)
        logger.finish(state)

    return run


@pytest.mark.parametrize("jit", [False, True])
def test_finish_of_all_lanes_syncs_once(tmp_path, synced, flushes, jit):
    store = tmp_path / "store"
    run = jax.vmap(run_of(lox.loggers.SaveLogger(store)))
    (jax.jit(run) if jit else run)(jax.random.split(jax.random.key(0), 6))
    jax.effects_barrier()
    assert len(flushes) == 1 and len(synced) == len(set(synced))
    assert_all_synced(store, synced)
    assert len(lox.runs(store)) == 6


def test_finish_of_some_lanes_closes_only_these(tmp_path, flushes):
    logger = lox.loggers.SaveLogger(tmp_path)

    @jax.jit
    @jax.vmap
    def run(key, i):
        state = logger.init(key)
        logger.log(state, {"x": i})
        jax.lax.cond(i < 2, lambda: logger.finish(state), lambda: None)
        return state

    states = run(jax.random.split(jax.random.key(0), 6), jnp.arange(6))
    jax.effects_barrier()
    assert len(flushes) == 1
    finished = [*tmp_path.glob("*/writer-0000.json")]
    assert len(finished) == 2 and len(logger._runs._open) == 4
    logger.finish(states)
    assert len([*tmp_path.glob("*/writer-0000.json")]) == 6


def test_several_loggers_sync_their_own_runs(tmp_path, synced):
    stores = [tmp_path / "a" / "store", tmp_path / "b" / "store"]
    both = lox.loggers.MultiLogger(*map(lox.loggers.SaveLogger, stores))
    states = jax.vmap(both.init)(jax.random.split(jax.random.key(0), 3))
    jax.vmap(lambda state: both.log(state, {"x": 1}))(states)
    both.finish(states)
    for store in stores:
        assert_all_synced(store, synced)


def test_runs_that_are_open_at_exit_are_synced(tmp_path):
    program = """
    import os, sys
    import lox.loggers

    fsync = os.fsync
    def remember(descriptor):
        print(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    os.fsync = remember
    logger = lox.loggers.SaveLogger(sys.argv[1])
    for i in range(3):
        logger.log(logger.init(i), {"x": i})
    """
    store = tmp_path / "store"
    run = programs.run(program, store)
    assert run.returncode == 0, run.stderr
    assert_all_synced(store, set(map(int, run.stdout.split())))


def test_disk_that_cannot_be_flushed_is_reported(tmp_path, monkeypatch):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"x": 1})

    def fail(descriptor):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.warns(lox.LoxWarning, match="SaveLogger: could not flush.*input/out"):
        logger.finish(state)
    assert lox.load(tmp_path) == {"x": 1}


def test_files_are_flushed_without_threads(tmp_path, synced, monkeypatch):
    """As in some versions of Python while they exit."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    for name in "abc":
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("a", "b", "c", "missing")]
    syncing.flush_to_disk([*paths, *paths, str(tmp_path)])
    assert len(synced) == 4


def test_replaced_json_file_is_synced_before_it_takes_effect(tmp_path, synced):
    path = tmp_path / "run.json"
    store_format.write_json(path, {"version": 1})
    assert not synced
    store_format.write_json(path, {"version": 1, "first_writer": 3})
    assert synced == [path.stat().st_ino]


# --- files that a crash has left empty ---------------------------------------


def test_empty_schema_hides_only_its_own_segment(tmp_path):
    expected = two_segments(tmp_path / "run")
    (path,) = (tmp_path / "run").rglob("0000.json")
    path.write_bytes(b"")
    with pytest.warns(lox.LoxWarning, match="0000.json is empty.* 3 records"):
        found = plain(lox.load(tmp_path / "run"))
    assert found["odd"] == expected["odd"]


def test_empty_run_file_is_reported(tmp_path):
    for seed in range(2):
        lox.save({"x": seed}, tmp_path, key=seed)
    path = tmp_path / "00000000-00000000"
    (path / "run.json").write_bytes(b"")
    with pytest.raises(lox.StoreError, match="run.json is damaged: it is empty.*remov"):
        lox.load(path)
    with pytest.warns(lox.LoxWarning, match="a run is left out: .*it is empty"):
        (run,) = lox.runs(tmp_path)
    assert run.load() == {"x": 1}


@pytest.mark.parametrize("exists", ["resume", "overwrite"])
def test_run_with_an_empty_run_file_can_be_opened_again(tmp_path, exists):
    writer = Writer(create_run(tmp_path / "00000000-00000007", "x", (0, 7)))
    writer.write(lox.logdict({"x": np.arange(3)}, stacked=True))
    writer.close()
    (tmp_path / "00000000-00000007" / "run.json").write_bytes(b"")
    with pytest.raises(lox.StoreError, match="already exists"):
        lox.loggers.SaveLogger(tmp_path).init(7)
    logger = lox.loggers.SaveLogger(tmp_path, exists=exists, config={"lr": 0.1})
    state = logger.init(7)
    logger.log(state, {"x": 3})
    logger.finish(state)
    (run,) = lox.runs(tmp_path)
    assert run.config == {"lr": 0.1} and run.key.tolist() == [0, 7]
    expected = [0, 1, 2, 3] if exists == "resume" else 3
    assert run.load()["x"].tolist() == expected
    assert not [*tmp_path.rglob("*~")]


def test_empty_run_file_that_another_process_has_just_replaced_is_kept(
    tmp_path, monkeypatch
):
    path, other = tmp_path / "run.json", tmp_path / "other"
    path.write_bytes(b"")
    store_format.write_json(other, {"version": 1, "name": "other"})
    is_empty = store_format.is_empty

    def replaced_afterwards(name):
        found = is_empty(name)
        if os.fspath(name) == str(path):
            other.rename(path)
        return found

    monkeypatch.setattr(store_format, "is_empty", replaced_afterwards)
    with pytest.raises(FileExistsError):
        store_format.write_json(path, {"version": 1, "name": "mine"}, new=True)
    assert store_format.read_json(path)["name"] == "other"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_empty_list_of_segments_does_not_hide_rows(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"x": 1})
    logger.finish(state)
    (path,) = tmp_path.rglob("writer-0000.json")
    path.write_bytes(b"")
    with pytest.warns(lox.LoxWarning, match="missing rows cannot be detected.*empty"):
        assert lox.load(tmp_path) == {"x": 1}
