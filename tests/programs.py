"""Python programs in separate processes.

A short program spends most of its time importing JAX. So the first program starts a
server, a process that imports JAX and lox and initializes nothing: it has one thread,
and every program is a fork of it, with its own arguments, environment, directory and
files. `without_lox=True` forks a server that has imported JAX alone, and `fresh=True`
starts Python itself, for what depends on the import.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from typing import Any

from .waiting import HANG, in_threads

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
# on other systems, system libraries may start threads
_CAN_FORK = sys.platform == "linux"
_ROOT = pathlib.Path(__file__).parents[__name__.count(".")]
_LENGTH, _STATUS = struct.Struct("<Q"), struct.Struct("<i")


def run(program: str, *arguments: object, **options: Any) -> Any:
    """Runs a program to its end; takes the arguments of `start`."""
    with start(program, *arguments, **options) as process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(program, process.returncode, stdout, stderr)


def start(
    program: str,
    *arguments: object,
    env: dict[str, str] | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    stderr: int = PIPE,
    new_session: bool = False,
    pass_fds: tuple[int, ...] = (),
    without_lox: bool = False,
    fresh: bool = False,
) -> Any:
    """Starts a program, in this directory and with one device, unless `env` says more.

    Args:
        program: its code, which may be indented.
        *arguments: its `sys.argv[1:]`.
        env: its environment.
        stdin, stdout, stderr: descriptors, `PIPE` or `DEVNULL`.
        new_session: whether it gets its own session, as for a terminal.
        pass_fds: descriptors that it inherits, with the same numbers.
        without_lox: whether it starts without lox, which it may import itself.
        fresh: whether it starts without JAX and lox, which it may import itself.

    Returns:
        An object with the attributes and methods of `subprocess.Popen`.
    """
    program = textwrap.dedent(program)
    given = [str(argument) for argument in arguments]
    if env is None:
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    if fresh or not _CAN_FORK:
        return _Fresh(
            [sys.executable, "-c", program, *given],
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=new_session,
            pass_fds=pass_fds,
        )
    request = {
        "program": program,
        "arguments": given,
        "env": env,
        "directory": os.getcwd(),
        "new_session": new_session,
        "pass_fds": pass_fds,
    }
    modules = _MODULES[:1] if without_lox else _MODULES
    return _Forked(request, modules, stdin, stdout, stderr)


def calling(function: Callable[..., object]) -> str:
    """A program that calls a function of a test module with its `sys.argv[1:]`."""
    return f"""
        import sys
        sys.path.append({str(_ROOT)!r})
        from {function.__module__} import {function.__name__}
        {function.__name__}(*sys.argv[1:])
    """


class _Fresh(subprocess.Popen):  # type: ignore[type-arg]
    def communicate(self, input=None, timeout=None):  # type: ignore[no-untyped-def]
        return super().communicate(input, timeout or HANG)

    def wait(self, timeout=None):  # type: ignore[no-untyped-def]
        return super().wait(timeout or HANG)


class _Forked:
    """A fork of the server, which looks like a `subprocess.Popen`."""

    def __init__(self, request: Any, modules: tuple[str, ...], *files: int) -> None:
        self.returncode: int | None = None
        self._new_session: bool = request["new_session"]
        ours: list[Any] = []
        theirs: list[int] = []
        to_close: list[int] = []
        for number, given in enumerate(files):
            mine, other = None, given
            if given == DEVNULL:
                other = os.open(os.devnull, os.O_RDWR)
                to_close.append(other)
            elif given == PIPE:
                read, write = os.pipe()
                mine, other = (write, read) if number == 0 else (read, write)
                to_close.append(other)
            theirs.append(other)
            mode = "r" if number else "w"
            ours.append(None if mine is None else os.fdopen(mine, mode))
        self.stdin, self.stdout, self.stderr = ours
        self._status, status_pipe = os.pipe()
        to_close.append(status_pipe)
        _ask(modules, [*theirs, status_pipe, *request["pass_fds"]], request)
        for descriptor in to_close:
            os.close(descriptor)
        (self.pid,) = _STATUS.unpack(os.read(self._status, _STATUS.size))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self) -> int | None:
        if self.returncode is None:
            ready = select.select([self._status], [], [], HANG)[0]
            assert ready, f"process {self.pid} has not ended within {HANG:g} s"
            self._ended()
        return self.returncode

    def communicate(self) -> tuple[str | None, str | None]:
        """Waits for the program, and returns everything that it printed."""
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        texts: dict[Any, str] = {}
        files = [file for file in (self.stdout, self.stderr) if file is not None]
        in_threads(lambda f: texts.update({f: f.read()}), [(file,) for file in files])
        for file in files:
            file.close()
        self.wait()
        return texts.get(self.stdout), texts.get(self.stderr)

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _kill_all(self) -> None:
        """Kills the program, and the processes of its session if it has its own.

        They may hold its pipes open, which then cannot be closed here.
        """
        self.kill()
        if self._new_session:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def __enter__(self) -> "_Forked":
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            self._kill_all()
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self.wait()

    def _ended(self) -> None:
        (status,) = _STATUS.unpack(os.read(self._status, _STATUS.size))
        os.close(self._status)
        self.returncode = os.waitstatus_to_exitcode(status)


# --- the server ------------------------------------------------------------

# what a server imports
_MODULES = ("jax.numpy", "lox._runtime", "lox.loggers", "pytest")
_asking = threading.Lock()


@functools.cache
def _server(modules: tuple[str, ...]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
            cwd=_ROOT,
            # with one thread, OpenBLAS uses the main one
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": "",
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdin=DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait, HANG)
    atexit.register(ours.close)  # which ends the server
    return ours


def _ask(modules: tuple[str, ...], descriptors: list[int], request: Any) -> None:
    text = json.dumps(request).encode()
    with _asking:
        server = _server(modules)
        socket.send_fds(server, [_LENGTH.pack(len(text))], descriptors)
        server.sendall(text)


def _serve(server: socket.socket) -> Any:
    """Forks for each request; returns in each fork, and when the client has ended."""
    waiting: set[int] = set()
    while True:
        header, descriptors, _, _ = socket.recv_fds(server, _LENGTH.size, 64)
        for process in list(waiting):
            if os.waitpid(process, os.WNOHANG if header else 0)[0]:
                waiting.remove(process)
        if not header:
            return None
        text = b""
        while len(text) < _LENGTH.unpack(header)[0]:
            text += server.recv(1 << 16)
        # An intermediate process waits for the program and reports its exit status.
        if process := os.fork():
            waiting.add(process)
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        server.close()
        status_pipe = descriptors[3]
        program = os.fork()
        if not program:
            os.close(status_pipe)
            return json.loads(text), [*descriptors[:3], *descriptors[4:]]
        for descriptor in descriptors:
            if descriptor != status_pipe:
                os.close(descriptor)
        os.write(status_pipe, _STATUS.pack(program))
        os.write(status_pipe, _STATUS.pack(os.waitpid(program, 0)[1]))
        os._exit(0)


def _become(request: Any, descriptors: list[int]) -> tuple[Any, dict[str, Any]]:
    """Makes this process look like a new one; returns its code and its globals."""
    if request["new_session"]:
        os.setsid()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a background job
        signal.signal(signal.SIGINT, signal.default_int_handler)
    numbers = [0, 1, 2, *request["pass_fds"]]
    # first moved above all of these numbers, so that none overwrites another
    above = [_duplicate_above(fd, max(numbers)) for fd in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(above, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["-c", *request["arguments"]]
    sys.path[0] = ""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    return compile(request["program"], "<string>", "exec"), vars(main)


def _duplicate_above(descriptor: int, number: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, number + 1)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "an import starts threads: programs must be `fresh`"
    # so that garbage collections in the forks do not copy these pages
    gc.collect()
    gc.freeze()
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        exec(*_become(*found))
