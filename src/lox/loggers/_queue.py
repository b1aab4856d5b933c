"""A bounded queue with one worker, between a program and a slow backend.

Whoever puts a job waits for room, if there is none; no job is dropped.
"""

import collections
import threading
import time
from collections.abc import Callable
from functools import partial

Job = partial[None]

_MOST_JOBS = 10_000
_MOST_BYTES = 64 << 20
# how long a worker stays when there is nothing to do: a new one costs 50 µs
_LINGERS = 5.0


class JobQueue:
    """Runs jobs in a thread of its own, one after the other.

    Args:
        name: of the thread.
        patience: for how many seconds a job may keep others waiting.
        on_idle: what the thread does when there is no job left.
    """

    def __init__(self, name: str, patience: float, on_idle: Callable[[], None]) -> None:
        self._name = name
        self._patience = patience
        self._on_idle = on_idle
        self._changed = threading.Condition()
        self._jobs: collections.deque[tuple[Job, int]] = collections.deque()
        self._bytes = 0
        self._done = 0
        # whether the worker has seen that there is nothing left
        self._settled = True
        # the thread that works, until there is nothing to do or it is given up
        self._worker: threading.Thread | None = None

    def put(self, job: Job, size: int) -> bool:
        """Adds a job, once there is room; False if that takes too long."""
        with self._changed:
            if not self._wait(self._has_room):
                return False
            self._jobs.append((job, size))
            self._bytes += size
            self._settled = False
            if self._worker is None:
                # as a daemon: a client that hangs must not keep Python from exiting
                worker = threading.Thread(
                    target=self._work, name=self._name, daemon=True
                )
                try:
                    worker.start()
                except RuntimeError:  # it is exiting, where some versions refuse
                    self._work_here()
                else:
                    self._worker = worker
            self._changed.notify_all()
        return True

    def join(self) -> bool:
        """Waits until every job is done; False if that takes too long."""
        with self._changed:
            return self._wait(lambda: self._settled)

    def give_up(self) -> list[Job]:
        """Leaves the worker alone, and gives the jobs that it has not done."""
        with self._changed:
            left = [job for job, _ in self._jobs]
            self._jobs.clear()
            self._bytes = 0
            self._worker = None
            self._settled = True
            self._changed.notify_all()
        return left

    def _has_room(self) -> bool:
        # a job that is larger than the whole queue has it for itself
        few = len(self._jobs) < _MOST_JOBS
        return not self._jobs or (few and self._bytes < _MOST_BYTES)

    def _wait(self, until: Callable[[], bool]) -> bool:
        """Waits, as long as jobs get done."""
        done, since = self._done, time.monotonic()
        while not until():
            if self._done != done:
                done, since = self._done, time.monotonic()
            left = since + self._patience - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(left)
        return True

    def _work_here(self) -> None:
        while self._jobs:
            job, size = self._jobs.popleft()
            self._bytes -= size
            job()
        self._on_idle()
        self._settled = True

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._settled and not self._changed.wait_for(
                    lambda: not self._settled or self._worker is not me, _LINGERS
                ):
                    self._worker = None
                    return
                if self._worker is not me:
                    return
                # the job stays in its place until it is done: it may hang
                job = self._jobs[0][0] if self._jobs else None
            if job is None:
                self._on_idle()
            else:
                job()
            with self._changed:
                if self._worker is not me:
                    return
                self._done += 1
                if job is not None:
                    self._bytes -= self._jobs.popleft()[1]
                elif not self._jobs:
                    self._settled = True
                self._changed.notify_all()
