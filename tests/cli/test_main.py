"""The `lox` command: help, errors and exit codes."""

import json
import os
import pathlib
import signal
import sys
import tomllib
import types
import warnings

import numpy as np
import pytest

import lox
import lox.cli
from tests import programs

ROOT = pathlib.Path(__file__).parents[2]


def command(name, run, patch):
    """Adds a sub-command."""
    module = types.ModuleType(f"lox.cli.{name}", "What it does.")
    module.HELP = "does something"
    module.add_arguments = lambda parser: parser.add_argument("--number", type=int)
    module.run = run
    patch.setitem(sys.modules, f"lox.cli.{name}", module)
    found = [types.SimpleNamespace(name=x) for x in ("_output", name, "sync")]
    patch.setattr("pkgutil.iter_modules", lambda path: found)


def test_commands_are_the_modules_of_the_package(capsys, monkeypatch):
    command("other", lambda arguments: print(arguments.number) or 0, monkeypatch)
    assert lox.cli.main(["other", "--number", "3"]) == 0
    assert capsys.readouterr().out == "3\n"
    assert lox.cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "other" in shown and "does something" in shown and "_output" not in shown
    assert lox.cli.main(["other", "--help"]) == 0
    assert "What it does." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["sync"], "required: store, --to"),
        (["sync", "a", "--to", "b", "--interval", "0"], "not a positive number"),
        (["sync", "a", "--to", "b", "--interval", "nan"], "not a positive number"),
        (["sync", "a", "--to", "b", "--interval", "soon"], "not a positive number"),
        (["sync", "a", "--to", "comet"], r"to mlflow, .*, but .* write ./comet"),
        (["sync", "a", "--to", "wanbd"], r"available: mlflow, .* write ./wanbd"),
        (["sync", "a", "--to", "tensorboard"], "`lox export --to tensorboard` does"),
        (["sync", "a", "b", "--to", "c", "--tag=x", "--dry-run"], r"RUN, --tag, --dry"),
        (["sync", "a", "--to", "mlflow", "--tag", "x"], "--tag: not for mlflow"),
        (["sync", "a", "--to", "wandb", "--overwrite"], "--overwrite: only for copies"),
    ],
)
def test_invalid_command_line_is_explained(capsys, arguments, message):
    assert lox.cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert message.split(".*")[0].removesuffix(" ") in captured.err


def test_command_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"lox": f"{lox.cli.__name__}:{lox.cli.main.__name__}"}


def test_version_is_printed(capsys):
    assert lox.cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"lox {lox.__version__}\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (lox.StoreError("a run\nis damaged."), "lox: error: a run is damaged.\n"),
        (FileNotFoundError(2, "No such file", "x"), "lox: error: [Errno 2] No such"),
        (KeyError("x"), "lox: error: KeyError: 'x' (LOX_TRACEBACK=1 shows where)\n"),
        (MemoryError(), "lox: error: MemoryError: MemoryError (LOX_TRACEBACK"),
    ],
)
def test_error_is_one_line_without_traceback(capsys, monkeypatch, error, message):
    def fail(arguments):
        raise error

    command("other", fail, monkeypatch)
    assert lox.cli.main(["other"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(message) and captured.err.count("\n") == 1
    assert not captured.out
    monkeypatch.setenv("LOX_TRACEBACK", "1")
    with pytest.raises(type(error)):
        lox.cli.main(["other"])


def test_warnings_are_lines_on_stderr_once_each(capsys, monkeypatch):
    def warn(arguments):
        for name in ("a", "other", "a"):
            message = f"{name} run\nis left out"
            warnings.warn(message, lox.LoxWarning, stacklevel=1)
        return 0

    command("other", warn, monkeypatch)
    assert lox.cli.main(["other"]) == 0
    lines = [f"lox: warning: {name} run is left out\n" for name in ("a", "other")]
    assert capsys.readouterr().err == "".join(lines)


# with buffers, as a process that was started in a shell
_COMMAND = """
    import sys, lox.cli
    sys.stdout = open(1, "w", buffering={buffering})
    sys.exit(lox.cli.main(sys.argv[1:]))
"""


def run_without_reader(*arguments, errors=False, buffering=-1):
    """Runs a command whose output, and perhaps its errors, nothing reads."""
    read, write = os.pipe()
    os.close(read)
    stderr = write if errors else programs.PIPE
    program = _COMMAND.format(buffering=buffering)
    try:
        return programs.run(program, *arguments, stdout=write, stderr=stderr)
    finally:
        os.close(write)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "{store}"),
        ("ls", "{store}", "--json"),
        ("show", "{store}", "*1"),
        ("diff", "{store}", "*"),
        ("plot", "{store}"),
        ("tail", "{store}"),
        ("export", "{store}", "--to", "csv", "-o", "{store}.csv"),
        ("report", "{store}", "-o", "{store}.html"),
        ("completion", "fish"),
        ("--help",),
        ("ls", "--help"),
        ("--version",),
    ],
    ids=" ".join,
)
def test_command_whose_output_is_closed_is_silent(tmp_path, arguments):
    """As `lox ls | head`; a shell reports 141 for programs that SIGPIPE has ended."""
    store = tmp_path / "store"
    for seed in range(2):
        logs = lox.logdict({"x": np.arange(3.0) + seed}, stacked=True)
        lox.save(logs, store, key=seed)
    done = run_without_reader(*(x.format(store=store) for x in arguments))
    assert (done.returncode, done.stderr) == (141, "")


