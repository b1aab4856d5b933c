"""A bounded queue with one worker thread, between a program and a slow backend.

`put` blocks while the queue is full, or calls a function that saves the job elsewhere;
no job is dropped.
"""

import collections
import threading
import time
from collections.abc import Callable
from functools import partial

from lox._host import signals

Job = partial[None]
Jobs = collections.deque[tuple[Job, int]]

_MAX_JOBS = 10_000
_MAX_BYTES = 64 << 20
# seconds for which the worker lets jobs accumulate: waking it up costs more than a job
_BATCH_TIME = 0.01
# seconds for which an idle worker stays alive: a new thread costs 50 µs
_IDLE_TIME = 5.0


class JobQueue:
    """Runs jobs in a worker thread, one after the other.

    Args:
        name: the name of the thread.
        patience: the number of seconds for which a job may block the others.
        on_idle: a function for the worker to call when there are no more jobs, which
            may add some.
    """

    def __init__(self, name: str, patience: float, on_idle: Callable[[], None]) -> None:
        self._name = name
        self._patience = patience
        self._on_idle = on_idle
        self._changed = threading.Condition(threading.RLock())
        self._jobs: Jobs = collections.deque()
        # the worker's current batch; a job stays in it until it is done: it may hang
        self._batch: Jobs = collections.deque()
        # the total numbers of jobs and of bytes
        self._put = self._done = self._bytes_put = self._bytes_done = 0
        # how many parts of long jobs are done
        self._parts_done = 0
        # how many workers were abandoned
        self.generation = 0
        # how many threads wait for jobs to be done
        self._waiting = 0
        # whether all jobs are done, and `on_idle` was called
        self._idle = True
        # None if there is nothing to do, or after the worker was abandoned
        self._worker: threading.Thread | None = None

    def put(self, job: Job, size: int) -> bool:
        """Adds a job when there is space; returns False if that takes too long.

        If an interrupt arrives, adds the job without waiting for space.
        """
        with self._changed:
            if not self.has_room() and not self._wait(self.has_room):
                return False
            self.put_now(job, size)
        return True

    def put_now(self, job: Job, size: int = 0) -> None:
        """Adds a job, even if the queue is full."""
        with self._changed:
            self._jobs.append((job, size))
            self._put += 1
            self._bytes_put += size
            if self._worker is None:
                self._idle = False
                self._start()
            elif self._idle:  # wake it up; a busy worker sees the job by itself
                self._idle = False
                self._changed.notify_all()

    @property
    def lock(self) -> threading.Condition:
        """Held while jobs are added, so that several can be added in order."""
        return self._changed

    def part_done(self) -> None:
        """Called by a long job from time to time, to show that it does not hang."""
        self._parts_done += 1

    def join(self) -> bool:
        """Waits until all jobs put so far are done; False if that takes too long."""
        with self._changed:
            last = self._put
            return self._wait(lambda: self._done >= last)

    def end(self) -> None:
        """Ends the worker at exit, when all jobs are done.

        A thread that deallocates objects while Python shuts down may abort the process.
        """
        with self._changed:
            worker, self._worker = self._worker, None
            self._changed.notify_all()
        if worker is not None:
            worker.join(self._patience)

    def jobs(self) -> list[Job]:
        """The jobs that are not done."""
        with self._changed:
            return [job for job, _ in (*self._batch, *self._jobs)]

    def give_up(self) -> list[Job]:
        """Abandons the worker, and returns the jobs that are not done."""
        with self._changed:
            remaining = self.jobs()
            self.generation += 1
            self._done = self._put
            self._batch, self._jobs = collections.deque(), collections.deque()
            self._bytes_done = self._bytes_put
            self._worker = None
            self._idle = True
            self._changed.notify_all()
        return remaining

    def is_empty(self) -> bool:
        return not self._jobs and not self._batch

    def has_room(self) -> bool:
        jobs = len(self._jobs) + len(self._batch)
        size = self._bytes_put - self._bytes_done
        # an empty queue takes a job of any size
        return not jobs or (jobs < _MAX_JOBS and size < _MAX_BYTES)

    def _wait(self, until: Callable[[], bool]) -> bool:
        """Waits for a condition, or for an interrupt; False if no job gets done."""
        done, since = self._progress(), time.monotonic()
        self._waiting += 1
        self._changed.notify_all()
        try:
            while not until() and not signals.has_deferred():
                if self._progress() != done:
                    done, since = self._progress(), time.monotonic()
                left = since + self._patience - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 1.0))
        finally:
            self._waiting -= 1
        return True

    def _progress(self) -> int:
        return self._done + self._parts_done

    def _start(self) -> None:
        # a daemon: a client that hangs must not keep Python from exiting
        worker = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._worker = worker
        try:
            worker.start()
        except RuntimeError:  # some Python versions start no threads during exit
            self._worker = None
            while self._jobs:
                while self._jobs:
                    self._jobs.popleft()[0]()
                self._on_idle()  # may add jobs
            self._done, self._bytes_done = self._put, self._bytes_put
            self._idle = True

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._worker is not me:
                    return
                if self._idle and not self._changed.wait_for(
                    lambda: not self._idle or self._worker is not me, _IDLE_TIME
                ):
                    self._worker = None
                    return
                if not self._waiting:
                    self._changed.wait_for(
                        lambda: self._waiting or self._worker is not me, _BATCH_TIME
                    )
                if self._worker is not me:
                    return
                batch, self._jobs = self._jobs, collections.deque()
                self._batch = batch
            if batch:
                self._run(batch, me)
            else:
                self._on_idle()
                with self._changed:
                    if self._worker is me and not self._jobs:
                        self._idle = True
                        self._changed.notify_all()

    def _run(self, batch: Jobs, me: threading.Thread) -> None:
        """Runs jobs, without the lock: `put` would wait for it."""
        while batch:
            job, size = batch[0]
            job()
            if self._worker is not me:  # `give_up` has returned the remaining jobs
                return
            batch.popleft()
            self._bytes_done += size
            self._done += 1
            if self._waiting:
                with self._changed:
                    self._changed.notify_all()
