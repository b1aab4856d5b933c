"""`Event`: everything about a `lox.log` call that is known before the program runs."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from lox._source import Source


class Sink(Protocol):
    """Where an event goes once a transformation has taken it."""

    def receiver(self, event: "Event") -> Callable[..., tuple[()]]:
        """What a program is to call with the operands of an event, in NumPy."""
        ...

    def deliver(self, event: "Event", operands: Sequence[Any]) -> None:
        """Delivers an eager event, and raises what its callback raised."""
        ...


class _Default:
    """Where events go that no transformation has taken; the host side sets it."""

    sink: Sink


default = _Default()


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
    # operands without meaning that hold the event inside its loop (see `patches`)
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
    # which of the events in a loop that JAX takes apart this is (see `patches`)
    site: int = 0
    # the Python numbers that the leaves and then the steps are, None for those that
    # only the running program knows; the rest is not known either. They decide what the
    # numbers can be cast to, not which event this is.
    numbers: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    # set inside `jacfwd`: the `vmap` over its tangents is not to be seen (see
    # _derivatives). "value": the values do not depend on tangents, "rule": they may
    once: str = ""
    # may be in a program that runs while another is traced (see `not_traced`)
    early: bool = False

    def __repr__(self) -> str:  # as it shows in a jaxpr
        return f"{', '.join((*self.keys, *self.steps))} at {self.source}"

    @property
    def description(self) -> str:
        """The keys and the line, for a message."""
        return f"{', '.join(map(repr, self.keys))}, logged at {self.source}"

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
