"""Damaged files: missing and changed data is reported, never returned."""

import os
import resource
import shutil
import warnings

import jax
import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import format as store_format
from lox._store.creating import create_run
from lox._store.syncing import flush_to_disk
from lox._store.writer import Writer
from tests.store.written_runs import (
    SEED,
    finished_run,
    lost_records_allowed,
    plain,
    stacked,
    two_segments,
    with_checksum,
)


def assert_intact_or_reported(run, path, expected):
    """Asserts that `load` returns what was written or raises an error with the file."""
    try:
        found = plain(lox.load(run))
    except lox.StoreError as error:
        assert str(path) in str(error)
    else:
        assert found == expected


def test_numpy_reads_closed_segment(tmp_path):
    logs = lox.logdict({"x": np.arange(4.0), "once": 3}, stacked=["x"])
    run = create_run(tmp_path / "run", "x")
    writer = Writer(run)
    writer.write(logs)
    assert lox.load(run) == logs  # while it is being written
    flush_to_disk(writer.paths())
    writer.close()
    lengths = sorted(len(np.load(path)) for path in run.rglob("*.npy"))
    assert lengths == [1, 4]


def test_truncated_segment_keeps_its_whole_records(tmp_path):
    writer = Writer(create_run(tmp_path / "run", "x"))
    writer.write(stacked(x=np.arange(5), y=np.arange(5.0)))
    writer.close()
    (path,) = (tmp_path / "run").rglob("*.npy")
    whole = path.read_bytes()
    head = len(whole) - 5 * 16
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with lost_records_allowed():
            found = plain(lox.load(tmp_path / "run"))
        count = max(size - head, 0) // 16
        if count == 0:
            assert found == {}
        else:
            rows = list(range(count))
            assert found == {"x": rows, "y": rows}
    path.write_bytes(whole + b"\1\2\3")
    assert plain(lox.load(tmp_path / "run"))["x"] == list(range(5))


def test_lost_records_are_reported(tmp_path):
    two_segments(tmp_path / "run")
    first, second = sorted((tmp_path / "run").rglob("*.npy"))
    whole = first.read_bytes()
    for size in (0, 10, len(whole) - 4):
        first.write_bytes(whole[:size])
        with pytest.warns(lox.LoxWarning, match=f"{first.name} has lost records"):
            lox.load(tmp_path / "run")
    first.unlink()
    with pytest.warns(lox.LoxWarning, match=f"{first.name} has lost records"):
        assert plain(lox.load(tmp_path / "run")) == {"x": [1, 3, 5], "odd": [1.0] * 3}


def move(path, name):
    path.rename(path.with_name(name))


def all_of_a_segment(writer):
    for suffix in ("json", "npy", "places"):
        (writer / f"0000.{suffix}").unlink()


