"""What every transformation does alike with the events it may take."""

import dataclasses
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lox._errors import LoxTypeError, LoxValueError, LoxWarning
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._events.selection import Selection
from lox._jax import tracing
from lox._reduce import reductions
from lox._source import Source, user_line

from .rows import Record, is_reduced
from .walk import Collector, State, events_of


class Taker(Collector):
    """Takes the selected keys of events, and leaves the others for whoever is outside.

    Subclasses say what becomes of a selected event.
    """

    takes = True

    def __init__(self, selection: Selection, keep_logs: bool, outermost: bool) -> None:
        self._selection = selection
        self._keep = keep_logs
        # nobody outside will take what is left, so that it can as well go
        self._outermost = outermost

    def wants(self, event: Event) -> bool:
        if event.sink is not None:
            return False
        if not event.keys:  # it held others in a loop, which they are about to leave
            return True
        if event.api != self._selection.api:
            return False
        return not event.quiet or self._outermost or self._selects(event)

    def _selects(self, event: Event) -> bool:
        takes = self._selection
        return takes.takes_event(event) and any(map(takes.takes_key, event.keys))

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
        return set(filter(self._selection.takes_key, event.keys))

    def leave(self, event: Event, operands: Sequence[Any], taken: set[str]) -> None:
        """Leaves what was not taken for whoever is outside."""
        left = set(event.keys) if self._keep else set(event.keys) - taken
        if left and not self._outermost:
            part, values = event.only(left.__contains__, operands)
            log_p.bind(*values, event=dataclasses.replace(part, quiet=True))

    def in_rules(self, lines: frozenset[Any] = frozenset()) -> Collector:
        return _NotTaken(self, lines, warns=not self._keep)

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        raise NotImplementedError


class _NotTaken(Collector):
    """For derivative rules: removes what a transformation would take elsewhere.

    Inside a derivative, a transformation gives what the function itself logs. Of what
    its rules alone log, a warning tells.
    """

    gives_rows = False

    def __init__(self, taker: Taker, lines: frozenset[Any], warns: bool) -> None:
        self._taker = taker
        self._known = {key for _, key in lines}
        self._warns = warns
        self.key = (self,)

    def wants(self, event: Event) -> bool:
        return self._taker.wants(event)

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        taken = self._taker.taken_keys(event)
        self._taker.leave(event, operands, taken)
        missed = [key for key in event.keys if key in taken - self._known]
        if missed and self._warns:
            _warn_of_rule(missed, event.source)
        return Record(), state


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


is_outermost = tracing.at_top_level


def warn_unmatched(closed: Any, selection: Selection, reduce: Any, name: str) -> None:
    """Warns of names that no event of the program has."""
    events = [
        event
        for event in events_of(closed)
        if event.sink is None and event.api == selection.api
    ]
    keys = list(dict.fromkeys(key for event in events for key in event.keys))
    tags = dict.fromkeys(tag for event in events for tag in event.tags)
    _warn(name, "argnames", selection.unmatched(keys), keys)
    _warn(name, "tags", selection.unmatched_tags(events), tags)
    _warn(name, "reduce", reductions.unmatched(reduce, keys), keys)


def _warn(name: str, what: str, missing: list[str], known_names: Iterable[str]) -> None:
    if not missing:
        return
    known = ", ".join(map(repr, known_names)) or "nothing"
    warnings.warn_explicit(
        f"`{what}` of `lox.{name}` has {', '.join(map(repr, missing))}, which no "
        f"`lox.log` in the function matches; there are {known}.",
        LoxWarning,
        *user_line(),
    )


_OPTIONS_OF_OTHERS = {
    ("lox.spool", "buffer"): "`capacity=` is how many rows `lox.spool` keeps of a loop "
    "without a static length; `buffer=` is an option of `lox.tap`",
    ("lox.spool", "callback"): "`lox.tap` delivers to a callback",
    (
        "lox.spool",
        "ordered",
    ): "it is an option of `lox.tap`; spooled rows have an order",
    ("lox.spool", "batched"): "it is an option of `lox.tap`",
    ("lox.tap", "capacity"): "a callback gets every row; `buffer=` is how many it gets "
    "at a time",
}


def check_options(name: str, others: Mapping[str, Any], transformation: Any) -> None:
    """Raises if there are options that a transformation does not have."""
    for option in others:
        hint = _OPTIONS_OF_OTHERS.get((name, option))
        if hint is None:
            parameters = inspect.signature(transformation).parameters
            known = [f"`{one}`" for one in parameters if one not in ("fun", "others")]
            hint = f"there are {', '.join(known)}"
        raise LoxTypeError(f"`{name}` has no option `{option}`: {hint}.")


_MEANING = {
    "interval": "1 keeps every event, 10 every tenth",
    "window": "10 gives one row for every ten events",
    "capacity": "it is the most rows to keep",
    "buffer": "it is how many rows the callback gets at a time",
}


def check_number(number: Any, option: str, name: str) -> int | None:
    """A whole number from 1 on, or None."""
    if number is None:
        return None
    try:
        whole = int(number.__index__())
    except (AttributeError, TypeError):
        raise LoxTypeError(
            f"`{option}` of `{name}` must be a whole number, not {number!r}."
        ) from None
    if isinstance(number, bool) or whole < 1:
        raise LoxValueError(
            f"`{option}` of `{name}` must be at least 1, not {number!r}: "
            f"{_MEANING[option]}."
        )
    return whole


def check_window(window: int | None, types: Record, name: str) -> None:
    """A window of keys that nobody reduces would mean nothing."""
    if window is None or any(map(is_reduced, types.values())):
        return
    keys = ", ".join(f"{key!r} (at {rows.source})" for key, rows in types.items())
    if keys:
        raise LoxValueError(
            f"`window` of `lox.{name}` needs a reduction to one row, and {keys} has "
            f'none. Add `reduce="mean"`, or another one, to `lox.{name}` or to the '
            f"`lox.log`; to keep one event out of {window}, write `interval={window}`."
        )


def check_prefix(prefix: Any, name: str) -> str:
    if not isinstance(prefix, str):
        raise LoxTypeError(f"`prefix` of `{name}` must be a string, not {prefix!r}.")
    return prefix
