"""`lox show` and `lox diff`."""

import json

import numpy as np
import pytest

import lox.cli
from lox._logs.key import Key, KeyInfo
from lox._logs.logdict import from_keys

from .stores import name, save_run, sweep
from .test_ls import error, output


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("show") / "store")


def test_show_describes_run_and_keys(capsys, store):
    text = output(capsys, "show", store, name(1))
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert lines["status"].split()[1] == "finished"
    assert lines["config"].split()[1:] == ["lr=0.3", "seed=1", "net/width=64"]
    assert "numpy" in lines["versions"] and lines["rows"].split()[1] == "4"
    assert lines["loss"].split() == [
        *("loss", "4", "float32", "step", "0..3", "1.25", "█▃▂▁")
    ]


def test_show_json_describes_keys(capsys, tmp_path):
    logs = lox.logdict(
        {"x": np.zeros((3, 2), np.float32), "n": np.arange(3)},
        {"step": {"x": np.arange(3), "n": np.array([5, 7, 9])}},
        stacked=True,
    )
    lox.save(logs, tmp_path / "run")
    result = json.loads(output(capsys, "show", tmp_path / "run", "--json"))
    assert result["keys"]["x"] == {
        "dtype": "float32",
        "shape": [2],
        "lanes": [],
        "rows": 3,
        "tags": [],
        "steps": {"step": [0, 2]},
    }
    assert result["keys"]["n"]["steps"] == {"step": [5, 9]}
    assert result["last"] == {"n": 2} and result["error"] is None
    assert result["status"] == "finished" and result["processes"] == 1


def test_show_of_failed_run_shows_the_error(capsys, tmp_path):
    from lox._store.creating import open_run

    writer = open_run(tmp_path / "run", "x")
    writer.write(lox.logdict({"x": np.float32(1)}))
    writer.finish(ValueError("no data"))
    writer.close()
    assert "failed: ValueError: no data" in output(capsys, "show", tmp_path / "run")
    result = json.loads(output(capsys, "show", tmp_path / "run", "--json"))
    assert result["error"] == "ValueError: no data"


def test_show_averages_lanes_and_leaves_out_missing_rows(capsys, tmp_path):
    values = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 7.0]])
    mask = np.array([[True, True], [True, True], [True, False]])
    key = Key(values, {}, mask, KeyInfo(True, 1, (0,), ()))
    lox.save(from_keys([("x", key)]), tmp_path / "run")
    line = output(capsys, "show", tmp_path / "run").splitlines()[-1]
    assert "float64 x 2 lanes" in line and line.split()[-2:] == ["5", "▁▄█"]


def test_show_of_unknown_key_says_what_exists(capsys, store):
    message = error(capsys, "show", store / name(0), "-k", "x")
    assert "no key matches 'x'; available: 'loss', 'acc'." in message


def test_show_needs_one_run(capsys, store):
    message = error(capsys, "show", store)
    assert "matches 4 runs, but the command needs one run: " in message


def test_diff_shows_configs_and_last_values_that_differ(capsys, store):
    text = output(capsys, "diff", store, name(0), name(1))
    lines = [line.split() for line in text.splitlines()]
    assert ["lr", "0.1", "0.3"] in lines and ["seed", "0", "1"] in lines
    assert ["loss", "0.25", "1.25", "+1", "(+400.0%)"] in lines
    assert "equal: 1 of 5" in text and "net/width" not in text
    text = output(capsys, "diff", store / name(0), store / name(1), "--all")
    assert ["net/width", "64", "64"] in [line.split() for line in text.splitlines()]


def test_diff_json_and_precision(capsys, tmp_path):
    lox.save({"x": 1.0001, "y": 1.0}, tmp_path, key=0)
    lox.save({"x": 1.0002, "z": float("nan")}, tmp_path, key=1)
    for precision, equal in ([], False), (["--precision", "4"], True):
        text = output(capsys, "diff", tmp_path, "*0", "*1", "--json", *precision)
        last = json.loads(text)["last"]
        assert last["x"] == {"a": 1.0001, "b": 1.0002, "equal": equal}
        assert last["y"] == {"a": 1.0, "b": None, "equal": False}
        assert last["z"] == {"a": None, "b": "NaN", "equal": False}


def test_diff_of_equal_runs(capsys, tmp_path):
    for store in "ab":
        lox.save({"x": float("nan")}, tmp_path / store, key=0)
    text = output(capsys, "diff", tmp_path / "a", tmp_path / "b")
    assert text == "no differences: 1 configs and last values are equal\n"


def test_diff_needs_two_runs(capsys, store):
    assert "4 runs, but the command needs 2 runs" in error(capsys, "diff", store)
    assert lox.cli.main(["diff", str(store), "*0", "*1", "--precision", "x"]) == 2
    assert "not a number from 1 to 17" in capsys.readouterr().err


def test_diff_shows_statuses_that_differ(capsys, tmp_path):
    save_run(tmp_path, 0)
    logger, state = save_run(tmp_path, 1, finish=False)
    result = json.loads(output(capsys, "diff", tmp_path, "*0", "*1", "--json"))
    assert result["status"] == {"a": "finished", "b": "running", "equal": False}
    assert "running" in output(capsys, "diff", tmp_path, "*0", "*1")
    logger.finish(state)


def test_diff_with_precision_compares_integers_of_any_size(capsys, tmp_path):
    for seed, n in enumerate((10**400, 10**400 + 1, 2 * 10**400, 1.0)):
        save_run(tmp_path, seed, {"n": n})

    def is_equal(a, b):
        options = "--precision", "3", "--json"
        result = output(capsys, "diff", tmp_path, name(a), name(b), *options)
        return json.loads(result)["config"]["n"]["equal"]

    assert is_equal(0, 1)
    assert not is_equal(0, 2) and not is_equal(0, 3)
