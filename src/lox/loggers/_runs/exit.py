"""Closes open runs when the process exits, and forgets them in a forked process."""

import atexit
import contextlib
import functools
import os
import threading
import weakref
from typing import Any, Protocol

from lox._host import interrupts
from lox._jax import host, patches
from lox._serialized import call_all


class _Runs(Protocol):
    def close_all(self) -> None: ...

    def close_ending(self) -> None: ...

    def reset(self) -> None: ...


# Open runs keep their logger alive until they are finished or Python exits. In the
# order in which to close them: the backend of one logger may use another logger.
_open: dict[_Runs, None] = {}
_all: weakref.WeakSet[_Runs] = weakref.WeakSet()
# The runs of the parent of a forked process. Kept, because the child must not close
# them: not even by garbage collection, which would close their files.
_inherited: list[Any] = []


def forget_after_fork(runs: _Runs) -> None:
    """Registers runs that are reset in forked processes."""
    _all.add(runs)


def register_open(runs: _Runs) -> None:
    """Registers runs that must be closed at exit."""
    _open[runs] = None
    _register()
    patches.install()  # so that barriers close what is ending


def unregister_open(runs: _Runs) -> None:
    """Unregisters runs that are closed."""
    _open.pop(runs, None)


def _close_ending() -> None:
    call_all([runs.close_ending for runs in list(_open)])


host.at_effects_barrier(_close_ending)


_exiting = False


def fatal_error() -> BaseException | None:
    """The exception that ends the process, while its open runs are being closed."""
    return interrupts.fatal_error() if _exiting else None


def _close_all() -> None:
    global _exiting
    _exiting = True
    interrupts.end_programs()
    # programs that are still running may log
    with contextlib.suppress(Exception):
        host.wait_for_callbacks()
    call_all([runs.close_all for runs in list(_open)])


@functools.cache
def _register() -> None:
    """Registers `_close_all` to run at exit, before the exit hooks of tracker clients.

    `atexit` hooks run last in, first out, and a client may register its hook after us,
    in a background thread. The hooks of `threading` run before all `atexit` hooks.
    """
    with contextlib.suppress(AttributeError, RuntimeError):
        threading._register_atexit(_close_before_clients)  # type: ignore[attr-defined]
        hooks = threading._threading_atexits  # type: ignore[attr-defined]
        hooks.insert(0, hooks.pop())  # run after thread pools have finished their work
    atexit.register(_close_all)


def _close_before_clients() -> None:
    others = set(threading.enumerate()) - {threading.current_thread()}
    if all(thread.daemon for thread in others):
        _close_all()
    # else Python waits for the other threads, which may log, and then runs `atexit`


def _after_fork() -> None:
    # runs, and the thread that sends their logs, belong to the parent process
    _inherited.extend(_open)
    _open.clear()
    for runs in list(_all):
        runs.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
