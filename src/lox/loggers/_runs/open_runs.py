"""The open runs of a logger, on the host; and what becomes of logs that it refuses."""

import contextlib
import functools
import inspect
import itertools
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from lox._errors import LoxError, LoxValueError, LoxWarning
from lox._logs.logdict import OpenRow, logdict
from lox._source import user_line
from lox._store.keys import run_name

from .exit import all_of, in_use, known, out_of_use
from .queue import JobQueue
from .unsent import UNSENT, Unsent

if TYPE_CHECKING:
    from lox.loggers._base import Logger

Words = tuple[int, ...]
# writes a row to an open run, given what makes logs of it, and its arrays
RowWriter = Callable[[Any, OpenRow, Sequence[Any]], None]
# what a backend may keep back before it is asked to send it
_MOST_KEPT = 1000
_MOST_KEPT_BYTES = 16 << 20
# what may come before its run begins, until that begins by itself
_MOST_EARLY = 20_000
_MOST_EARLY_BYTES = 16 << 20


# the runs of every logger, by a number that goes with the events of a program that
# several loggers use
_numbers = itertools.count()
numbered: weakref.WeakValueDictionary[int, "OpenRuns"] = weakref.WeakValueDictionary()


class _OpenRun:
    """A run, and how far its backend has got with it."""

    def __init__(self, words: Words, config: Mapping[str, Any]) -> None:
        self.words = words
        self.config = config
        # the line that began it, which warnings name
        self.line = user_line()
        self.handle: Any = None
        self.begun = False
        # how many have said that it begins
        self.devices = 0
        # whether it has begun by itself, and nobody has said so yet
        self.by_itself = False
        # what the backend has taken, and perhaps not sent yet, and its size
        self.kept: list[logdict] = []
        self.kept_bytes = 0
        # once the backend has failed, its logs go to the disk
        self.failed = False
        self.hangs = False
        self.unsent: Unsent | None = None
        self.loses = False


