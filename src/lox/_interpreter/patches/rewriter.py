"""The base class of the rewriters of patches."""

from lox._events.event import Event
from lox._interpreter.handlers import Rewriter


class AllEventsRewriter(Rewriter):
    """Rewrites every event, also events that a transformation has collected."""

    def wants(self, event: Event) -> bool:
        return True
