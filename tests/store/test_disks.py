"""Disks that are full, read-only or removed: reported, and no earlier row is lost."""

import contextlib
import ctypes
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

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


def mount(*commands):
    """Runs `mount` commands whose effects only this process sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    own = pathlib.Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"0 {user} 1")
    (own / "gid_map").write_text(f"0 {group} 1")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for command in commands:
        subprocess.run(["mount", *command], check=True)


def obey_permissions():
    """Takes from a superuser the privilege to access every file."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # effective, permitted and inheritable capabilities, twice 32 of each
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def prepared(prepare, *arguments):
    """Prepares this process for a test; ends it if the system does not allow that."""
    try:
        prepare(*arguments)
    except (OSError, AttributeError, subprocess.CalledProcessError) as error:
        print(f"impossible here: {error}")
        raise SystemExit(0) from error


def assert_done(printed):
    if printed.startswith("impossible here"):
        pytest.skip(printed)
    assert printed == "done\n"


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
    directory, ballast = pathlib.Path(directory), None
    if way == "small disk":
        prepared(mount, ["-t", "tmpfs", "-o", "size=400k", "none", directory])
        ballast = directory / "ballast"
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
    assert_done(in_a_process(fill_the_disk, disk, way))


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


def begin_on_a_full_disk(directory):
    os.chdir(directory)
    logger = lox.loggers.SaveLogger("store")

    @jax.jit
    def train(x):
        state = logger.init(0)
        y = logger.tap(scanned, state)(x)
        logger.finish(state)
        return y

    set_size_limit(0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert train(0.0) == 50
        jax.effects_barrier()
    set_size_limit(None)
    print(*(str(one.message) for one in seen), sep="\n")


def test_program_that_begins_a_run_on_a_full_disk_warns_once_and_continues(tmp_path):
    (warning,) = in_a_process(begin_on_a_full_disk, tmp_path).splitlines()
    assert "cannot create a run at store" in warning and "File too large" in warning
    assert "The program continues; logs that it does not accept are lost" in warning


def write_where_nothing_can_be_written(directory, way):
    store = pathlib.Path(directory)
    if way == "mount":
        read_only = ["-o", "remount,bind,ro", store]
        prepared(mount, ["--bind", store, store], read_only)
    else:
        prepared(obey_permissions)
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
    store = tmp_path / "store"
    lox.save({"x": 1}, store, key=0)
    if way == "permissions":
        for path in (store, *store.iterdir()):
            path.chmod(0o500)
    try:
        printed = in_a_process(write_where_nothing_can_be_written, store, way)
    finally:
        for path in (store, *store.iterdir()):
            path.chmod(0o700)
    assert_done(printed)


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
