"""Signal handlers that wait until an event is delivered.

Python runs signal handlers in its main thread, in whatever Python code runs next there.
While the main thread executes a compiled program, that is a callback, where an
exception would lose the event. So lox puts handlers of its own before the user's while
the main thread may deliver events: they let the user's wait until the event is written.

XLA may also make its calls in a thread of its own, while the main thread waits in XLA
and runs no Python code at all. Then such a call runs the handlers that the main thread
does not get to.
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
# those whose handlers may raise
_SIGNALS: tuple[int, ...] = tuple(
    int(getattr(_signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(_signal, name)
)
# without the enums that `signal` makes of their results, which take longer
_getsignal, _setsignal = _signal.getsignal, _signal.signal
_set_wakeup_fd = _signal.set_wakeup_fd
_get_ident = threading.get_ident
_main_thread: int | None = threading.main_thread().ident

# the handlers that wait, with their arguments
waiting: list[tuple[Any, int, FrameType | None]] = []
# how many calls of programs, and how many eager events, the main thread is in
_calls = _eager = 0
# whether a handler has raised `SystemExit`, and no program was called since
asked_to_exit = False


class WaitingHandler:
    """A handler of the user's that waits while the main thread delivers an event.

    A second signal does not wait: a callback may never end.
    """

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, signum: int, frame: FrameType | None) -> Any:
        with _lock:
            _wakeup.hear()
            _arrived.pop(signum, None)
            if signum in _run_elsewhere:
                error = _run_elsewhere.pop(signum)
                if error is not None:
                    raise error
                return None
        first = all(signum != other for _, other, _ in waiting)
        own = frame is not None and frame.f_code in _OWN
        if first and (_eager or own or host.in_receiver(frame)):
            waiting.append((self.handler, signum, frame))
            return None
        return _run(self.handler, signum, frame)


def _run(handler: Any, signum: int, frame: FrameType | None) -> Any:
    global asked_to_exit
    try:
        return handler(signum, frame)
    except SystemExit:
        asked_to_exit = True
        raise


def run_waiting() -> BaseException | None:
    """Runs the handlers that have waited, and gives what they raise."""
    error: BaseException | None = None
    while waiting:
        try:
            _run(*waiting.pop(0))
        except BaseException as raised:
            error = error or raised
    return error


def in_main_thread() -> bool:
    return _get_ident() == _main_thread


def waits() -> bool:
    """Whether a handler waits for what this thread delivers."""
    return bool(waiting) and in_main_thread()


def during(call: Callable[[], T], eager: bool, is_done: Callable[[T], bool]) -> T:
    """Lets handlers wait during a call, and raises what they raise.

    Args:
        call: of a program, or of what delivers an eager event.
        eager: whether handlers wait for all of it, not only for callbacks.
        is_done: whether the program of that result has ended. If it goes on, in a
            thread of XLA's, our handlers stay, to see who asks for the process to end.
    """
    global _calls, _eager
    if not in_main_thread():
        return call()
    # A handler may raise wherever Python calls a function: what is set here is put back
    # by statements without one.
    calls, eagers = _calls, _eager
    done = True
    try:
        _calls, _eager = calls + 1, eagers + eager
        _put_before()
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
            hand_back()
        # in a callback that calls another program, they wait for its own end
        error = run_waiting() if waiting and not calls else None
        if error is not None:
            raise error
    return out


def uninterrupted(call: Callable[[], T]) -> T:
    """Lets handlers wait while an eager event is delivered."""
    return during(call, True, lambda out: True)


def _put_before() -> None:
    """Puts our handlers before those of the user."""
    # in an interpreter that is not the main one, there are no signals
    with contextlib.suppress(ValueError):
        for signum in _SIGNALS:
            handler = _getsignal(signum)
            if callable(handler) and type(handler) is not WaitingHandler:
                _setsignal(signum, WaitingHandler(handler))


def hand_back() -> None:
    """Puts the user's handlers back, unless the main thread is in a program."""
    if _calls or not in_main_thread():
        return
    for signum in _SIGNALS:
        handler = _getsignal(signum)
        if type(handler) is WaitingHandler:
            _setsignal(signum, handler.handler)


# --- signals that the main thread does not get to ----------------------------

# for how long it may do so, before a callback in another thread does, and how often
# that looks for them
_GRACE, _INTERVAL = 0.2, 0.05
_lock = threading.RLock()
# when the signals arrived that the main thread has not handled yet
_arrived: dict[int, float] = {}
# what those handlers raised that another thread has run
_run_elsewhere: dict[int, BaseException | None] = {}


class _Wakeup:
    """Hears of signals as they arrive, during a program that the main thread calls."""

    def __init__(self) -> None:
        # the ends of a pipe; None where there are no signals to hear of, as on Windows
        self._ends: tuple[int, int] | None = None
        # who was to hear of them before, and what there was to hear
        self._other = -1
        self._heard = b""
        self._next_look = 0.0

    def begin(self) -> None:
        if self._ends is None:
            if os.name != "posix":
                return
            self._ends = os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)
        with contextlib.suppress(ValueError):  # it is not the main interpreter
            self._other = _set_wakeup_fd(self._ends[1], warn_on_full_buffer=False)

    def end(self) -> None:
        """Lets another one hear of them again, and of those that have come."""
        if self._ends is None:
            return
        with contextlib.suppress(ValueError, OSError):  # it may be closed by now
            _set_wakeup_fd(self._other)
        self.hear()
        heard, self._heard = self._heard, b""
        if heard:
            _arrived.clear()
            with contextlib.suppress(OSError):
                if self._other != -1:
                    os.write(self._other, heard)
        self._other = -1

    def hear(self) -> None:
        if self._ends is None:
            return
        with _lock, contextlib.suppress(OSError):
            heard = os.read(self._ends[0], 4096)
            self._heard += heard
            now = time.monotonic()
            for signum in heard:
                _arrived.setdefault(signum, now)

    def is_due(self) -> bool:
        """Whether another thread is to look for those that the main one does not."""
        return time.monotonic() >= self._next_look

    def unhandled(self) -> list[int]:
        """Those that the main thread does not get to; called in another thread."""
        now = time.monotonic()
        self._next_look = now + _INTERVAL
        self.hear()
        return [one for one, since in _arrived.items() if now - since >= _GRACE]


_wakeup = _Wakeup()
# where no handler may raise, or it would be lost who was to hear before
_OWN = {_Wakeup.begin.__code__, _Wakeup.end.__code__}


def run_unhandled() -> bool:
    """Runs, in another thread than the main one, handlers that this does not get to.

    Gives whether one of them raises what ends a program: the main thread will raise it
    as soon as it gets there.
    """
    if not _calls or not _wakeup.is_due():
        return False
    raises = False
    with _lock:
        for signum in _wakeup.unhandled():
            handler = _getsignal(signum)
            _arrived.pop(signum, None)
            if type(handler) is not WaitingHandler or signum in _run_elsewhere:
                continue
            try:
                _run(handler.handler, signum, None)
            except Exception:
                continue  # it may be one that only the main thread can run
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
    waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
