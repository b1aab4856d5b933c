"""`lox sync --to wandb`: W&B's own client, offline; its files are read back."""

import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

import lox
import lox.cli
import lox.loggers
import lox.wandb
from lox._trackers.unsent import Origin
from tests import programs
from tests.loggers.trackers.test_wandb import ended, wandb, without_account
from tests.waiting import wait_until

from .runs import CONFIG, log_numbers, name, save, sync

pytestmark = pytest.mark.filterwarnings("ignore:.*leaves out:lox.LoxWarning")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    # a session of W&B stays as it started
    settings = wandb.setup().settings
    monkeypatch.setattr(settings, "root_dir", str(tmp_path))
    monkeypatch.setattr(settings, "mode", "offline")


def written(project):
    """The files of a project, in the order in which they were written."""
    paths = pathlib.Path().glob("wandb/offline-run-*/run-*.wandb")
    ordered = sorted(paths, key=lambda path: path.stat().st_ctime)
    files = [wait_until(lambda path=path: ended(path)) for path in ordered]
    return [file for file in files if file.run.project == project]


def texts(rows):
    """Rows as text: NaN is not equal to itself, and W&B's order of columns varies."""
    return [json.dumps(row, sort_keys=True) for row in rows]


def test_synced_run_equals_that_of_the_logger(capsys):
    live = lox.loggers.WandbLogger(
        "live", CONFIG, "g", mode="offline", tags=["t"], histograms="weights"
    )
    save("runs", live, seeds=(1, 2))
    options = ("--project", "synced", "--group", "g", "--tag", "t")
    assert sync("runs", "--to", "wandb", *options, "--histograms", "weights") == 0
    assert (
        capsys.readouterr().out == "sent 134 rows of 2 runs to wandb (project synced)\n"
    )
    pairs = zip(written("synced"), written("live"), strict=True)
    for seed, (synced, logged) in enumerate(pairs, start=1):
        assert texts(synced.rows) == texts(logged.rows) != []
        assert synced.metrics == logged.metrics
        assert synced.config == logged.config == {**CONFIG, "seed": seed}
        assert synced.name == logged.name == name(seed)
        assert synced.group == logged.group == "g"
        assert list(synced.run.tags) == ["t"] and synced.exit_code == 0


def test_imported_run_has_the_steps_that_were_logged(capsys):
    def program(x):
        def step(x, i):
            lox.log({"x": x}, step=10 - i)
            return x / 2, None

        lox.log({"epochs": x}, epoch=0.5)
        return jax.lax.scan(step, x, jnp.arange(3))[0]

    logger = lox.loggers.WandbLogger("imported", mode="offline")
    state = logger.init(1)
    logger.tap(program, state)(8.0)
    logger.finish(state)
    assert written("imported")
    assert lox.cli.main(["import", "wandb", "-o", "store"]) == 0
    (run,) = lox.runs("store")
    logs = run.load()
    assert sorted(logs) == ["epochs", "x"]
    assert logs["x"].tolist() == [8.0, 4.0, 2.0]
    assert logs.step["x"].tolist() == [10, 9, 8]
    assert logs.epoch["epochs"].tolist() == [0.5]


def test_environment_variables_of_wandb_are_used(monkeypatch):
    log_numbers("store", 0, 2)
    monkeypatch.setenv("WANDB_RUN_GROUP", "my group")
    monkeypatch.setattr(wandb.setup().settings, "project", "my project")
    assert sync("store", "--to", "wandb") == 0
    (file,) = written("my project")
    assert file.group == "my group"


def test_only_new_rows_are_sent_with_the_next_steps():
    logger, state = log_numbers("store", 0, 3, finish=False)
    to = ("--to", "wandb", "--project", "growing")
    assert sync("store", *to) == 0
    assert sync("store", *to) == 0
    logger.log(state, {"x": 3.0})
    logger.finish(state)
    assert sync("store", *to) == 0
    first, second = written("growing")
    assert first.run.run_id == second.run.run_id and first.group == "store"
    assert [(row["_step"], row["x"]) for row in first.rows] == [(0, 0), (1, 1), (2, 2)]
    assert [(row["_step"], row["x"]) for row in second.rows] == [(3, 3)]


def test_failed_run_is_marked_as_failed():
    program = """
        import lox.loggers
        logger = lox.loggers.SaveLogger("store")
        logger.log(logger.init(0), {"x": 1.0})
        raise ValueError
    """
    assert programs.run(program).returncode == 1
    assert sync("store", "--to", "wandb", "--project", "failed") == 0
    (file,) = written("failed")
    assert file.exit_code == 1 and [row["x"] for row in file.rows] == [1]


class Server:
    """What a W&B server has: the rows of each run, by their steps."""

    def __init__(self):
        self.runs = {}

    def init(self, **options):
        return OnlineRun(self, options)


class OnlineRun:
    offline = False
    project_url = ""

    def __init__(self, server, options):
        assert options["resume"] == "allow"
        self.id, self.server = options["id"], server
        self.rows = server.runs.setdefault(self.id, [])
        self.step = len(self.rows)

    def define_metric(self, *arguments, **options):
        pass

    def log(self, row, step, commit):
        assert commit and step == len(self.rows)
        if self.server.dies_at == step:
            raise ConnectionError("no network")
        self.rows.append(row["x"])

    def finish(self, exit_code):
        assert exit_code == 0


