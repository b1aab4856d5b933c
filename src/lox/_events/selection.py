"""`Selection`: the events and keys that a transformation collects."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from lox._patterns import matches_any, names_of, unmatched

from .event import Event


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The events and keys that a transformation collects.

    Attributes:
        argnames: keys, or shell-style patterns; None selects every key.
        tags: selects the events with at least one of these; None selects every event.
        api: selects the events of this API (see `Call`).
    """

    argnames: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    api: str = "lox"

    @classmethod
    def of(cls, argnames: Any, tags: Any) -> "Selection":
        return cls(names_of("argnames", argnames), names_of("tags", tags))

    def selects_event(self, event: Event) -> bool:
        if event.call.api != self.api:
            return False
        if self.tags is not None and not set(self.tags) & set(event.call.tags):
            return False
        explicit = self.tags is not None or self.argnames is not None
        return explicit or not event.call.explicit

    def selects_key(self, key: str) -> bool:
        return self.argnames is None or matches_any(key, self.argnames)

    def keys_of(self, event: Event) -> set[str]:
        """The selected keys of an event."""
        if not self.selects_event(event):
            return set()
        return set(filter(self.selects_key, event.call.keys))

    def unmatched(self, keys: Iterable[str]) -> list[str]:
        """The `argnames` that match no key."""
        return unmatched(self.argnames or (), keys)

    def unmatched_tags(self, events: Iterable[Event]) -> list[str]:
        """The `tags` that no event has."""
        known = {tag for event in events for tag in event.call.tags}
        return [tag for tag in self.tags or () if tag not in known]
