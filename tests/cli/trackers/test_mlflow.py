"""`lox sync --to mlflow`: runs in MLflow's SQLite store, read with its own client."""

import warnings

import pytest

import lox
import lox.loggers
from tests import programs

from .runs import log_numbers, name, save, sync

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
    ),
    pytest.mark.filterwarnings("ignore:.*(leaves out|counts rows):lox.LoxWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def mlflow():
    """Imports it only when its tests run, because that takes seconds."""
    with warnings.catch_warnings():  # warnings of packages that MLflow imports
        warnings.simplefilter("ignore")
        return pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    # shared, because creating the tables takes seconds
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(autouse=True)
def uri(address, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    mlflow.set_tracking_uri(address)
    return address


def client():
    import mlflow

    return mlflow.MlflowClient()


def runs(experiment):
    found = client().get_experiment_by_name(experiment)
    return {
        run.info.run_name: run for run in client().search_runs([found.experiment_id])
    }


def history(run, key):
    found = client().get_metric_history(run.info.run_id, key)
    ordered = sorted(found, key=lambda metric: (metric.timestamp, metric.step))
    return [(metric.step, repr(metric.value)) for metric in ordered]


def histories(run):
    return {key: history(run, key) for key in run.data.metrics}


def test_synced_run_equals_that_of_the_logger(capsys):
    live = lox.loggers.MLflowLogger("live", {"lr": 0.1, "net": {"width": 8}})
    save("runs", live, seeds=(1,))
    assert sync("runs", "--to", "mlflow", "--project", "synced") == 0
    captured = capsys.readouterr()
    assert captured.out == "sent 67 rows of 1 run to mlflow (project synced)\n"
    assert "'h/counts', which is int32 of shape (3,)" in captured.err
    assert "The store keeps it." in captured.err
    ((synced_name, synced),) = runs("synced").items()
    ((live_name, logged),) = runs("live").items()
    assert synced_name == live_name == name(1)
    found, wanted = histories(synced), histories(logged)
    assert found.keys() == wanted.keys() >= {"loss/lane_1", "tree/x/0", "late"}
    for key in found:
        # MLflow has no order of metrics within a millisecond
        assert sorted(found[key]) == sorted(wanted[key]) != []
    assert synced.data.params == logged.data.params
    assert synced.info.status == logged.info.status == "FINISHED"
    (run,) = lox.runs("runs")
    assert synced.info.start_time == int(run.started * 1000)
    ended = (run.started + run.duration) * 1000
    assert abs(synced.info.end_time - ended) <= 1


def test_only_new_rows_are_sent_and_the_status_follows(monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "growing")
    logger, state = log_numbers("store", 0, 3, finish=False)
    assert sync("store", "--to", "mlflow") == 0
    (run,) = runs("growing").values()
    assert run.info.status == "RUNNING"
    logger.log(state, {"x": 3.0})
    assert sync("store", "--to", "mlflow") == 0
    logger.finish(state)
    assert sync("store", "--to", "mlflow") == 0
    (run,) = runs("growing").values()
    assert run.info.status == "FINISHED"
    assert history(run, "x") == [(i, f"{float(i)}") for i in range(4)]
    assert capsys.readouterr().out.splitlines() == [
        "sent 3 rows of 1 run to mlflow (project growing); 1 run not finished",
        "sent 1 row of 1 run to mlflow (project growing); 1 run not finished",
        "sent 0 rows of 1 run to mlflow (project growing)",
    ]


KILLED = """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")
    import lox.cli, mlflow
    import lox._trackers.mlflow
    lox._trackers.mlflow._MAX_METRICS = 20

    log_batch, calls = mlflow.MlflowClient.log_batch, []

    def log_and_die(client, run_id, metrics=(), **options):
        log_batch(client, run_id, metrics=metrics, **options)
        calls.append(metrics)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    mlflow.MlflowClient.log_batch = log_and_die
    lox.cli.main(["sync", "runs", "--to", "mlflow", "--project", "killed"])
"""


def test_killed_command_is_continued_without_losses_or_duplicates():
    save("runs", seeds=(1,))
    assert programs.run(KILLED).returncode == -9
    (run,) = runs("killed").values()
    assert sum(map(len, histories(run).values())) == 40
    assert sync("runs", "--to", "mlflow", "--project", "killed") == 0
    assert sync("runs", "--to", "mlflow", "--project", "whole") == 0
    (run,), (other,) = runs("killed").values(), runs("whole").values()
    assert histories(run) == histories(other)
    assert run.data.params == other.data.params != {}


UNSENT = """
    import warnings
    warnings.simplefilter("ignore")
    import mlflow, lox.loggers
    import lox._trackers.mlflow
    lox._trackers.mlflow._MAX_METRICS = 4

    log_batch, calls = mlflow.MlflowClient.log_batch, []

    def fail(client, run_id, metrics=(), **options):
        calls.append(metrics)
        if len(calls) > 3:
            raise ConnectionError("no network")
        log_batch(client, run_id, metrics=metrics, **options)

    mlflow.MlflowClient.log_batch = fail
    logger = lox.loggers.MLflowLogger("unsent", {"lr": 1})
    state = logger.init(0)
    for i in range(50):
        logger.log(state, {"x": float(i), "y": -float(i), "z": 0.0})
    logger.finish(state)
"""


def test_unsent_rows_go_to_the_run_of_the_logger():
    done = programs.run(UNSENT)
    assert done.returncode == 0
    (run,) = runs("unsent").values()
    # the first call has sent the config, and two others four metrics each
    assert {k: len(x) for k, x in histories(run).items()} == {"x": 3, "y": 3, "z": 2}
    assert sync(".lox/unsent", "--to", "mlflow", "--project", "other") == 0
    assert lox.runs(".lox/unsent") == []
    (run,) = runs("unsent").values()
    for key, sign in {"x": 1, "y": -1, "z": 0}.items():
        wanted = [(i, sign * float(i)) for i in range(50)]
        assert sorted((i, float(x)) for i, x in history(run, key)) == wanted


def test_password_of_the_server_is_not_saved():
    uri = "https://me:secret@example.com/mlflow"
    logger = lox.loggers.MLflowLogger("p", tracking_uri=uri)
    assert logger.settings()["tracking_uri"] == "https://example.com/mlflow"


def test_command_does_not_import_jax():
    log_numbers("runs", 0, 3)
    done = programs.run(
        """
        import sys
        import lox.cli
        assert lox.cli.main(["sync", "runs", "--to", "mlflow"]) == 0
        assert "mlflow" in sys.modules and "jax" not in sys.modules
        """,
        fresh=True,
    )
    assert done.stdout == "sent 3 rows of 1 run to mlflow (project Default)\n"
