"""`SelectingCollector`: the base class of the collectors of all transformations."""

from collections.abc import Sequence
from typing import Any

from lox._events.event import Event
from lox._events.missed import warn_if_missed, warn_of_derivative
from lox._events.primitive import log_p
from lox._events.selection import Selection

from .handlers import Collector, Handler, Rewriter, State
from .rows import Record


class SelectingCollector(Collector):
    """Collects the selected keys of events.

    Subclasses implement `collect`.

    Args:
        selection: the events and keys to collect.
        keep_logs: whether collected keys also stay in the program, for outer
            transformations.
        outermost: whether there is no outer transformation. All keys are then removed
            from the program, whether they are selected or not.
    """

    def __init__(self, selection: Selection, keep_logs: bool, outermost: bool) -> None:
        self._selection = selection
        self._keep = keep_logs
        self._outermost = outermost

    def wants(self, event: Event) -> bool:
        if event.route.sink is not None:
            return False
        if not event.call.keys:  # it only kept other events in a loop (see `patches`)
            return True
        if event.call.api != self._selection.api:
            return False
        return (
            not event.route.quiet or self._outermost or bool(self.selected_keys(event))
        )

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        record = Record()
        selected = self.selected_keys(event)
        if selected:
            part, values = event.select_keys(selected.__contains__, operands)
            record, state = self.collect(part, values, state)
        self.bind_remaining(event, operands, selected)
        return record, state

    def collect(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        """Collects an event of selected keys; returns its rows and the new state."""
        raise NotImplementedError

    def selected_keys(self, event: Event) -> set[str]:
        return self._selection.keys_of(event)

    def bind_remaining(
        self, event: Event, operands: Sequence[Any], selected: set[str]
    ) -> None:
        """Binds the keys that stay in the program, for outer transformations."""
        keys = set(event.call.keys)
        others = keys - selected
        if self._outermost:
            if event.route.missed and others:
                warn_if_missed(event, others)
            return
        remaining = keys if self._keep else others
        if remaining:
            part, values = event.select_keys(remaining.__contains__, operands)
            missed = part.route.missed if others else ()
            log_p.bind(*values, event=part.with_route(quiet=True, missed=missed))

    def for_derivative_rules(self, lines: frozenset[Any] = frozenset()) -> Handler:
        return _RuleEventRemover(self, lines, warns=not self._keep)

    def for_cotangents(self) -> Handler:
        return _CotangentSilencer(self._selection, warns=not self._keep)


class _RuleEventRemover(Rewriter):
    """Removes the selected keys from the events of derivative rules.

    A transformation inside a derivative collects what the function itself logs. Keys
    that only its derivative rules log are removed with a warning.

    Args:
        collector: selects the keys.
        lines: the lines of the function itself that log, with their keys.
        warns: whether to warn.
    """

    def __init__(
        self, collector: SelectingCollector, lines: frozenset[Any], warns: bool
    ) -> None:
        self._collector = collector
        self._keys_of_function = {key for _, key in lines}
        self._warns = warns
        self.memo_key = (self,)

    def wants(self, event: Event) -> bool:
        return self._collector.wants(event)

    def for_cotangents(self) -> Handler:
        return self._collector.for_cotangents()

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        selected = self._collector.selected_keys(event)
        self._collector.bind_remaining(event, operands, selected)
        removed = selected - self._keys_of_function
        if removed and self._warns:
            keys = [key for key in event.call.keys if key in removed]
            warn_of_derivative(keys, event.call.source)


class _CotangentSilencer(Rewriter):
    """Suppresses printing of cotangents, which the transformed function does not log.

    They stay in the program, for a transformation around the derivative. If there is
    none, a warning says so.
    """

    def __init__(self, selection: Selection, warns: bool) -> None:
        self._selection = selection
        self._warns = warns
        self.memo_key = ("silence cotangents", selection, warns)

    def wants(self, event: Event) -> bool:
        return event.route.sink is None and event.call.api == self._selection.api

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        missed = event.route.missed
        if self._warns:
            # a summary replaces the keys later, so they are not selected here
            missed = (*missed, self._selection)
        log_p.bind(*operands, event=event.with_route(quiet=True, missed=missed))
