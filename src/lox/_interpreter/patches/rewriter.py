"""Rewriters of all events."""

from lox._events.event import Event
from lox._interpreter.handlers import Rewriter


class EveryEvent(Rewriter):
    """Rewrites every event, also those that a transformation has collected."""

    def wants(self, event: Event) -> bool:
        del event
        return True
