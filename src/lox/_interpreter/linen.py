"""Removes the events of traces that Flax Linen makes only for itself."""

from typing import Any

from lox._events.event import Event
from lox._libraries import linen

from .contents import events_of
from .handlers import NO_STATE, Remover
from .walk import Walk


class _AllEventsRemover(Remover):
    """Removes every event, also events that a transformation has collected."""

    def wants(self, event: Event) -> bool:
        return True


def _without_events(closed: Any) -> Any:
    if not events_of(closed):
        return closed
    return Walk(_AllEventsRemover()).rebuilt(closed, NO_STATE)[0]


linen.source.without_events = _without_events
