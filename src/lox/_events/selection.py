"""`Selection`: which events and keys a transformation takes."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from lox._errors import LoxTypeError
from lox._patterns import matches

from .event import Event


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Which keys of which events a transformation takes.

    Attributes:
        argnames: names, or shell-style patterns; None takes every name.
        tags: an event passes if it has one of them; None takes every event.
        api: whose events.
    """

    argnames: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    api: str = "lox"

    @classmethod
    def of(cls, argnames: Any, tags: Any) -> "Selection":
        return cls(_names("argnames", argnames), _names("tags", tags))

    def takes_event(self, event: Event) -> bool:
        if event.call.api != self.api:
            return False
        if self.tags is not None and not set(self.tags) & set(event.call.tags):
            return False
        asked = self.tags is not None or self.argnames is not None
        return asked or not event.call.explicit

    def takes_key(self, key: str) -> bool:
        return self.argnames is None or any(
            matches(key, pattern) for pattern in self.argnames
        )

    def unmatched(self, keys: Iterable[str]) -> list[str]:
        """Those of `argnames` that no key matches."""
        seen = list(keys)
        return [
            pattern
            for pattern in self.argnames or ()
            if not any(matches(key, pattern) for key in seen)
        ]

    def unmatched_tags(self, events: Iterable[Event]) -> list[str]:
        """Those of `tags` that no event has."""
        known = {tag for event in events for tag in event.call.tags}
        return [tag for tag in self.tags or () if tag not in known]


def _names(what: str, names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str):
        return (names,)
    try:
        listed = tuple(names)
    except TypeError:
        listed = (names,)
    if not all(isinstance(name, str) for name in listed):
        raise LoxTypeError(
            f"`{what}` must be a string or several strings, not {names!r}."
        )
    return listed
