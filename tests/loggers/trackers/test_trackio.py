"""Runs in trackio, read back from its own storage."""

import os
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
from tests import programs

# trackio reads it at import
os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()
pytest.importorskip("trackio")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def storage():
    """trackio's own reader."""
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage


def train(key, n=6):
    def step(w, i):
        lox.log({"loss": w * w, "w": w}, step=5 - i, episode=i // 2)
        return w / 2, None

    return lax.scan(step, jax.random.normal(key), jnp.arange(n))[0]


@pytest.mark.parametrize("method", ["tap", "spool"])
def test_vmap_logs_one_run_per_seed(storage, method, capsys):
    config = {"lr": 0.1, "net": {"width": 64}}
    project = f"seeds-{method}"
    logger = lox.loggers.TrackioLogger(project, config=config, group="seeds")
    keys = jax.random.split(jax.random.key(0), 4)

    def run(key):
        state = logger.init(key)
        getattr(logger, method)(train, state)(key)
        logger.finish(state)

    jax.jit(jax.vmap(run))(keys)
    jax.effects_barrier()
    assert capsys.readouterr().out.count("project initialized") == 1
    names = set()
    for key in keys:
        name = "-".join(f"{int(w):08x}" for w in jax.random.key_data(key))
        names.add(name)
        rows = storage.get_logs(project, name)
        _, logs = lox.spool(train)(key)
        assert [row["step"] for row in rows] == logs.step["loss"].tolist()
        assert [row["episode"] for row in rows] == logs.episode["loss"].tolist()
        for column in ("loss", "w"):
            assert [row[column] for row in rows] == logs[column].tolist()
        found = storage.get_run_config(project, name)
        assert found.items() >= config.items() and found["_Group"] == "seeds"
    assert set(storage.get_runs(project)) == names


def test_nan_infinity_and_arrays_are_stored(storage):
    logger = lox.loggers.TrackioLogger("arrays", histograms="h", images="image")
    state = logger.init(0)
    for value in (np.nan, np.inf, 1.0):
        logger.log(state, {"x": value, "n": np.int32(3), "h": np.arange(4.0)})
    logger.log(state, {"image": np.zeros((4, 5, 3))})
    logger.finish(state)
    rows = storage.get_logs("arrays", "00000000-00000000")
    assert [row["step"] for row in rows] == [0, 1, 2, 0]
    assert np.isnan(rows[0]["x"]) and rows[1]["x"] == np.inf and rows[2]["n"] == 3
    assert sum(rows[0]["h"]["values"]) == 4
    assert rows[3]["image"]["_type"] == "trackio.image"


def test_watched_histograms_are_histograms(storage):
    logger = lox.loggers.TrackioLogger("watched")
    state = logger.init(0)
    values = np.arange(10.0, dtype=np.float32)
    logger.tap(lox.watch, state)("params", {"w": values}, stats="histogram", step=3)
    logger.finish(state)
    (row,) = storage.get_logs("watched", "00000000-00000000")
    histogram = lox.stats(values, "histogram")["histogram"]
    shown = row["params/w/histogram"]
    assert row["step"] == 3 and shown["_type"] == "trackio.histogram"
    assert shown["values"] == histogram["counts"].tolist()
    assert shown["bins"] == histogram["edges"].tolist()


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 2), (4, 5, 3), (4, 5, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.bool_])
def test_images_of_any_number_of_channels_are_stored(storage, shape, dtype):
    pil = pytest.importorskip("PIL.Image")
    from trackio.utils import MEDIA_DIR

    project = f"images-{np.dtype(dtype)}-{len(shape)}-{shape[-1]}"
    logger = lox.loggers.TrackioLogger(project, images="image")
    state = logger.init(0)
    pixels = np.random.default_rng(0).random(shape)
    pixels = pixels > 0.5 if dtype is np.bool_ else (255 * pixels).astype(np.uint8)
    sent = pixels / np.float32(255) if dtype is np.float32 else pixels
    logger.log(state, {"image": sent, "x": 1.0}, step=3)
    logger.finish(state)
    (row,) = storage.get_logs(project, "00000000-00000000")
    assert row["x"] == 1 and row["image"]["_type"] == "trackio.image"
    shown = np.asarray(pil.open(MEDIA_DIR / row["image"]["file_path"]).convert("RGBA"))
    wanted = pixels.astype(np.uint8) * np.uint8(255 if dtype is np.bool_ else 1)
    wanted = wanted.reshape(4, 5, -1)
    if wanted.shape[2] < 3:  # grayscale, with or without an alpha channel
        wanted = np.concatenate([wanted[:, :, [0, 0, 0]], wanted[:, :, 1:]], axis=2)
    assert (shown[:, :, : wanted.shape[2]] == wanted).all()


def test_missing_package_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ImportError, match=r"needs trackio.*jax-lox\[trackio\]"):
        lox.loggers.TrackioLogger("project")


def test_program_without_finish_loses_no_row(tmp_path):
    program = """
    import lox.loggers

    logger = lox.loggers.TrackioLogger("project")
    state = logger.init(0)
    for i in range(200):
        logger.log(state, {"x": i})
    """
    check = """
    from trackio.sqlite_storage import SQLiteStorage

    print(len(SQLiteStorage.get_logs("project", "00000000-00000000")))
    """
    env = {"TRACKIO_DIR": str(tmp_path), "PATH": "", "JAX_PLATFORMS": "cpu"}
    for code in (program, check):
        run = programs.run(code, env=env)
        assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == "200"
