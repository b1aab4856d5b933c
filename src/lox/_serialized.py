"""Calls that come one after the other, whoever makes them."""

import collections
import threading
from collections.abc import Callable
from typing import Any


class Turns:
    """Makes calls of a function wait for each other.

    A handler of a signal runs amidst whatever its thread does. If that is a call of the
    function, it cannot wait for it: its own call is made when the other one has ended.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.lock = threading.RLock()
        self._thread: int | None = None
        self._later: collections.deque[Any] = collections.deque()

    def __call__(self, *args: Any) -> None:
        me = threading.get_ident()
        if self._thread == me:
            self._later.append(args)
            return
        with self.lock:
            try:
                self._thread = me
                self._call_all(args)
            finally:
                self._thread = None

    def _call_all(self, args: Any) -> None:
        """Those that have come meanwhile, too, whichever of them raises."""
        try:
            self._function(*args)
        finally:
            if self._later:
                self._call_all(self._later.popleft())