@pytest.fixture
def server(monkeypatch):
    """A server in place of W&B's own, which cannot be reached in tests."""
    found = Server()
    found.dies_at = None
    monkeypatch.setattr(wandb, "init", found.init)
    monkeypatch.setattr(wandb.setup().settings, "mode", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    return found


def test_rows_that_the_server_has_are_not_sent_again(server, capsys):
    log_numbers("store", 0, 5)
    log_numbers("store", 1, 3)
    server.dies_at = 3
    assert sync("store", "--to", "wandb") == 1
    captured = capsys.readouterr()
    assert (
        captured.err == f"lox: error: {name(0)}: wandb: ConnectionError: no network\n"
    )
    assert captured.out == "sent 3 rows of 1 run to wandb\n"
    server.dies_at = None
    assert sync("store", "--to", "wandb") == 0
    assert list(server.runs.values()) == [[0, 1, 2, 3, 4], [0, 1, 2]]
    # also if it is not known what was sent
    for path in pathlib.Path("store").glob("*/sent-wandb-*.json"):
        path.unlink()
    assert sync("store", "--to", "wandb") == 0
    assert list(server.runs.values()) == [[0, 1, 2, 3, 4], [0, 1, 2]]


UNSENT = """
    import wandb, lox, lox.loggers, warnings
    import numpy as np
    from wandb.sdk.wandb_run import Run
    log, calls = Run.log, []

    def fail(run, *arguments, **options):
        calls.append(run)
        if len(calls) > 4:
            raise ConnectionError("no network")
        return log(run, *arguments, **options)

    Run.log = fail
    warnings.simplefilter("ignore")
    logger = lox.loggers.WandbLogger("unsent", mode="offline", tags=["t"], group="g")
    state = logger.init(0)
    for i in range(3):  # the second call fails at its second row
        rows = lox.logdict({"x": np.arange(3 * i, 3 * i + 3)}, stacked=True)
        logger.log(state, rows)
    logger.finish(state)
"""


def test_unsent_rows_go_to_the_run_of_the_logger():
    done = programs.run(UNSENT)
    assert not done.stderr
    assert len(lox.runs(".lox/unsent")) == 1
    assert sync(".lox", "--to", "wandb") == 0
    assert lox.runs(".lox/unsent") == []
    logged, synced = written("unsent")
    assert logged.run.run_id == synced.run.run_id
    assert synced.group == "g" and list(synced.run.tags) == ["t"]
    assert [(row["_step"], row["x"]) for row in logged.rows] == [
        (i, i) for i in range(4)
    ]
    assert [(row["_step"], row["x"]) for row in synced.rows] == [
        (i, i) for i in range(4, 9)
    ]


def test_secrets_are_not_saved(monkeypatch):
    def fail(**options):
        raise ConnectionError("no network")

    monkeypatch.setattr(wandb, "init", fail)
    settings = {"api_key": "secret" * 7}
    state = lox.wandb.init(
        0, project="p", mode="offline", settings=settings, tags=("a",), dir="there"
    )
    with pytest.warns(lox.LoxWarning, match="`lox sync .lox/unsent --to wandb`"):
        lox.wandb.log(state, {"x": 1.0})
        lox.wandb.finish(state)
    (run,) = lox.runs(".lox/unsent")
    origin = Origin.read(run)
    assert (origin.tracker, origin.run) == ("wandb", None)
    assert origin.settings["project"] == "p"
    options = {"mode": "offline", "tags": ["a"], "dir": "there"}
    assert origin.settings["options"] == options
    for path in pathlib.Path(".lox").rglob("*.json"):
        assert "secret" not in path.read_text()


def test_unsent_rows_are_not_sent_to_another_server(server, capsys, monkeypatch):
    settings = lox.wandb.WandbLogger("p").settings()
    lox.save({"x": 1.0}, ".lox/unsent", key=0)
    (run,) = lox.runs(".lox/unsent")
    Origin("wandb", name(0), settings, "token").write(run.path)
    there = wandb.setup().settings.base_url
    monkeypatch.setattr(wandb.setup().settings, "base_url", "https://example.com")
    assert sync(".lox/unsent", "--to", "wandb") == 1
    assert capsys.readouterr().err == (
        f"lox: error: wandb: these logs belong to a run at {there}, but W&B is set up "
        "for https://example.com. Set `WANDB_BASE_URL`.\n"
    )
    monkeypatch.setattr(wandb.setup().settings, "base_url", there)
    assert sync(".lox/unsent", "--to", "wandb") == 0
    assert server.runs == {f"{name(0)}-token": [1.0]} and lox.runs(".lox/unsent") == []


def test_missing_login_is_one_line():
    log_numbers("store", 0, 2)
    program = """
        import lox.cli
        raise SystemExit(lox.cli.main(["sync", "store", "--to", "wandb"]))
    """
    done = programs.run(program, env=without_account())
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        "lox: error: wandb: there is no API key for W&B. Log in with `wandb login`, "
        "set `WANDB_API_KEY`, or write the runs to disk with `WANDB_MODE=offline`.\n"
    )


def test_command_does_not_import_jax():
    log_numbers("runs", 0, 3)
    done = programs.run(
        """
        import os, sys
        os.environ["WANDB_MODE"] = "offline"
        import lox.cli
        assert lox.cli.main(["sync", "runs", "--to", "wandb"]) == 0
        assert "wandb" in sys.modules and "jax" not in sys.modules
        """,
        fresh=True,
    )
    assert done.stdout == "sent 3 rows of 1 run to wandb\n" and not done.stderr
