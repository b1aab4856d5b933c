"""TensorBoard's event files, read back with TensorBoard itself."""

import io
import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
from lox._event_files import event_file

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def train(key, n=5):
    def step(w, i):
        lox.log({"loss": w * w, "w": w}, step=i)
        return w / 2, None

    return lax.scan(step, jax.random.normal(key), jnp.arange(n))[0]


def read(path):
    from tensorboard.backend.event_processing import event_accumulator

    guidance = dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0)
    found = event_accumulator.EventAccumulator(str(path), size_guidance=guidance)
    return found.Reload()


def curve(found, name):
    events = found.Scalars(name)
    return [e.step for e in events], [e.value for e in events]


@pytest.mark.parametrize("method", ["tap", "spool"])
@pytest.mark.parametrize("options", [{}, {"interval": 2}], ids=str)
def test_tensorboard_reads_curves_of_every_seed(tmp_path, method, options):
    logger = lox.loggers.TensorBoardLogger(tmp_path)
    keys = jax.random.split(jax.random.key(0), 8)

    def run(key):
        state = logger.init(key)
        w = getattr(logger, method)(train, state, **options)(key)
        logger.finish(state)
        return w

    jax.jit(jax.vmap(run))(keys)
    jax.effects_barrier()
    assert len(list(tmp_path.iterdir())) == 8
    for key in keys:
        _, logs = lox.spool(train, **options)(key)
        name = "-".join(f"{int(w):08x}" for w in jax.random.key_data(key))
        found = read(tmp_path / name)
        for curve_name in ("loss", "w"):
            steps, values = curve(found, curve_name)
            assert steps == logs.step[curve_name].tolist()
            assert values == logs[curve_name].tolist()


@pytest.mark.parametrize("buffer", [None, 7])
def test_tensorboard_reads_any_step_and_number(tmp_path, buffer):
    steps = [5, 3, 3, 0, 127, 128, 2**31 - 1, -1]
    values = [0.0, -1.5, np.nan, np.inf, 1e-45, 3e38, -np.inf, 1.0]

    def f():
        def body(_, x):
            lox.log({"ключ/[x] %": x[0], "n": x[1]}, step=x[1])
            return None, None

        lax.scan(body, None, (jnp.array(values), jnp.array(steps)))

    logger = lox.loggers.TensorBoardLogger(tmp_path)
    state = logger.init(0)
    logger.tap(f, state, buffer=buffer)()
    logger.finish(state)
    found = read(next(tmp_path.iterdir()))
    seen, numbers = curve(found, "ключ/[x] %")
    assert seen == steps
    np.testing.assert_array_equal(np.float32(numbers), np.float32(values))
    assert curve(found, "n")[1] == np.float32(steps).tolist()


def test_tensorboard_reads_large_integers_and_64_bit_steps(tmp_path):
    logger = lox.loggers.TensorBoardLogger(tmp_path)
    state = logger.init(0)
    for rows in (1, 2):
        steps = np.arange(rows) + 2**40
        values = np.full(rows, 2**53)
        logs = lox.logdict({"x": values}, {"step": {"x": steps}}, stacked=True)
        logger.log(state, logs)
    logger.finish(state)
    assert curve(read(next(tmp_path.iterdir())), "x") == (
        [2**40, 2**40, 2**40 + 1],
        [2.0**53] * 3,
    )


def test_rows_without_step_are_numbered(tmp_path):
    logger = lox.loggers.TensorBoardLogger(tmp_path, step="episode")
    state = logger.init(0)
    for i in range(3):
        logger.log(state, {"x": i, "nested": {"a": [i, i + 1]}})
    logger.log(state, lox.logdict({"e": 1.0}, {"step": {"e": 7}, "episode": {"e": 2}}))
    with pytest.warns(lox.LoxWarning, match="'time'") as seen:
        for time in (0.0, 0.5, 0.75):
            logger.log(state, lox.logdict({"t": time}, {"time": {"t": time}}))
    assert len(seen) == 2
    assert "plots 't' over the step 'time'" in str(seen[0].message)
    assert "these rows have no step 'episode'" in str(seen[0].message)
    assert "counts rows instead of using the step 'time'" in str(seen[1].message)
    logger.finish(state)
    found = read(next(tmp_path.iterdir()))
    assert curve(found, "x") == ([0, 1, 2], [0, 1, 2])
    assert curve(found, "nested/a/1") == ([0, 1, 2], [1, 2, 3])
    assert curve(found, "e") == ([2], [1])
    assert curve(found, "t") == ([0, 1, 2], [0.0, 0.5, 0.75])


