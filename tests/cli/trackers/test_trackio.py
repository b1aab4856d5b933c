"""`lox sync --to trackio`: runs in trackio, read back from its own storage."""

import json
import os
import tempfile

import pytest

# trackio reads it at import
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp())
pytest.importorskip("trackio")

import lox
import lox.loggers
from tests import programs

from .runs import CONFIG, log_numbers, name, save, sync

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(leaves out|counts rows):lox.LoxWarning"),
]


def storage():
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage


def rows(project, run):
    found = storage().get_logs(project, run)
    # as text: NaN is not equal to itself
    return [repr({k: v for k, v in x.items() if k != "timestamp"}) for x in found]


def numbers(project, run):
    return [row["x"] for row in storage().get_logs(project, run)]


def test_synced_run_equals_that_of_the_logger(capsys):
    live = lox.loggers.TrackioLogger("live", CONFIG, "g", histograms="weights")
    save("runs", live, seeds=(1, 2))
    capsys.readouterr()
    options = ("--project", "synced", "--group", "g", "--histograms", "weights")
    assert sync("runs", "--to", "trackio", *options) == 0
    captured = capsys.readouterr()
    assert captured.out == "sent 134 rows of 2 runs to trackio (project synced)\n"
    assert "lox: warning: `lox sync` leaves out 'key'" in captured.err
    assert storage().get_runs("synced") == storage().get_runs("live")
    for seed in (1, 2):
        assert rows("synced", name(seed)) == rows("live", name(seed)) != []
        config = storage().get_run_config("synced", name(seed))
        assert config.items() >= {**CONFIG, "seed": seed, "_Group": "g"}.items()


def test_project_and_group_are_named_after_the_store():
    log_numbers("experiment/.lox", 0, 3)
    assert sync("experiment/.lox", "--to", "trackio") == 0
    assert numbers("experiment", name(0)) == [0, 1, 2]
    assert storage().get_run_config("experiment", name(0))["_Group"] == "experiment"


def test_only_new_rows_of_growing_runs_are_sent(capsys):
    to = ("--to", "trackio", "--project", "growing")
    logger, state = log_numbers("runs", 0, 3, finish=False)
    log_numbers("runs", 1, 2)
    assert sync("runs", *to, "--dry-run") == 0
    assert sync("runs", *to) == 0
    assert sync("runs", *to) == 0
    logger.log(state, {"x": 3.0})
    logger.finish(state)
    assert sync("runs", *to, "--json") == 0
    *lines, report = capsys.readouterr().out.splitlines()
    assert lines == [
        "would send 5 rows of 2 runs to trackio (project growing); 1 run not finished",
        "sent 5 rows of 2 runs to trackio (project growing); 1 run not finished",
        "nothing new for trackio in 2 runs; 1 run not finished",
    ]
    assert json.loads(report) == {
        "to": "trackio",
        "project": "growing",
        "dry_run": False,
        "found": 2,
        "runs": {name(0): 1},
        "unsent": {},
        "unfinished": [],
        "skipped": {},
        "errors": {},
    }
    assert numbers("growing", name(0)) == [0, 1, 2, 3]
    assert numbers("growing", name(1)) == [0, 1]
    # rows without a step are numbered on
    steps = [row["step"] for row in storage().get_logs("growing", name(0))]
    assert steps == [0, 1, 2, 3]


def test_runs_of_the_same_name_stay_separate_and_again_sends_new_ones():
    to = ("--to", "trackio", "--project", "separate")
    for store in ("a", "b"):
        log_numbers(store, 0, 2)
        assert sync(store, *to) == 0
    assert sync("a", *to) == 0
    assert sync("a", *to, "--again") == 0
    assert sync("a", *to) == 0
    found = storage().get_run_records("separate")
    counts = [storage().get_log_count("separate", run_id=x["id"]) for x in found]
    assert [x["name"] for x in found] == [name(0)] * 3 and counts == [2, 2, 2]


KILLED = """
    import os, signal, sys
    import lox.cli, trackio
    from trackio.run import Run
    from trackio.sqlite_storage import SQLiteStorage
    from tests.waiting import wait_until

    log, calls = Run.log, []

    def log_and_die(run, *arguments):
        calls.append(arguments)
        if len(calls) == 30:
            run._flush_queues_inline()  # as its thread does from time to time
            count = SQLiteStorage.get_log_count
            wait_until(lambda: count(run.project, run_id=run.id) == 29)
            os.kill(os.getpid(), signal.SIGKILL)
        log(run, *arguments)

    Run.log = log_and_die
    lox.cli.main(["sync", "runs", "--to", "trackio", "--project", "killed"])
"""


def test_killed_command_is_continued_without_losses_or_duplicates(capsys):
    save("runs", seeds=(1,))
    to = ("--to", "trackio", "--project")
    assert programs.run(KILLED).returncode == -9
    assert len(rows("killed", name(1))) == 29
    assert sync("runs", *to, "killed") == 0
    assert sync("runs", *to, "whole") == 0
    assert rows("killed", name(1)) == rows("whole", name(1)) != []
    assert capsys.readouterr().out.count("sent 67 rows of 1 run to trackio") == 2


FAILING = """
    import lox.loggers, trackio, warnings

    def init(**options):
        raise ConnectionError("no network")

    trackio.init = init
    warnings.simplefilter("ignore")
    logger = lox.loggers.TrackioLogger("unsent", config={"lr": 1}, group="g")
    for seed in range(2):
        state = logger.init(seed)
        for i in range(5):
            logger.log(state, {"x": i})
        logger.log(state, {"x": {"y": 5}})  # does not fit into one run with the others
        logger.log(state, {"x": {"y": 6}})
        logger.finish(state)
"""


def test_unsent_rows_are_sent_to_their_project_and_removed(capsys):
    programs.run(FAILING)
    assert len(lox.runs(".lox/unsent")) == 4
    to = ("--to", "trackio", "--project", "other")
    assert sync(".lox", *to, "--dry-run") == 0
    assert sync(".lox", *to) == 0
    assert sync(".lox", *to) == 0
    assert capsys.readouterr().out.splitlines() == [
        "would send 14 rows that loggers could not send to trackio",
        "sent 14 rows that loggers could not send to trackio",
        "nothing new for trackio",
    ]
    assert lox.runs(".lox/unsent") == []
    for seed in range(2):
        found = storage().get_logs("unsent", name(seed))
        assert [row.get("x") for row in found] == [0, 1, 2, 3, 4, None, None]
        assert [row.get("x/y") for row in found][5:] == [5, 6]
        assert [row["step"] for row in found] == [0, 1, 2, 3, 4, 0, 1]
        config = storage().get_run_config("unsent", name(seed))
        assert config["lr"] == 1 and config["_Group"] == "g"


def test_server_of_the_logger_is_kept_without_its_token(monkeypatch):
    url = "https://example.com/?write_token=secret"
    for options in ({"server_url": url}, {}):
        logger = lox.loggers.TrackioLogger("p", **options)
        kept = logger.settings()["options"]
        assert kept == {"server_url": "https://example.com/"}
        monkeypatch.setenv("TRACKIO_SERVER_URL", url)


def test_command_does_not_import_jax():
    log_numbers("runs", 0, 3)
    done = programs.run(
        """
        import sys
        import lox.cli
        assert lox.cli.main(["sync", "runs", "--to", "trackio"]) == 0
        assert "trackio" in sys.modules and "jax" not in sys.modules
        """,
        fresh=True,
    )
    assert (
        done.returncode == 0
        and done.stdout == "sent 3 rows of 1 run to trackio (project runs)\n"
    )
