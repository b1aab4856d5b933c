"""Logs that a logger could not send to its tracker, and sending them again.

They are runs of a store in the working directory of the program. A file next to their
rows says which run of the tracker they belong to.
"""

import dataclasses
import pathlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from lox._errors import StoreError
from lox._store.format import VERSION, read_json, write_json
from lox._store.reader import Run

from .runs import Resumed, RunInfo, identifier

UNSENT = pathlib.Path(".lox") / "unsent"
_FILE = "tracker.json"


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where unsent logs belong.

    Attributes:
        tracker: the name of the tracker.
        name: the name of the run.
        settings: the options of the tracker's backend.
        token: identifies all unsent logs of one run of a logger.
        run: the tracker's run, if the logger could open it.
    """

    tracker: str
    name: str
    settings: Mapping[str, Any]
    token: str
    run: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, run: Run) -> "Origin | None":
        """None if the logs are those of another logger."""
        try:
            content = read_json(pathlib.Path(run.path) / _FILE)
        except FileNotFoundError:
            return None
        try:
            origin = cls(**{k: v for k, v in content.items() if k != "version"})
        except TypeError:
            origin = None
        if origin is None or not origin._is_valid():
            raise StoreError(f"{run.path / _FILE} does not name a tracker.")
        return origin

    def _is_valid(self) -> bool:
        """Whether everything has the right type: the file may be damaged."""
        texts = (self.tracker, self.name, self.token)
        run: Any = {"id": ""} if self.run is None else self.run
        return (
            all(type(text) is str for text in texts)
            and type(self.settings) is dict
            and type(run) is dict
            and type(run.get("id")) is str
            and all(type(run.get(name, 0)) is int for name in ("before", "sent"))
            and all(type(run.get(name, {})) is dict for name in ("counts", "names"))
            and all(type(count) is int for count in run.get("counts", {}).values())
            and all(type(name) is str for name in run.get("names", {}).values())
        )

    def write(self, directory: pathlib.Path) -> None:
        """Writes the file to the directory of unsent logs."""
        content = {"version": VERSION, **dataclasses.asdict(self)}
        write_json(directory / _FILE, content)

    def info(self, run: Run) -> RunInfo:
        """The run for the backend to open."""
        words = () if run.key is None else tuple(run.key.tolist())
        return RunInfo(words, self.name, run.config)

    def resumed(self, run: Run, others: Iterable["Origin"]) -> Resumed:
        """How to open the tracker's run for the first time.

        Args:
            run: the unsent logs.
            others: the origins of other unsent logs, perhaps of the same run.
        """
        same = (x.run for x in others if x.token == self.token and x.run is not None)
        opened = next(same, None)
        if opened is None:
            new = identifier(self.name, self.token)
            return Resumed(new, run.started, asks=True)
        own = {"asks": True, **(self.run or {"id": opened["id"]})}
        fields = {field.name for field in dataclasses.fields(Resumed)}
        state = {name: x for name, x in own.items() if name in fields}
        return Resumed(started=run.started, is_given=True, **state)

    def begun(self) -> "Origin":
        """The origin of logs that are being sent, and come next in the tracker's run.

        If that is interrupted, they need not be sent from the first one.
        """
        if self.run is None:
            return self
        return dataclasses.replace(self, run={**self.run, "asks": False})

    def following(self, state: Mapping[str, Any] | None = None) -> "Origin":
        """The origin of logs that follow others.

        Args:
            state: the state of the tracker's run when these are next, if it is known.
        """
        known = {} if self.run is None else {"id": self.run["id"]}
        run = {**known, **(state or {})}
        return dataclasses.replace(self, run=run or None)


def new_token() -> str:
    return secrets.token_hex(4)