def test_arrays_are_written_as_histograms_or_images_if_selected(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000)
    pixels = rng.uniform(size=(4, 6, 3))
    logger = lox.loggers.TensorBoardLogger(tmp_path, histograms="h*", images="image")
    state = logger.init(0)
    logger.log(state, {"h": values, "h_odd": [np.array([np.nan, np.inf, 1.0])]})
    logger.log(state, {"h": np.zeros(3), "image": pixels})
    logger.log(state, {"image": (pixels[..., 0] * 255).astype(np.uint8)})
    with pytest.warns(lox.LoxWarning, match="leaves out 'w'.*`histograms='w'`"):
        logger.log(state, {"w": values})
    with pytest.warns(lox.LoxWarning, match=r"leaves out 'image'.*is \(3,\)"):
        logger.log(state, {"image": np.ones(3), "h": np.full(3, 1e30)})
    logger.finish(state)
    found = read(next(tmp_path.iterdir()))
    first, second, third = found.Histograms("h")
    assert third.histogram_value.num == sum(third.histogram_value.bucket) == 3
    shown = first.histogram_value
    assert (shown.num, shown.min, shown.max) == (1000, values.min(), values.max())
    assert shown.sum == pytest.approx(values.sum())
    assert sum(shown.bucket) == 1000 and len(shown.bucket_limit) == len(shown.bucket)
    assert second.histogram_value.num == 3
    assert found.Histograms("h_odd/0")[0].histogram_value.num == 1
    colour, grey = found.Images("image")
    assert (colour.height, colour.width, grey.height, grey.width) == (4, 6, 4, 6)
    matplotlib = pytest.importorskip("matplotlib.image")
    drawn = matplotlib.imread(io.BytesIO(colour.encoded_image_string), format="png")
    np.testing.assert_allclose(drawn, pixels, atol=1 / 255)
    drawn = matplotlib.imread(io.BytesIO(grey.encoded_image_string), format="png")
    np.testing.assert_array_equal(
        (drawn * 255).round(), (pixels[..., 0] * 255).astype(np.uint8)
    )


def test_watched_histograms_are_histograms(tmp_path):
    logger = lox.loggers.TensorBoardLogger(tmp_path)
    state = logger.init(0)
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    logger.tap(lox.watch, state)("params", {"w": values}, stats="histogram", step=3)
    logger.finish(state)
    found = read(next(tmp_path.iterdir()))
    (event,) = found.Histograms("params/w/histogram")
    shown = event.histogram_value
    histogram = lox.stats(values, "histogram")["histogram"]
    assert event.step == 3
    assert (shown.num, shown.min, shown.max) == (1000, values.min(), values.max())
    assert list(shown.bucket) == histogram["counts"].tolist()
    assert list(shown.bucket_limit) == histogram["edges"][1:].tolist()
    width = float(shown.bucket_limit[1] - shown.bucket_limit[0])
    assert abs(shown.sum - values.sum()) < 1000 * width / 2
    assert shown.sum_squares == pytest.approx(np.square(values).sum(), rel=0.05)


def test_config_is_written_as_hyperparameters(tmp_path):
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    config = {"lr": 0.1, "net": {"width": 64, "norm": True}, "name": "a", "dims": [1]}
    logger = lox.loggers.TensorBoardLogger(tmp_path, config=config)
    state = logger.init(0)
    logger.log(state, {"loss": 1.0})
    logger.finish(state)
    found = read(next(tmp_path.iterdir()))
    content = found.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data
    data = plugin_data_pb2.HParamsPluginData.FromString(content.content)
    read_back = {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in data.session_start_info.hparams.items()
    }
    assert read_back == {
        "lr": 0.1,
        "net/width": 64,
        "net/norm": True,
        "name": "a",
        "dims": "[1]",
    }
    assert metadata.SESSION_END_INFO_TAG in found.summary_metadata