# the damage; the warnings, if the run is finished and if it is not; and the keys left
LOSSES = {
    "records cut off": (
        lambda w: os.truncate(w / "0000.npy", (w / "0000.npy").stat().st_size - 120),
        ["0000.npy has lost records of 'x': 20 are left of 30"],
        None,
        {"x": 20, "y": 10, "z": 10},
    ),
    "records empty": (
        lambda w: os.truncate(w / "0001.npy", 0),
        ["0001.npy has lost records of 'y', 'z': 0 are left of 10"],
        ["0001.npy has lost records of 'y', 'z': 0 are left of an unknown number"],
        {"x": 30},
    ),
    "schema deleted": (
        lambda w: (w / "0000.json").unlink(),
        ["0000.json is missing. Without it, 30 records of 'x' in 0000.npy"],
        ["0000.json is missing. Without it, 30 records in 0000.npy cannot be read"],
        {"y": 10, "z": 10},
    ),
    "schema renamed": (
        lambda w: move(w / "0001.json", "0005.json"),
        [
            "0001.json is missing. Without it, 10 records of 'y', 'z' in 0001.npy",
            "0005.npy has lost records of 'y', 'z': the file is missing, with an "
            "unknown number",
        ],
        [
            "0001.json is missing. Without it, 10 records in 0001.npy cannot be read",
            "0005.npy has lost records of 'y', 'z': the file is missing, with an "
            "unknown number",
        ],
        {"x": 30},
    ),
    "records deleted": (
        lambda w: (w / "0000.npy").unlink(),
        ["0000.npy has lost records of 'x': the file is missing, with 30"],
        ["0000.npy has lost records of 'x': the file is missing, with an unknown"],
        {"y": 10, "z": 10},
    ),
    "records and places deleted": (
        lambda w: [(w / f"0000.{x}").unlink() for x in ("npy", "places")],
        ["0000.npy has lost records of 'x': the file is missing, with 30"],
        ["0000.npy has lost records of 'x': the file is missing, with an unknown"],
        {"y": 10, "z": 10},
    ),
    "schema and records deleted": (
        lambda w: [(w / f"0000.{x}").unlink() for x in ("npy", "json")],
        ["0000.json is missing. Without it, 30 records of 'x' in 0000.npy"],
        ["0000.json is missing. Without it, an unknown number of records in 0000.npy"],
        {"y": 10, "z": 10},
    ),
    "segment deleted": (
        all_of_a_segment,
        ["0000.json is missing. Without it, 30 records of 'x' in 0000.npy"],
        None,  # nothing says that it existed
        {"y": 10, "z": 10},
    ),
    "writer deleted": (
        shutil.rmtree,
        ["writer-0000 is missing, with 40 records of 'x', 'y', 'z'"],
        None,
        {},
    ),
    "writer renamed": (
        lambda w: move(w, "elsewhere"),
        ["writer-0000 is missing, with 40 records of 'x', 'y', 'z'"],
        None,
        {},
    ),
    "places deleted": (  # only keys in several segments need them
        lambda w: (w / "0000.places").unlink(),
        None,
        None,
        {"x": 30, "y": 10, "z": 10},
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("finished", [True, False])
def test_missing_data_is_reported_once(tmp_path, loss, finished):
    damage, if_finished, if_not, left = LOSSES[loss]
    damage(finished_run(tmp_path, finished))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = lox.load(tmp_path, key=0)
    messages = [str(one.message) for one in seen if one.category is lox.LoxWarning]
    expected = (if_finished if finished else if_not) or []
    assert len(messages) == len(expected), messages
    for message, part in zip(messages, expected, strict=True):
        assert part in message
    assert {name: len(rows) for name, rows in found.items()} == left
    for name, rows in found.items():  # the remaining data is correct
        assert rows.tolist() == list(range(left[name])), name


def test_intact_finished_run_loads_without_warning(tmp_path):
    writer = finished_run(tmp_path)
    assert writer.with_suffix(".json").exists()
    assert lox.load(tmp_path)["x"].tolist() == list(range(30))
    logger = lox.loggers.SaveLogger(tmp_path, exists="resume")
    logger.finish(logger.init(0))  # a writer without rows leaves nothing
    assert sorted(path.name for path in writer.parent.iterdir()) == [
        "run.json",
        "writer-0000",
        "writer-0000.json",
    ]
    logger = lox.loggers.SaveLogger(tmp_path, exists="overwrite")
    state = logger.init(0)
    logger.log(state, {"x": 1})
    assert lox.load(tmp_path) == {"x": 1}
    assert not writer.with_suffix(".json").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 1}', '{"version": 1, "segments": [[0, 1]]}']
)
def test_damaged_writer_summary_is_reported(tmp_path, content):
    path = finished_run(tmp_path).with_suffix(".json")
    path.write_text(with_checksum(content))
    with pytest.warns(lox.LoxWarning, match="cannot be detected: .*writer-0000.json"):
        assert lox.load(tmp_path)["x"].tolist() == list(range(30))
    path.unlink()
    assert lox.load(tmp_path)["x"].tolist() == list(range(30))


