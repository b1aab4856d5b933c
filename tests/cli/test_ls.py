"""`lox ls`: runs as a table and as JSON."""

import collections
import json
import os

import pytest

import lox.cli
from tests import programs

from .stores import name, save_run, sweep


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("ls") / "store")


def output(capsys, *arguments):
    assert lox.cli.main([str(x) for x in arguments]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    return captured.out


def error(capsys, *arguments):
    assert lox.cli.main([str(x) for x in arguments]) == 1
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1
    return captured.err


def test_ls_shows_status_config_that_differs_and_last_values(capsys, store):
    head, *lines = output(capsys, "ls", store).splitlines()
    assert head.split() == (
        "name status started duration rows lr seed loss acc".split()
    )
    assert [line.split()[0] for line in lines] == [name(i) for i in range(4)]
    assert lines[1].split()[1] == "finished"
    assert lines[1].split()[-5:] == ["4", "0.3", "1", "1.25", "1.25"]


def test_ls_of_one_run_shows_its_whole_config(capsys, store):
    assert "net/width" in output(capsys, "ls", store / name(1)).splitlines()[0]


def test_ls_json_has_stable_keys(capsys, store):
    result = json.loads(output(capsys, "ls", store, "--json"))
    assert [set(run) for run in result["runs"]] == 4 * [
        {"name", "path", "status", "started", "duration", "rows", "config", "last"}
    ]
    first = result["runs"][0]
    assert first["config"] == {"lr": 0.1, "seed": 0, "net": {"width": 64}}
    assert first["last"] == {"loss": 0.25, "acc": 0.25}
    assert first["path"] == str(store / name(0)) and first["rows"] == 4


def test_json_of_values_that_are_not_finite_is_text(capsys, tmp_path):
    for i, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        lox.save({"x": value}, tmp_path, key=i)
    text = output(capsys, "ls", tmp_path, "--json")
    found = json.loads(text, parse_constant=pytest.fail)["runs"]
    assert [run["last"]["x"] for run in found] == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("loss", [0, 1, 2, 3]),
        ("-loss", [3, 2, 1, 0]),
        ("last/acc", [0, 1, 2, 3]),
        ("-config/seed", [3, 2, 1, 0]),
        ("lr", [0, 2, 1, 3]),
        ("-name", [3, 2, 1, 0]),
        ("started", [0, 1, 2, 3]),
        ("rows", [0, 1, 2, 3]),
    ],
)
def test_ls_sort(capsys, store, key, order):
    result = json.loads(output(capsys, "ls", store, f"--sort={key}", "--json"))
    assert [run["name"] for run in result["runs"]] == [name(i) for i in order]


def test_ls_sort_puts_runs_without_the_key_last(capsys, tmp_path):
    for i, value in enumerate((2.0, float("nan"), 1.0)):
        lox.save({"x": value}, tmp_path, key=i)
    lox.save({"y": 0.0}, tmp_path, key=3)
    for key, order in ("x", [2, 0, 1, 3]), ("-x", [0, 2, 1, 3]):
        result = json.loads(output(capsys, "ls", tmp_path, f"--sort={key}", "--json"))
        assert [run["name"] for run in result["runs"]] == [name(i) for i in order]


def test_ls_sort_by_unknown_key_says_what_exists(capsys, store):
    message = error(capsys, "ls", store, "--sort", "los")
    assert "no run has 'los' to sort by; available: 'name'" in message
    assert "'lr'" in message and "'loss'" in message


def test_ls_status_selects(capsys, tmp_path):
    save_run(tmp_path, 0)
    logger, state = save_run(tmp_path, 1, finish=False)
    for status, expected in ("running", [1]), ("finished", [0]), ("failed", []):
        result = json.loads(
            output(capsys, "ls", tmp_path, "--status", status, "--json")
        )
        assert [run["name"] for run in result["runs"]] == [name(i) for i in expected]
    both = "--status", "running", "--status", "finished"
    assert len(output(capsys, "ls", tmp_path, *both).splitlines()) == 3
    text = output(capsys, "ls", tmp_path, "--status", "killed")
    assert text == "no runs with status killed\n"
    logger.finish(state)


