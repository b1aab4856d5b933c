"""Runs cases in a process with limited memory that notices code, hangs and writes."""

import contextlib
import dataclasses
import faulthandler
import importlib
import io
import json
import os
import pathlib
import platform
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lox
from tests import programs

# Seconds after which a case has hung. It is long enough for any machine.
HANG = 300.0
_MEMORY = 3 * 2**30  # bytes that the cases may add
# what runs code that a file or an argument may bring along
_CODE = {
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.system",
    "pickle.find_class",
    "subprocess.Popen",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclasses.dataclass(frozen=True)
class Failure:
    """A case that failed: its number, and why."""

    seed: int
    error: str


class Forbidden:
    """Notices when a case runs code or writes outside its directory.

    Args:
        directory: where it may write.
        programs: the programs that it may start.
    """

    def __init__(self, directory: pathlib.Path, programs: tuple[str, ...] = ()) -> None:
        self._programs = {(program,) for program in programs}
        self._allowed = (str(directory.resolve()), os.devnull)
        self._found: list[str] = []
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CODE and arguments[:1] not in self._programs:
            self._found.append(f"{event}{arguments!r:.300}")
        elif event == "open" and isinstance(arguments[2], int):
            path = arguments[0]
            if arguments[2] & _WRITING and isinstance(path, str | bytes):
                path = os.path.abspath(os.fsdecode(path))
                if not path.startswith(self._allowed) and "__pycache__" not in path:
                    self._found.append(f"wrote {path}")

    def check(self) -> None:
        found, self._found = self._found, []
        assert not found, f"forbidden: {found}"


def run_cases(check: Callable[..., Any], first: int, count: int) -> list[Failure]:
    """Runs cases in other processes; returns those that failed.

    Args:
        check: a function of a module, called with the number of a case, in an empty
            working directory. It raises if the case fails.
        first: the number of the first case.
        count: how many cases.
    """
    failures: list[Failure] = []
    seed, end = first, first + count
    while seed < end:
        with tempfile.TemporaryDirectory() as directory:
            arguments = (check.__module__, check.__name__, seed, end, directory)
            # with all its processes in a session, none is left behind
            program = programs.calling(worker)
            done = programs.run(program, *arguments, new_session=True)
        at = seed
        for line in done.stdout.splitlines():
            message = json.loads(line)
            at = message["seed"]
            if "error" in message:
                failures.append(Failure(at, message["error"]))
        if done.returncode == 0:
            return failures
        # it has ended in the middle of a case: a crash, or a hang
        text = f"exit code {done.returncode}\n{done.stderr[-4000:]}"
        failures.append(Failure(at, text))
        seed = at + 1
    return failures


def worker(module: str, name: str, first: str, end: str, directory: str) -> None:
    """The program of the other process; writes a line per case to its stdout."""
    report = os.dup(1)
    os.dup2(2, 1)  # for what the cases print
    root = pathlib.Path(directory)
    os.chdir(root)
    cases = importlib.import_module(module)
    check = getattr(cases, name)
    os.environ["MPLCONFIGDIR"] = directory
    tempfile.tempdir = os.environ["TMPDIR"] = directory
    _limit_memory()  # also that of processes that the cases use
    getattr(cases, "prepare", int)()  # what they share
    platform.processor()  # which starts a process, once
    forbidden = Forbidden(root, getattr(cases, "STARTED_PROGRAMS", ()))
    for seed in range(int(first), int(end)):
        os.write(report, (json.dumps({"seed": seed}) + "\n").encode())
        faulthandler.dump_traceback_later(HANG, exit=True)
        # so deep that `../..` is not outside the directory
        here = root / "cases" / "of" / "one"
        here.mkdir(parents=True)
        os.chdir(here)
        try:
            with quiet():
                check(seed)
            forbidden.check()
        except BaseException:
            message = {"seed": seed, "error": traceback.format_exc(limit=-8)}
            os.write(report, (json.dumps(message) + "\n").encode())
            with contextlib.suppress(AssertionError):
                forbidden.check()
        os.chdir(root)
        shutil.rmtree(root / "cases")
    faulthandler.dump_traceback_later(HANG, exit=True)
    getattr(cases, "finish", int)()
    faulthandler.cancel_dump_traceback_later()


def _limit_memory() -> None:
    used = pathlib.Path("/proc/self/statm")
    if used.exists():  # Linux
        pages = int(used.read_text().split()[0])
        limit = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Lets warnings of lox pass, and raises others."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", lox.LoxWarning)
        yield


def command(*arguments: str, codes: tuple[int, ...] = (0, 1, 2)) -> None:
    """Runs the `lox` command, and checks its exit code and its output."""
    from lox.cli import main

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    streams[1].reconfigure(errors="backslashreplace")  # like stderr
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = main(arguments)
        for stream in streams:
            stream.flush()
    said = streams[1].buffer.getvalue().decode()
    assert code in codes, f"lox {arguments} returned {code}: {said}"
    # which is how the command reports exceptions of another kind
    assert "LOX_TRACEBACK" not in said, f"lox {arguments!r:.300} said {said}"
    assert "Traceback" not in said, f"lox {arguments!r:.300} said {said}"
    assert not code or said, f"lox {arguments!r:.300} failed without a message"