def test_segment_that_could_not_be_created_is_not_reported_missing(
    tmp_path, monkeypatch
):
    writer = Writer(create_run(tmp_path / "run", "x"))
    writer.write(lox.logdict({"x": np.int8(1)}))
    with monkeypatch.context() as patch:
        patch.setattr("lox._store.segment_writer.write_json", failing)
        with pytest.raises(OSError, match="no room"):
            writer.write(lox.logdict({"y": np.int8(1)}))
    writer.write(lox.logdict({"z": np.int8(1)}))
    assert lox.load(tmp_path / "run") == {"x": 1, "z": 1}
    writer.finish()
    writer.close()
    assert lox.load(tmp_path / "run") == {"x": 1, "z": 1}


def test_failed_write_is_not_lost_data_in_finished_run(tmp_path, monkeypatch):
    writer = Writer(create_run(tmp_path / "run", "x"))
    writer.write(lox.logdict({"x": np.int8(1)}))
    with monkeypatch.context() as patch:
        # neither written nor truncated
        patch.setattr("lox._store.growing_file.GrowingFile.append", failing)
        patch.setattr("lox._store.segment_writer.SegmentWriter._size", failing)
        with pytest.raises(OSError, match="no room"):
            writer.write(lox.logdict({"x": np.int8(2)}))
    writer.write(lox.logdict({"x": np.int8(3)}))
    writer.finish()
    writer.close()
    said = store_format.read_json(tmp_path / "run" / "writer-0000.json")["segments"]
    assert said == [[0, 1, ["x"]], [1, 1, ["x"]]]
    assert lox.runs(tmp_path)[0].unfinished_processes == [0]
    assert lox.load(tmp_path / "run")["x"].tolist() == [1, 3]


def failing(*args, **options):
    raise OSError("no room")


def test_two_writers_in_one_directory_are_not_reported_as_damage(tmp_path):
    """Older versions of lox could leave these."""
    for name in ("a", "b"):
        two_segments(tmp_path / name)
    directories = [tmp_path / name / "writer-0000" for name in ("a", "b")]
    for path in directories[1].iterdir():
        path.rename(directories[0] / f"1{path.name[1:]}")
    with pytest.raises(lox.StoreError, match="two writers shared the directory"):
        lox.load(tmp_path / "a")


