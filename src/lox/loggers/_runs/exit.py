"""Closes open runs when the process exits, and forgets them in a forked process."""

import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from lox._host import interrupts
from lox._jax import host, patches


class _Runs(Protocol):
    def close_all(self) -> None: ...

    def close_ending(self) -> None: ...

    def begin_anew(self) -> None: ...


# Open runs keep their logger alive until they are finished or Python exits. In the
# order in which to close them: the backend of one logger may use another logger.
_in_use: dict[_Runs, None] = {}
_all: weakref.WeakSet[_Runs] = weakref.WeakSet()
# The runs of the parent of a forked process. Kept, because the child must not close
# them: not even by garbage collection, which would close their files.
_inherited: list[Any] = []


def known(runs: _Runs) -> None:
    """Registers runs that a forked process must forget."""
    _all.add(runs)


def in_use(runs: _Runs) -> None:
    """Registers runs that must be closed at exit."""
    _in_use[runs] = None
    _register()
    patches.install()  # so that barriers close what is ending


def out_of_use(runs: _Runs) -> None:
    """Unregisters runs that are closed."""
    _in_use.pop(runs, None)


def all_of(calls: Iterable[Callable[[], None]]) -> None:
    """Makes all calls, and then raises the first error, if any."""
    errors = []
    for call in calls:
        try:
            call()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _close_ending() -> None:
    all_of([runs.close_ending for runs in list(_in_use)])


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
    all_of([runs.close_all for runs in list(_in_use)])


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
    _inherited.extend(_in_use)
    _in_use.clear()
    for runs in list(_all):
        runs.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
