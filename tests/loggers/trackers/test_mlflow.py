"""Runs in MLflow's SQLite store, read back with its own client."""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
from tests import programs

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(autouse=True, scope="module")
def mlflow():
    """Imports it only when its tests run, because that takes seconds."""
    with warnings.catch_warnings():  # warnings of packages that MLflow imports
        warnings.simplefilter("ignore")
        return pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    # shared, because creating the tables takes seconds
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def runs(uri, experiment):
    import mlflow

    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    return client, {
        run.info.run_name: run for run in client.search_runs([found.experiment_id])
    }


def history(client, run, name):
    found = client.get_metric_history(run.info.run_id, name)
    found.sort(key=lambda metric: metric.timestamp)
    return [m.step for m in found], [m.value for m in found]


def train(key, n=20):
    def step(w, i):
        lox.log({"loss": w * w, "w": w}, step=i, episode=i // 5)
        return w / 2, None

    return lax.scan(step, jax.random.normal(key), jnp.arange(n))[0]


@pytest.mark.parametrize("method", ["tap", "spool"])
def test_vmap_logs_one_run_per_seed(uri, method):
    config = {"lr": 0.1, "net": {"width": 64}}
    logger = lox.loggers.MLflowLogger(method, config, tracking_uri=uri)
    keys = jax.random.split(jax.random.key(0), 4)

    def run(key):
        state = logger.init(key)
        getattr(logger, method)(train, state)(key)
        logger.finish(state)

    jax.jit(jax.vmap(run))(keys)
    jax.effects_barrier()
    client, found = runs(uri, method)
    assert len(found) == 4
    for key in keys:
        name = "-".join(f"{int(w):08x}" for w in jax.random.key_data(key))
        one = found[name]
        assert one.data.params == {"lr": "0.1", "net/width": "64"}
        assert one.info.status == "FINISHED"
        _, logs = lox.spool(train)(key)
        for curve in ("loss", "w"):
            steps, values = history(client, one, curve)
            order = np.argsort(steps, kind="stable")
            assert np.asarray(steps)[order].tolist() == logs.step[curve].tolist()
            assert np.asarray(values)[order].tolist() == logs[curve].tolist()


def test_equal_rows_are_all_kept(uri):
    logger = lox.loggers.MLflowLogger("alike", tracking_uri=uri)
    state = logger.init(0)
    rows = lox.logdict({"x": np.ones(50)}, {"step": {"x": np.zeros(50)}}, stacked=True)
    logger.log(state, rows)
    nothing = np.full(3, np.nan)
    logger.log(state, lox.logdict({"nan": nothing}, stacked=True))
    logger.log(state, lox.logdict({"inf": np.inf, "i": 2**40}))
    logger.finish(state)
    client, found = runs(uri, "alike")
    (run,) = found.values()
    assert history(client, run, "x") == ([0] * 50, [1.0] * 50)
    # MLflow stores them as zeros with a flag
    assert history(client, run, "nan")[0] == [0, 1, 2]
    assert history(client, run, "i") == ([0], [2.0**40])


def test_infinities_are_distinguished_from_finite_numbers(uri):
    """MLflow cannot store them: they become the largest 64-bit numbers."""
    logger = lox.loggers.MLflowLogger("infinite", tracking_uri=uri)
    state = logger.init(0)
    rows = np.array([np.inf, -np.inf, np.nan, np.finfo(np.float32).max], np.float32)
    logger.log(state, lox.logdict({"x": rows}, stacked=True))
    logger.finish(state)
    client, found = runs(uri, "infinite")
    (run,) = found.values()
    _, (plus, minus, nothing, finite) = history(client, run, "x")
    assert plus == sys.float_info.max and minus == -sys.float_info.max
    assert np.isnan(nothing) and finite == float(rows[3])


def test_histograms_are_left_out(uri):
    logger = lox.loggers.MLflowLogger("histograms", tracking_uri=uri)
    state = logger.init(0)
    watch = logger.tap(lambda x: lox.watch("x", x, stats=["max", "histogram"]), state)
    with pytest.warns(lox.LoxWarning, match="leaves out 'x/histogram/"):
        watch(jnp.arange(3.0))
        logger.finish(state)
    client, found = runs(uri, "histograms")
    (run,) = found.values()
    assert history(client, run, "x/max") == ([0], [2.0])


def test_subnormal_numbers_are_kept(uri):
    numbers = np.array([1e-40, -1e-45, 0.1, 0.0], np.float32)
    logger = lox.loggers.MLflowLogger("small", tracking_uri=uri)

    def f(xs):
        lax.scan(lambda c, x: (c, lox.log({"x": x})), 0, xs)

    @jax.jit
    def run(xs):  # starts the logger's thread from one of XLA's, whose mode it inherits
        state = logger.init(xs.size)
        logger.tap(f, state)(xs)
        logger.finish(state)

    run(numbers)
    jax.effects_barrier()
    client, found = runs(uri, "small")
    values = history(client, found["00000000-00000004"], "x")[1]
    assert np.float32(values).tolist() == numbers.tolist()


def test_invalid_names_are_changed_and_stay_distinct(uri):
    logger = lox.loggers.MLflowLogger("names", {"a[0]": 1}, tracking_uri=uri)
    state = logger.init(0)
    logger.log(state, {"a[0]": 1.0, "a(0)": 2.0, "ключ/b": 3.0, "/": 4.0, "../x": 5.0})
    with pytest.warns(
        lox.LoxWarning, match="leaves out 'w'.*Log a scalar computed from"
    ):
        logger.log(state, {"w": np.arange(3), "b": 6.0})
        logger.finish(state)
    client, found = runs(uri, "names")
    (run,) = found.values()
    assert sorted(run.data.metrics.values()) == [1, 2, 3, 4, 5, 6]
    assert run.data.metrics["a_0_"] == 1 and run.data.metrics["a_0__1"] == 2
    assert run.data.metrics["_/x"] == 5


ENDINGS = """
import os, sys
import lox.loggers, mlflow
import mlflow.store.tracking.sqlalchemy_store  # which each fork would import itself

uri, *endings = sys.argv[1:]
for last in endings:
    if os.fork() == 0:
        logger = lox.loggers.MLflowLogger(last, tracking_uri=uri)
        logger.finish(logger.init(1))
        logger.log(logger.init(2), {"x": 1.0})
        exec(last)
    os.wait()
"""


@pytest.fixture(scope="module")
def ended(uri):
    """Programs that end in each of these ways, and share the import of MLflow."""
    run = programs.run(ENDINGS, uri, "raise KeyError", "raise KeyboardInterrupt")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("last", "status"),
    [("raise KeyError", "FAILED"), ("raise KeyboardInterrupt", "KILLED")],
)
def test_run_ended_by_exception_has_failed(uri, ended, last, status):
    client, found = runs(uri, last)
    first, second = (found[f"00000000-0000000{i}"] for i in (1, 2))
    assert (first.info.status, second.info.status) == ("FINISHED", status)
    assert history(client, second, "x")[1] == [1.0]


def test_unreachable_tracking_store_does_not_stop_the_program(tmp_path):
    (tmp_path / "file").write_text("")
    uri = f"sqlite:///{tmp_path}/file/mlflow.db"
    logger = lox.loggers.MLflowLogger(tracking_uri=uri)
    state = logger.init(7)
    with pytest.warns(lox.LoxWarning, match="MLflowLogger: it failed with"):
        logger.tap(train, state)(jax.random.key(0))
        logger.finish(state)
    found = lox.load(".lox/unsent")
    assert found == lox.spool(train)(jax.random.key(0))[1]


def test_missing_package_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r"needs mlflow.*jax-lox\[mlflow\]"):
        lox.loggers.MLflowLogger()
