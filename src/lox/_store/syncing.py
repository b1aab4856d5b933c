"""Flushes files to disk, so that they survive a crash of the machine."""

import collections
import contextlib
import os
import threading
from collections.abc import Iterable

# Disks flush many files in the time of one, if the flushes are concurrent.
_MAX_THREADS = 16


def flush_to_disk(paths: Iterable[str]) -> None:
    """Waits until files and directories are on disk; ignores missing ones.

    Raises:
        OSError: if some could not be written; all others are on disk.
    """
    remaining = collections.deque(dict.fromkeys(paths))
    errors: list[OSError] = []

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                try:
                    _flush(remaining.popleft())
                except OSError as error:
                    errors.append(error)

    threads: list[threading.Thread] = []
    for _ in range(min(_MAX_THREADS, len(remaining)) - 1):
        thread = threading.Thread(target=work, name="lox-sync", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or Python is exiting
            break
        threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _flush(path: str) -> None:
    try:
        # Windows flushes only files that are open for writing
        flags = os.O_RDONLY if os.path.isdir(path) else os.O_RDWR
        descriptor = os.open(path, flags)
    except (FileNotFoundError, PermissionError):  # removed, or owned by another user
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
