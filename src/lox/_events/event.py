"""`Event`: what a `lox.log` call says, how its operands are laid out, where it goes."""

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


class Summary(Protocol):
    """What to log of cotangents instead of themselves; a static, hashable object."""

    def bind(self, event: "Event", operands: Sequence[Any]) -> None:
        """Binds the events that replace `event`, whose values are the cotangents."""
        ...


class _Default:
    """Where events go that no transformation has taken; the host side sets it."""

    sink: Sink


default = _Default()


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """What a `lox.log` call says.

    Attributes:
        keys: the logged keys.
        trees: the structure of each key's value.
        steps: the names of the steps.
        source: the line of the call.
        tags: its tags.
        explicit: whether only transformations that ask for the tags collect it.
        reduce: the reduction it asks for, if any.
        api: the API it belongs to; transformations of one API ignore events of others.
        api_data: what else that API knows about it.
        summary: of cotangents: what is logged instead of themselves, if anything.
        conditional: whether it has a `when`.
        early: whether it may be in a program that runs while another one is traced
            (see `not_traced`).
        numbers: the Python numbers among the leaves and then the steps, None for values
            that only the running program knows; may be shorter. They decide what the
            numbers can be cast to, not which event this is.
    """

    keys: tuple[str, ...]
    trees: tuple[jax.tree_util.PyTreeDef, ...]
    steps: tuple[str, ...]
    source: Source
    tags: tuple[str, ...] = ()
    explicit: bool = False
    reduce: Any = None
    api: str = "lox"
    api_data: Any = None
    summary: Summary | None = None
    conditional: bool = False
    early: bool = False
    numbers: tuple[Any, ...] = dataclasses.field(default=(), compare=False)

    @property
    def description(self) -> str:
        """The keys and the line, for a message."""
        return f"{', '.join(map(repr, self.keys))}, logged at {self.source}"

    def split_numbers(self) -> tuple[list[list[Any]], list[Any]]:
        """The numbers of each key's leaves, and of the steps."""
        rest = itertools.chain(self.numbers, itertools.repeat(None))
        values = [[next(rest) for _ in range(tree.num_leaves)] for tree in self.trees]
        return values, [next(rest) for _ in self.steps]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The axes and extra operands that transformations have added to a call.

    Attributes:
        lanes: the number of leading axes of all operands but the anchors, one for each
            `vmap` around the call.
        elements: whether values, steps and mask have an axis of elements after the
            lanes, each an event of its own (see `condition`).
        masked: whether a boolean operand says which lanes, and which elements, log the
            event.
        buffered: whether values and steps have a time axis after the lanes; an operand
            tells the number of valid rows.
        anchors: the number of operands that only hold the event inside its loop (see
            `patches`).
        site: tells apart the events in a loop that JAX splits in two (see `patches`).
        once: set inside `jacfwd`, whose `vmap` over tangents must not add a lane (see
            `derivatives`): "value" if the values do not depend on tangents, "rule" if
            they may.
    """

    lanes: int = 0
    elements: bool = False
    masked: bool = False
    buffered: bool = False
    anchors: int = 0
    site: int = 0
    once: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """Where an event goes.

    Attributes:
        sink: set once a transformation has collected the event: no other one sees it.
        quiet: whether it has passed through a transformation, and is therefore not
            printed by default.
        ordered: whether the sink gets it in program order.
        devices: how many devices run its program; known when that is lowered.
        per_device: whether each device delivers it, in no order among devices.
        multi_row: for each key, whether the program may log it more than once; empty
            if that is unknown.
    """

    sink: Sink | None = None
    quiet: bool = False
    ordered: bool = False
    devices: int = 1
    per_device: bool = False
    multi_row: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Event:
    """Everything about a `lox.log` call that is known before the program runs.

    The values themselves are operands, in this order: the leaves of each key's value,
    the steps, the mask (if `masked`), the number of rows (if `buffered`), and the
    anchors.
    """

    call: Call
    layout: Layout = Layout()
    route: Route = Route()

    def __repr__(self) -> str:  # as it shows in a jaxpr
        return f"{', '.join((*self.call.keys, *self.call.steps))} at {self.call.source}"

    def with_call(self, **changes: Any) -> "Event":
        return dataclasses.replace(self, call=dataclasses.replace(self.call, **changes))

    def with_layout(self, **changes: Any) -> "Event":
        layout = dataclasses.replace(self.layout, **changes)
        return dataclasses.replace(self, layout=layout)

    def with_route(self, **changes: Any) -> "Event":
        route = dataclasses.replace(self.route, **changes)
        return dataclasses.replace(self, route=route)

    def split(self, operands: Sequence[Any]) -> "Operands":
        """The operands by what they mean."""
        values: list[list[Any]] = []
        start = 0
        for tree in self.call.trees:
            values.append(list(operands[start : start + tree.num_leaves]))
            start += tree.num_leaves
        steps = list(operands[start : start + len(self.call.steps)])
        start += len(self.call.steps)
        mask = operands[start] if self.layout.masked else None
        start += self.layout.masked
        filled = operands[start] if self.layout.buffered else None
        start += self.layout.buffered
        return Operands(values, steps, mask, filled, list(operands[start:]))

    def only(
        self, wanted: Callable[[str], bool], operands: Sequence[Any]
    ) -> tuple["Event", list[Any]]:
        """The event with only the wanted keys, and its operands."""
        call, parts = self.call, self.split(operands)
        chosen = [i for i, key in enumerate(call.keys) if wanted(key)]
        numbers, step_numbers = call.split_numbers()
        event = self.with_call(
            keys=tuple(call.keys[i] for i in chosen),
            trees=tuple(call.trees[i] for i in chosen),
            numbers=(*(one for i in chosen for one in numbers[i]), *step_numbers),
        )
        parts.values = [parts.values[i] for i in chosen]
        return event, parts.flat()


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
