"""Untrusted files: loading them runs no code and reads nothing outside the run."""

import json
import os
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import format as store_format
from lox._store.creating import create_run
from lox._store.writer import Writer
from tests.store.written_runs import (
    _ragged,
    changed,
    finished_run,
    plain,
    two_segments,
    with_checksum,
    with_field,
)

DEEP = "[" * 100_000 + "]" * 100_000
COLUMN = "keys.0.columns.0"
INVALID_SCHEMAS = [
    *(
        with_field(f"{COLUMN}.0", dtype)
        for dtype in (
            "object",
            "O",
            "V8",
            "S4",
            "datetime64[s]",
            "i4,i4",
            "a",
            "float",
            "(1000000000,)f8",
            ">f8",
            "f8",
            "finfo",
            "__name__",
            "__import__('os').abort()",
            "x" * 100_000,
            [["a", "<f8"]],
            {"names": ["a"], "formats": ["O"]},
            None,
            8,
        )
    ),
    *(
        with_field(f"{COLUMN}.1", shape)
        for shape in (
            [10**18],
            [10**6] * 3,
            [2**31],
            [2**29],
            [0, 10**18],
            [-1],
            [1.5],
            [float("nan")],
            [10**400],
            [True],
            [1] * 65,
            ["2"],
            3,
            None,
        )
    ),
    *(
        with_field(f"{COLUMN}.2", impl)
        for impl in ("nonsense", "threefry2x32", 3, ["rbg"])
    ),
    *(
        with_field("keys.0.tree", tree)
        for tree in (
            "",
            "1",
            "-1",
            "true",
            "NaN",
            "[]",
            "{}",
            DEEP,
            '{"dict": 3}',
            '{"dict": [[[], 0]]}',
            '{"dict": [["a", 0], ["a", 1]]}',
            '{"set": [0]}',
            '{"list": [0], "tuple": [0]}',
            '{"list": [0, 0]}',
            '{"tuple": "dict"}',
            "__import__('os').abort()",
            0,
            None,
        )
    ),
    *(
        with_field(f"keys.0.{name}", value)
        for name in ("lanes", "outer")
        for value in (1, -1, 10**30, 0.5, float("nan"), "0", None)
    ),
    with_field("keys.0.name", None),
    with_field("keys.0.columns", []),
    with_field("keys", None),
    with_field("keys", {"a": 1}),
    with_field("keys", [[]]),
    with_field("keys", DEEP[:400]),
    with_field("steps", None),
    with_field("steps", [["s", ["float64", [], "rbg"]]]),
    with_field("steps", [[1, 2, 3]]),
    with_field("mask", 3),
]


@pytest.mark.parametrize("change", INVALID_SCHEMAS)
def test_invalid_schema_is_refused(tmp_path, change):
    lox.save({"x": np.float64(1)}, tmp_path / "run")
    changed(tmp_path / "run", change)
    tracemalloc.start()
    try:
        with pytest.raises(lox.StoreError, match=r"0000\.json|0000\.npy"):
            lox.load(tmp_path / "run")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


ABOUT = {"version": 1, "name": "", "key": None, "config": {}, "started": 0.0}
ABOUT["versions"] = {}


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "1" * 10_000,
        "[]",
        "null",
        "{}",
        *(
            json.dumps({**ABOUT, name: value})
            for name, value in [
                ("version", float("nan")),
                ("version", "1"),
                ("version", None),
                ("version", 0),
                ("version", 1.5),
                ("version", True),
                ("started", float("nan")),
                ("started", 10**400),
                ("started", "now"),
                ("key", [-1]),
                ("key", [2**32]),
                ("key", [0.5]),
                ("key", "ab"),
                ("name", 3),
                ("config", []),
                ("versions", None),
            ]
        ),
    ],
    ids=lambda text: text[-60:],
)
def test_invalid_run_file_is_refused(tmp_path, content):
    lox.save({"x": 1}, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(with_checksum(content))
    with pytest.raises(lox.StoreError, match=r"run\.json"):
        lox.load(tmp_path / "run")
    with pytest.warns(lox.LoxWarning, match=r"left out: .*run\.json"):
        assert lox.runs(tmp_path) == []
    path.write_text(with_checksum(json.dumps(ABOUT)))
    assert lox.load(tmp_path / "run") == {"x": 1}


class Bomb:
    def __reduce__(self):
        return os.abort, ()


def test_pickles_are_not_loaded(tmp_path):
    lox.save({"x": np.float64(1)}, tmp_path / "run")
    (path,) = (tmp_path / "run").rglob("*.npy")
    np.save(path, np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(lox.StoreError, match=f"{path.name} is damaged: its head"):
        lox.load(tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    ["run.json", "writer-0000", *(f"0000.{x}" for x in ("json", "npy", "places"))],
)
@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "directory", "device"])
def test_symlinks_and_pipes_are_not_followed(tmp_path, name, kind):
    two_segments(tmp_path / "run")
    (path,) = (tmp_path / "run").rglob(name)
    outside = tmp_path / "outside"
    path.rename(outside)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif name == "writer-0000":
        path.write_text("no directory")
    else:
        path.mkdir()
    with pytest.raises(lox.StoreError, match=name):
        lox.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..", "a/b", "\0", "~"])