def test_ls_in_narrow_terminal_says_what_is_not_shown(capsys, store, monkeypatch):
    for width in (20, 40, 60, 70):
        monkeypatch.setenv("COLUMNS", str(width))
        *lines, note = output(capsys, "ls", store).splitlines()
        assert len(lines) == 5 and max(map(len, lines)) <= width
        assert note.startswith("not shown: ")
        head = lines[0].split()
        hidden = note.removeprefix("not shown: ").split(", ")
        assert not {*head} & {*hidden} and len(head) + len(hidden) == 9
    monkeypatch.setenv("COLUMNS", "200")
    assert len(output(capsys, "ls", store).splitlines()) == 5


def test_ls_in_narrow_terminal_shows_the_column_it_is_sorted_by(
    capsys, store, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "45")
    for key, title in (
        ("acc", "acc"),
        ("last/acc", "acc"),
        ("-rows", "rows"),
        ("seed", "seed"),
    ):
        *lines, note = output(capsys, "ls", store, f"--sort={key}").splitlines()
        assert title in lines[0].split() and title not in note
        assert max(map(len, lines)) <= 45


def test_ls_of_many_keys_names_some_of_those_not_shown(capsys, tmp_path, monkeypatch):
    save_run(tmp_path, 0, keys=[f"key-{i:04d}" for i in range(1000)])
    monkeypatch.setenv("COLUMNS", "80")
    head, _, note = output(capsys, "ls", tmp_path).splitlines()
    assert note.startswith("not shown: ") and len(note) < 200
    named, _, rest = note.removeprefix("not shown: ").partition(" and ")
    left = int(rest.removesuffix(" more"))
    assert len(head.split()) + len(named.split(", ")) + left == 1005


def test_ls_sorts_by_integers_of_any_size(capsys, tmp_path):
    for seed, n in enumerate((10**400, 0.5, 2**53 + 1, 2**53, -(10**400))):
        save_run(tmp_path, seed, {"n": n})
    _, *lines = output(capsys, "ls", tmp_path, "--sort", "n").splitlines()
    order = [name(i) for i in (4, 1, 3, 2, 0)]
    # a narrow terminal has a line about columns that are not shown
    assert [line.split()[0] for line in lines[:5]] == order


def test_names_cannot_control_the_terminal(capsys, tmp_path):
    config = {"\x1b[31mred\n": "\x1b]0;title\x07"}
    save_run(tmp_path, 0, config, keys=("\x1b[2Jloss",))
    (tmp_path / name(0)).rename(tmp_path / "\x1b[31mred\nrun")
    for command in (["ls"], ["show"], ["plot", "--by", "none"], ["tail"]):
        text = output(capsys, *command, tmp_path)
        assert "\x1b" not in text and "\x07" not in text
    message = error(capsys, "rm", tmp_path, "*")
    assert r"\x1b[31mred run" in message and "\x1b" not in message


# --- finding runs ------------------------------------------------------------


def names(capsys, *arguments):
    result = json.loads(output(capsys, "ls", *arguments, "--json"))
    return [run["name"] for run in result["runs"]]


def test_runs_are_found_by_name_path_and_pattern(capsys, store, monkeypatch):
    assert names(capsys, store, name(2)) == [name(2)]
    assert names(capsys, store, "*1", "*3") == [name(1), name(3)]
    assert names(capsys, store / name(2)) == [name(2)]
    assert names(capsys, store / "*[01]") == [name(0), name(1)]
    assert names(capsys, store, "*1", store / name(1)) == [name(1)]
    monkeypatch.chdir(store)
    assert names(capsys) == names(capsys, ".") == [name(i) for i in range(4)]
    assert names(capsys, "*1", name(0)) == [name(1), name(0)]
    monkeypatch.chdir(store.parent)
    assert names(capsys, "store", "*2") == [name(2)]
    assert names(capsys, f"store/{name(1)}") == [name(1)]
    monkeypatch.setenv("LOX_STORE", str(store))
    monkeypatch.chdir("/")
    assert len(names(capsys)) == 4
    assert names(capsys, "*1") == [name(1)]


