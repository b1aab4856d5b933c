"""Disks that are full, read-only or removed: reported, and no earlier row is lost."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import warnings

import jax
import numpy as np
import pytest

import lox
import lox.loggers
from lox._store.creating import create_run
from lox._store.writer import Writer
from tests.store.child_processes import in_a_process
from tests.store.written_runs import row_writer, scanned, stacked


def in_mount_namespace(*setup):
    """A command prefix that allows mounting; skips the test if that is impossible."""
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


def without_superuser_privileges():
    """A command prefix that takes the superuser's privileges away."""
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
    """Rows that a full disk truncates in the middle."""
    return stacked(wide=np.full((2, 500), i, np.float32))


def alternating(i):
    """Alternates two schemas, so that each row needs a place."""
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
    """Writes until the disk is full, frees space, and continues."""
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
        for logs in (wide, alternating):
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
def test_full_disk_is_reported_and_earlier_rows_are_kept(tmp_path, way):
    disk = tmp_path / "disk"
    disk.mkdir()
    before = ()
    if way == "small disk":
        before = in_mount_namespace(f"mount -t tmpfs -o size=400k none '{disk}'")
    assert in_a_process(fill_the_disk, disk, way, before=before) == "done\n"


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


def test_training_continues_when_disk_is_full(tmp_path):
    printed = in_a_process(train_on_a_full_disk, tmp_path)
    assert "SaveLogger: it failed with OSError(27, 'File too large')" in printed


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
def test_read_only_store_raises_error_with_remedy(tmp_path, way):
    store, before = tmp_path / "store", ()
    lox.save({"x": 1}, store, key=0)
    if way == "mount":
        before = in_mount_namespace(
            f"mount --bind '{store}' '{store}'",
            f"mount -o remount,bind,ro '{store}'",
        )
    else:
        before = without_superuser_privileges()
        for path in (store, *store.iterdir()):
            path.chmod(0o500)
    try:
        done = in_a_process(write_where_nothing_can_be_written, store, before=before)
    finally:
        for path in (store, *store.iterdir()):
            path.chmod(0o700)
    assert done == "done\n"


def test_impossible_store_path_raises_error_with_remedy(tmp_path):
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


def test_removed_run_starts_again(tmp_path):
    for i in range(3):
        lox.save({"x": i}, tmp_path / "run")
        assert lox.load(tmp_path / "run") == {"x": i}
        shutil.rmtree(tmp_path / "run")
    lox.save({"x": 3}, tmp_path / "run")
    # all but the file that identifies the run
    shutil.rmtree(tmp_path / "run" / "writer-0000")
    with pytest.raises(lox.StoreError, match="cannot write to .*was removed"):
        lox.save({"x": 4}, tmp_path / "run")
    lox.save({"x": 5}, tmp_path / "run")
    assert lox.load(tmp_path / "run") == {"x": 5}


def test_finish_syncs_files_and_directories(tmp_path, monkeypatch):
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
        if path.suffix != ".json":  # synced when it was written
            assert path.stat().st_ino in waited, path
