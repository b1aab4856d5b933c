"""Interrupts: what a signal handler or a callback raises to end a running program.

An exception that is raised in a callback reaches XLA, which ends the program with an
error of its own. So an interrupt is kept until the event is delivered; then it ends the
program by an exception in the callback, and is raised in place of XLA's error by the
call of the program. If the program runs in a thread of XLA's, the call has returned:
who waits for its results gets XLA's error, and the next barrier raises the interrupt.

A program that runs on several devices cannot be ended so: the devices that have not
failed would wait for the one that has.
"""

import atexit
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax

from lox._jax import host

from . import signals


class ProgramStopped(BaseException):
    """Raised in a callback to end the program that called it."""


class _Kept(threading.local):
    # what has ended the program that this thread executes
    error: BaseException | None = None


_kept = _Kept()


def stop() -> None:
    """Ends the program whose callback this is called in."""
    host.program_stopped()
    raise ProgramStopped(host.STOPPED)


def stop_by(error: BaseException) -> None:
    """The same; the call of the program raises `error`, if this is its thread."""
    _kept.error = error
    host.program_stopped()
    raise ProgramStopped(host.STOPPED) from error


def in_thread_of_call() -> bool:
    """Whether the thread of a callback is the one that has called the program."""
    return not host.called_by_xla_thread()


# --- around every call of a program with effects -----------------------------

# whether some program may deliver events
used = False


def _at_stopped() -> None:
    """Raises what callbacks in other threads have raised."""


def at_stopped(hook: Callable[[], None]) -> None:
    global _at_stopped
    _at_stopped = hook


def _call(call: Callable[[], Any]) -> Any:
    """Calls a program, and raises what has ended it."""
    if not used:
        return call()
    signals.asked_to_exit = False
    outer, _kept.error = _kept.error, None
    try:
        return signals.during(call, False, host.is_done)
    except jax.errors.JaxRuntimeError as error:
        interrupt = _kept.error
        # one that came between JAX and a callback
        if "KeyboardInterrupt" in str(error) and host.STOPPED not in str(error):
            interrupt = KeyboardInterrupt()
        if interrupt is None and host.STOPPED in str(error):
            _at_stopped()  # by a callback in a thread of XLA's
        if interrupt is None:
            raise
    finally:
        _kept.error = outer
    try:
        raise interrupt from None
    finally:
        interrupt = None  # whose traceback would keep this frame, and be kept by it


host.around_programs(_call)
host.at_effects_barrier(signals.hand_back)


# --- at exit -----------------------------------------------------------------

# whether the process ends by an interrupt, so that programs that still run are ended
ending = False


def fatal_error() -> BaseException | None:
    """The exception that ends Python, at exit."""
    # the last one that was printed, which does not end a session of commands
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def end_programs() -> None:
    """At exit: ends the programs that still run, if an interrupt ends the process."""
    global ending
    interrupted = isinstance(fatal_error(), KeyboardInterrupt)
    ending = interrupted or signals.asked_to_exit


# before JAX waits for them
atexit.register(end_programs)
