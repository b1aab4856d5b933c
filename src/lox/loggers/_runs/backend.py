"""Calls the backend of a logger; logs that it does not accept are saved on disk."""

import contextlib
import inspect
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from lox._errors import LoxError, LoxWarning
from lox._logs.logdict import RowToLogs, logdict
from lox._source import user_line
from lox._store.keys import run_name
from lox._trackers.unsent import Origin, new_token

from .config import plain_config
from .spill import Chunk, Spill
from .unsent import UNSENT, Unsent, UnsentRuns

if TYPE_CHECKING:
    from lox.loggers._base import Logger

# the words of a run's key
Words = tuple[int, ...]
# Writes a row to an open run. Its arguments are what `open` has returned, a function
# that converts the row to logs, and the arrays of the row.
RowWriter = Callable[[Any, RowToLogs, Sequence[Any]], None]
# how much a backend may buffer before `flush` is called
_MAX_UNFLUSHED = 1000
_MAX_UNFLUSHED_BYTES = 16 << 20


class OpenRun:
    """A run that is open.

    Attributes:
        words: the words of its key.
        config: its config, without the config of the logger.
        handle: what the backend's `open` has returned.
        devices: the number of devices that have opened it.
        opened_by_logs: whether it was opened by its first logs, before `init`.
        failed: whether the backend has failed; then all logs are saved on disk.
        hangs: whether the backend has not returned from a call.
        spills: whether logs go to disk when the queue is full.
        spill: the logs that wait on disk.
    """

    def __init__(self, words: Words, config: Mapping[str, Any]) -> None:
        self.words = words
        self.config = config
        self.handle: Any = None
        self.devices = 0
        self.opened_by_logs = False
        self.failed = False
        self.hangs = False
        # the line that has opened it, for warnings
        self.line = user_line()
        # whether the backend has opened it
        self.is_open = False
        # logs that the backend may have buffered, and their size
        self.unflushed: list[logdict] = []
        self.unflushed_bytes = 0
        self.spills = False
        self.spill: Spill | None = None
        # identifies all logs of the run that are saved on disk
        self.token = new_token()
        # the logs that are saved on disk
        self.unsent: Unsent | None = None
        # how many logs could not be saved, and whether a warning has reported it
        self.losses = 0
        self.loss_reported = False


