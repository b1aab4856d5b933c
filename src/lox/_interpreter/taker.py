"""What every transformation does alike with the events it may take."""

import warnings
from collections.abc import Sequence
from typing import Any

from lox._errors import LoxWarning
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._events.selection import Selection
from lox._source import Source

from .handlers import Collector, Handler, Rewriter, State
from .rows import Record


class Taker(Collector):
    """Takes the selected keys of events, and leaves the others for whoever is outside.

    Subclasses say what becomes of a selected event.
    """

    def __init__(self, selection: Selection, keep_logs: bool, outermost: bool) -> None:
        self._selection = selection
        self._keep = keep_logs
        # nobody outside will take what is left, so that it can as well go
        self._outermost = outermost

    def wants(self, event: Event) -> bool:
        if event.route.sink is not None:
            return False
        if (
            not event.call.keys
        ):  # it held others in a loop, which they are about to leave
            return True
        if event.call.api != self._selection.api:
            return False
        return not event.route.quiet or self._outermost or self._selects(event)

    def _selects(self, event: Event) -> bool:
        takes = self._selection
        return takes.takes_event(event) and any(map(takes.takes_key, event.call.keys))

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        record = Record()
        taken = self.taken_keys(event)
        if taken:
            part, values = event.only(taken.__contains__, operands)
            record, state = self.take(part, values, state)
        self.leave(event, operands, taken)
        return record, state

    def taken_keys(self, event: Event) -> set[str]:
        if not self._selection.takes_event(event):
            return set()
        return set(filter(self._selection.takes_key, event.call.keys))

    def leave(self, event: Event, operands: Sequence[Any], taken: set[str]) -> None:
        """Leaves what was not taken for whoever is outside."""
        left = set(event.call.keys) if self._keep else set(event.call.keys) - taken
        if left and not self._outermost:
            part, values = event.only(left.__contains__, operands)
            log_p.bind(*values, event=part.with_route(quiet=True))

    def in_rules(self, lines: frozenset[Any] = frozenset()) -> Handler:
        return _NotTaken(self, lines, warns=not self._keep)

    def in_cotangents(self) -> Handler:
        return _Quieter(self._selection.api)

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        raise NotImplementedError


class _NotTaken(Rewriter):
    """For derivative rules: removes what a transformation would take elsewhere.

    Inside a derivative, a transformation gives what the function itself logs. Of what
    its rules alone log, a warning tells.
    """

    def __init__(self, taker: Taker, lines: frozenset[Any], warns: bool) -> None:
        self._taker = taker
        self._known = {key for _, key in lines}
        self._warns = warns
        self.memo_key = (self,)

    def wants(self, event: Event) -> bool:
        return self._taker.wants(event)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        taken = self._taker.taken_keys(event)
        self._taker.leave(event, operands, taken)
        missed = [key for key in event.call.keys if key in taken - self._known]
        if missed and self._warns:
            _warn_of_rule(missed, event.call.source)


class _Quieter(Rewriter):
    """For cotangents, which are not part of the function that is transformed.

    They stay for a transformation around the derivative, and are not printed.
    """

    def __init__(self, api: str) -> None:
        self._api = api
        self.memo_key = ("quiet", api)

    def wants(self, event: Event) -> bool:
        return event.route.sink is None and event.call.api == self._api

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        log_p.bind(*operands, event=event.with_route(quiet=True))


_warned: dict[Any, Any] = {}  # as Python keeps it: once for each line


def _warn_of_rule(keys: list[str], source: Source) -> None:
    warnings.warn_explicit(
        f"{', '.join(map(repr, keys))}, logged at {source}, comes from a derivative "
        "rule alone. A transformation inside a derivative, as in "
        "`jax.grad(lox.tap(f))`, takes what the function itself logs. To take this "
        "too, put it outside: `lox.tap(jax.grad(f))`. To leave it out without this "
        "warning, use `lox.nolog` in the rule.",
        LoxWarning,
        source.file,
        source.line,
        registry=_warned,
    )