def test_tensorboard_server_returns_logged_values(tmp_path):
    """Uses the server's own data provider, which converts old formats first."""
    from tensorboard.backend.event_processing import (
        data_provider,
        plugin_event_multiplexer,
    )
    from tensorboard.context import RequestContext
    from tensorboard.data import provider

    logger = lox.loggers.TensorBoardLogger(tmp_path, {"lr": 1}, histograms="h")
    state = logger.init(0)
    for i in range(3):
        logger.log(state, {"x": float(i), "h": np.arange(10.0)})
    logger.finish(state)
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    data = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path))
    (run,) = multiplexer.Runs()
    wanted = {"experiment_id": "", "downsample": 100}
    wanted["run_tag_filter"] = provider.RunTagFilter(runs=[run])
    context = RequestContext()
    scalars = data.read_scalars(context, plugin_name="scalars", **wanted)[run]
    assert [(d.step, d.value) for d in scalars["x"]] == [(0, 0), (1, 1), (2, 2)]
    histograms = data.read_tensors(context, plugin_name="histograms", **wanted)[run]
    assert sum(histograms["h"][0].numpy[:, 2]) == 10
    assert "hparams" in multiplexer.ActivePlugins()


def test_run_is_readable_while_written_and_after_crash(tmp_path):
    for value in (1.0, 2.0):
        logger = lox.loggers.TensorBoardLogger(tmp_path)
        logger.log(logger.init(0), {"x": value})
        assert curve(read(next(tmp_path.iterdir())), "x")[1][-1] == value
    (run,) = tmp_path.iterdir()
    files = sorted(run.iterdir())
    assert len(files) == 2
    # a record truncated by a crash is skipped, and those before it are read
    with files[0].open("r+b") as file:
        file.truncate(files[0].stat().st_size - 3)
    assert curve(read(run), "x")[1] == [2.0]


def test_temporarily_full_disk_damages_no_record(tmp_path):
    logger = lox.loggers.TensorBoardLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    (run,) = logger._runs._open.values()
    file = run.handle.file._file

    class Full:
        """Writes a part, and then nothing."""

        def __init__(self):
            self.calls = 0

        def write(self, data):
            self.calls += 1
            if self.calls > 1:
                raise OSError(28, "No space left on device")
            return file.write(data[:10])

        def __getattr__(self, name):
            return getattr(file, name)

    run.handle.file._file = Full()
    with pytest.raises(OSError, match="No space"):
        logger.write(run.handle, lox.logdict({"x": 2.0}))
    run.handle.file._file = file
    logger.log(state, {"x": 3.0})
    assert curve(read(next(tmp_path.iterdir())), "x")[1] == [1.0, 3.0]


def test_rows_of_removed_run_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = lox.loggers.TensorBoardLogger("there", {"lr": 0.1}, histograms="h")
    state = logger.init(0)
    logger.log(state, {"x": 0, "h": np.arange(3)})
    shutil.rmtree("there")
    with pytest.warns(lox.LoxWarning, match="removed while it was being writ") as seen:
        for i in (1, 2, 3):
            logger.log(state, {"x": i, "h": np.arange(3)})
        logger.finish(state)
    assert len(seen) == 1
    assert lox.load(".lox/unsent")["x"].tolist() == [1, 2, 3]
    assert not pathlib.Path("there").exists()


def test_run_removed_after_its_last_row_finishes_quietly(tmp_path):
    logger = lox.loggers.TensorBoardLogger(tmp_path / "there", {"lr": 0.1})
    state = logger.init(0)
    logger.log(state, {"x": 0})
    shutil.rmtree(tmp_path / "there")
    logger.finish(state)


def test_relative_path_is_resolved_at_construction(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    logger = lox.loggers.TensorBoardLogger("there")
    before = logger.init(0)
    os.chdir(tmp_path / "second")
    after = logger.init(1)
    for state in (before, after):
        logger.log(state, {"x": 1.0})
        logger.finish(state)
    assert not list((tmp_path / "second").iterdir())
    for run in (0, 1):
        found = read(tmp_path / "first" / "there" / f"00000000-{run:08x}")
        assert curve(found, "x")[1] == [1.0]


def test_checksums_of_many_rows_equal_checksums_of_each():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (50, 33), dtype=np.uint8)
    many = event_file.masked_crcs(rows).tolist()
    assert many == [event_file.masked_crc(row.tobytes()) for row in rows]
