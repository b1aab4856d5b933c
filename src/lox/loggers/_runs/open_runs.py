"""The open runs of a logger, on the host."""

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from lox._errors import LoxError, LoxValueError, check_choice
from lox._logs.logdict import RowToLogs, logdict
from lox._serialized import call_all
from lox._store.keys import run_name

from .backend import Backend, OpenRun, Words, size_of
from .exit import forget_after_fork, register_open, unregister_open
from .processes import ProcessFilter, check_processes
from .queue import JobQueue
from .spill import Chunk

if TYPE_CHECKING:
    from lox.loggers._base import Logger

# how many logs may arrive before their run is opened; then they open it
_MAX_EARLY = 20_000
_MAX_EARLY_BYTES = 16 << 20
# what to do with logs if the queue of a slow backend is full
Full = Literal["wait", "spill"]


# The open runs of every logger, by a number. Programs that several loggers share send
# it with their events.
_numbers = itertools.count()
numbered: weakref.WeakValueDictionary[int, "OpenRuns"] = weakref.WeakValueDictionary()


class OpenRuns:
    """The open runs of a logger, by the words of their keys.

    A slow backend is called by a background thread, so that the program need not wait.
    """

    def __init__(self, logger: "Logger") -> None:
        self.logger = logger
        self.backend = Backend(logger)
        self.raise_later = self.backend.raise_later
        self._process = ProcessFilter(logger)
        self._open: dict[Words, OpenRun] = {}
        # the runs of the parent of a forked process, which the child must not close
        self._inherited: list[Any] = []
        self.number = next(_numbers)
        numbered[self.number] = self
        check_choice(logger.full, get_args(Full), f"`full` of `{self.backend.name}`")
        check_processes(logger.processes, self.backend.name)
        self.reset()
        forget_after_fork(self)

    def reset(self) -> None:
        """Starts without runs, initially and in forked processes."""
        self._inherited.append(self._open)
        self.backend.reset()
        self._lock = threading.RLock()
        self._open = {}
        # the config of the runs that this process writes only if its devices log
        self._skipped: dict[Words, Mapping[str, Any]] = {}
        self._finished: set[Words] = set()
        # runs to close when no program can log to them anymore
        self._ending: set[Words] = set()
        # logs that have arrived before their run was opened
        self._early: dict[Words, list[logdict]] = {}
        self._early_bytes = 0
        self._queue: JobQueue | None = None
        if self.logger.background:
            name, patience = self.backend.name, self.logger.patience
            self._queue = JobQueue(name, patience, self._on_idle)

    # --- opening ---------------------------------------------------------------------

    def open(
        self,
        words: Words,
        shared: int = 0,
        late: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens a run.

        A warning that the user's filters make an error is raised by the next call: if
        it were raised here, `init` could not return the state of the run.

        Args:
            words: the words of its key.
            shared: the number of devices that open the run; only the first call opens
                it. 0 if the program opens it once.
            late: whether the program is not waiting for the call. Then a run that
                cannot be opened is handled like one that fails, and the error is
                raised later.
            config: the config of the run.
        """
        if not self._process.logs():
            self._skip(words, config or {})
            return
        with self._lock:
            run = self._open.get(words)
            if late and run is not None and run.opened_by_logs:
                self.set_config(words, config or {})
                return
            if run is not None and run.devices < shared:
                run.devices += 1
                return
            if words in self._ending and not self.logger._devices:
                # on one device, the program that ended it ran before this one
                self.close(words)
            self._check_new(words)
            self._finished.discard(words)
            self._start(words, late, config).devices = 1
            self._write_early(words)
            if late:  # `init` has returned the state already
                self.backend.raise_error()

    def _skip(self, words: Words, config: Mapping[str, Any]) -> None:
        if not self.logger._joins_processes:
            return
        with self._lock:
            self.logger._skip(self.logger._run_info(words, config))
            self._finished.discard(words)
            self._skipped[words] = config
            register_open(self)

    def is_open(self, words: Words) -> bool:
        return words in self._open

    def set_config(self, words: Words, config: Mapping[str, Any]) -> None:
        """Sets the config of a run that was opened by logs, before its `init`."""
        run = self._open.get(words)
        if run is None:
            return
        run.opened_by_logs = False
        run.devices = 1
        run.config = config
        if self._queue is None:
            self._set_config(run)
            self.backend.raise_error()
        else:
            self._put_call(self._set_config, run)

    def _set_config(self, run: OpenRun) -> None:
        problem = self.backend.set_config(run)
        if problem:
            self.backend.warn(
                run,
                f"`init` was called after {_MAX_EARLY} rows of the run "
                f"{run_name(run.words)} had opened it without its config, {problem}. "
                "Call `init` before the program that logs.",
            )

    def check(self, words: Words) -> None:
        """Raises if a run cannot be opened; called first for each of several runs."""
        self._check_new(words)
        if self._process.logs() or self.logger._joins_processes:
            self.logger._check(self.logger._run_info(words))

    def _check_new(self, words: Words) -> None:
        name = self.backend.name
        if words in self._ending:
            raise LoxValueError(
                f"{name} has not closed the run {run_name(words)} yet, because its "
                "logs come from several devices, in no order. Call "
                "`jax.effects_barrier()` before opening it again."
            )
        if words in self._open:
            raise LoxValueError(
                f"{name} already has an open run with the key {run_name(words)}, and "
                "the logs of both would be mixed. Give each run, and each lane of a "
                "`jax.vmap`, its own key, such as `jax.random.fold_in(key, i)`, or "
                "`finish` the other run first."
            )

    def _check_not_finished(self, words: Words) -> None:
        if words in self._finished:
            raise LoxValueError(
                f"{self.backend.name} got logs for the run {run_name(words)}, which is "
                "finished. Open a new run with `init`."
            )

    def _start(
        self,
        words: Words,
        late: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> OpenRun:
        run = OpenRun(words, config or {})
        run.spills = self.logger._full_of(words) == "spill"
        late_error: LoxError | None = None
        if self._queue is None:
            try:
                self.backend.open(run, late)
            except LoxError as error:
                if not late:
                    raise
                if isinstance(error.__cause__, OSError):  # such as a full disk
                    self.backend.fail(run, error)
                else:  # such as a run that already exists: the user has to decide
                    where = self.backend.fail(run, error, quietly=True)
                    kept = where[:1].upper() + where[1:]
                    late_error = type(error)(f"{error} {kept}")
        self._open[words] = run
        register_open(self)
        if self._queue is not None:
            self._put_call(self.backend.open, run)
        if late_error is not None:
            raise late_error
        return run

    def _start_by_logs(self, words: Words, late: bool) -> OpenRun:
        """Opens a run that has logs before `init`."""
        run = self._open.get(words)
        if run is not None:  # early logs have opened it
            return run
        self._check_not_finished(words)
        try:
            run = self._start(words, late, self._skipped.pop(words, None))
        except LoxError as error:
            run = self._open.get(words)
            if run is None:
                raise
            self.raise_later(error)  # after the logs are written
        run.opened_by_logs = True
        return run

    # --- writing ---------------------------------------------------------------------

    def write(self, words: Words, logs: logdict, late: bool = True) -> None:
        """Writes logs to a run; `late` as in `open`."""
        if not self._process.logs():
            return
        with self._lock:
            run = self._open.get(words)
            if run is None:
                if late and self._is_early(words):
                    self._early.setdefault(words, []).append(logs)
                    self._early_bytes += size_of(logs)
                    register_open(self)
                    return
                run = self._start_by_logs(words, late)
            if self._queue is None:
                self.backend.write(run, logs, late)
                if self.backend.error is not None:
                    self.backend.raise_error()
        if self._queue is not None:
            self._put_logs(run, logs)
            if self.backend.error is not None:
                self.backend.raise_error()

    def write_row(
        self, words: Words, to_logs: RowToLogs, arrays: Sequence[Any]
    ) -> None:
        """Writes one row of a program, as fast as possible.

        Args:
            words: the words of the run's key.
            to_logs: converts the row to logs.
            arrays: the values of the row, and then its steps.
        """
        if self.backend.write_row is not None and self._process.logs():
            with self._lock:
                run = self._open.get(words)
                if run is not None and self.backend.try_write_row(run, to_logs, arrays):
                    if self.backend.error is not None:
                        self.backend.raise_error()
                    return
        self.write(words, to_logs(arrays))

    def _is_early(self, words: Words) -> bool:
        """Whether logs that have no order may have arrived before their `init`."""
        logger = self.logger
        if not self._process.is_first:  # only its rows open a run
            return False
        # if no program calls `init`, as after a restart, the first logs open the run
        if not logger._unordered or not logger._opens_inside:
            return False
        early = len(self._early.get(words, ()))
        if early < _MAX_EARLY and self._early_bytes < _MAX_EARLY_BYTES:
            return True
        self._write_early(words)
        return False

    def _write_early(self, words: Words) -> None:
        with self._lock:
            early = self._early.pop(words, None)
            if early is None:
                return
            self._early_bytes -= sum(map(size_of, early))
            if words not in self._open:
                self._start_by_logs(words, late=True)
            call_all(functools.partial(self.write, words, logs) for logs in early)

    # --- closing ---------------------------------------------------------------------

    def close(self, words: Words) -> None:
        """Closes a run; `wait` waits until the backend has closed it."""
        steps = self._write_early, self._close
        call_all(functools.partial(step, words) for step in steps)

    def _close(self, words: Words) -> None:
        with self._lock:
            run = self._open.pop(words, None)
            self._finished.add(words)
            self._ending.discard(words)
            config = self._skipped.pop(words, None)
            if config is not None:
                self._unregister_if_done()
                self.logger._unskip(self.logger._run_info(words, config))
            if run is None:
                return
            if self._queue is None:
                self._unregister_if_done()
                self.backend.close(run)
                self.backend.raise_error()
                return
        with self._queue.lock if run.spills else contextlib.nullcontext():
            self._put_chunks(run)
            self._put_call(self.backend.close, run)
            run.spills = False  # so that no logs go to disk any more
        self.backend.raise_error()

    def close_late(self, words: Words) -> None:
        """Closes a run when the program that asks for it has ended.

        If its events have no order, some may arrive later.
        """
        with self._lock:
            self._ending.add(words)

    def close_ending(self) -> None:
        """Writes early logs, and closes the runs of `close_late`."""
        early, ending = list(self._early), list(self._ending)
        if early or ending:
            writes = [functools.partial(self._write_early, words) for words in early]
            closes = [functools.partial(self.close, words) for words in ending]
            call_all([*writes, *closes, self.logger._wait])

    def wait(self) -> None:
        """Waits until the backend has handled everything so far."""
        if self._queue is not None:
            generation = self._queue.generation
            if not self._queue.join():
                self._give_up(generation)
            with self._lock:
                self._unregister_if_done()
        self.backend.sync()
        self.backend.raise_error()

    def _unregister_if_done(self) -> None:
        if not self._open and not self._early and not self._skipped:
            unregister_open(self)

    def close_all(self) -> None:
        """Closes all runs when the process exits."""
        words = {*self._open, *self._early, *self._skipped}
        closes = [functools.partial(self.close, each) for each in words]
        ends = [] if self._queue is None else [self._queue.end]
        call_all([*closes, self.wait, *ends])

    # --- the queue of a slow backend -------------------------------------------------

    def _put(self, job: "functools.partial[None]", size: int = 0) -> None:
        assert self._queue is not None
        generation = self._queue.generation
        while not self._queue.put(job, size):
            self._give_up(generation)
            generation = self._queue.generation

    def _give_up(self, generation: int) -> None:
        """Marks all runs as failed, because the backend hangs; saves their logs."""
        assert self._queue is not None
        with self.backend.lock:
            if self._queue.generation != generation:  # another thread was faster
                return
            patience = f"{self.logger.patience:g} s"
            error = TimeoutError(f"it has not responded for {patience}")
            waiting = (job.args[0] for job in self._queue.jobs())
            # before a new worker starts, which would hang as well
            for run in {*waiting, *list(self._open.values())}:
                run.hangs = True
                self.backend.fail(run, error)
            for job in self._queue.give_up():  # these only write to disk now
                job()

    def _put_call(self, call: Callable[[OpenRun], None], run: OpenRun) -> None:
        assert self._queue is not None
        job = functools.partial(call, run)
        if run.spills:  # the program does not wait
            self._queue.put_now(job)
        else:
            self._put(job)

    def _put_logs(self, run: OpenRun, logs: logdict) -> None:
        assert self._queue is not None
        job, size = functools.partial(self.backend.write, run, logs), size_of(logs)
        if run.spills:
            # the lock, so that the worker sends nothing in between
            with self._queue.lock:
                # logs that wait on disk come first
                if not run.spill and self._queue.has_room():
                    self._queue.put_now(job, size)
                    return
                if run.spills and self.backend.spill(run, logs, size):
                    return
                self._put_chunks(run)
        self._put(job, size)

    def _put_chunks(self, run: OpenRun) -> None:
        """Adds jobs that send the logs of a run that wait on disk."""
        assert self._queue is not None
        if run.spill:
            with self._queue.lock:
                for chunk in run.spill.claim():
                    self._queue.put_now(functools.partial(self._send_chunk, run, chunk))

    def _send_chunk(self, run: OpenRun, chunk: Chunk) -> None:
        queue = self._queue
        assert queue is not None
        generation = queue.generation

        def part_done() -> bool:
            queue.part_done()
            return queue.generation == generation

        self.backend.send_chunk(run, chunk, part_done)

    def _on_idle(self) -> None:
        assert self._queue is not None
        runs = list(self._open.values())
        for run in runs:
            self.backend.flush(run)
        with self._queue.lock:
            # otherwise some of their logs may be in the queue, and come first
            if self._queue.is_empty():
                for run in runs:
                    self._put_chunks(run)
