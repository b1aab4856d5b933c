"""`lox tail`: the last rows of runs, and new ones as they are written."""

import json
import signal

import numpy as np
import pytest

import lox.cli
import lox.loggers
from lox._store.new_rows import NewRows
from lox._store.reader import Run
from tests import programs

from .stores import name, save_run, sweep
from .test_ls import PROGRAM, error, output


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("tail") / "store", 2)


def test_tail_prints_the_last_rows(capsys, store):
    assert output(capsys, "tail", store, name(1), "-n", "2") == (
        "step 2  loss=1.333  acc=1.333\nstep 3  loss=1.25  acc=1.25\n"
    )
    assert output(capsys, "tail", store, name(1), "-n", "0") == ""
    lines = output(capsys, "tail", store, "-k", "loss").splitlines()
    assert len(lines) == 8 and lines[0] == f"{name(0)}  step 0  loss=1"


def test_tail_json_is_one_document_per_row(capsys, store):
    lines = output(capsys, "tail", store, "*1", "-n", "1", "--json").splitlines()
    assert json.loads(lines[0]) == {
        "run": name(1),
        "steps": {"step": 3},
        "values": {"loss": 1.25, "acc": 1.25},
    }


def test_rows_of_several_segments_are_in_the_order_of_events(capsys, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    expected = []
    for i in range(6):
        logger.log(state, {"train": float(i)}, step=i)
        expected.append({"train": float(i)})
        if i % 2:
            logger.log(state, {"eval": np.arange(3.0) + i}, step=i)
            expected.append({"eval": [i, i + 1, i + 2]})
    logger.finish(state)
    lines = output(capsys, "tail", tmp_path, "-n", "99", "--json").splitlines()
    assert [json.loads(line)["values"] for line in lines] == expected
    lines = output(capsys, "tail", tmp_path, "-n", "3", "--json").splitlines()
    assert [json.loads(line)["values"] for line in lines] == expected[-3:]
    assert "eval=6 (mean of 3)" in output(capsys, "tail", tmp_path, "-n", "1")


def test_new_rows_are_read_once(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    rows = None
    seen = []
    for i in range(5):
        logger.log(state, {"a": i}, step=i)
        if i == 2:
            logger.log(state, {"b": i}, step=i)
        rows = rows or NewRows(Run(tmp_path / name(0)))
        seen.append([{**row.values} for row in rows.read()])
        assert rows.read() == []
    logger.finish(state)
    assert seen == [
        [{"a": 0}],
        [{"a": 1}],
        [{"a": 2}, {"b": 2}],
        [{"a": 3}],
        [{"a": 4}],
    ]


def test_tail_follows_until_the_run_has_ended(tmp_path):
    logger, state = save_run(tmp_path, 0, rows=2, finish=False)
    arguments = "tail", "-f", tmp_path, "--interval", "0.01"
    with programs.start(PROGRAM, *arguments, fresh=True) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        logger.log(state, {"loss": 0.5}, step=2)
        lines.append(process.stdout.readline())
        # a run that is new, and one that ends later
        other, other_state = save_run(tmp_path, 1, rows=1, finish=False)
        lines.append(process.stdout.readline())
        logger.finish(state)
        other.finish(other_state)
        rest, stderr = process.communicate()
    assert (process.returncode, rest, stderr) == (0, "", "")
    assert [line.strip() for line in lines] == [
        f"{name(0)}  step 0  loss=1",
        f"{name(0)}  step 1  loss=0.5",
        f"{name(0)}  step 2  loss=0.5",
        f"{name(1)}  step 0  loss=2",
    ]


def test_interrupted_tail_exits_with_130(tmp_path):
    logger, state = save_run(tmp_path, 0, rows=1, finish=False)
    with programs.start(PROGRAM, "tail", "-f", tmp_path, fresh=True) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    logger.finish(state)
    assert (process.returncode, stderr) == (130, "lox: interrupted\n")


def test_tail_of_a_closed_pipe_ends_silently(tmp_path):
    logger, state = save_run(tmp_path, 0, rows=1, finish=False)
    arguments = "tail", "-f", tmp_path, "--interval", "0.01"
    with programs.start(PROGRAM, *arguments, fresh=True) as process:
        assert process.stdout.readline()
        process.stdout.close()  # and there is no further row
        process.wait()
        assert process.stderr.read() == ""
    logger.finish(state)
    assert process.returncode == 141


def test_prng_keys_are_shown_as_their_data(capsys, tmp_path):
    import jax

    lox.save({"key": jax.random.key(7), "x": 1.0}, tmp_path / "run")
    line = json.loads(output(capsys, "tail", tmp_path / "run", "--json"))
    assert line["values"] == {"key": [0, 7], "x": 1.0}
    text = output(capsys, "tail", tmp_path / "run")
    assert text == "key=key<threefry2x32>([0, 7])  x=1\n"
    keys = jax.random.split(jax.random.key(0), 3)
    lox.save({"keys": keys}, tmp_path / "several")
    text = output(capsys, "tail", tmp_path / "several")
    assert text == "keys=key<threefry2x32>[3]\n"


@pytest.mark.parametrize("option", [("-n", "-1"), ("-n", "x"), ("--interval", "0")])
def test_invalid_options_of_tail(capsys, option):
    assert lox.cli.main(["tail", "store", *option]) == 2
    assert "tail: error" in capsys.readouterr().err


def test_tail_of_unknown_run_says_what_exists(capsys, store):
    assert f"available: {name(0)}, {name(1)}." in error(capsys, "tail", store, "x")


def test_tail_of_unknown_key_says_what_exists(capsys, store, tmp_path):
    message = error(capsys, "tail", store, "-k", "los")
    assert "no key matches 'los'; available: 'loss', 'acc'." in message
    # a run may log it later
    logger, state = save_run(tmp_path, 0, rows=1, finish=False)
    arguments = "tail", "-f", tmp_path, "-k", "new", "--interval", "0.01"
    with programs.start(PROGRAM, *arguments, fresh=True) as process:
        said = process.stderr.readline()
        logger.log(state, {"new": 2.0}, step=5)
        line = process.stdout.readline()
        logger.finish(state)
        process.communicate()
    assert said == (
        "lox: waiting for such a key: no key matches 'new'; available: 'loss'.\n"
    )
    assert line == f"{name(0)}  step 5  new=2\n" and process.returncode == 0


def follow(*arguments):
    """Starts `lox tail -f`, which looks for new rows all the time."""
    return programs.start(
        PROGRAM, "tail", "-f", *arguments, "--interval", "0.01", fresh=True
    )


@pytest.mark.parametrize("exists", ["resume", "overwrite"])
def test_tail_follows_ended_run_that_is_resumed_or_replaced(tmp_path, exists):
    save_run(tmp_path, 0, rows=1)
    other, other_state = save_run(tmp_path, 1, rows=1, finish=False)
    with follow(tmp_path) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        logger = lox.loggers.SaveLogger(tmp_path, exists=exists)
        state = logger.init(0)
        for i in range(2):
            logger.log(state, {"loss": 7.0 + i}, step=1 + i)
            lines.append(process.stdout.readline())
        logger.finish(state)
        # once more, and it has ended before the command looks at it
        mode = {"resume": "a", "overwrite": "w"}[exists]
        lox.save({"loss": 9.0}, tmp_path, key=0, mode=mode)
        lines.append(process.stdout.readline())
        lox.save({"loss": 10.0}, tmp_path, key=0)  # to the same file
        lines.append(process.stdout.readline())
        other.finish(other_state)
        rest, stderr = process.communicate()
    assert (process.returncode, rest, stderr) == (0, "", "")
    assert [line.strip() for line in lines] == [
        f"{name(0)}  step 0  loss=1",
        f"{name(1)}  step 0  loss=2",
        f"{name(0)}  step 1  loss=7",
        f"{name(0)}  step 2  loss=8",
        f"{name(0)}  loss=9",
        f"{name(0)}  loss=10",
    ]


def test_tail_follows_run_that_is_removed_and_created_again(tmp_path):
    save_run(tmp_path, 0, rows=1)
    other, other_state = save_run(tmp_path, 1, rows=1, finish=False)
    with follow(tmp_path) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        created = tmp_path / "new"
        save_run(created, 0, rows=1)
        (tmp_path / name(0)).rename(tmp_path / "removed~")
        (created / name(0)).rename(tmp_path / name(0))
        lines.append(process.stdout.readline())
        other.finish(other_state)
        process.communicate()
    assert process.returncode == 0
    assert lines[2] == lines[0] == f"{name(0)}  step 0  loss=1\n"


def test_tail_follows_other_runs_if_one_is_removed(tmp_path):
    removed, removed_state = save_run(tmp_path, 0, rows=1, finish=False)
    other, other_state = save_run(tmp_path, 1, rows=1, finish=False)
    with follow(tmp_path) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        (tmp_path / name(0)).rename(tmp_path.parent / f"{tmp_path.name}-moved")
        said = process.stderr.readline()
        other.log(other_state, {"loss": 5.0}, step=1)
        lines.append(process.stdout.readline())
        other.finish(other_state)
        rest, stderr = process.communicate()
    assert (process.returncode, rest, stderr) == (0, "", "")
    path = tmp_path / name(0)
    assert said == f"lox: no longer followed, since it was removed: {path}\n"
    assert lines[2] == f"{name(1)}  step 1  loss=5\n"


def test_tail_of_empty_store_waits_for_runs(tmp_path):
    with follow(tmp_path) as process:
        said = process.stderr.readline()
        save_run(tmp_path, 0, rows=1)
        stdout, stderr = process.communicate()
    assert said == f"lox: waiting for runs: there are no runs in {tmp_path}.\n"
    assert (stdout, stderr) == (f"{name(0)}  step 0  loss=1\n", "")
    assert process.returncode == 0


def test_tail_of_missing_store_is_an_error(capsys, tmp_path):
    assert "there is no" in error(capsys, "tail", "-f", tmp_path / "missing")


def test_tail_counts_only_rows_that_have_the_key(capsys, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    for i in range(100):
        logger.log(state, {"loss": float(i)}, step=i)
        if i % 25 == 0:
            logger.log(state, {"eval": {"a": float(i), "b": 0}}, step=i)
    logger.finish(state)
    lines = output(capsys, "tail", tmp_path, "-k", "eval").splitlines()
    assert lines == [f"step {i}  eval['a']={i}  eval['b']=0" for i in (0, 25, 50, 75)]
    assert output(capsys, "tail", tmp_path, "-k", "eval", "-n", "1") == (
        "step 75  eval['a']=75  eval['b']=0\n"
    )
    lines = output(capsys, "tail", tmp_path, "-k", "*", "-n", "27").splitlines()
    assert len(lines) == 27 and lines[2] == "step 75  eval['a']=75  eval['b']=0"
