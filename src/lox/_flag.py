"""Flags that are set while a block of code runs."""

import threading
from typing import Any


class Flag(threading.local):
    """A flag that `with flag:` sets, in the current thread only; it can be nested."""

    _depth = 0

    def __bool__(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *exc: Any) -> None:
        self._depth -= 1
