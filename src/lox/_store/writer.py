"""Writes logs to a run."""

import contextlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from lox._errors import ShapeError, StoreError
from lox._logs.access import metadata_of
from lox._logs.logdict import RowToLogs, logdict
from lox._serialized import SerializedCalls

from .format import (
    FINISHED,
    RUN_FILE,
    VERSION,
    WRITER,
    display_path,
    numbered,
    read_json,
    write_json,
)
from .growing_file import removed_error
from .local_files import locked
from .owners import mark_closed, mark_open
from .records import Plan, records_of
from .schema import Form, Schema
from .segment_writer import SegmentWriter
from .statuses import Ending
from .times import TIMES, EventClock

_MAX_PLANS = 1000


class Writer:
    """Appends logs to a run, in a separate directory, so that many can write.

    No other writer of the run ever gets the number of the directory. So a writer whose
    rows were replaced notices that they are gone, and does not touch those of others.
    It raises one `FileNotFoundError`, and writes later logs to a new directory.

    Args:
        run: the directory of the run.
        replaces: whether `begin_run` replaces an existing run.
        tracked: whether a file says which process has the writer open, so that others
            can tell whether the run is still running.
        timed: whether to record when rows are written.

    Attributes:
        number: the number of the writer's directory.
        directory: the writer's directory.
        count: the number of events so far, which is the number of the next one.
    """

    def __init__(
        self,
        run: pathlib.Path,
        replaces: bool = False,
        tracked: bool = False,
        timed: bool = True,
    ) -> None:
        self._run = run.absolute()  # the process may change its directory
        self._replaces = replaces
        self._tracked = tracked
        self._timed = timed
        self._plans: dict[Any, Plan] = {}
        self._last_plan: Plan | None = None
        # the segments that rows of programs are appended to without analysis
        self._row_segments: dict[RowToLogs, SegmentWriter] = {}
        self._calls = SerializedCalls()
        self._lock = self._calls.lock
        self._start_directory()

    def _start_directory(self) -> None:
        try:
            # a number above 0 shows that the run has replaced another
            self.number, self.directory, self._started = _claim_directory(
                self._run, int(self._replaces)
            )
        except OSError as error:
            raise StoreError(
                f"cannot write to the run at {display_path(self._run)}: {error}."
            ) from error
        if self._tracked:
            mark_open(self.directory)
        self._segments: dict[Schema, SegmentWriter] = {}
        self._all_segments: list[SegmentWriter] = []
        self._forms: dict[str, Form] = {}
        self._segment_count = 0
        self._forget_plans()
        self.count = 0
        self._clock = EventClock(self.directory) if self._timed else None
        self._removed = False
        # whether rows could not be written, because the disk is full or has failed
        self._incomplete = False

    def begin_run(self, description: dict[str, Any]) -> None:
        """Writes `run.json`, as the first writer of the run.

        If the run replaces another one, writers with lower numbers are not part of the
        run from then on. If a writer with a higher number has replaced the run since,
        its `run.json` stays, and this writer is not part of the run. If the run is new,
        raises `FileExistsError` if another process was faster.
        """
        if not self._replaces:
            write_json(self._run / RUN_FILE, description, new=True)
        else:
            description = {**description, "first_writer": self.number}
            with locked(self._run):
                first, _ = _replacements(self._run)
                if first > self.number:  # a lower one would let numbers be used again
                    return
                write_json(self._run / RUN_FILE, description)
        self._started = description["started"]

    def set_config(self, config: dict[str, Any], before: Any) -> None:
        """Sets the config of the run, unless it has another one than `before`.

        A resumed run keeps its own config, and so does a run that has replaced this
        one.
        """
        with locked(self._run):
            description = read_json(self._run / RUN_FILE)
            is_later = description.get("first_writer", 0) > self.number
            is_ours = not is_later and description["started"] == self._started
            if is_ours and description["config"] == before:
                write_json(self._run / RUN_FILE, {**description, "config": config})

    def write(self, logs: logdict) -> None:
        """Writes all rows to the operating system, which writes them to disk."""
        self._calls.call(self._write, logs)

    def write_row(self, to_logs: RowToLogs, arrays: Sequence[Any]) -> None:
        """Writes one row of a program.

        Args:
            to_logs: converts the row to logs.
            arrays: the values of the row, and then its steps.
        """
        self._calls.call(self._write_row, to_logs, arrays)

    def _write_row(self, to_logs: RowToLogs, arrays: Sequence[Any]) -> None:
        segment = self._row_segments.get(to_logs)
        if segment is None or not segment.intact:
            segment = self._write(to_logs(arrays))
            if segment is not None and segment.can_append_row(arrays):
                if len(self._row_segments) > _MAX_PLANS:
                    self._row_segments.clear()
                self._row_segments[to_logs] = segment
            return
        try:
            segment.append_row(arrays, self._next_number(1))
        except OSError as error:
            self._handle_error(error)
            raise

    def _write(self, logs: logdict) -> SegmentWriter | None:
        """Writes logs; returns their segment, if it is a single one."""
        if self._removed:
            self._start_directory()
        try:
            return self._write_rows(logs)
        except OSError as error:
            self._handle_error(error)
            raise

    def _handle_error(self, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            self._handle_removal()
        else:
            self._incomplete = True

    def _handle_removal(self) -> None:
        """Handles the removal of the writer's directory."""
        self._removed = True
        self._close_segments()

    def _write_rows(self, logs: logdict) -> SegmentWriter | None:
        plan = self._plan_for(logs)
        if plan is not None and plan.segment.intact:
            arrays = plan.arrays(logs)
            if arrays is not None:
                length = len(arrays[0]) if plan.stacked else 1
                if length:
                    number = self._next_number(length)
                    plan.segment.append_encoded(arrays, length, number)
                return plan.segment
        segments = []
        records = list(records_of(logs))
        for schema, _ in records:  # check all before writing any
            self._check(schema)
        for schema, arrays in records:
            segment = self._segment(schema)
            segment.append(arrays, self._next_number(len(arrays[0])))
            segments.append(segment)
        if len(segments) != 1:
            return None
        if Plan.supports(logs):
            if len(self._plans) > _MAX_PLANS:
                self._plans.clear()
            self._last_plan = Plan(logs, segments[0])
            self._plans[Plan.key_of(logs)] = self._last_plan
        return segments[0]

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._last_plan = None
        self._row_segments.clear()

    def _plan_for(self, logs: logdict) -> Plan | None:
        # events of one `lox.log` call share their `info`
        last, info = self._last_plan, metadata_of(logs).info
        if last is not None and last.info is info and last.has_names_of(logs):
            return last
        plan = self._plans.get(Plan.key_of(logs))
        if plan is not None:
            plan.info = info
            self._last_plan = plan
        return plan

    def _next_number(self, count: int) -> int:
        """The number of the next event; used up even if writing fails."""
        number = self.count
        self.count += count
        if self._clock is not None:
            self._clock.tick(number)
        return number

    def _segment(self, schema: Schema) -> SegmentWriter:
        found = self._segments.get(schema)
        if found is not None and found.intact:
            return found
        if found is not None:
            found.close()
            del self._segments[schema]
        for other in [*self._segments.values()][:1]:
            other.check()
        path = self.directory / f"{self._segment_count:04d}"
        self._segment_count += 1
        try:
            segment = SegmentWriter(path, schema)
        except (FileExistsError, FileNotFoundError) as error:
            # the directory was removed, and perhaps created again by another writer
            raise removed_error(self.directory) from error
        try:
            self._check_not_replaced()
        except BaseException:
            segment.discard()
            raise
        self._segments[schema] = segment
        self._all_segments.append(segment)
        return segment

    def _check_not_replaced(self) -> None:
        """Raises if the writer is no longer part of the run.

        Called after the files are created: either this reads the new `run.json`, or the
        process that has written it sees the files, and removes them.
        """
        first, started = _replacements(self._run)
        # a run that replaces another has a `first_writer`; one that was created after
        # the other was deleted has none, but another start time
        is_known = not first and None not in (started, self._started)
        if first > self.number or (is_known and started != self._started):
            raise removed_error(self.directory)

    def _check(self, schema: Schema) -> None:
        """Raises if rows could not be loaded together with previous rows."""
        if schema in self._segments:
            return
        forms = {key.name: schema.form(key) for key in schema.keys}
        for name, form in forms.items():
            before = self._forms.get(name, form)
            if not form.joins(before):
                raise ShapeError(
                    f"{name!r} was saved with {before}, and cannot be saved with "
                    f"{form} as well. Use another name for one of them."
                )
        self._forms |= forms

    def paths(self) -> list[str]:
        """The files and directories to flush to disk, for `flush_to_disk`."""
        with self._lock:
            files = [self._run / RUN_FILE, self.directory.with_suffix(".json")]
            for segment in self._all_segments:
                files += segment.files
            if self._timed and self.count:
                files.append(self.directory / TIMES)
            # directories too, so that new files and directories in them are not lost
            directories = self.directory, *self.directory.parents[:3]
            return [str(path) for path in (*files, *directories)]

    def finish(self, error: BaseException | None = None) -> None:
        """Writes how the writer ended, and a list of all its rows, to detect losses.

        Writes nothing if the run was replaced since the last row.

        Args:
            error: the exception that ends the process, if any.
        """
        with self._lock:
            try:
                for segment in self._segments.values():
                    segment.check()
            except FileNotFoundError:
                self._handle_removal()
            if (self._all_segments or error is not None) and not self._removed:
                segments = [
                    [int(segment.path.name), segment.count, segment.names]
                    for segment in self._all_segments
                ]
                content = {"version": VERSION, "segments": segments}
                content |= Ending.now(error).to_json()
                if self._incomplete:
                    content["incomplete"] = True
                self._end_times()
                # optional: without it, everything can be read
                with contextlib.suppress(OSError, StoreError):
                    write_json(self.directory.with_suffix(".json"), content)

    def close(self) -> None:
        with self._lock:
            self._close_segments()
            if self._tracked and not self._removed:  # else another writer may own it
                mark_closed(self.directory)
            # a directory that had segments may belong to another writer by now
            if not self._segment_count:
                with contextlib.suppress(OSError):
                    self.directory.rmdir()

    def _end_times(self) -> None:
        if self._clock is not None:
            self._clock.end(self.count)

    def _close_segments(self) -> None:
        self._end_times()
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._forget_plans()


def _claim_directory(run: pathlib.Path, lowest: int) -> tuple[int, pathlib.Path, Any]:
    """Creates a directory with a number that was never used in this run.

    Returns:
        The number, the directory, and the run's start time, if known.
    """
    while True:
        first, _ = _replacements(run)
        names = os.listdir(run)
        used = [*numbered(names, WRITER), *numbered(names, FINISHED)]
        number = max([lowest, first, *(n + 1 for n, _ in used)])
        path = run / f"writer-{number:04d}"
        try:
            path.mkdir()
        except FileExistsError:  # another writer was faster
            continue
        # if another process replaces the run from now on, it removes the directory
        first, started = _replacements(run)
        if first <= number:
            return number, path, started
        with contextlib.suppress(OSError):
            path.rmdir()


def _replacements(run: pathlib.Path) -> tuple[int, Any]:
    """The first writer that is part of a run, and the run's start time, if known."""
    try:
        description = read_json(run / RUN_FILE)
    except (OSError, StoreError):
        return 0, None
    first = description.get("first_writer", 0)
    return (first if type(first) is int else 0), description.get("started")
