"""Collectors that bind events again, changed."""

from lox._events.event import Event
from lox._interpreter.walk import Collector


class Rewriter(Collector):
    """Binds each event again, with what the state adds to it."""

    gives_rows = False
    constant_state = True

    def wants(self, event: Event) -> bool:
        del event
        return True  # also the events that a transformation has taken