def test_names_in_untrusted_files_are_not_used_as_paths(tmp_path, name):
    run = tmp_path / "a" / "b" / "run"
    lox.save({"x": 1.5}, run)
    changed(run, lambda schema: schema["keys"][0].update(name=name))
    path = run / "run.json"
    store_format.write_json(path, {**store_format.read_json(path), "name": name})
    assert lox.load(run) == {name: 1.5} and lox.runs(run.parent)[0].name == name
    lox.save({"y": 1}, run)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_dir()) == sorted(
        ["a", "b", "run", "writer-0000"]
    )


def test_load_reads_only_selected_keys(tmp_path):
    """The files are sparse and far larger than memory."""
    run = create_run(tmp_path / "run", "x")
    writer = Writer(run)
    writer.write(lox.logdict({"small": np.int64(7)}))
    large = np.zeros(2**17, np.float32)
    writer.write(lox.logdict({"large": large}))
    both = {"wide": large, "narrow": np.int32(0), "half": large.astype("bfloat16")}
    writer.write(lox.logdict({**both, "last": {"a": np.float64(0)}}))
    writer.close()
    rows = 2**14
    for path in sorted(run.rglob("*.npy"))[1:]:
        size = np.load(path, mmap_mode="r").dtype.itemsize
        os.truncate(path, path.stat().st_size + (rows - 1) * size)
        assert path.stat().st_size > 2**33 > 100 * path.stat().st_blocks * 512
    tracemalloc.start()
    try:
        assert lox.load(run, "small") == {"small": 7}
        found = lox.load(run, ["large", "wide", "half"])
        assert {x.shape for x in found.values()} == {(rows, 2**17)}
        assert not found["large"][-3:].any() and not found["wide"][1000].any()
        assert not found["half"][rows // 2, :10].any()
        assert found["half"].dtype == "bfloat16"
        assert not found.slice[-1]["wide"].any()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


def peak_memory(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [10**6, 3 * 10**9, 10**12])
@pytest.mark.parametrize("name", ["0000.places", "0001.places"])
def test_places_file_larger_than_its_records_is_refused(tmp_path, size, name):
    expected = two_segments(tmp_path / "run")
    path = tmp_path / "run" / "writer-0000" / name
    os.truncate(path, size)  # the end is sparse

    def load():
        with pytest.raises(lox.StoreError, match=rf"{name} is damaged"):
            lox.load(tmp_path / "run")
        assert plain(lox.load(tmp_path / "run", "odd")) == {"odd": expected["odd"]}

    assert peak_memory(load) < 2**22


def test_places_file_with_too_many_places_is_bounded_by_its_records(tmp_path):
    """There are more places than records, with correct checksums."""
    expected = two_segments(tmp_path / "run")
    path = tmp_path / "run" / "writer-0000" / "0000.places"
    with open(path, "ab") as file:
        file.write(
            b"".join(store_format.encode_place(i, 2 * i) for i in range(3, 10_000))
        )
    with pytest.warns(lox.LoxWarning, match="lost records of 'x': 3 are left of at"):
        assert plain(lox.load(tmp_path / "run")) == expected


@pytest.mark.parametrize("size", [3 * 10**9, 10**12])
def test_sparse_records_are_not_joined_in_memory(tmp_path, size):
    two_segments(tmp_path / "run")
    path = tmp_path / "run" / "writer-0000" / "0001.npy"
    os.truncate(path, size)

    def load():
        with pytest.raises(
            lox.StoreError, match=f"{path.name} is damaged: its size is"
        ):
            lox.load(tmp_path / "run", "x")
        assert len(lox.load(tmp_path / "run", "odd")["odd"]) > 10**8  # on disk

    assert peak_memory(load) < 2**22


@pytest.mark.parametrize("kind", ["mask", "key"])
def test_sparse_records_are_not_read_for_masks_and_prng_keys(tmp_path, kind):
    run = tmp_path / "run"
    logs = lox.logdict({"x": jax.random.key(1)})
    if kind == "mask":
        logs = lox.spool(jax.vmap(_ragged), capacity=4)(jnp.array([1, 3]))[1]
    lox.save(logs, run)
    (path,) = run.rglob("*.npy")
    os.truncate(path, 10**12)
    with pytest.raises(lox.StoreError, match=f"{path.name} is damaged: its size is"):
        lox.load(run)


def test_small_part_of_large_records_is_memory_mapped(tmp_path):
    run = tmp_path / "run"
    lox.save({"small": np.int8(1), "wide": np.zeros(2**12, np.int8)}, run)
    (path,) = run.rglob("*.npy")
    os.truncate(path, 2**24 * (2**12 + 1))  # sparse; each row would be a page
    found = lox.load(run, "small")["small"]
    assert 2**23 < len(found) <= 2**24 and not found.flags.owndata


# a prefix, a part to repeat, the number of repetitions, and a suffix
BOMBS = {
    "lists": ("[", "[],", 15_000_000, "[]]"),
    "numbers": ("[", "-9,", 10_000_000, "1]"),
    "strings": ("[", '"ab",', 6_000_000, "1]"),
    "quotes": ("", '"', 20_000_000, ""),
    "backslashes": ('["', '\\"', 10_000_000, ""),
    "depth": ("[" * 10_000, "]", 10_000, ""),
}


def bomb(kind, size=None):
    begin, part, times, end = BOMBS[kind]
    return (begin + part * times + end)[:size]


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("name", ["run.json", "0000.json", "writer-0000.json"])
def test_json_that_would_fill_memory_is_refused(tmp_path, kind, name):
    writer = finished_run(tmp_path)
    path = writer / name if name == "0000.json" else writer.parent / name
    path.write_text(f'{{"crc32": 1, "content": {bomb(kind)}}}')

    def load():
        if name == "writer-0000.json":
            with pytest.warns(lox.LoxWarning, match=rf"{name} is damaged"):
                lox.load(tmp_path, key=0)
        else:
            with pytest.raises(lox.StoreError, match=rf"{name} is damaged"):
                lox.load(tmp_path, key=0)

    assert peak_memory(load) < 2**28


@pytest.mark.parametrize("kind", ["lists", "numbers", "depth"])
def test_pytree_structure_that_would_fill_memory_is_refused(tmp_path, kind):
    lox.save({"x": np.float64(1)}, tmp_path / "run")
    tree = f'{{"list": {bomb(kind, 20_000_000)}}}'
    changed(tmp_path / "run", lambda schema: schema["keys"][0].update(tree=tree))

    def load():
        with pytest.raises(lox.StoreError, match="0000.json .*is not a tree struct"):
            lox.load(tmp_path / "run")

    assert peak_memory(load) < 2**28


def test_deeply_nested_json_is_refused_at_any_recursion_limit(tmp_path):
    """With a high limit, the parser itself would overflow the stack."""
    lox.save({"x": 1}, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(f'{{"content": {"[" * 10**6}{"]" * 10**6}}}')
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(lox.StoreError, match="lists and dicts"):
            lox.load(tmp_path / "run")
    finally:
        sys.setrecursionlimit(limit)


def test_config_that_could_not_be_read_back_is_refused(tmp_path):
    config = {"lr": 0.1, "table": "x" * 2**25}
    logger = lox.loggers.SaveLogger(tmp_path, config=config)
    with pytest.raises(lox.StoreError, match="more than .* bytes.*not in a config"):
        logger.init(0)
    config["table"] = list(range(10_000))
    logger = lox.loggers.SaveLogger(tmp_path, config=config)
    logger.finish(logger.init(1))
    (run,) = lox.runs(tmp_path)
    assert run.config == config


def test_run_without_key_is_read_like_one_whose_key_is_none(tmp_path):
    lox.save({"x": 1.0}, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    content = store_format.read_json(path)
    del content["key"]
    store_format.write_json(path, content)
    (run,) = lox.runs(tmp_path)
    assert run.key is None and run.load() == {"x": 1.0}
