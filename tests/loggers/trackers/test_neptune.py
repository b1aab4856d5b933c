"""Neptune's own client, offline and in debug mode; its files are read back."""

import base64
import io
import json
import pathlib
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
import lox.neptune
from tests import programs

pillow = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True, scope="module")
def neptune():
    """Imports it only when its tests run, because that takes seconds."""
    with warnings.catch_warnings():  # warnings of packages that Neptune imports
        warnings.simplefilter("ignore")
        return pytest.importorskip("neptune")


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEPTUNE_MODE", raising=False)


class Written:
    """The contents of Neptune's files of a run."""

    def __init__(self, directory):
        self.series, self.fields, self.tags = {}, {}, []
        for path in directory.glob("data-*.log"):
            decoder, text, at = json.JSONDecoder(), path.read_text(), 0
            while at < len(text):
                entry, at = decoder.raw_decode(text, at)
                at += len(text[at:]) - len(text[at:].lstrip())
                self._add(entry["obj"])

    def _add(self, operation):
        name, kind = "/".join(operation["path"]), operation["type"]
        if kind in ("LogFloats", "LogStrings", "LogImages"):
            points = [(point["step"], point["value"]) for point in operation["values"]]
            self.series.setdefault(name, []).extend(points)
        elif kind == "AddStrings":
            self.tags += operation["values"]
        elif kind.startswith("Assign"):
            self.fields[name] = operation["value"]


def written():
    runs = [Written(path) for path in pathlib.Path().glob(".neptune/offline/run__*")]
    found = {run.fields["sys/name"]: run for run in runs}
    assert len(found) == len(runs)
    return found


def name_of(key):
    return "-".join(f"{int(word):08x}" for word in jax.random.key_data(key))


def series_of(logs):
    """The series of spooled logs of one run: those of `train`."""
    steps = logs.step["w"].tolist()
    columns = {**logs, "episode": logs.episode["w"]}
    return {
        name: list(zip(steps, np.asarray(values).tolist(), strict=True))
        for name, values in columns.items()
    }


def train(key, n=5):
    def step(w, i):
        lox.log({"w": w, "net/twice": 2 * w}, step=n - i, episode=i // 2)
        return w / 3, None

    return lax.scan(step, jax.random.uniform(key), jnp.arange(n))[0]


# --- the logger ------------------------------------------------------------


@pytest.mark.parametrize(
    "method, options",
    [("tap", {}), ("tap", {"buffer": 2}), ("spool", {})],
    ids=["tap", "buffer", "spool"],
)
def test_neptune_run_equals_spooled_logs(method, options, capfd):
    logger = lox.neptune.NeptuneLogger(
        "me/tests",
        config={"lr": 0.1, "net": {"width": 8}, "layers": [1, 2], "none": None},
        group="ours",
        tags=["a"],
    )
    key = jax.random.key(3)
    state = logger.init(key)
    getattr(logger, method)(train, state, **options)(key)
    logger.finish(state)
    ((name, run),) = written().items()
    assert name == name_of(key)
    assert run.series == series_of(lox.spool(train)(key)[1])
    assert [step for step, _ in run.series["w"]] == [5, 4, 3, 2, 1]
    assert run.fields["parameters/lr"] == 0.1
    assert run.fields["parameters/net/width"] == 8
    assert run.fields["parameters/layers"] == "[1, 2]"
    assert run.fields["parameters/none"] == "None"
    assert sorted(run.tags) == ["a", "ours"]
    assert capfd.readouterr() == ("", "")


def test_vmap_of_64_seeds_logs_64_runs_in_one_group():
    logger = lox.neptune.NeptuneLogger()

    @jax.jit
    @jax.vmap
    def run(key):
        state = logger.init(key)
        w = logger.tap(train, state, buffer=5)(key)
        logger.finish(state)
        return w

    keys = jax.random.split(jax.random.key(0), 64)
    run(keys)
    jax.effects_barrier()
    runs = written()
    assert len(runs) == 64
    assert len({tuple(run.tags) for run in runs.values()}) == 1
    for key in keys:
        assert runs[name_of(key)].series == series_of(lox.spool(train)(key)[1])


def test_numbers_that_are_not_finite_are_a_separate_series():
    logger = lox.neptune.NeptuneLogger()
    state = logger.init(0)
    numbers = np.array([1, np.nan, np.inf, 0.1, -np.inf], np.float32)
    steps = {"step": {"x": np.arange(5)}}
    logger.log(state, lox.logdict({"x": numbers}, steps, stacked=True))
    logger.log(state, {"x": np.nan, "y": 2**40, "z": True})
    logger.finish(state)
    (run,) = written().values()
    assert run.series == {
        "x": [(0, 1.0), (3, float(np.float32(0.1)))],
        "x_not_finite": [(1, "nan"), (2, "inf"), (4, "-inf"), (None, "nan")],
        "y": [(None, 2**40)],
        "z": [(None, 1.0)],
    }


def test_invalid_names_are_changed():
    logger = lox.neptune.NeptuneLogger(config={"x": 0})
    state = logger.init(0)
    names = ["a", "a/b", "c/d", "c", "/a/", "sys/x", "sys", "", "//", "parameters/x"]
    for _ in range(2):
        logger.log(state, {name: i for i, name in enumerate(names)})
    logger.finish(state)
    (run,) = written().values()
    expected = ["a", "a.b", "c/d", "c_value", "a_value", "sys.x", "sys_value"]
    expected += ["value", "value_value", "parameters.x"]
    assert run.series == {
        name: [(None, i), (None, i)] for i, name in enumerate(expected)
    }


def test_histograms_and_images_are_logged_if_selected():
    logger = lox.neptune.NeptuneLogger(
        histograms="grads/*", images=["image", "gray", "flat"]
    )
    state = logger.init(0)
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(7, 3)).astype(np.float32)
    image = rng.integers(0, 256, (4, 5, 3), np.uint8)
    gray = np.array([[-0.5, 0.2], [1, 1.5]])
    logs = {
        "grads": {"w": grads, "bad": np.array([np.nan, np.inf])},
        "image": image,
        "gray": gray,
        "flat": np.ones(3),
    }
    with pytest.warns(
        lox.LoxWarning, match="leaves out 'flat', which `images` selects"
    ):
        logger.log(state, lox.logdict(logs, {"step": dict.fromkeys(logs, 3)}))
        logger.finish(state)
    (run,) = written().values()
    counts, edges = np.histogram(grads.astype(float), 30)
    ((step, text),) = run.series["grads/w"]
    assert step == 3 and len(text) < 1000
    assert json.loads(text) == {
        "lowest": edges[0],
        "highest": edges[-1],
        "counts": counts.tolist(),
    }
    ((_, text),) = run.series["grads/bad"]
    assert sum(json.loads(text)["counts"]) == 0

    def pixels(name):
        ((step, value),) = run.series[name]
        assert step == 3
        return np.asarray(pillow.open(io.BytesIO(base64.b64decode(value["data"]))))

    assert np.array_equal(pixels("image"), image)
    assert pixels("gray").tolist() == [[0, 51], [255, 255]]


