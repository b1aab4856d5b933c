"""Records what was sent of a run to a tracker: a file in the run's directory."""

import contextlib
import dataclasses
import hashlib
import importlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from lox._errors import StoreError
from lox._store.format import RUN_FILE, VERSION, is_empty, read_json, write_json
from lox._store.reader import Run

# Windows has no `fcntl` locks
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

# a process, one of its writers, and a number of events of that writer
Part = tuple[int, int, int]


@dataclasses.dataclass
class Sent:
    """What a tracker has received of a run.

    Attributes:
        run: identifies the run; another one may replace it in its directory.
        generation: how many times the run was sent again from its beginning.
        confirmed: the events that the tracker has confirmed, in the order in which they
            were sent.
        pending: the next events, if sending them has begun but not ended.
        items: how many items the tracker has confirmed.
        before: how many items the tracker's run had before; None if it is not known.
        ending: the status of the run when it was last sent.
    """

    run: str
    generation: int = 0
    confirmed: list[Part] = dataclasses.field(default_factory=list)
    pending: list[Part] = dataclasses.field(default_factory=list)
    items: int = 0
    before: int | None = None
    ending: str = ""

    def confirm(self, items: int, ending: str) -> None:
        """Called when the tracker has confirmed what was pending."""
        self.confirmed, self.pending = [*self.confirmed, *self.pending], []
        self.items, self.ending = items, ending


class SentFile:
    """The file of a `Sent`.

    Args:
        run: the run.
        tracker: the name of the tracker.
        destination: where the tracker's run is.
    """

    def __init__(self, run: Run, tracker: str, destination: str) -> None:
        place = hashlib.sha256(destination.encode()).hexdigest()[:12]
        self._path = pathlib.Path(run.path) / f"sent-{tracker}-{place}.json"
        self._run = identity(run)

    def read(self) -> Sent | None:
        """None if nothing of this run was sent."""
        try:
            content = read_json(self._path)
        except FileNotFoundError:
            return None
        except StoreError:
            if not is_empty(self._path):
                raise
            return None  # lost when the machine crashed
        fields = {field.name for field in dataclasses.fields(Sent)}
        sent = Sent(**{k: v for k, v in content.items() if k in fields})
        return sent if sent.run == self._run else None

    def write(self, sent: Sent) -> None:
        write_json(self._path, {"version": VERSION, **dataclasses.asdict(sent)})

    def new(self, generation: int = 0) -> Sent:
        return Sent(self._run, generation)


def identity(run: Run) -> str:
    """Identifies a run; a copy of the run has the same identity."""
    key = None if run.key is None else run.key.tolist()
    text = repr((run.name, key, run.started))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextlib.contextmanager
def exclusive(run: Run) -> Iterator[None]:
    """Raises if another process is sending a run."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            # not the directory, which a writer locks to replace the run; it is missing
            # if only other processes of a job have written the run
            with contextlib.suppress(FileNotFoundError):
                path = pathlib.Path(run.path) / RUN_FILE
                _lock(stack.enter_context(path.open("rb")), run)
        yield


def _lock(file: BinaryIO, run: Run) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"another `lox sync` is sending {run.path}.") from None
    except OSError:  # some file systems have no locks
        pass


def total(parts: list[Part]) -> int:
    """The number of events."""
    return sum(count for _, _, count in parts)
