"""Waiting for other threads and processes, however long they take."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds after which a test that waits for something that never happens fails. It is
# long enough for any machine, so no result depends on it.
HANG = 300.0


def wait_until(condition: Callable[[], T]) -> T:
    """Waits until `condition()` is true, if no event signals it; returns its value."""
    end = time.monotonic() + HANG
    while not (found := condition()):
        assert time.monotonic() < end, f"it has not happened within {HANG:g} s"
        time.sleep(0.01)
    return found


def wait_for(event: threading.Event) -> None:
    assert event.wait(HANG), f"it has not happened within {HANG:g} s"


def in_threads(work: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Calls a function in one thread per tuple of arguments, and waits for them all."""
    threads = [
        threading.Thread(target=work, args=each, daemon=True) for each in arguments
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)


def join(thread: threading.Thread) -> None:
    thread.join(HANG)
    assert not thread.is_alive(), f"{thread.name} has not ended within {HANG:g} s"
