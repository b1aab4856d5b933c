"""Calls that come one after the other, whoever makes them."""

import collections
import threading
from collections.abc import Callable
from typing import Any

_get_ident = threading.get_ident


class Turns:
    """Makes calls of functions wait for each other.

    A handler of a signal runs amidst whatever its thread does. If that is one of these
    calls, it cannot wait for it: its own call is made when the other one has ended.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._thread: int | None = None
        self._later: collections.deque[Any] = collections.deque()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        me = _get_ident()
        if self._thread == me:
            self._later.append((function, args))
            return
        with self.lock:
            try:
                self._thread = me
                try:
                    function(*args)
                finally:
                    if self._later:
                        self._call_later()
            finally:
                self._thread = None

    def _call_later(self) -> None:
        """Makes the calls that have come meanwhile, whichever of them raises."""
        function, args = self._later.popleft()
        try:
            function(*args)
        finally:
            if self._later:
                self._call_later()
