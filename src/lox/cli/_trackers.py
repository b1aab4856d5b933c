"""Sends runs to experiment trackers, and logs that their loggers could not send."""

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

from lox._errors import LoxError, StoreError
from lox._store.locations import is_url
from lox._store.reader import Run
from lox._store.replaying import remove_replayed
from lox._store.runs import runs as runs_of
from lox._trackers import targets
from lox._trackers.backend import CommandOptions, TrackerBackend
from lox._trackers.sending import RunSender
from lox._trackers.sent import exclusive
from lox._trackers.unsent import UNSENT, Origin

from ._find import absolute, find_runs, is_run
from ._output import count_of, print_json, say_problems

# the options of the command, by their names in `CommandOptions`
_OPTIONS = {
    "project": "--project",
    "group": "--group",
    "tags": "--tag",
    "step": "--step",
    "histograms": "--histograms",
    "images": "--images",
}


class TrackerError(LoxError):
    """A tracker has failed to open a run, and would fail to open others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only trackers have."""
    names = ", ".join(targets.NAMES)
    group = parser.add_argument_group(f"options for trackers ({names})")
    add = group.add_argument
    add("--project", metavar="NAME", help="the project, or MLflow's experiment")
    add("--group", metavar="NAME", help="the group (default: the name of the store)")
    add("--tag", action="append", dest="tags", metavar="TAG", help="a tag for the runs")
    add("--step", metavar="NAME", help="the step to use as the x-axis")
    for kind in ("histograms", "images"):
        add(
            f"--{kind}",
            action="append",
            metavar="KEY",
            help=f"keys, by name or pattern, whose arrays are {kind}",
        )
    add("--again", action="store_true", help="send everything again, as new runs")
    add("--dry-run", action="store_true", help="only say what would be sent")


def unusable_options(arguments: Any) -> str | None:
    """The message about options that the target does not have, if there are any."""
    given = [name for name in _OPTIONS if getattr(arguments, name)]
    if arguments.to not in targets.NAMES:
        wrong = ["RUN"] if arguments.runs else []
        wrong += [_OPTIONS[name] for name in given]
        wrong += ["--again"] if arguments.again else []
        wrong += ["--dry-run"] if arguments.dry_run else []
        only = f"only if --to is a tracker ({', '.join(targets.NAMES)})"
        return f"{', '.join(wrong)}: {only}" if wrong else None
    if arguments.overwrite:
        return "--overwrite: only for copies; --again sends runs once more"
    unused = targets.tracker_class(arguments.to).unused_options
    wrong = [_OPTIONS[name] for name in given if name in unused]
    return f"{', '.join(wrong)}: not for {arguments.to}" if wrong else None


@dataclasses.dataclass
class Report:
    """What was sent, or would be.

    Attributes:
        to: the name of the tracker.
        project: the project of the runs of the store, if it is known.
        dry_run: whether nothing was sent.
        found: the number of runs that were found, and of unsent logs of loggers.
        runs: the number of rows that were sent, by run.
        unsent: the number of rows sent of logs that a logger could not send, by run.
        unfinished: the runs that are still being written.
        skipped: why something was not sent.
        errors: what went wrong.
    """

    to: str
    project: str | None = None
    dry_run: bool = False
    found: int = 0
    runs: dict[str, int] = dataclasses.field(default_factory=dict)
    unsent: dict[str, int] = dataclasses.field(default_factory=dict)
    unfinished: list[str] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    errors: dict[str, str] = dataclasses.field(default_factory=dict)


def run(arguments: Any) -> int:
    sync = _Sync(arguments)
    report = sync.update()
    _print(report, arguments.json, reported=None)
    try:
        while arguments.follow and report.unfinished and not arguments.dry_run:
            time.sleep(arguments.interval)
            reported = {**report.skipped, **report.errors}
            report = sync.update()
            _print(report, arguments.json, reported)
    finally:
        sync.close()
    return 1 if report.errors else 0