def test_several_stores_are_listed_together(capsys, store, tmp_path, monkeypatch):
    save_run(tmp_path / "other", 9)
    expected = [*(name(i) for i in range(4)), name(9)]
    assert names(capsys, store, tmp_path / "other") == expected
    both = names(capsys, tmp_path / "other", store / name(1))
    assert both == [name(9), name(1)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    head, *lines = output(capsys, "ls", store, "other").splitlines()
    assert head.split()[:2] == ["name", "store"]
    found = [line.split()[1] for line in lines]  # long paths are shortened
    assert len({*found[:4]}) == 1 and found[0].endswith("/store")
    assert found[4:] == ["other"]
    assert "store" not in output(capsys, "ls", store).splitlines()[0].split()


def test_pattern_that_matches_nothing_says_what_exists(capsys, store):
    message = error(capsys, "ls", store, "x*")
    assert message == (
        f"lox: error: no run in {store} matches 'x*'; available: "
        f"{', '.join(name(i) for i in range(4))}.\n"
    )
    begin = name(1)[:-2]
    message = error(capsys, "show", store, begin)
    assert f"no run in {store} matches '{begin}'; '{begin}*' matches " in message


def test_directory_without_runs_says_which_directories_have_some(capsys, store):
    message = error(capsys, "ls", store.parent)
    assert f"no runs in {store.parent}; stores in it: '{store}'." in message
    message = error(capsys, "ls", store.parent, "x")
    assert (
        f"there is no run or store 'x', and there are no runs in {store.parent}"
        in message
    )


def test_path_that_is_not_a_store_is_reported(capsys, store, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    message = error(capsys, "ls", tmp_path / "nowhere")
    assert f"there is no store and no run at {tmp_path / 'nowhere'}.\n" in message
    message = error(capsys, "ls", tmp_path / "file")
    assert f"{tmp_path / 'file'} is a file, and not a store or a run.\n" in message
    message = error(capsys, "ls", store / "x")
    assert f"no run at {store / 'x'}; in {store}, there are {name(0)}, " in message
    message = error(capsys, "ls", tmp_path / "empty")
    assert message == f"lox: error: there are no runs in {tmp_path / 'empty'}.\n"


def test_torn_and_newer_runs_are_left_out_with_a_warning(capsys, tmp_path):
    for i in range(3):
        save_run(tmp_path, i)
    torn, newer = tmp_path / name(0) / "run.json", tmp_path / name(1) / "run.json"
    torn.write_bytes(torn.read_bytes()[:-20])
    from lox._store.format import read_json, write_json

    write_json(newer, {**read_json(newer), "version": 99})
    assert lox.cli.main(["ls", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2 and name(2) in captured.out
    warnings = captured.err.splitlines()
    assert len(warnings) == 2
    assert all(x.startswith("lox: warning: a run is left out: ") for x in warnings)
    for i in range(2):
        message = error(capsys, "show", tmp_path / name(i))
        assert name(i) in message and message.startswith("lox: error: ")


# --- the process -------------------------------------------------------------

PROGRAM = """
    import signal, sys
    import lox.cli
    # ignored in processes that a shell has started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = lox.cli.main(sys.argv[1:])
    assert "jax" not in sys.modules
    sys.exit(code)
"""


def test_commands_do_not_import_jax(store, tmp_path):
    program = """
        import os, pathlib, shutil, sys
        import lox.cli
        store, directory = sys.argv[1:]
        run = os.path.join(store, sorted(os.listdir(store))[1])
        copy = shutil.copytree(store, os.path.join(directory, "copy"))
        data = os.path.join(directory, "tensorboard")
        for command in (
            ["ls", store], ["show", run], ["plot", store], ["plot", store, "--json"],
            ["tail", "-f", store], ["diff", store, "*0", "*1"],
            ["export", store, "--to", "csv", "-o", f"{directory}/x.csv"],
            ["export", store, "--to", "jsonl", "-o", f"{directory}/x.jsonl"],
            ["export", store, "--to", "tensorboard", "-o", data],
            ["import", data, "-o", f"{directory}/imported"],
            ["mv", copy, "*1", f"{directory}/moved", "--yes"],
            ["rm", copy, "*", "--yes"],
            ["completion", "bash"],
        ):
            assert lox.cli.main(command) == 0, command
            assert "jax" not in sys.modules, command
        assert not os.listdir(copy)
    """
    done = programs.run(program, store, tmp_path, fresh=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_of_a_terminal_is_colored_unless_no_color_is_set(store):
    import pty

    for variable, colored in ("", True), ("1", False):
        ours, theirs = pty.openpty()
        env = {**os.environ, "NO_COLOR": variable, "TERM": "xterm", "COLUMNS": "90"}
        with programs.start(
            PROGRAM, "ls", store, stdout=theirs, env=env, fresh=True
        ) as process:
            os.close(theirs)
            text = b""
            while chunk := _read(ours):
                text += chunk
            _, stderr = process.communicate()
        os.close(ours)
        assert (process.returncode, stderr) == (0, "")
        assert (b"\x1b[" in text) == colored and b"finished" in text


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


def test_runs_at_a_url_are_listed_shown_and_printed(tmp_path, capsys):
    fsspec = pytest.importorskip("fsspec")
    lox.save({"loss": 0.5}, tmp_path / "store" / "first")
    files = fsspec.filesystem("memory")
    files.put(str(tmp_path / "store"), "/listed", recursive=True)
    for arguments in (
        ["ls", "memory://listed"],
        ["ls", "memory://listed", "fir*"],
        ["show", "memory://listed/first"],
        ["tail", "memory://listed"],
    ):
        assert lox.cli.main(arguments) == 0, arguments
        assert "0.5" in capsys.readouterr().out, arguments
    assert lox.cli.main(["rm", "memory://listed/first", "--yes"]) == 1
    assert "not in a directory of this machine" in capsys.readouterr().err


def test_sorting_no_runs_is_not_an_error(capsys, store):
    text = output(capsys, "ls", store, "--status", "failed", "--sort", "loss")
    assert text == "no runs with status failed\n"


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes only there")
def test_directory_names_that_are_not_utf_8_do_not_fail(capsysbinary, tmp_path):
    """In a pipe, a path is printed unchanged, and nothing fails."""
    save_run(tmp_path, 0)
    path = os.fsencode(tmp_path / name(0)).replace(b"00000000", b"\xff\x1b[31m")
    os.rename(tmp_path / name(0), path)
    for arguments in (["ls", "*"], ["ls", "*", "--json"], ["show", "*"], ["tail", "*"]):
        assert lox.cli.main([arguments[0], str(tmp_path), *arguments[1:]]) == 0
        shown = capsysbinary.readouterr().out
        assert b"loss" in shown and b"\x1b" not in shown
        assert shown.decode()  # valid UTF-8
    read, write = os.pipe()
    done = programs.run(PROGRAM, "rm", tmp_path, "*", "--yes", stdout=write, fresh=True)
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read() == path + b"\n"
    assert done.returncode == 0 and not os.path.exists(path)


def test_ls_makes_few_system_calls_per_run(capsys, tmp_path, monkeypatch):
    """A store may have thousands of runs."""
    counts = collections.Counter()

    def counting(name, call):
        def counted(*arguments, **options):
            counts[name] += 1
            return call(*arguments, **options)

        return counted

    for function in ("open", "listdir", "lstat"):
        monkeypatch.setattr(os, function, counting(function, getattr(os, function)))
    found = []
    for seed in range(2):
        save_run(tmp_path, seed)
        counts.clear()
        output(capsys, "ls", tmp_path)
        found.append(dict(counts))
    one, two = found
    # the descriptions of run, writer and segment, and the last row
    assert two["open"] - one["open"] == 4
    assert two["listdir"] - one["listdir"] == 1
    assert two["lstat"] - one["lstat"] == 1  # is the directory of the writer a link?
