"""The runs of a store as the page needs them, also while they are being written."""

import functools
import os
import pathlib
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lox._errors import LoxWarning, StoreError
from lox._store.configs import flat_config
from lox._store.format import FINISHED, TEMPORARY, WRITER
from lox._store.local_files import LocalLocation
from lox._store.locations import is_url
from lox._store.processes import is_part
from lox._store.reader import Run, writers_of
from lox._store.runs import is_run

from .axes import CommonSteps
from .grouping import show
from .mirror import Mirror
from .signals import HISTOGRAM, IMAGE, SCALAR, Leaf, Signal, as_numbers, signals_of

_MAX_PROBLEMS = 20
# how often to check whether the processes of running runs still exist
_STATUS_SECONDS = 3.0


class RunSource:
    """One run.

    Attributes:
        number: the number of the run on the page.
        run: its description.
        config: its config, with paths as keys.
        signals: what it can show, by name.
        rows: the number of its rows.
        status: whether it is running, or how it has ended.
        version: the version of the store in which it last changed.
    """

    def __init__(self, number: int, run: Run, version: int) -> None:
        self.number = number
        self.run = run
        self.version = version
        self.config = flat_config(run.config)
        writers = writers_of(run)
        self.signals = signals_of(writers)
        self.rows = sum(s.count for w in writers for s in w.segments)
        self.status = run.status

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """What the table of runs shows."""
        return {
            "id": self.number,
            "name": self.run.name,
            "status": self.status,
            "started": self.run.started,
            "rows": self.rows,
            "config": {key: show(value) for key, value in self.config.items()},
            "last": {
                name: _last(signal)
                for name, signal in self.signals.items()
                if signal.kind == SCALAR
            },
        }


def _last(signal: Signal) -> float | None:
    """The last value of a scalar; with several lanes, the mean of those that logged."""
    try:
        leaf = _last_leaf(signal.leaves)
        last = leaf.segment.count - 1
        rows = leaf.read(leaf.position, leaf.column, last)
        mask = leaf.mask(last)
    except StoreError:  # a chart of it says what is wrong
        return None
    if mask is not None:
        rows = rows[np.broadcast_to(mask, rows.shape[:2])]
    return float(as_numbers(rows.reshape(-1)).mean()) if rows.size else None


def _last_leaf(leaves: Sequence[Leaf]) -> Leaf:
    """The part with the row that was written last."""
    writers = [(leaf.writer.process, leaf.writer.number) for leaf in leaves]
    found = [x for x, at in zip(leaves, writers, strict=True) if at == max(writers)]
    if len(found) == 1:  # the order of its events need not be read
        return found[0]
    return max(found, key=lambda leaf: leaf.segment.last_number())


class Groupings:
    """The groupings of a store, which rarely change.

    Attributes:
        configs: the configs of the runs that they were made for.
        version: the version of the store at that time.
        content: their description.
    """

    def __init__(self) -> None:
        self.configs: list[tuple[int, dict[str, Any]]] | None = None
        self.version = 0
        self.content: dict[str, Any] = {}


