"""Copies a run, so that the copy can be read at any moment, and continued later."""

from typing import Any

from .copy_part import PartCopy, content_of
from .copy_segment import Sent
from .format import RUN_FILE
from .locations import Location
from .processes import parts_of


class RunCopy:
    """A copy of a run, which can be updated.

    Args:
        source: the directory of the run.
        target: the directory of the copy.
        overwrite: whether to replace another run that is there.
        follows: whether it is updated again and again.
    """

    def __init__(
        self, source: Location, target: Location, overwrite: bool, follows: bool
    ) -> None:
        self._source = source
        self._target = target
        self._options = overwrite, follows
        self._parts: dict[str, PartCopy] = {}
        # what a complete copy was made of
        self._complete: Any = None

    def update(self, exists: bool) -> tuple[Sent, bool]:
        """Sends what is new.

        Args:
            exists: whether the directory of the copy exists.

        Returns:
            What was sent, and whether the run is finished.
        """
        sent = Sent()
        parts = [self._source, *parts_of(self._source).values()]
        state = [
            (path.name, content_of(path / RUN_FILE), _names(path)) for path in parts
        ]
        if self._complete is not None and state == self._complete:
            return sent, True
        finished = True
        names = _names(self._target) if exists else []
        for part in parts:
            is_first = part is self._source
            target = self._target if is_first else self._target / part.name
            there = exists if is_first else part.name in names
            copy = PartCopy(part, target, is_first, *self._options)
            copy = self._parts.setdefault(str(part), copy)
            finished &= copy.update(there, sent)
        self._complete = state if finished else None
        return sent, finished


def _names(directory: Location) -> list[str]:
    try:
        return sorted(directory.names())
    except FileNotFoundError:
        return []
