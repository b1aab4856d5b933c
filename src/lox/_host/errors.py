"""Exceptions of callbacks, kept until the user's thread can raise them."""

import threading
from collections.abc import Callable
from typing import Protocol

from lox._jax import host, patches

from . import interrupts


class FailingSink(Protocol):
    """A sink whose callback may raise."""

    failed: bool


class CallbackErrors:
    """The exceptions that callbacks have raised, by sink.

    Raised inside a callback, they would reach the user as a runtime error of XLA, and
    every later barrier would fail too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[FailingSink, BaseException]] = []

    def keep(self, sink: FailingSink, error: BaseException) -> None:
        """Keeps an error after which the sink receives no more events."""
        with self._lock:
            sink.failed = True
            self._kept.append((sink, error))
        if patches.is_missing(host.BARRIER):
            raise patches.error(host.BARRIER, f"A callback raised {error!r}") from error

    def keep_first(self, sink: FailingSink, error: BaseException) -> bool:
        """Keeps an error that does not stop the sink, if it is the sink's first.

        Returns:
            Whether it is the first.
        """
        with self._lock:
            first = not any(other is sink for other, _ in self._kept)
            if first:
                self._kept.append((sink, error))
            return first

    def raise_all(self) -> None:
        """Raises the errors of all sinks; called at a barrier."""
        self._raise(lambda sink: True)

    def raise_errors_of(self, sink: FailingSink) -> None:
        """Raises the errors of one sink."""
        self._raise(lambda other: other is sink)

    def _raise(self, wanted: Callable[[FailingSink], bool]) -> None:
        if not self._kept:  # without the lock, because every call gets here
            return
        with self._lock:
            chosen = [(sink, error) for sink, error in self._kept if wanted(sink)]
            self._kept = [pair for pair in self._kept if pair not in chosen]
            for sink, _ in chosen:
                sink.failed = False
        if chosen:
            first = chosen[0][1]
            for _, error in chosen[1:]:
                first.add_note(f"Another callback failed too: {error!r}")
            raise first


callback_errors = CallbackErrors()
interrupts.at_stopped(callback_errors.raise_all)
host.at_effects_barrier(callback_errors.raise_all)
