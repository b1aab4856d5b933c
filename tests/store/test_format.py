"""The file format: runs of earlier versions load, those of later ones are refused."""

import base64
import json
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import format as store_format
from lox._store.creating import create_run
from lox._store.writer import Writer
from tests.store.written_runs import _ragged, plain

GOLDEN = pathlib.Path(__file__).parents[1] / "data" / "store-v1"
# each file as base64, by its path
GOLDEN_LOGGER = GOLDEN.with_name("store-v1-logger.json")


def golden_calls():
    """The logs in `tests/data/store-v1`: a list per run and writer."""
    steps = np.arange(3)
    bits = np.array([[1, 2.5], [-0.5, 3e38]], ml_dtypes.bfloat16)
    scalars = [
        lox.logdict({"loss": np.float32(0.5)}, {"step": {"loss": np.int32(0)}}),
        lox.logdict({"loss": np.float32(0.25)}, {"step": {"loss": np.int32(1)}}),
        lox.logdict({"seed": np.uint64(2**64 - 1), "done": np.bool_(True)}),
    ]
    resumed = [
        lox.logdict(
            {"loss": np.float32([0.125, 2]), "lr": np.float64([0.1, 0.2])},
            {"step": dict.fromkeys(["loss", "lr"], np.int32([2, 3]))},
            stacked=True,
        ),
        lox.logdict({"loss": np.float32(-1)}, {"step": {"loss": np.int32(4)}}),
    ]
    trees = [
        lox.logdict(
            {
                "tree": {"w": np.arange(6, dtype=np.int8).reshape(3, 2), "b": (steps,)},
                "bits": bits[[0, 1, 1]],
            },
            {"step": dict.fromkeys(["tree", "bits"], steps)},
            stacked=True,
        ),
        lox.logdict({"list": [np.int16(1), None, np.complex64(2j)], "": np.float16(3)}),
        lox.logdict(
            {
                "../ß\0": np.zeros((2, 0), np.float32),
                "four": np.array(7, ml_dtypes.int4),
            }
        ),
        lox.logdict({"key": jax.random.key(3)}),
    ]
    logged = lox.spool(jax.vmap(_ragged), capacity=4)(jnp.array([1, 0, 3]))[1]
    around = jax.vmap(lox.spool(_ragged, capacity=4))(jnp.array([2, 2]))[1]
    return {
        "scalars": [scalars, resumed],
        "trees": [trees],
        "lanes": [[logged], [logged]],
        "lanes-around": [[around]],
    }


def write_golden(directory):
    for name, writers in golden_calls().items():
        run = create_run(pathlib.Path(directory) / name, "x", [0, 7], {"lr": 0.1})
        for calls in writers:
            writer = Writer(create_run(run, "a"))
            for logs in calls:
                writer.write(jax.tree.map(_to_host, logs))
            writer.close()


def _to_host(x):
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def test_store_of_format_version_1_loads(tmp_path):
    found = {run.name: run for run in lox.runs(GOLDEN)}
    assert sorted(found) == ["lanes", "lanes-around", "scalars", "trees"]
    for run in found.values():
        assert run.key.tolist() == [0, 7] and run.config == {"lr": 0.1}
        assert run.versions["lox"] == "0.1.0" and run.started > 1.7e9

    scalars = found["scalars"].load()
    assert plain(scalars) == {
        "loss": [0.5, 0.25, 0.125, 2, -1],
        "seed": 2**64 - 1,
        "done": True,
        "lr": [0.1, 0.2],
    }
    assert plain(scalars.step) == {"loss": [0, 1, 2, 3, 4], "lr": [2, 3]}
    assert scalars["loss"].dtype == np.float32 and scalars.step["lr"].dtype == np.int32

    trees = found["trees"].load()
    assert trees["tree"]["w"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert trees["tree"]["w"].dtype == np.int8 and type(trees["tree"]["b"]) is tuple
    assert trees["tree"]["b"][0].tolist() == [0, 1, 2]
    assert trees.step["bits"].tolist() == [0, 1, 2]
    assert trees["bits"].dtype == ml_dtypes.bfloat16
    words = [[0x3F80, 0x4020], [0xBF00, 0x7F62], [0xBF00, 0x7F62]]
    assert trees["bits"].view(np.uint16).tolist() == words
    assert trees["list"] == [1, None, 2j] and trees["list"][2].dtype == np.complex64
    assert trees[""] == 3 and trees[""].dtype == np.float16
    assert trees["../ß\0"].shape == (2, 0)
    assert trees["four"] == 7 and trees["four"].dtype == ml_dtypes.int4
    assert jax.random.key_data(trees["key"]).tolist() == [0, 3]

    lanes = found["lanes"].load()
    assert [plain(lane) for lane in lanes.lanes()] == [
        {"i": [0, 0]},
        {},
        {"i": [0, 1, 2, 0, 1, 2]},
    ]
    assert lanes.lanes()[2].step["i"].tolist() == [0, 1, 2, 0, 1, 2]
    around = found["lanes-around"].load()
    assert [plain(lane) for lane in around.lanes()] == [{"i": [0, 1]}] * 2


def test_files_written_now_equal_those_of_version_1(tmp_path):
    """If this fails, the format has changed: then it needs a new version."""
    write_golden(tmp_path)
    then = sorted(p for p in GOLDEN.rglob("*") if p.is_file())
    # without optional files of later versions, which older ones ignore
    now = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "times"]
    assert [path.relative_to(GOLDEN) for path in then] == sorted(
        path.relative_to(tmp_path) for path in now
    )
    for path in then:
        if path.suffix in (".npy", ".places"):
            today = tmp_path / path.relative_to(GOLDEN)
            assert today.read_bytes() == path.read_bytes(), path


def test_runs_of_earlier_logger_load_without_warnings(tmp_path):
    """Finished, resumed, replaced and killed runs, and those left by a full disk."""
    for name, content in json.loads(GOLDEN_LOGGER.read_text()).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    (tmp_path / "00000000-00000001" / "writer-0001").mkdir()  # never used
    found = {int(run.key[1]): run for run in lox.runs(tmp_path)}
    rows = {1: 6, 2: 5, 3: 4, 4: 4, 5: [0, 2, 3, 4], 6: 2}
    assert found.keys() == rows.keys()
    for key, run in found.items():
        logs = run.load()
        expected = [*range(rows[key])] if isinstance(rows[key], int) else rows[key]
        assert run.config == {"lr": 0.1}
        assert logs["x"].tolist() == logs.step["x"].tolist() == expected
        odd = [x for x in expected if x % 2] if key != 6 else []
        assert np.ravel(logs.step.get("odd", [])).tolist() == odd
        # and can be continued
        logger = lox.loggers.SaveLogger(tmp_path, exists="resume")
        state = logger.init(key)
        logger.log(state, {"x": np.float32(9)}, step=np.int32(9))
        logger.finish(state)
        assert run.load()["x"].tolist() == [*expected, 9]


@pytest.mark.parametrize("name", ["run.json", "0000.json"])
def test_later_format_version_is_refused(tmp_path, name):
    lox.save({"x": 1}, tmp_path / "run")
    (path,) = (tmp_path / "run").rglob(name)
    content = store_format.read_json(path)
    store_format.write_json(path, {**content, "version": 99})
    with pytest.raises(lox.StoreError, match=r"format version 99.*Update jax-lox"):
        lox.load(tmp_path / "run")
