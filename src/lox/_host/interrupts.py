"""Interrupts: exceptions in signal handlers or callbacks that end a running program.

An exception that is raised in a callback reaches XLA, which ends the program with its
own error. So an interrupt is kept until the event has been delivered. Then it ends the
program by an exception in the callback, and the call of the program raises it instead
of XLA's error. If the program runs in one of XLA's threads, the call has already
returned: waiting for its results raises XLA's error, and the next barrier raises the
interrupt.

A program that runs on multiple devices cannot be ended this way, because the other
devices would wait for the one that failed.
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
    # the interrupt that has ended the program of this thread
    error: BaseException | None = None


_kept = _Kept()


def stop(error: BaseException | None = None) -> None:
    """Ends the program whose callback calls this.

    If this is the thread that called the program, the call raises `error`, if given.
    """
    if error is not None:
        _kept.error = error
    host.program_stopped()
    raise ProgramStopped(host.STOPPED) from error


# --- around every call of a program with effects -----------------------------

# whether any program may deliver events
used = False


def _at_stopped() -> None:
    """Raises the exceptions of callbacks in other threads; set by `at_stopped`."""


def at_stopped(hook: Callable[[], None]) -> None:
    global _at_stopped
    _at_stopped = hook


def _call(call: Callable[[], Any]) -> Any:
    """Calls a program, and raises the interrupt that has ended it."""
    if not used:
        return call()
    signals.asked_to_exit = False
    outer, _kept.error = _kept.error, None
    try:
        return signals.during(call, False, host.is_done)
    except jax.errors.JaxRuntimeError as error:
        interrupt = _kept.error
        # an interrupt in JAX's own code around a callback
        if "KeyboardInterrupt" in str(error) and host.STOPPED not in str(error):
            interrupt = KeyboardInterrupt()
        if interrupt is None and host.STOPPED in str(error):
            _at_stopped()  # ended by a callback in one of XLA's threads
        if interrupt is None:
            raise
    finally:
        _kept.error = outer
    try:
        raise interrupt from None
    finally:
        interrupt = None  # its traceback and this frame would keep each other alive


host.around_programs(_call)
host.at_effects_barrier(signals.unwrap_handlers)


# --- at exit -----------------------------------------------------------------

# whether an interrupt ends the process, and with it the programs that still run
ending = False


def fatal_error() -> BaseException | None:
    """The exception that ends Python, at exit."""
    # in an interactive session, the last exception does not end Python
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def end_programs() -> None:
    """At exit: ends the programs that still run, if an interrupt ends the process."""
    global ending
    interrupted = isinstance(fatal_error(), KeyboardInterrupt)
    ending = interrupted or signals.asked_to_exit


# runs before JAX's own exit handler, which waits for the programs
atexit.register(end_programs)
