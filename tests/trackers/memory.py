"""A tracker that keeps its runs in memory, and may fail, for `lox sync`."""

import pytest

from lox._trackers import targets
from lox._trackers.backend import TrackerBackend
from lox._trackers.runs import TrackerRun
from lox.loggers._trackers.tracker import BackendTracker


class MemoryRun(TrackerRun):
    def __init__(self, identifier, rows):
        super().__init__()
        self.id, self.rows = identifier, rows

    def state(self):
        return {**super().state(), "id": self.id}


class Server:
    """What the tracker has.

    Attributes:
        rows: the rows of each run, by its identifier: the name of a key, its value and
            its step.
        runs: what each run was opened with.
        endings: how each run has ended.
        tells: whether it says how many rows a run has.
        fails: called with the method, and for each row; may raise.
        opened: the runs that were opened, one after the other.
    """

    def __init__(self):
        self.rows, self.runs, self.endings = {}, {}, {}
        self.tells = True
        self.fails = lambda what: None
        self.opened = []

    def values(self, name="x"):
        """The values of a key, of each run."""
        return [
            [value for key, value, _ in rows if key == name]
            for rows in self.rows.values()
        ]


class MemoryBackend(TrackerBackend):
    command_name = "memory"
    unused_options = ("images",)
    server: Server

    def __init__(self, project, **shown):
        super().__init__(**shown)
        self.project = project
        if project == "missing":
            raise ImportError("`lox sync` needs memory, which is not installed.")

    @classmethod
    def for_command(cls, options):
        return cls(options.project or options.label, **options.shown())

    def open(self, run, resumed=None):
        self.server.fails("open")
        self.server.opened.append(run.name)
        name = f"live-{run.name}" if resumed is None else resumed.id
        rows = self.server.rows.setdefault(name, [])
        self.server.runs[name] = run
        handle = MemoryRun(name, rows)
        if resumed is not None:
            handle.resume(resumed, len(rows) if self.server.tells else None)
        return handle

    def write(self, run, logs):
        for table in self.tables(logs):
            steps = run.integer_steps.of(self, table).tolist()
            known = run.add_items(table.length * len(table.scalars))
            items = [
                (name, column[i].item(), step)
                for i, step in enumerate(steps)
                for name, column in table.scalars.items()
            ]
            for item in items[known:]:
                self.server.fails("write")
                run.rows.append(item)
                run.accepted += 1
        run.confirm()

    def end(self, run, ending, at=None):
        self.server.fails("end")
        self.server.endings[run.id] = ending

    def destination(self):
        return self.project

    def settings(self):
        return {**super().settings(), "project": self.project}


class MemoryLogger(MemoryBackend, BackendTracker):
    """A logger whose logs `lox sync` can send, if it fails."""

    def __init__(self, server, project="live", config=None, **options):
        self.server = server
        super().__init__(project, config=config, **options)


@pytest.fixture
def server(monkeypatch):
    """A server, and a tracker `memory` of `lox sync` that sends to it."""
    found = Server()
    backend = type("Backend", (MemoryBackend,), {"server": found})
    class_of = targets.tracker_class
    monkeypatch.setattr(targets, "NAMES", (*targets.NAMES, "memory"))
    monkeypatch.setattr(
        targets,
        "tracker_class",
        lambda name: backend if name == "memory" else class_of(name),
    )
    return found


def failing_after(count, method="write"):
    """A function for `Server.fails` that raises from the n-th row on."""
    calls = []

    def fail(what):
        if what == method:
            calls.append(what)
            if len(calls) > count:
                raise ConnectionError("no network")

    return fail