def test_watched_histograms_are_histograms():
    logger = lox.neptune.NeptuneLogger()
    state = logger.init(0)
    values = np.arange(10.0, dtype=np.float32)
    logger.tap(lox.watch, state)("params", {"w": values}, stats="histogram", step=3)
    uneven = {"counts": np.array([1, 2]), "edges": np.array([0.0, 1.0, 3.0])}
    logger.log(state, {"uneven": uneven})
    logger.finish(state)
    (run,) = written().values()
    ((step, text),) = run.series["params/w/histogram"]
    histogram = lox.stats(values, "histogram")["histogram"]
    assert step == 3 and len(text) < 1000
    assert json.loads(text) == {
        "lowest": 0,
        "highest": 9,
        "counts": histogram["counts"].tolist(),
    }
    assert json.loads(run.series["uneven"][0][1])["edges"] == [0, 1, 3]


def test_debug_mode_writes_nothing():
    logger = lox.neptune.NeptuneLogger(mode="debug", config={"a": 1}, images="image")
    state = logger.init(0)
    logger.tap(train, state)(jax.random.key(0))
    logger.log(state, {"image": np.ones((2, 2)), "x": np.nan})
    logger.finish(state)
    assert not written()


def test_environment_variable_sets_the_mode(monkeypatch):
    monkeypatch.setenv("NEPTUNE_MODE", "debug")
    logger = lox.neptune.NeptuneLogger()
    logger.finish(logger.init(0))
    assert not written()


# --- the functions ---------------------------------------------------------


def test_functions_work_inside_and_outside_jit():
    @jax.jit
    @jax.vmap
    def run(key):
        state = lox.neptune.init(key, config={"a": 1})

        def step(w, i):
            lox.neptune.log(state, {"w": w}, step=i)
            return w / 2, None

        lax.scan(step, jax.random.uniform(key), jnp.arange(4))
        lox.neptune.finish(state)

    keys = jax.random.split(jax.random.key(0), 3)
    run(keys)
    state = lox.neptune.init(7, name="alone")
    lox.neptune.log(state, {"x": 1.5}, step=2)
    lox.neptune.finish(state)
    jax.effects_barrier()
    runs = written()
    assert len(runs) == 4 and runs["alone"].series == {"x": [(2, 1.5)]}
    for key in keys:
        w, found = float(jax.random.uniform(key)), runs[name_of(key)]
        assert found.series == {"w": [(i, w / 2**i) for i in range(4)]}
        assert found.fields["parameters/a"] == 1


# --- failures --------------------------------------------------------------


def test_program_without_finish_loses_no_row():
    program = """
    import sys
    import lox.neptune
    assert "neptune" not in sys.modules
    state = lox.neptune.init(1)
    for i in range(300):
        lox.neptune.log(state, {"x": i}, step=-i)
    raise SystemExit(3)
    """
    run = programs.run(program)
    assert (run.returncode, run.stdout, run.stderr) == (3, "", "")
    (run,) = written().values()
    assert run.series == {"x": [(-i, i) for i in range(300)]}


def test_missing_api_token_loses_no_row():
    # without a token the client cannot even try
    with pytest.warns(
        lox.LoxWarning, match="NeptuneLogger: it failed.*MissingApiToken"
    ):
        state = lox.neptune.init(7, mode="sync", project="me/tests")
        lox.neptune.log(state, {"x": 3.0}, step=1)
        lox.neptune.finish(state)
    logs = lox.load(".lox/unsent")
    assert logs["x"].item() == 3 and logs.step["x"].item() == 1


def test_missing_package_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "neptune", None)
    for begin in (lox.neptune.NeptuneLogger, lox.neptune.init):
        with pytest.raises(ImportError, match=r"needs neptune.*jax-lox\[neptune\]"):
            begin()