class _Sync:
    """Sends what the command line names, and later what is new."""

    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments
        self._store = arguments.store
        if is_url(self._store):  # the store records what was sent
            raise StoreError(
                f"{self._store} is not a directory of this machine. Copy it to one "
                f"first: `lox sync {self._store} --to DIRECTORY`."
            )
        self._senders: dict[str, RunSender] = {}
        self._unsent, self._only_unsent = self._find_unsent()
        if not self._only_unsent and not os.path.isdir(self._store):
            raise StoreError(f"there is no store at {self._store}.")
        if self._find():  # raises before the tracker is loaded, which takes seconds
            _ = self._backend

    @functools.cached_property
    def _backend(self) -> TrackerBackend:
        options = {name: getattr(self._arguments, name) for name in _OPTIONS}
        given = {name: value for name, value in options.items() if value}
        with _quiet():
            return targets.open_tracker(
                self._arguments.to, CommandOptions(_label(self._store), **given)
            )

    def _find(self) -> list[Run]:
        """The runs of the store that the command line names."""
        if self._only_unsent:
            return []
        given = pathlib.Path(self._store)
        try:
            return list(find_runs([self._store, *self._arguments.runs]))
        except StoreError:
            # a directory may have nothing but logs that were not sent
            if self._unsent is None or self._unsent.parent != given:
                raise
            return []

    def _find_unsent(self) -> tuple[pathlib.Path | None, bool]:
        """The directory of logs that loggers could not send; whether it was named."""
        if self._arguments.runs:
            return None, False
        given = pathlib.Path(self._store)
        if given.name == UNSENT.name and _is_unsent(given):
            return given, True
        inner = given / UNSENT.name
        return next((path for path in (inner, UNSENT) if path.is_dir()), None), False

    def update(self) -> Report:
        """Sends what is new."""
        arguments = self._arguments
        report = Report(arguments.to, dry_run=arguments.dry_run)
        try:
            for run in self._find():
                report.found += 1
                report.project = self._backend.project
                self._send(run, report)
            if self._unsent is not None and self._unsent.is_dir():
                _Replay(self._unsent, report).send()
        except TrackerError as error:
            report.errors[arguments.to] = str(error)
        if report.runs and not arguments.dry_run:
            for pattern in self._backend.unmatched():
                report.skipped[pattern] = (
                    f"no key matches {pattern!r}; available: "
                    f"{', '.join(map(repr, self._backend.seen()))}."
                )
        return report

    def _send(self, run: Run, report: Report) -> None:
        path = absolute(str(run.path))
        sender = self._senders.get(path)
        name = path if run.name in report.runs else run.name
        try:
            if sender is None or sender.run.started != run.started:
                sender = RunSender(run, self._backend, self._arguments.again)
                self._senders[path] = sender
            is_running = sender.ending == "running"
            if is_running:
                report.unfinished.append(name)
            if sender.handle is None and sender.is_up_to_date():
                return
            if self._arguments.dry_run:
                report.runs[name] = sender.new_rows()
                return
            keep_open = is_running and self._arguments.follow
            with exclusive(run), _tracker_errors(self._arguments.to, sender):
                rows = sender.send(keep_open)
            if rows or not keep_open:
                report.runs[name] = rows
        except TrackerError:
            raise
        except (LoxError, OSError) as error:
            report.errors[name] = str(error)

    def close(self) -> None:
        """Closes the runs that are followed, so that they can be continued later."""
        for sender in self._senders.values():
            if sender.handle is not None:
                with _tracker_errors(self._arguments.to):
                    sender.close("running")


