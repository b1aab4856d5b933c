"""`lox rm` and `lox mv`, and completion scripts."""

import io
import os
import shutil
import subprocess

import pytest

import lox.cli
from lox.cli import mv
from tests import programs

from .stores import name, save_run, sweep
from .test_ls import PROGRAM, error, output


@pytest.fixture
def store(tmp_path):
    return sweep(tmp_path / "store", 3)


def names(store):
    return sorted(os.listdir(store))


def test_rm_removes_runs(capsys, store):
    text = output(capsys, "rm", store, "*0", "*2", "--yes")
    assert text == f"{store / name(0)}\n{store / name(2)}\n"
    assert names(store) == [name(1)]


def test_without_terminal_and_without_yes_nothing_is_changed(
    capsys, store, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    message = error(capsys, "rm", store, "*0")
    assert f"Remove {store / name(0)}, " in message and "pass `--yes`" in message
    message = error(capsys, "mv", store, "*", store.parent / "other")
    assert "(3 runs) to" in message and "pass `--yes`" in message
    assert len(names(store)) == 3 and not (store.parent / "other").exists()


@pytest.mark.parametrize("answer", ["y\n", "n\n", "\n", "\x04"])
def test_rm_asks_in_a_terminal(store, answer):
    import pty

    ours, theirs = pty.openpty()
    with programs.start(
        PROGRAM, "rm", store, "*1", stdin=theirs, fresh=True
    ) as process:
        os.close(theirs)
        os.write(ours, answer.encode())
        stdout, stderr = process.communicate()
    os.close(ours)
    assert "files of" in stderr and "[y/N]" in stderr
    removed = answer == "y\n"
    assert process.returncode == (0 if removed else 1)
    assert (name(1) in names(store)) != removed and len(names(store)) == 3 - removed
    assert removed or "nothing was changed" in stderr


def test_rm_does_not_follow_links(capsys, store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (store / name(0) / "link").symlink_to(outside)
    (store / "linked").symlink_to(store / name(1))
    message = error(capsys, "rm", store / "linked", "--yes")
    assert "is a symbolic link" in message and name(1) in names(store)
    output(capsys, "rm", store / name(0), "--yes")
    assert (outside / "mine").read_text() == "mine" and name(0) not in names(store)


def test_running_runs_are_removed_and_moved_only_with_force(capsys, tmp_path):
    logger, state = save_run(tmp_path / "s", 0, finish=False)
    save_run(tmp_path / "s", 1)
    message = error(capsys, "rm", tmp_path / "s", "*", "--yes")
    assert f"{name(0)} is running; `--force` to remove it anyway" in message
    assert len(names(tmp_path / "s")) == 2
    message = error(capsys, "mv", tmp_path / "s", "*0", tmp_path / "t", "--yes")
    assert f"{name(0)} is running; `--force` to move it anyway" in message
    logger.finish(state)
    output(capsys, "rm", tmp_path / "s", "*", "--yes")
    assert not names(tmp_path / "s")


def test_rm_of_directory_without_runs_is_refused(capsys, tmp_path):
    (tmp_path / "mine").write_text("mine")
    assert "there are no runs" in error(capsys, "rm", tmp_path, "*", "--yes")
    assert lox.cli.main(["rm"]) == 2
    assert (tmp_path / "mine").exists()


def test_rm_of_a_whole_store_must_be_written_as_a_pattern(capsys, store, tmp_path):
    other = shutil.copytree(store, tmp_path / "other")
    for arguments in ([store], [store, other], [store, other / name(0)]):
        message = error(capsys, "rm", *arguments, "--yes")
        assert (
            f"is a store. To name all its runs, add a pattern: {store} '*'" in message
            or (f"{other} is a store" in message)
        )
    assert len(names(store)) == len(names(other)) == 3
    # a path of a run in the store does not stand for the whole store
    output(capsys, "rm", store, store / name(0), "--yes")
    assert names(store) == [name(1), name(2)]
    output(capsys, "rm", store, "*", "--yes")
    assert not names(store) and len(names(other)) == 3


@pytest.mark.parametrize("other_file_system", [False, True])
def test_mv_moves_runs_to_another_store(capsys, store, monkeypatch, other_file_system):
    if other_file_system:
        rename = os.rename

        def fail(source, target):
            if os.path.dirname(source) != os.path.dirname(target):
                raise OSError(mv.errno.EXDEV, "another device")
            rename(source, target)

        monkeypatch.setattr(os, "rename", fail)
    before = lox.load(store / name(1))
    target = store.parent / "new" / "other"
    text = output(capsys, "mv", store, "*1", "*2", target, "--yes")
    assert text == f"{target / name(1)}\n{target / name(2)}\n"
    assert names(store) == [name(0)] and names(target) == [name(1), name(2)]
    assert lox.load(target / name(1)) == before


def test_mv_without_a_target_says_so(capsys, store):
    message = error(capsys, "mv", store, "*1")
    assert "*1 is a pattern, but the last argument is the store" in message
    assert f"lox mv {store} '*1' STORE" in message and len(names(store)) > 1


def test_mv_does_not_replace_runs(capsys, store):
    other = store.parent / "other"
    shutil.copytree(store, other)
    message = error(capsys, "mv", store, "*1", other, "--yes")
    assert f"{other / name(1)} exists" in message
    message = error(capsys, "mv", store / name(0), other / name(0), "--yes")
    assert "is not a store, but a run" in message
    message = error(capsys, "mv", store / name(0), other / name(0), store.parent, "-y")
    assert "same name" in message
    assert len(names(store)) == len(names(other)) == 3


# --- completion --------------------------------------------------------------


def test_completion_of_bash(capsys, tmp_path):
    script = tmp_path / "lox.bash"
    script.write_text(output(capsys, "completion", "bash"))
    program = f"""
        source {script}
        complete_line() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _lox
            echo "${{COMPREPLY[*]}}"
        }}
        complete_line lox ex
        complete_line lox plot --sm
        complete_line lox export runs --to ''
        complete_line lox plot --band s
        complete_line lox completion ''
        complete_line lox ls ''
        complete_line lox sync runs --to w
        complete -p lox
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "export",
        "--smooth",
        "csv jsonl parquet tensorboard",
        "std sem",
        "bash zsh fish",
        "",
        "wandb",
        "complete -o default -F _lox lox",
    ]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_completion_of_fish(capsys, tmp_path):
    script = tmp_path / "lox.fish"
    script.write_text(output(capsys, "completion", "fish"))
    lines = ("lox ex", "lox plot --band s", "lox sync runs --to mlf", "lox --v")
    program = f"source {script}; " + "; ".join(f"complete -C '{x}'" for x in lines)
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["fish", "-c", program], capture_output=True, text=True, env=env
    )
    found = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert found == ["export", "sem", "std", "mlflow", "--version"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_completion_of_zsh(capsys, tmp_path):
    script = tmp_path / "lox.zsh"
    script.write_text(output(capsys, "completion", "zsh"))
    program = f"""
        compdef() {{ print "registered $@" }}
        source {script}
        _describe() {{ print -l -- ${{(P)2}} }}
        _arguments() {{ print -l -- "$@" }}
        words=(lox '') CURRENT=2; _lox
        words=(lox plot '') CURRENT=3; _lox
        words=(lox sync '') CURRENT=3; _lox
    """
    done = subprocess.run(["zsh", "-fc", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "registered _lox lox" and "export:export runs to a file" in lines
    assert any(x.startswith("--band[") and ":(ci std" in x for x in lines)
    assert "--version" in lines
    assert any(x.startswith("--to[") and ":(mlflow trackio wandb)" in x for x in lines)


def test_completion_needs_a_shell(capsys):
    assert lox.cli.main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
