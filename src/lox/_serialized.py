"""Calls that are made one after the other, by any thread or signal handler."""

import collections
import threading
from collections.abc import Callable, Iterable
from typing import Any

_get_ident = threading.get_ident


class SerializedCalls:
    """Makes calls one after the other, in any thread.

    A signal handler interrupts what its thread is doing. If that is one of these calls,
    the handler cannot wait for it: its own call is made after the interrupted one.

    Attributes:
        lock: held during every call.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._thread: int | None = None
        self._pending: collections.deque[Any] = collections.deque()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        me = _get_ident()
        if self._thread == me:
            self._pending.append((function, args))
            return
        with self.lock:
            try:
                self._thread = me
                try:
                    function(*args)
                finally:
                    if self._pending:
                        self._call_pending()
            finally:
                self._thread = None

    def _call_pending(self) -> None:
        """Makes all pending calls, even if some of them raise."""
        function, args = self._pending.popleft()
        try:
            function(*args)
        finally:
            if self._pending:
                self._call_pending()


def call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Makes all calls, and then raises the first error, if any."""
    errors = []
    for call in calls:
        try:
            call()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]