class _Replay:
    """Sends the logs that loggers could not send to their trackers' runs.

    Args:
        directory: the directory of the logs.
        report: the report to add to.
    """

    def __init__(self, directory: pathlib.Path, report: Report) -> None:
        self._directory = directory
        self._report = report
        # by their settings, which many runs share
        self._backends: dict[str, TrackerBackend] = {}

    def send(self) -> None:
        found = sorted(runs_of(self._directory), key=lambda run: run.started)
        others: dict[str, int] = {}
        origins: dict[Run, Origin] = {}
        for run in found:
            with self._reported(run):
                origin = Origin.read(run)
                if origin is not None and origin.tracker == self._report.to:
                    origins[run] = origin
                else:
                    kind = run.name.partition("-")[0]
                    others[kind] = others.get(kind, 0) + 1
        failed: dict[str, TrackerError] = {}
        for run in list(origins):
            self._report.found += 1
            settings = json.dumps(origins[run].settings)
            if settings in failed:
                continue
            try:
                with self._reported(run):
                    self._send(run, origins)
            except TrackerError as error:  # logs with other settings may be sent
                failed[settings] = error
        runs = count_of(len(found), "run")
        for kind, count in others.items():
            self._report.skipped[kind] = (
                f"{count} of {runs} in {self._directory}: logs of {kind}, which does "
                f"not send to {self._report.to}."
            )
        if failed:
            raise next(iter(failed.values()))

    @contextlib.contextmanager
    def _reported(self, run: Run) -> Iterator[None]:
        try:
            yield
        except TrackerError:
            raise
        except (LoxError, OSError) as error:
            self._report.errors[run.name] = str(error)

    def _send(self, run: Run, origins: dict[Run, Origin]) -> None:
        if run.status == "running":
            self._report.unfinished.append(run.name)
            return
        if self._report.dry_run:
            self._report.unsent[run.name] = run.rows
            return
        origin = origins[run]
        with _tracker_errors(self._report.to):
            sender = RunSender(
                run,
                self._backend(origin),
                info=origin.info(run),
                resumed=origin.resumed(run, origins.values()),
            )
        with exclusive(run), _tracker_errors(self._report.to, sender):
            self._report.unsent[run.name] = sender.send()
            del origins[run]
            # later logs of the same run are sent next, perhaps by another command
            for later, other in origins.items():
                if other.token == origin.token:
                    origins[later] = other.following(sender.state)
                    origins[later].write(pathlib.Path(later.path))
            remove_replayed(pathlib.Path(run.path))

    def _backend(self, origin: Origin) -> TrackerBackend:
        settings = json.dumps(origin.settings)
        if settings not in self._backends:
            backend = targets.reopen_tracker(origin.tracker, origin.settings)
            self._backends[settings] = backend
        return self._backends[settings]


@contextlib.contextmanager
def _tracker_errors(tracker: str, sender: RunSender | None = None) -> Iterator[None]:
    """Raises errors of a tracker with its own message, on one line.

    Args:
        tracker: the name of the tracker.
        sender: what sends the run; if the tracker has opened it, other runs may follow.
    """
    try:
        with _quiet():
            yield
    except StoreError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, LoxError) else f"{type(error).__name__}: "
        text = f"{tracker}: {kind}{' '.join(str(error).split())}"
        if sender is not None and sender.was_opened:
            raise LoxError(f"{sender.run.name}: {text}") from error
        raise TrackerError(text) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses what trackers print about each run on stdout."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _is_unsent(directory: pathlib.Path) -> bool:
    """Whether a directory of that name has the logs that loggers could not send."""
    if pathlib.Path(absolute(str(directory))).parent.name == UNSENT.parent.name:
        return True
    found = runs_of(directory) if directory.is_dir() else []
    return any(Origin.read(run) is not None for run in found)


def _label(store: str) -> str:
    """A name for the store: that of its directory, or of the one around `.lox`."""
    path = pathlib.Path(absolute(store))
    path = path.parent if is_run(store) else path
    named = [part for part in path.parts[1:] if not part.startswith(".")]
    return named[-1] if named else "lox"


def _print(report: Report, as_json: bool, reported: dict[str, str] | None) -> None:
    """Prints a report.

    Args:
        report: the report of one update.
        as_json: whether to print JSON.
        reported: what was reported about the previous update; None if this is the
            first.
    """
    say_problems(report.skipped, report.errors, reported, "not sent")
    if as_json:
        print_json(dataclasses.asdict(report))
    elif report.runs or report.unsent or (reported is None and not report.errors):
        print(_as_text(report), flush=True)


def _as_text(report: Report) -> str:
    """Formats a report: `sent 300 rows of 3 runs to wandb; 2 runs not finished`."""
    project = f" (project {report.project})" if report.project else ""
    sent = []
    if report.runs:
        rows = count_of(sum(report.runs.values()), "row")
        runs = count_of(len(report.runs), "run")
        sent.append(f"{rows} of {runs} to {report.to}{project}")
    if report.unsent:
        rows = count_of(sum(report.unsent.values()), "row")
        sent.append(f"{rows} that loggers could not send to {report.to}")
    text = f"{'would send' if report.dry_run else 'sent'} {', and '.join(sent)}"
    if not sent:
        found = f" in {count_of(report.found, 'run')}" if report.found else ""
        text = f"nothing new for {report.to}{found}"
    if report.unfinished:
        text += f"; {count_of(len(report.unfinished), 'run')} not finished"
    return text
