"""What an event is: the static half of one `lox.log` call, and who selects it."""

import dataclasses
import fnmatch
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Protocol

import jax

from ._errors import LoxTypeError

PACKAGE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The user's line that an event comes from."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_OURS = (PACKAGE, os.path.join(os.path.dirname(PACKAGE), "logify"))


def user_source(skip: Iterable[str] = _OURS) -> Source:
    """The innermost line on the stack that is in none of the packages `skip`."""
    skipped = tuple(f"{package}{os.sep}" for package in skip)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(skipped) and name != threading.__file__:
            return Source(name, frame.f_lineno)
        frame = frame.f_back
    return _without_frame()


# the line of the event that a thread delivers, or has delivered last
delivery = threading.local()


def _without_frame() -> Source:
    """The line to name where none of the user's is on the stack.

    A callback may run on a thread of the runtime's, and an exit handler after all.
    """
    found: Source | None = getattr(delivery, "source", None)
    if found is None:
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        found = Source(main or "sys", 1)  # the latter is what Python itself says
    return found


_JAX = jax.__path__[0]


def user_line() -> tuple[str, int]:
    """The file and line that called lox, be it through JAX; for a warning."""
    source = user_source((*_OURS, _JAX))
    return source.file, source.line


class Sink(Protocol):
    """Where an event goes once a transformation has taken it."""

    def receiver(self, event: "Event") -> Callable[..., tuple[()]]:
        """What a program is to call with the operands of an event, in NumPy."""
        ...

    def deliverer(
        self, event: "Event"
    ) -> Callable[[Sequence[Any]], BaseException | None]:
        """The same for an eager event; it gives an interrupt, if there was one."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Event:
    """All of a `lox.log` call that is known before the program runs.

    The values themselves are operands, in this order: the leaves of each key's value,
    the steps, the mask (if `masked`), the number of rows (if `buffered`), and the
    anchors. All but the anchors have `lanes` leading axes, one for each `vmap` around
    the call.
    """

    keys: tuple[str, ...]
    trees: tuple[jax.tree_util.PyTreeDef, ...]
    steps: tuple[str, ...]
    source: Source
    tags: tuple[str, ...] = ()
    explicit: bool = False
    reduce: Any = None
    # whose it is: the transformations of one API do not see the events of another
    api: str = "lox"
    lanes: int = 0
    # a boolean operand says which lanes really got here
    masked: bool = False
    # values and steps have a time axis after the lanes, of which an operand tells how
    # many rows count
    buffered: bool = False
    # operands without meaning that hold the event inside its loop (see _hooks)
    anchors: int = 0
    # has passed through a transformation, and is no longer printed by default
    quiet: bool = False
    # set once a transformation has taken the event: nobody else will see it
    sink: Sink | None = None
    # whether the sink gets it in program order
    ordered: bool = False
    # how many devices run its program, once that is lowered; and whether each of them
    # delivers it, in no order among each other
    devices: int = 1
    per_device: bool = False
    # for each key, whether its program may log several rows; empty if nobody knows
    several: tuple[bool, ...] = ()
    # what else its API knows of it
    what: Any = None
    # which of the events in a loop that JAX takes apart this is (see _hooks)
    site: int = 0
    # the Python numbers that the leaves and then the steps are, None for those that
    # only the running program knows; the rest is not known either. They decide what the
    # numbers can be cast to, not which event this is.
    numbers: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    # set inside `jacfwd`: the `vmap` over its tangents is not to be seen (see
    # _derivatives). "value": the values do not depend on tangents, "rule": they may
    once: str = ""
    # may be in a program that runs while another is traced (see _not_traced)
    early: bool = False

    def __repr__(self) -> str:  # as it shows in a jaxpr
        return f"{', '.join((*self.keys, *self.steps))} at {self.source}"

    def split(self, operands: Sequence[Any]) -> "Operands":
        """The operands by what they mean."""
        values: list[list[Any]] = []
        start = 0
        for tree in self.trees:
            values.append(list(operands[start : start + tree.num_leaves]))
            start += tree.num_leaves
        steps = list(operands[start : start + len(self.steps)])
        start += len(self.steps)
        mask = operands[start] if self.masked else None
        start += self.masked
        filled = operands[start] if self.buffered else None
        start += self.buffered
        return Operands(values, steps, mask, filled, list(operands[start:]))

    def split_numbers(self) -> tuple[list[list[Any]], list[Any]]:
        """The numbers of each key's leaves, and of the steps."""
        rest = itertools.chain(self.numbers, itertools.repeat(None))
        values = [[next(rest) for _ in range(tree.num_leaves)] for tree in self.trees]
        return values, [next(rest) for _ in self.steps]

    def only(
        self, wanted: Callable[[str], bool], operands: Sequence[Any]
    ) -> tuple["Event", list[Any]]:
        """The event of the keys that are wanted, with their operands."""
        parts = self.split(operands)
        chosen = [i for i, key in enumerate(self.keys) if wanted(key)]
        numbers, step_numbers = self.split_numbers()
        event = dataclasses.replace(
            self,
            keys=tuple(self.keys[i] for i in chosen),
            trees=tuple(self.trees[i] for i in chosen),
            numbers=(*(one for i in chosen for one in numbers[i]), *step_numbers),
        )
        parts.values = [parts.values[i] for i in chosen]
        return event, parts.flat()

    def renamed(self, prefix: str) -> "Event":
        if not prefix:
            return self
        return dataclasses.replace(
            self, keys=tuple(f"{prefix}{key}" for key in self.keys)
        )


@dataclasses.dataclass(slots=True)
class Operands:
    """The operands of an event, by what they mean."""

    values: list[list[Any]]
    steps: list[Any]
    mask: Any
    filled: Any
    anchors: list[Any]

    def flat(self) -> list[Any]:
        leaves = [leaf for value in self.values for leaf in value]
        rest = [x for x in (self.mask, self.filled) if x is not None]
        return [*leaves, *self.steps, *rest, *self.anchors]


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
        if event.api != self.api:
            return False
        if self.tags is not None and not set(self.tags) & set(event.tags):
            return False
        asked = self.tags is not None or self.argnames is not None
        return asked or not event.explicit

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
        known = {tag for event in events for tag in event.tags}
        return [tag for tag in self.tags or () if tag not in known]


def matches(key: str, pattern: str) -> bool:
    return key == pattern or fnmatch.fnmatchcase(key, pattern)


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
