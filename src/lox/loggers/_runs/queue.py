"""A bounded queue with one worker, between a program and a slow backend.

Whoever puts a job waits for room, if there is none; no job is dropped.
"""

import collections
import threading
import time
from collections.abc import Callable
from functools import partial

from lox._host import signals

Job = partial[None]
Jobs = collections.deque[tuple[Job, int]]

_MOST_JOBS = 10_000
_MOST_BYTES = 64 << 20
# how long a worker lets jobs come together: to wake it for each costs more than the job
_COLLECTS = 0.01
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
        self._changed = threading.Condition(threading.RLock())
        self._jobs: Jobs = collections.deque()
        # what the worker has taken; the first one stays until it is done: it may hang
        self._taken: Jobs = collections.deque()
        # how many there were so far, and their bytes
        self._put = self._done = self._bytes_put = self._bytes_done = 0
        # how often a worker was given up
        self.generation = 0
        # who wants to hear of every job that is done
        self._waiting = 0
        # whether the worker has seen that there is nothing left
        self._settled = True
        # the thread that works, until there is nothing to do or it is given up
        self._worker: threading.Thread | None = None

    def put(self, job: Job, size: int) -> bool:
        """Adds a job, once there is room; False if that takes too long.

        An interrupt does not wait for room, and the job is not lost by it.
        """
        with self._changed:
            if not self._has_room() and not self._wait(self._has_room):
                return False
            self._jobs.append((job, size))
            self._put += 1
            self._bytes_put += size
            if self._worker is None:
                self._settled = False
                self._start()
            elif self._settled:  # it sleeps; else it will see the job by itself
                self._settled = False
                self._changed.notify_all()
        return True

    def join(self) -> bool:
        """Waits until every job so far is done; False if that takes too long."""
        with self._changed:
            last = self._put
            return self._wait(lambda: self._done >= last)

    def end(self) -> None:
        """Ends the worker, at exit, when every job is done.

        A thread that runs while Python ends may abort the process, by what it drops.
        """
        with self._changed:
            worker, self._worker = self._worker, None
            self._changed.notify_all()
        if worker is not None:
            worker.join(self._patience)

    def jobs(self) -> list[Job]:
        """Those that are not done."""
        with self._changed:
            return [job for job, _ in (*self._taken, *self._jobs)]

    def give_up(self) -> list[Job]:
        """Leaves the worker alone, and gives the jobs that it has not done."""
        with self._changed:
            left = self.jobs()
            self.generation += 1
            self._done = self._put
            self._taken, self._jobs = collections.deque(), collections.deque()
            self._bytes_done = self._bytes_put
            self._worker = None
            self._settled = True
            self._changed.notify_all()
        return left

    def _has_room(self) -> bool:
        waiting = len(self._jobs) + len(self._taken)
        # a job that is larger than the whole queue has it for itself
        few = self._bytes_put - self._bytes_done < _MOST_BYTES
        return not waiting or (few and waiting < _MOST_JOBS)

    def _wait(self, until: Callable[[], bool]) -> bool:
        """Waits, as long as jobs get done, and nobody interrupts it."""
        done, since = self._done, time.monotonic()
        self._waiting += 1
        self._changed.notify_all()
        try:
            while not until() and not signals.waits():
                if self._done != done:
                    done, since = self._done, time.monotonic()
                left = since + self._patience - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 1.0))
        finally:
            self._waiting -= 1
        return True

    def _start(self) -> None:
        # as a daemon: a client that hangs must not keep Python from exiting
        worker = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._worker = worker
        try:
            worker.start()
        except RuntimeError:  # it is exiting, where some versions refuse
            self._worker = None
            while self._jobs:
                self._jobs.popleft()[0]()
            self._on_idle()
            self._done, self._bytes_done = self._put, self._bytes_put
            self._settled = True

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._worker is not me:
                    return
                if self._settled and not self._changed.wait_for(
                    lambda: not self._settled or self._worker is not me, _LINGERS
                ):
                    self._worker = None
                    return
                if not self._waiting:
                    self._changed.wait_for(
                        lambda: self._waiting or self._worker is not me, _COLLECTS
                    )
                if self._worker is not me:
                    return
                taken, self._jobs = self._jobs, collections.deque()
                self._taken = taken
            if taken:
                self._run(taken, me)
            else:
                self._on_idle()
                with self._changed:
                    if self._worker is me and not self._jobs:
                        self._settled = True
                        self._changed.notify_all()

    def _run(self, taken: Jobs, me: threading.Thread) -> None:
        """Without the lock, which those who put would wait for."""
        while taken:
            job, size = taken[0]
            job()
            if self._worker is not me:  # it was given up, and its jobs with it
                return
            taken.popleft()
            self._bytes_done += size
            self._done += 1
            if self._waiting:
                with self._changed:
                    self._changed.notify_all()