def test_line_that_cannot_be_written_ends_a_command(tmp_path):
    """Printing fails, not only the flush at the end."""
    lox.save({"x": 1.5}, tmp_path / "store", key=1)
    done = run_without_reader("show", tmp_path / "store", "*", buffering=1)
    assert (done.returncode, done.stderr) == (141, "")


def test_exit_code_is_kept_if_nothing_reads_stderr(tmp_path):
    for arguments, code in ((["ls", tmp_path / "no"], 1), (["nothing"], 2)):
        done = run_without_reader(*arguments, errors=True)
        assert done.returncode == code


def test_broken_pipe_of_a_connection_is_an_error(capfd, monkeypatch):
    def fail(arguments):
        raise BrokenPipeError(32, "Broken pipe")

    command("other", fail, monkeypatch)
    with open(os.devnull, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert lox.cli.main(["other"]) == 1
    assert capfd.readouterr().err == "lox: error: [Errno 32] Broken pipe\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
def test_full_disk_is_one_error(tmp_path):
    lox.save({"x": 1.5}, tmp_path / "store", key=1)
    full = os.open("/dev/full", os.O_WRONLY)
    for buffering in (-1, 1):
        program = _COMMAND.format(buffering=buffering)
        done = programs.run(program, "show", tmp_path / "store", "*", stdout=full)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "lox: error: [Errno 28] No space left on device"
        ]
    os.close(full)


def test_errors_escape_control_characters(capsys, monkeypatch):
    def fail(arguments):
        raise lox.StoreError("there is no run \x1b[31mred\x07 in été.")

    command("other", fail, monkeypatch)
    assert lox.cli.main(["other"]) == 1
    message = "lox: error: there is no run \\x1b[31mred\\x07 in été.\n"
    assert capsys.readouterr().err == message


def test_module_is_the_command_and_does_not_import_jax(tmp_path):
    lox.save({"x": 1.5}, tmp_path / "store", key=1)
    program = """
        import runpy, sys
        sys.argv[0] = "lox"
        try:
            runpy.run_module("lox", run_name="__main__")
        except SystemExit as stop:
            assert "jax" not in sys.modules and "fsspec" not in sys.modules
            raise
    """
    arguments = "sync", tmp_path / "store", "--to", tmp_path / "copy", "--json"
    done = programs.run(program, *arguments, fresh=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["runs"] == ["00000000-00000001"]
    assert lox.load(tmp_path / "copy") == {"x": 1.5}
    done = programs.run(program, "sync", tmp_path / "no", "--to", "x", fresh=True)
    assert done.returncode == 1 and not done.stdout
    message = f"lox: error: there is no store at {tmp_path / 'no'}. A store is"
    assert done.stderr.startswith(message)


def test_interrupted_command_exits_with_130(tmp_path):
    """While it waits for a run to be finished."""
    lox.save({"x": 1.5}, tmp_path / "store", key=1)
    program = """
        import signal, sys, lox.cli
        # ignored in processes that a shell has started in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(lox.cli.main(sys.argv[1:]))
    """
    arguments = "sync", tmp_path / "store", "--to", tmp_path / "copy", "--follow"
    with programs.start(program, *arguments, "--interval", "100000") as process:
        line = process.stdout.readline()
        assert line.startswith("sent ") and line.endswith("; 1 run not finished\n")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "lox: interrupted\n"


def test_command_without_arguments_lists_commands(capsys):
    assert lox.cli.main([]) == 2
    printed = capsys.readouterr()
    assert not printed.out and "serve" in printed.err and "plot" in printed.err
