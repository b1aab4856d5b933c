"""What becomes of open runs when a process ends, or is forked."""

import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from lox._host import interrupts
from lox._jax import compat


class _Runs(Protocol):
    def close_all(self) -> None: ...

    def close_ending(self) -> None: ...

    def begin_anew(self) -> None: ...


# Runs that are open keep their logger alive, until they are finished or Python exits.
# The first comes first: the backend of one logger may use another.
_in_use: dict[_Runs, None] = {}
_all: weakref.WeakSet[_Runs] = weakref.WeakSet()
# those of the process that this one was forked from; they are not ours to end, be it by
# way of Python's, which closes the files of what nobody needs
_inherited: list[Any] = []


def known(runs: _Runs) -> None:
    """Those that a process that is forked has to forget."""
    _all.add(runs)


def in_use(runs: _Runs) -> None:
    """From now on, they have to be closed at exit."""
    _in_use[runs] = None
    _register()


def out_of_use(runs: _Runs) -> None:
    _in_use.pop(runs, None)


def all_of(calls: Iterable[Callable[[], None]]) -> None:
    """Calls all of them, and raises the first error only then."""
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


compat.at_effects_barrier(_close_ending)


_exits = False


def fatal_error() -> BaseException | None:
    """The exception that ends Python, while its open runs are closed for it."""
    return interrupts.fatal_error() if _exits else None


def _close_all() -> None:
    global _exits
    _exits = True
    interrupts.end_programs()
    # programs that still run may log
    with contextlib.suppress(Exception):
        compat.wait_for_callbacks()
    all_of([runs.close_all for runs in list(_in_use)])


@functools.cache
def _register() -> None:
    """At exit, before a client closes what it has open by a hook of its own.

    Such hooks run last in, first out, and a client in a thread of its own may be the
    last one. What Python waits for threads with comes before them all.
    """
    with contextlib.suppress(AttributeError, RuntimeError):
        threading._register_atexit(_close_before_clients)  # type: ignore[attr-defined]
        hooks = threading._threading_atexits  # type: ignore[attr-defined]
        hooks.insert(0, hooks.pop())  # after pools of threads have ended their work
    atexit.register(_close_all)


def _close_before_clients() -> None:
    others = set(threading.enumerate()) - {threading.current_thread()}
    if all(thread.daemon for thread in others):
        _close_all()
    # else Python waits for them, which may log, and then calls the other hook


def _after_fork() -> None:
    # the runs are those of the parent, and so is the thread that sends what is logged
    _inherited.extend(_in_use)
    _in_use.clear()
    for runs in list(_all):
        runs.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
