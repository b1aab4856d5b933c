"""The process that has a writer open, so that others can tell whether it still runs.

An open writer has a file that names its process, which is removed when the writer is
closed. If the file is left and the process is gone, the process was killed. A process
number alone does not identify a process, since numbers are reused: on Linux, the time
at which it started does, together with the boot of the machine and the namespace of
process numbers, which differs between containers.
"""

import contextlib
import functools
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

from lox._errors import StoreError

from .format import VERSION, format_json, read_json
from .locations import Location

# A process whose state is unknown counts as running for this many seconds after its
# last write. It may compute, or compile, for some time between two writes.
_MAX_SILENCE = 600.0


def open_path(directory: pathlib.Path) -> pathlib.Path:
    """The file of an open writer, given the writer's directory."""
    return directory.with_suffix(".open.json")


def mark_open(directory: pathlib.Path) -> None:
    """Names this process as the one that has a writer open."""
    # optional: without it, the run counts as finished
    with contextlib.suppress(OSError), open(open_path(directory), "xb") as file:
        file.write(_content(os.getpid()))


@functools.cache
def _content(pid: int) -> bytes:
    return format_json({"version": VERSION, "process": _this_process(pid)})


def mark_closed(directory: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        open_path(directory).unlink()


def is_running(path: Location, last_write: Callable[[], float]) -> bool | None:
    """Whether the process of an open writer still runs; None if that is not known.

    The state of a process on another machine or in another container is unknown. It
    counts as running if it has written something in the last ten minutes. Raises
    `FileNotFoundError` if the writer has been closed.

    Args:
        path: the file that names the process.
        last_write: returns the time of its last write.
    """
    try:
        process = read_json(path).get("process")
    except StoreError:
        process = None
    found = _runs(process) if isinstance(process, dict) else None
    if found is None and time.time() - last_write() < _MAX_SILENCE:
        return True
    return found


def _runs(process: dict[str, Any]) -> bool | None:
    """Whether a process of this machine runs; None if it is on another one."""
    here = _this_process(os.getpid())
    pid = process.get("pid")
    if process.get("host") != here["host"] or type(pid) is not int or pid < 1:
        return None
    if process.get("boot") != here["boot"]:
        # several machines may have the same name, but not also the same identifier
        same = here["machine"] is not None and process.get("machine") == here["machine"]
        return False if same else None
    if process.get("namespace") != here["namespace"]:
        return None
    started = _start_of(pid)
    if started is not None:
        return started == process.get("started")
    if os.name != "posix":  # elsewhere, `os.kill` ends the process
        return None
    try:
        os.kill(pid, 0)  # sends no signal
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user, whose processes may be hidden
        return True
    return here["started"] is None  # otherwise it is a zombie


@functools.cache
def _this_process(pid: int) -> dict[str, Any]:
    return {
        "pid": pid,
        "started": _start_of(pid),
        "host": platform.node() or None,
        "boot": _text_of("/proc/sys/kernel/random/boot_id"),
        "machine": _text_of("/etc/machine-id"),
        "namespace": _link_of("/proc/self/ns/pid"),
    }


def _start_of(pid: int) -> int | None:
    """When a process has started, in ticks since the boot; None if it does not run."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the second field, a name in parentheses, may contain anything
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _text_of(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read(100).strip() or None
    except (OSError, UnicodeDecodeError):  # only Linux has these files
        return None


def _link_of(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