class StoreSource:
    """A store, or a single run; `refresh` reads what has changed.

    Symbolic links are not followed, so only files below the path are read. A store at a
    URL is copied to a temporary directory, which `close` removes.

    Args:
        path: the directory or URL of a store, or of a run.

    Attributes:
        path: the directory.
        runs: its runs, by their numbers, in the order in which they were started.
        version: increases when anything has changed.
        common_steps: steps that many runs have in common.
        groupings: the groupings that the page offers.
        problems: what could not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._mirror: Mirror | None = None
        if isinstance(path, str) and is_url(path):
            self._mirror = Mirror(path)
            self.path = self._mirror.path
        else:
            self.path = pathlib.Path(path)
        if not self.path.is_dir():
            raise StoreError(f"there is no store at {self.path}.")
        self.runs: dict[int, RunSource] = {}
        self.version = 0
        self.problems: list[str] = []
        self.common_steps = CommonSteps()
        self.groupings = Groupings()
        self._numbers: dict[str, int] = {}
        self._signatures: dict[str, Any] = {}
        self._problems: dict[str, list[str]] = {}
        self._not_copied: dict[str, str] = {}
        self._asked = time.monotonic()
        self.refresh()

    @property
    def name(self) -> str:
        return self.path.resolve().name or str(self.path)

    def follow(self) -> None:
        """Makes `refresh` find new data at a URL, until `close`."""
        if self._mirror is not None:
            self._mirror.follow()

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    def refresh(self) -> bool:
        """Reads what has changed; returns whether anything has."""
        found = {path.name: path for path in self._run_paths()}
        signatures = {name: _signature(path) for name, path in found.items()}
        ended = self._find_ended()
        changed = [
            name
            for name in found
            if signatures[name] != self._signatures.get(name) or name in ended
        ]
        removed = [name for name in self._signatures if name not in found]
        not_copied = {} if self._mirror is None else self._mirror.problems
        if not changed and not removed and not_copied == self._not_copied:
            return False
        self._not_copied = not_copied
        self.version += 1
        runs = {self._numbers[run.run.path.name]: run for run in self.runs.values()}
        for name in removed:
            runs.pop(self._numbers[name], None)
            self._problems.pop(name, None)
        for name in changed:
            number = self._numbers.setdefault(name, len(self._numbers))
            run, self._problems[name] = self._read(found[name], number)
            runs.pop(number, None)
            if run is not None:
                runs[number] = run
        self._signatures = signatures
        self.common_steps.forget_unused()
        ordered = sorted(runs.values(), key=lambda r: (r.run.started, r.run.name))
        self.runs = {run.number: run for run in ordered}
        problems = [text for texts in self._problems.values() for text in texts]
        problems += not_copied.values()
        self.problems = problems[:_MAX_PROBLEMS]
        if len(problems) > _MAX_PROBLEMS:
            self.problems.append(f"and {len(problems) - _MAX_PROBLEMS} more problems.")
        return True

    def _find_ended(self) -> set[str]:
        """The runs that were killed, which changes no file."""
        now = time.monotonic()
        if now - self._asked < _STATUS_SECONDS:
            return set()
        self._asked = now
        running = [run.run for run in self.runs.values() if run.status == "running"]
        return {run.path.name for run in running if _has_ended(run)}

    def _run_paths(self) -> Iterator[pathlib.Path]:
        if _is_run(self.path):
            yield self.path
            return
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries if _is_directory(entry)]
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error}.") from error
        for name in names:
            path = self.path / name
            if not name.endswith(TEMPORARY) and _is_run(path):
                yield path

    def _read(
        self, path: pathlib.Path, number: int
    ) -> tuple[RunSource | None, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LoxWarning)
            try:
                run = RunSource(number, Run(path), self.version)
            except StoreError as error:
                if not _is_run(path):  # it was removed
                    return None, []
                return None, [f"A run is left out: {error}"]
        return run, [str(warning.message) for warning in caught]

    # --- what there is to show -------------------------------------------------

    def describe(self, since: int = 0) -> dict[str, Any]:
        """The index of the page: runs, keys, axes and problems.

        Args:
            since: leave out runs that have not changed after this version.
        """
        return {
            "version": self.version,
            "store": self.name,
            "order": list(self.runs),
            "runs": [r.description for r in self.runs.values() if r.version > since],
            "keys": self._signal_list(),
            "problems": self.problems,
        }

    def config_keys(self) -> list[str]:
        return list(dict.fromkeys(k for r in self.runs.values() for k in r.config))

    def _signal_list(self) -> list[dict[str, Any]]:
        found: dict[tuple[str, str], dict[str, None]] = {}
        timed: set[tuple[str, str]] = set()
        for run in self.runs.values():
            for signal in run.signals.values():
                steps = found.setdefault((signal.kind, signal.name), {})
                steps |= dict.fromkeys(signal.steps)
                if signal.has_times:
                    timed.add((signal.kind, signal.name))
        kinds = (SCALAR, HISTOGRAM, IMAGE)
        ordered = sorted(found.items(), key=lambda item: kinds.index(item[0][0]))
        return [
            {
                "name": name,
                "kind": kind,
                "steps": list(steps),
                "times": (kind, name) in timed,
            }
            for (kind, name), steps in ordered
        ]


def _has_ended(run: Run) -> bool:
    try:
        return run.status != "running"
    except (StoreError, OSError):  # it was removed
        return False


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_run(path: pathlib.Path) -> bool:
    return is_run(LocalLocation(path))


def _signature(path: pathlib.Path) -> Any:
    """Changes whenever a file of a run changes."""
    found: list[tuple[Any, ...]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    if WRITER.fullmatch(entry.name) or is_part(entry.name):
                        found.append((entry.name, _signature(pathlib.Path(entry))))
                elif _is_data(entry.name):
                    found.append((entry.name, status.st_size, status.st_mtime_ns))
    except OSError:
        return None
    return tuple(sorted(found, key=lambda item: item[0]))


def _is_data(name: str) -> bool:
    return name.endswith((".npy", ".json")) or FINISHED.fullmatch(name) is not None
