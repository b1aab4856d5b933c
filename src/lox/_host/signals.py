"""Defers signal handlers until an event has been delivered.

Python runs signal handlers in the main thread, in whatever Python code runs next there.
While the main thread executes a compiled program, that code is a callback, and an
exception in it would lose the event. So while the main thread may deliver events, lox
wraps the user's handlers: they are deferred until the event has been delivered.

XLA may also call callbacks from one of its own threads, while the main thread waits in
XLA and runs no Python code at all. Then the callback runs the handlers instead.
"""

import _signal  # type: ignore[import-not-found]
import contextlib
import os
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from lox._jax import host

T = TypeVar("T")
# the signals whose handlers may raise
_SIGNALS: tuple[int, ...] = tuple(
    int(getattr(_signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(_signal, name)
)
# `signal` converts the results to enums, which takes longer
_getsignal, _setsignal = _signal.getsignal, _signal.signal
_set_wakeup_fd = _signal.set_wakeup_fd
_get_ident = threading.get_ident
_main_thread: int | None = threading.main_thread().ident

# the deferred handlers, with their arguments
deferred: list[tuple[Any, int, FrameType | None]] = []
# the number of calls of programs, and of eager events, that the main thread is in
_calls = _eager = 0
# whether a handler has raised `SystemExit` since the last call of a program
asked_to_exit = False


class DeferredHandler:
    """Wraps a user's handler, and defers it while the main thread delivers an event.

    A second signal is not deferred, because a callback may never return.
    """

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, signum: int, frame: FrameType | None) -> Any:
        with _lock:
            _wakeup.read()
            _arrived.pop(signum, None)
            if signum in _run_elsewhere:
                error = _run_elsewhere.pop(signum)
                if error is not None:
                    raise error
                return None
        first = all(signum != other for _, other, _ in deferred)
        own = frame is not None and frame.f_code in _OWN
        if first and (_eager or own or host.in_receiver(frame)):
            deferred.append((self.handler, signum, frame))
            return None
        return _run(self.handler, signum, frame)


def _run(handler: Any, signum: int, frame: FrameType | None) -> Any:
    global asked_to_exit
    try:
        return handler(signum, frame)
    except SystemExit:
        asked_to_exit = True
        raise


def run_deferred() -> BaseException | None:
    """Runs the deferred handlers, and returns the first exception that they raise."""
    error: BaseException | None = None
    while deferred:
        try:
            _run(*deferred.pop(0))
        except BaseException as raised:
            error = error or raised
    return error


def in_main_thread() -> bool:
    return _get_ident() == _main_thread


def has_deferred() -> bool:
    """Whether a handler is deferred until this thread has delivered an event."""
    return bool(deferred) and in_main_thread()


def during(call: Callable[[], T], eager: bool, is_done: Callable[[T], bool]) -> T:
    """Defers handlers during a call, and raises what they raise.

    Args:
        call: calls a program, or delivers an eager event.
        eager: whether handlers are deferred during the whole call, not only during
            callbacks.
        is_done: whether the program that returned a result has ended. While it
            continues in one of XLA's threads, the wrapped handlers stay installed, to
            notice a request to end the process.
    """
    global _calls, _eager
    if not in_main_thread():
        return call()
    # A handler may raise at any function call, so the globals are restored by plain
    # assignments.
    calls, eagers = _calls, _eager
    done = True
    try:
        _calls, _eager = calls + 1, eagers + eager
        _wrap_handlers()
        if not calls and not eager:
            _wakeup.begin()
        out = call()
        _calls, _eager = calls, eagers
        done = is_done(out)
    finally:
        _calls, _eager = calls, eagers
        if not calls and not eager:
            _wakeup.end()
        if done:
            unwrap_handlers()
        # inside a callback, handlers stay deferred until the callback returns
        error = run_deferred() if deferred and not calls else None
        if error is not None:
            raise error
    return out


def uninterrupted(call: Callable[[], T]) -> T:
    """Defers handlers while an eager event is delivered."""
    return during(call, True, lambda out: True)


def _wrap_handlers() -> None:
    """Wraps the user's handlers."""
    # only the main interpreter has signals
    with contextlib.suppress(ValueError):
        for signum in _SIGNALS:
            handler = _getsignal(signum)
            if callable(handler) and type(handler) is not DeferredHandler:
                _setsignal(signum, DeferredHandler(handler))


def unwrap_handlers() -> None:
    """Restores the user's handlers, unless the main thread is in a program."""
    if _calls or not in_main_thread():
        return
    for signum in _SIGNALS:
        handler = _getsignal(signum)
        if type(handler) is DeferredHandler:
            _setsignal(signum, handler.handler)


# --- signals that the main thread cannot handle ------------------------------

# how long the main thread has to handle a signal before a callback in another thread
# does, and how often that callback checks
_GRACE, _INTERVAL = 0.2, 0.05
_lock = threading.RLock()
# the arrival times of the signals that the main thread has not handled yet
_arrived: dict[int, float] = {}
# by signal: the exception that its handler raised in another thread
_run_elsewhere: dict[int, BaseException | None] = {}


class _Wakeup:
    """Records the arrival of signals while the main thread is in a program."""

    def __init__(self) -> None:
        # the ends of a pipe; None before the first program, and on Windows
        self._ends: tuple[int, int] | None = None
        # the wakeup file descriptor set by others, and the bytes to pass on to it
        self._other = -1
        self._received = b""
        self._next_check = 0.0

    def begin(self) -> None:
        if self._ends is None:
            if os.name != "posix":
                return
            self._ends = os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)
        with contextlib.suppress(ValueError):  # not the main interpreter
            self._other = _set_wakeup_fd(self._ends[1], warn_on_full_buffer=False)

    def end(self) -> None:
        """Restores the previous file descriptor, and passes the received bytes on."""
        if self._ends is None:
            return
        with contextlib.suppress(ValueError, OSError):  # it may be closed
            _set_wakeup_fd(self._other)
        self.read()
        received, self._received = self._received, b""
        if received:
            _arrived.clear()
            with contextlib.suppress(OSError):
                if self._other != -1:
                    os.write(self._other, received)
        self._other = -1

    def read(self) -> None:
        """Records the signals that have arrived."""
        if self._ends is None:
            return
        with _lock, contextlib.suppress(OSError):
            received = os.read(self._ends[0], 4096)
            self._received += received
            now = time.monotonic()
            for signum in received:
                _arrived.setdefault(signum, now)

    def is_due(self) -> bool:
        """Whether it is time for another thread to check for unhandled signals."""
        return time.monotonic() >= self._next_check

    def unhandled(self) -> list[int]:
        """The signals that the main thread has not handled in time."""
        now = time.monotonic()
        self._next_check = now + _INTERVAL
        self.read()
        return [one for one, since in _arrived.items() if now - since >= _GRACE]


_wakeup = _Wakeup()
# where no handler may raise, or the previous file descriptor would be lost
_OWN = {_Wakeup.begin.__code__, _Wakeup.end.__code__}


def run_unhandled() -> bool:
    """Runs, outside the main thread, the handlers that the main thread cannot run.

    Returns:
        Whether one of them raised an interrupt, which ends the program; the main thread
        raises it as soon as it runs Python code again.
    """
    if not _calls or not _wakeup.is_due():
        return False
    raises = False
    with _lock:
        for signum in _wakeup.unhandled():
            handler = _getsignal(signum)
            _arrived.pop(signum, None)
            if type(handler) is not DeferredHandler or signum in _run_elsewhere:
                continue
            try:
                _run(handler.handler, signum, None)
            except Exception:
                continue  # the handler may work in the main thread only
            except BaseException as error:
                _run_elsewhere[signum] = error
                raises = True
            else:
                _run_elsewhere[signum] = None
    return raises


def _after_fork() -> None:
    global _main_thread, _calls, _eager, _lock, _wakeup
    _lock, _wakeup = threading.RLock(), _Wakeup()
    _arrived.clear()
    _run_elsewhere.clear()
    _main_thread = threading.main_thread().ident
    _calls = _eager = 0
    deferred.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