def damage_at_random(rng, store):
    """Damages one file; true if the values in records may have changed."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    path, other = (files[i] for i in rng.integers(len(files), size=2))
    whole = path.read_bytes()
    way = rng.choice(["flip", "cut", "delete", "rename", "swap", "directory", "link"])
    if way == "flip" and whole:
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
    elif way == "cut":
        path.write_bytes(whole[: rng.integers(len(whole) + 1)])
    elif way == "rename":
        stem = rng.choice(["0000", "0001", "0007", "run", "writer-0000", "x"])
        path.rename(path.with_name(stem + rng.choice([".json", ".npy", ".places"])))
    elif way == "swap":
        path.write_bytes(other.read_bytes())
        other.write_bytes(whole)
    elif way != "flip":
        path.unlink()
        if way == "directory":
            path.mkdir()
        elif way == "link":
            path.symlink_to(other)
    return ".npy" in (path.suffix, other.suffix) and way in ("flip", "swap", "rename")


def check_random_damage(directory, seed, count):
    """`load` returns correct data, or a part of it with a warning, or raises."""
    store, copy = directory / "store", directory / "copy"
    finished_run(store)
    logger = lox.loggers.SaveLogger(store, exists="resume")
    state = logger.init(0)
    for i in range(6):
        tree = {"a": np.full(3, i), "b": (np.float16(i),)}
        logger.log(state, {"x": np.float32(i)} | ({"tree": tree} if i % 2 else {}))
    logger.finish(state)
    with pytest.raises(lox.StoreError, match="written in two incompatible forms"):
        lox.load(store, "x")
    names = ["y", "z", "tree"]
    truth = lox.load(store, names)
    rng = np.random.default_rng(seed)
    for i in range(count):
        shutil.copytree(store, copy)
        other_numbers = damage_at_random(rng, copy)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                found = lox.load(copy, names)
            except lox.LoxError:
                found = None
        if found is not None and not seen:
            shapes = [jax.tree.map(np.shape, dict(logs)) for logs in (found, truth)]
            assert shapes[0] == shapes[1], (seed, i)
            assert other_numbers or found == truth, (seed, i)
        shutil.rmtree(copy)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_never_silent(tmp_path, seed):
    check_random_damage(tmp_path, SEED + seed, 100)


@pytest.mark.parametrize("name", ["run.json", "0000.json", "0000.places"])
def test_flipped_bytes_are_detected(tmp_path, name):
    run = tmp_path / "run"
    expected = two_segments(run)
    (path,) = run.rglob(name)
    whole = path.read_bytes()
    rng = np.random.default_rng(SEED)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        assert_intact_or_reported(run, path, expected)
    for _ in range(100):
        damaged = np.frombuffer(whole, np.uint8).copy()
        where = rng.integers(0, len(whole), rng.integers(2, 20))
        damaged[where] = rng.integers(0, 256, len(where))
        path.write_bytes(damaged.tobytes())
        assert_intact_or_reported(run, path, expected)
    path.write_bytes(whole)
    assert plain(lox.load(run)) == expected


@pytest.mark.parametrize("name", ["run.json", "0000.json", "0000.places"])
def test_truncated_files_are_detected(tmp_path, name):
    run = tmp_path / "run"
    expected = two_segments(run)
    (path,) = run.rglob(name)
    whole = path.read_bytes()
    # an empty schema counts as missing: see `test_machine_crashes.py`
    for size in range(name == "0000.json", len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(lox.StoreError) as raised:
            lox.load(run)
        assert str(path) in str(raised.value)
    path.write_bytes(whole + b"\0" * 7)
    assert_intact_or_reported(run, path, expected)
    path.unlink()
    if name == "0000.json":
        with pytest.warns(lox.LoxWarning, match="0000.json is missing.* 3 records"):
            assert plain(lox.load(run)) == {"x": [1, 3, 5], "odd": [1.0] * 3}
    else:
        with pytest.raises(lox.StoreError, match=name):
            lox.load(run)


def test_keys_of_one_segment_do_not_need_the_places_file(tmp_path):
    two_segments(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.places"):
        path.write_bytes(os.urandom(100))
    assert lox.load(tmp_path / "run", "odd")["odd"].tolist() == [1.0] * 3
    with pytest.raises(lox.StoreError, match=r"\.places is damaged"):
        lox.load(tmp_path / "run", "x")


def test_records_with_header_of_another_segment_are_refused(tmp_path):
    two_segments(tmp_path / "run")
    first, second = sorted((tmp_path / "run").rglob("*.npy"))
    whole = first.read_bytes()
    for head in (os.urandom(128), bytes(128), second.read_bytes()[:128]):
        first.write_bytes(head + whole[128:])
        with pytest.raises(lox.StoreError, match=f"{first.name} is damaged: its head"):
            lox.load(tmp_path / "run")
    first.write_bytes(whole)
    lox.load(tmp_path / "run")


def test_damaged_run_does_not_hide_other_runs(tmp_path):
    for seed in range(2):
        lox.save({"x": seed}, tmp_path, key=seed)
    (lox.runs(tmp_path)[0].path / "run.json").write_text("{")
    with pytest.warns(lox.LoxWarning, match="a run is left out: .*run.json.*damaged"):
        (run,) = lox.runs(tmp_path)
    assert run.load() == {"x": 1}


def test_unknown_files_and_fields_are_ignored(tmp_path):
    run = tmp_path / "run"
    expected = two_segments(run)
    for directory in (run, run / "writer-0000"):
        for name in (".DS_Store", "notes.txt", "0000.json.1.2~", "0000.npy.bak", "1"):
            (directory / name).write_text("garbage")
        (directory / "writer-x").mkdir()
        (directory / "checkpoints").mkdir()
    (run / "writer-0001").mkdir()
    assert plain(lox.load(run)) == expected


def test_many_writers_need_few_open_files(tmp_path):
    run = create_run(tmp_path / "run", "x")
    for i in range(60):
        writer = Writer(run)
        writer.write(lox.logdict({"x": np.int64(i), "y": 1.0}))
        writer.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(map(int, os.listdir("/dev/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, limits[1]))
        found = lox.load(run)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found["x"].tolist() == list(range(60))