class OpenRuns:
    """The runs that a logger has open, by the words of their keys.

    A slow backend is called by a worker of its own, so that who logs does not wait.
    """

    def __init__(self, logger: "Logger") -> None:
        self.logger = logger
        self.name = type(logger).__name__
        self._keeps = logger._keeps_back()
        self._failures: set[str] = set()
        self._open: dict[Words, _OpenRun] = {}
        self._inherited: list[Any] = []
        self.number = next(_numbers)
        numbered[self.number] = self
        self.begin_anew()
        known(self)

    def begin_anew(self) -> None:
        """Without runs: at the beginning, and in a process that was forked."""
        self._inherited.append(self._open)
        self._lock = threading.RLock()
        # held while a run fails, and while what it does not take is kept
        self._failing = threading.RLock()
        self._open = {}
        self._finished: set[Words] = set()
        # those that are to end once nobody can log to them any more
        self._ending: set[Words] = set()
        # logs without order, of runs that nobody has begun yet
        self._early: dict[Words, list[logdict]] = {}
        self._early_bytes = 0
        # what to raise once nothing is lost by it: warnings that are errors to the
        # user, and the refusal of one of several loggers
        self._error: Warning | LoxError | None = None
        self._queue: JobQueue | None = None
        # what a backend may raise: in a thread of its own, it may also try to exit
        self._caught: type[BaseException] = Exception
        if self.logger.background:
            self._queue = JobQueue(self.name, self.logger.patience, self._flush_all)
            self._caught = BaseException
        # for a backend that is called at once, and that keeps nothing back
        direct = self._queue is None and not self._keeps
        self._write_row = self.logger._row_writer() if direct else None

    # --- for the program -------------------------------------------------------------

    def open(
        self,
        words: Words,
        shared: int = 0,
        late: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Begins a run.

        It raises no warning that the user has made an error: the run's state would be
        lost by it. The next call to the run does.

        Args:
            words: those of its key.
            shared: how many devices begin it, of which the first one does; 0 if it is
                the program as a whole.
            late: whether the program has gone on: a run that is refused is taken as
                one that fails, before the error is raised.
            config: what this run was made with.
        """
        with self._lock:
            run = self._open.get(words)
            if late and run is not None and run.by_itself:
                self.adopt(words, config or {})
                return
            if run is not None and run.devices < shared:
                run.devices += 1
                return
            if words in self._ending and not self.logger._devices:
                # a program that comes after another one on its device finds it ended
                self.close(words)
            self._check_new(words)
            self._finished.discard(words)
            self._start(words, late, config).devices = 1
            self._write_early(words)
            if late:  # then nobody waits for a state
                self._raise_kept()

    def adopt(self, words: Words, config: Mapping[str, Any]) -> None:
        """Gives a run that has begun by itself to the `init` that came too late."""
        run = self._open.get(words)
        if run is None:
            return
        run.by_itself = False
        run.devices = 1
        run.config = config
        if self._queue is None:
            self._give_config(run)
            self._raise_kept()
        else:
            self._put(functools.partial(self._give_config, run))

    def check(self, words: Words) -> None:
        """Raises if a run is refused, so that of several, all begin or none."""
        self._check_new(words)
        self.logger._check(self.logger._info(words))

    def _check_new(self, words: Words) -> None:
        if words in self._ending:
            raise LoxValueError(
                f"{self.name} has yet to end the run {run_name(words)}, whose logs "
                "come from several devices, in no order. Call `jax.effects_barrier()` "
                "before it is begun again."
            )
        if words in self._open:
            raise LoxValueError(
                f"{self.name} has a run of the key {run_name(words)} open, whose logs "
                "would come together with those of another. Give each run, and each "
                "lane of a `jax.vmap`, a key of its own, such as "
                "`jax.random.fold_in(key, i)`, or `finish` the other one first."
            )

    def _start(
        self,
        words: Words,
        late: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> _OpenRun:
        run = _OpenRun(words, config or {})
        refused: LoxError | None = None
        if self._queue is None:
            try:
                self._begin(run, late)
            except LoxError as error:
                if not late:
                    raise
                where = self._refused(run, error, quietly=True)
                refused = type(error)(f"{error} The program goes on; {where}")
        self._open[words] = run
        in_use(self)
        if self._queue is not None:
            self._put(functools.partial(self._begin, run))
        if refused is not None:
            raise refused
        return run

    def write(self, words: Words, logs: logdict, late: bool = True) -> None:
        """Sends logs to a run; `late` as in `open`."""
        error: Exception | None = None
        with self._lock:
            run = self._open.get(words)
            if run is None:
                if late and self._is_early(words):
                    self._early.setdefault(words, []).append(logs)
                    self._early_bytes += _size(logs)
                    in_use(self)
                    return
                run, error = self._started(words, late)
            if self._queue is None:
                self._write(run, logs, late)
                if self._error is not None:
                    self._raise_kept()
        if self._queue is not None:
            self._put(functools.partial(self._write, run, logs), _size(logs))
            if self._error is not None:
                self._raise_kept()
        if error is not None:
            raise error

    def write_row(
        self,
        words: Words,
        open_row: OpenRow,
        arrays: Sequence[Any],
    ) -> None:
        """Sends a row that a program hands over to a run, as quickly as possible.

        Args:
            words: those of the run's key.
            open_row: makes logs of the row.
            arrays: its values, and then its steps.
        """
        if self._write_row is not None:
            with self._lock:
                run = self._open.get(words)
                if run is not None and not run.failed:
                    try:
                        self._write_row(run.handle, open_row, arrays)
                    except self._caught as error:
                        self._written_despite(error, run, open_row(arrays))
                    if self._error is not None:
                        self._raise_kept()
                    return
        self.write(words, open_row(arrays))

    def _started(self, words: Words, late: bool) -> tuple[_OpenRun, Exception | None]:
        """A run that begins with its first logs, and what is to be raised after."""
        run = self._open.get(words)
        if run is not None:  # it has begun with what came early
            return run, None
        self._check_not_finished(words)
        error: Exception | None = None
        try:
            run = self._start(words, late)
        except LoxError as raised:
            run, error = self._open.get(words), raised
            if run is None:
                raise
        run.by_itself = True
        return run, error

    def _check_not_finished(self, words: Words) -> None:
        if words in self._finished:
            raise LoxValueError(
                f"{self.name} got logs for the run {run_name(words)}, which is "
                "finished. Begin a new one with `init`."
            )

    def _is_early(self, words: Words) -> bool:
        """Whether logs came without order, before it was said that their run begins."""
        logger = self.logger
        # where no program says it, as after a restart, it begins with its first logs
        if not logger._unordered or not logger._opens_inside:
            return False
        early = len(self._early.get(words, ()))
        if early < _MOST_EARLY and self._early_bytes < _MOST_EARLY_BYTES:
            return True
        self._write_early(words)
        return False

    def _write_early(self, words: Words) -> None:
        with self._lock:
            early = self._early.pop(words, None)
            if early is None:
                return
            self._early_bytes -= sum(map(_size, early))
            error: LoxError | None = None
            if words not in self._open:
                self._check_not_finished(words)
                try:
                    self._start(words, late=True)
                except LoxError as refused:
                    error = refused
                self._open[words].by_itself = True
            all_of(functools.partial(self.write, words, logs) for logs in early)
            if error is not None:
                raise error

    def close(self, words: Words) -> None:
        """Ends a run; `wait` tells when it has ended."""
        ways = self._write_early, self._end
        all_of(functools.partial(way, words) for way in ways)

    def _end(self, words: Words) -> None:
        with self._lock:
            run = self._open.pop(words, None)
            self._finished.add(words)
            self._ending.discard(words)
            if run is None:
                return
            if self._queue is None:
                self._leave_if_done()
                self._close(run)
                self._raise_kept()
                return
        self._put(functools.partial(self._close, run))
        self._raise_kept()

    def close_late(self, words: Words) -> None:
        """Ends a run once the program that asks for it has ended.

        Where events have no order, some may still come.
        """
        with self._lock:
            self._ending.add(words)

    def close_ending(self) -> None:
        early, ending = list(self._early), list(self._ending)
        if early or ending:
            writes = [functools.partial(self._write_early, words) for words in early]
            closes = [functools.partial(self.close, words) for words in ending]
            all_of([*writes, *closes, self.logger._wait])

    def wait(self) -> None:
        """Waits until the backend has all that it was given so far."""
        if self._queue is not None:
            generation = self._queue.generation
            if not self._queue.join():
                self._give_up(generation)
            with self._lock:
                self._leave_if_done()
        self._raise_kept()

    def _leave_if_done(self) -> None:
        if not self._open and not self._early:
            out_of_use(self)

    def close_all(self) -> None:
        """At exit."""
        words = {*self._open, *self._early}
        closes = [functools.partial(self.close, one) for one in words]
        ends = [] if self._queue is None else [self._queue.end]
        all_of([*closes, self.wait, *ends])

    # --- for the backend -------------------------------------------------------------

    def _put(self, job: "functools.partial[None]", size: int = 0) -> None:
        assert self._queue is not None
        generation = self._queue.generation
        while not self._queue.put(job, size):
            self._give_up(generation)
            generation = self._queue.generation

    def _give_up(self, generation: int) -> None:
        """The backend hangs: what it has not taken goes to the disk."""
        assert self._queue is not None
        with self._failing:
            if self._queue.generation != generation:  # another thread was quicker
                return
            patience = f"{self.logger.patience:g} s"
            error = TimeoutError(f"it has not answered for {patience}")
            waiting = (job.args[0] for job in self._queue.jobs())
            # before anybody works again, who would be caught by it as well
            for run in {*waiting, *list(self._open.values())}:
                run.hangs = True
                self._refused(run, error)
            for job in self._queue.give_up():  # which only write to the disk now
                job()

    def _begin(self, run: _OpenRun, late: bool = True) -> None:
        try:
            if not run.failed:
                run.handle = self.logger._begin(run.words, run.config, late)
                run.begun = True
        except LoxError as error:
            if self._queue is None:
                raise  # such as a run that is there: the user has to say what to do
            self._refused(run, error)
        except self._caught as error:
            self._refused(run, error)

    def _give_config(self, run: _OpenRun) -> None:
        """Tells the backend of a config that comes when the run has begun."""
        if not run.config or run.failed:
            return
        try:
            info = self.logger._info(run.words, run.config)
            if self.logger._adopt(run.handle, info):
                return
            reason = "whose backend takes none later"
        except self._caught as error:
            reason = f"and the backend failed with {error!r}"
        self._warn(
            run,
            f"`init` came after {_MOST_EARLY} rows of the run {run_name(run.words)}, "
            f"which had begun without its config, {reason}. Call `init` before the "
            "program that logs.",
        )

    def _write(self, run: _OpenRun, logs: logdict, late: bool = True) -> None:
        if run.failed:
            self._keep(run, logs)
            return
        try:
            self.logger.write(run.handle, logs)
        except self._caught as error:
            if not self._written_despite(error, run, logs, late):
                return
        if self._keeps:
            run.kept.append(logs)
            run.kept_bytes += _size(logs)
            if len(run.kept) >= _MOST_KEPT or run.kept_bytes >= _MOST_KEPT_BYTES:
                self._flush(run)

    def _written_despite(
        self, error: BaseException, run: _OpenRun, logs: logdict, late: bool = True
    ) -> bool:
        """Whether the backend took the logs; if not, they are kept on disk."""
        if isinstance(error, LoxWarning):  # an error to the user, but it is written
            self.raise_later(error)
            return True
        if not isinstance(error, LoxError):
            self._refused(run, error, logs)
        elif late:  # these logs are wrong, and the run is not
            self._set_aside(run, error, logs)
        else:
            raise error
        return False

    def _flush(self, run: _OpenRun) -> None:
        if not run.failed and run.kept:
            try:
                self.logger.flush(run.handle)
                run.kept, run.kept_bytes = [], 0
            except self._caught as error:
                self._refused(run, error)

    def _flush_all(self) -> None:
        for run in list(self._open.values()):
            self._flush(run)

    def _close(self, run: _OpenRun) -> None:
        self._flush(run)
        if run.unsent is not None:
            with contextlib.suppress(OSError):
                run.unsent.close()
        if run.begun and not run.hangs:
            try:
                self.logger.close(run.handle)
            except self._caught as error:
                if not run.failed:  # of which a warning has told
                    name = run_name(run.words)
                    self._warn(run, f"could not close the run {name}: {error!r}.")

    # --- for what a backend does not take --------------------------------------------

    def _refused(
        self,
        run: _OpenRun,
        error: BaseException,
        *logs: logdict,
        quietly: bool = False,
    ) -> str:
        """Keeps on disk what the backend does not take from now on, and says so."""
        with self._failing:
            if run.failed:  # a call that hung has come back after all
                return ""
            kept, run.kept = run.kept, []
            where = self._find_unsent(run)
            run.failed = True
            for each in (*kept, *logs):
                self._keep(run, each)
        if not quietly:
            self._warn_of(run, error, "it failed with", where)
        return where

    def _set_aside(self, run: _OpenRun, error: LoxError, logs: logdict) -> None:
        """Keeps on disk what the backend cannot take; it gets what comes after."""
        with self._failing:
            where = self._find_unsent(run)
            self._keep(run, logs)
        self._warn_of(run, error, "it could not take some logs:", where)

    def _find_unsent(self, run: _OpenRun) -> str:
        """Sees that there is a place on disk, and says what becomes of logs there."""
        try:
            if run.unsent is None:
                config = self.logger._info(run.words, run.config).config
                run.unsent = Unsent(self.name, run.words, config)
        except Exception as error:
            return f"what it does not take is lost, since {error}"
        return f"what it does not take is kept in {str(UNSENT)!r} (`lox.runs`)."

    def _warn_of(
        self, run: _OpenRun, error: BaseException, what: str, where: str
    ) -> None:
        # 64 runs that fail for one reason say so once
        reason = repr(error).replace(run_name(run.words), "")
        if reason not in self._failures:
            self._failures.add(reason)
            at = _line_of(self.logger, error)
            self._warn(run, f"{what} {error!r}{at}. The program goes on; {where}")

    def _keep(self, run: _OpenRun, logs: logdict) -> None:
        if run.unsent is None:  # of which a warning has told
            return
        try:
            with self._failing:
                run.unsent.write(logs)
        except Exception as error:  # of the next ones, there may be room for some
            if not run.loses:
                run.loses = True
                self._warn(run, f"what it does not take is lost, too: {error!r}")

    def _warn(self, run: _OpenRun, message: str) -> None:
        text = f"{self.name}: {message}"
        try:
            warnings.warn_explicit(text, LoxWarning, *run.line)
        except LoxWarning as error:
            self.raise_later(error)
        except Exception:  # there is nobody to tell, as where `sys.stderr` is closed
            pass

    def raise_later(self, error: Warning | LoxError) -> None:
        self._error = error

    def _raise_kept(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _line_of(logger: Any, error: BaseException) -> str:
    """The line of a backend of the user's own that raised."""
    if type(logger).__module__.partition(".")[0] == "lox":
        return ""
    file = inspect.getsourcefile(type(logger).open)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def _size(logs: logdict) -> int:
    size = 0
    for value in logs.values():
        try:
            size += value.nbytes
        except AttributeError:
            leaves = jax.tree.leaves(value)
            size += sum(getattr(leaf, "nbytes", 8) for leaf in leaves)
    return size