class Backend:
    """The backend of a logger.

    Attributes:
        name: the name of the logger, for messages.
        lock: held while a run fails, and while logs are saved on disk.
        error: an error to raise in the next call by the user, if any.
        write_row: a faster `write` for single rows of programs, if there is one.
    """

    def __init__(self, logger: "Logger") -> None:
        self.name = type(logger).__name__
        self._logger = logger
        self._buffers = logger._buffers()
        self._in_background = logger.background
        # in a background thread, a backend may also try to exit
        self._caught = BaseException if logger.background else Exception
        self._reported: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Drops all state of runs, initially and in forked processes."""
        self.lock = threading.RLock()
        # Kept until the user's next call, because raising it earlier would lose logs: a
        # warning that the user's filters make an error, or the error of one logger of
        # several.
        self.error: Warning | LoxError | None = None
        direct = not self._in_background and not self._buffers
        self.write_row = self._logger._row_writer() if direct else None

    def open(self, run: OpenRun, late: bool = True) -> None:
        try:
            if not run.failed:
                run.handle = self._logger._open_run(run.words, run.config, late)
                run.is_open = True
        except LoxError as error:
            if not self._in_background:
                raise  # such as a run that already exists: the user has to decide
            self.fail(run, error)
        except self._caught as error:
            self.fail(run, error)

    def set_config(self, run: OpenRun) -> str:
        """Sets the config of an open run; returns why it cannot, if it cannot."""
        if not run.config or run.failed:
            return ""
        try:
            info = self._logger._run_info(run.words, run.config)
            if self._logger._set_config(run.handle, info):
                return ""
            return "and its backend cannot change it"
        except self._caught as error:
            return f"and its backend failed to change it: {error!r}"

    def write(self, run: OpenRun, logs: logdict, late: bool = True) -> None:
        if run.failed:
            self._save(run, logs)
            return
        try:
            self._logger.write(run.handle, logs)
        except self._caught as error:
            if not self._handle_error(error, run, logs, late):
                return
        if self._buffers:
            run.unflushed.append(logs)
            run.unflushed_bytes += size_of(logs)
            if (
                len(run.unflushed) >= _MAX_UNFLUSHED
                or run.unflushed_bytes >= _MAX_UNFLUSHED_BYTES
            ):
                self.flush(run)

    def try_write_row(
        self, run: OpenRun, to_logs: RowToLogs, arrays: Sequence[Any]
    ) -> bool:
        """Writes a row with `write_row`; returns False if that is not possible."""
        if self.write_row is None or run.failed:
            return False
        try:
            self.write_row(run.handle, to_logs, arrays)
        except self._caught as error:
            self._handle_error(error, run, to_logs(arrays))
        return True

    def _handle_error(
        self, error: BaseException, run: OpenRun, logs: logdict, late: bool = True
    ) -> bool:
        """Saves logs that the backend did not write; returns whether it wrote them."""
        if isinstance(error, LoxWarning):  # the user's filters make warnings errors
            self.raise_later(error)
            return True
        if not isinstance(error, LoxError):
            self.fail(run, error, logs)
        elif late:  # these logs are invalid, but the run is not
            self._save_invalid(run, error, logs)
        else:
            raise error
        return False

    def flush(self, run: OpenRun) -> None:
        if not run.failed and run.unflushed:
            try:
                self._logger.flush(run.handle)
                run.unflushed, run.unflushed_bytes = [], 0
            except self._caught as error:
                self.fail(run, error)

    def close(self, run: OpenRun) -> None:
        self.flush(run)
        if run.unsent is not None:
            with contextlib.suppress(OSError):
                run.unsent.close()
        if run.is_open and not run.hangs:
            try:
                self._logger.close(run.handle)
            except self._caught as error:
                if not run.failed:  # else a warning has reported it
                    name = run_name(run.words)
                    self.warn(run, f"could not close the run {name}: {error!r}.")

    def sync(self) -> None:
        try:
            self._logger._sync()
        except self._caught as error:
            self.warn(None, f"could not flush closed runs to disk: {error!r}.")

    # --- logs that wait on disk ------------------------------------------------------

    def spill(self, run: OpenRun, logs: logdict, size: int) -> bool:
        """Writes logs to disk, to be sent later; False if that is not possible."""
        try:
            if run.spill is None:
                config = self._logger._run_info(run.words, run.config).config
                origin = self._origin(run)
                # other logs come before them
                following = None if origin is None else origin.following()
                runs = UnsentRuns(self.name, run.words, config, following)
                run.spill = Spill(self.name, runs)
            run.spill.write(logs, size)
        except Exception as error:  # such as a full disk
            self._warn_once(
                run,
                "disk",
                f"its queue is full, and logs cannot be written to disk: {error!r}. "
                "The program waits instead.",
            )
            return False
        self._warn_once(
            run,
            "spill",
            "its queue is full, because the backend is slower than the program. Logs "
            f"wait in {str(UNSENT)!r} until they are sent.",
        )
        return True

    def send_chunk(
        self, run: OpenRun, chunk: Chunk, part_done: Callable[[], bool]
    ) -> None:
        """Sends logs that wait on disk, and removes them.

        If the run has failed, they become unsent logs.

        Args:
            run: the run.
            chunk: the logs.
            part_done: called after each part; returns whether to go on. If the backend
                hangs, another thread continues with the chunk.
        """
        losses = run.losses
        chunk.begin(self._origin(run))
        try:
            for call, logs in chunk.remaining():
                self.write(run, logs)
                with self.lock:
                    if not part_done():
                        return
                    chunk.mark_done(call)
        except Exception as error:  # it cannot be read
            chunk.forget()
            self.warn(run, f"logs were not sent, and stay in {chunk.path}: {error!r}")
            return
        # a backend that buffers logs has them only now
        self.flush(run)
        with self.lock:
            if not part_done():
                return
            chunk.forget()
            if run.losses != losses:  # they could not be saved as unsent logs
                return
            try:
                chunk.remove()
            except OSError as error:
                self.warn(run, f"logs that were sent stay in {chunk.path}: {error!r}")

    def _warn_once(self, run: OpenRun, reason: str, message: str) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            self.warn(run, message)

    # --- failures --------------------------------------------------------------------

    def fail(
        self,
        run: OpenRun,
        error: BaseException,
        *logs: logdict,
        quietly: bool = False,
    ) -> str:
        """Marks a run as failed, and saves its logs on disk from now on.

        Args:
            run: the run.
            error: the error of the backend.
            *logs: the logs that it has not written, besides those it has buffered.
            quietly: whether to leave out the warning.

        Returns:
            The end of a message, which says where the logs are.
        """
        with self.lock:
            if run.failed:  # a call that seemed to hang has returned
                return ""
            unflushed, run.unflushed = run.unflushed, []
            where = self._open_unsent(run)
            run.failed = True
            for each in (*unflushed, *logs):
                self._save(run, each)
        if not quietly:
            self._report(run, error, "it failed with", where)
        return where

    def _save_invalid(self, run: OpenRun, error: LoxError, logs: logdict) -> None:
        """Saves logs that the backend cannot write; it gets all later ones."""
        with self.lock:
            where = self._open_unsent(run)
            self._save(run, logs)
        self._report(run, error, "it could not write some logs:", where)

    def _open_unsent(self, run: OpenRun) -> str:
        """Creates the files of unsent logs; returns the end of a message about them."""
        origin = self._origin(run)
        try:
            if run.unsent is None:
                config = self._logger._run_info(run.words, run.config).config
                runs = UnsentRuns(self.name, run.words, config, origin)
                run.unsent = Unsent(runs)
        except Exception as error:
            return f"logs that it does not accept are lost, because {error}"
        hint = f"lox sync {UNSENT} --to {origin.tracker}" if origin else "lox.runs"
        return f"logs that it does not accept are kept in {str(UNSENT)!r} (`{hint}`)."

    def _origin(self, run: OpenRun) -> Origin | None:
        """The tracker's run that logs belong to, if `lox sync` can send them."""
        handle = run.handle if run.is_open else None
        try:
            info = self._logger._run_info(run.words, run.config)
            found = self._logger._origin(handle, info)
            if found is None:
                return None
            return Origin(**plain_config(found), token=run.token)
        except Exception:  # the logs are kept without it
            return None

    def _save(self, run: OpenRun, logs: logdict) -> None:
        if run.unsent is None:  # a warning has reported it
            run.losses += 1
            return
        try:
            with self.lock:
                run.unsent.write(logs)
        except Exception as error:  # try again with the next logs: they may be smaller
            run.losses += 1
            if not run.loss_reported:
                run.loss_reported = True
                self.warn(run, f"logs that it does not accept are lost: {error!r}")

    def _report(
        self, run: OpenRun, error: BaseException, what: str, where: str
    ) -> None:
        # once for all runs that fail for the same reason
        reason = repr(error).replace(run_name(run.words), "")
        if reason not in self._reported:
            self._reported.add(reason)
            line = _line_of(self._logger, error)
            self.warn(run, f"{what} {error!r}{line}. The program continues; {where}")

    def warn(self, run: OpenRun | None, message: str) -> None:
        text = f"{self.name}: {message}"
        line = user_line() if run is None else run.line
        try:
            warnings.warn_explicit(text, LoxWarning, *line)
        except LoxWarning as error:
            self.raise_later(error)
        except Exception:  # it cannot be shown: for example, `sys.stderr` is closed
            pass

    def raise_later(self, error: Warning | LoxError) -> None:
        self.error = error

    def raise_error(self) -> None:
        """Raises the error of `raise_later`, if any."""
        error, self.error = self.error, None
        if error is not None:
            raise error


def _line_of(logger: Any, error: BaseException) -> str:
    """The line that raised, in a backend that is not part of lox."""
    if type(logger).__module__.partition(".")[0] == "lox":
        return ""
    file = inspect.getsourcefile(type(logger).open)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def size_of(logs: logdict) -> int:
    """The size of the values in bytes."""
    size = 0
    for value in logs.values():
        try:
            size += value.nbytes
        except AttributeError:
            leaves = jax.tree.leaves(value)
            size += sum(getattr(leaf, "nbytes", 8) for leaf in leaves)
    return size
