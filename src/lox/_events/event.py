"""`Event`: the static description of a `lox.log` call in a program."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from lox._source import Source


class Sink(Protocol):
    """The destination of events on the host."""

    def receiver(self, event: "Event") -> Callable[..., tuple[()]]:
        """Returns the host callback for an event; it is called with NumPy operands."""
        ...

    def deliver(self, event: "Event", operands: Sequence[Any]) -> None:
        """Delivers an eager event; raises the exception of its callback, if any."""
        ...


class Summary(Protocol):
    """What is logged in place of cotangents; a static, hashable object."""

    def bind(self, event: "Event", operands: Sequence[Any]) -> None:
        """Binds the events that replace `event`, whose values are the cotangents."""
        ...


class _Default:
    """The sink of events that no transformation collects; set by the host side."""

    sink: Sink


default = _Default()


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a `lox.log` call, without the values.

    Attributes:
        keys: the logged keys.
        trees: the structure of each key's value.
        steps: the names of the steps.
        source: the line of the call.
        tags: the tags of the call.
        explicit: whether only transformations with `argnames` or `tags` collect it.
        reduce: the reduction that the call requests, if any.
        api: the API of the call (`lox` or `logify`); transformations of one API ignore
            the events of others.
        api_data: additional static data of that API.
        summary: for cotangents, what is logged instead of them, if anything.
        conditional: whether the call has a `when`.
        over: the mesh axes across which the values are reduced (see `over`).
        early: whether the call may be in a program that runs while another one is
            traced (see `not_traced`).
        of_cotangents: whether its values are cotangents, logged by a backward pass.
        names: the user's names of the values, for messages, if they are not the keys.
        numbers: the Python numbers among the leaves and then the steps; None for values
            that are known only at run time, and for missing entries at the end. The
            numbers decide which dtypes the values can be cast to; they are ignored when
            calls are compared.
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
    over: tuple[str, ...] = ()
    early: bool = False
    of_cotangents: bool = False
    names: tuple[str, ...] = ()
    numbers: tuple[Any, ...] = dataclasses.field(default=(), compare=False)

    @property
    def description(self) -> str:
        """The keys and the line, for messages."""
        names = ", ".join(map(repr, self.names or self.keys))
        return f"{names}, logged at {self.source}"

    def split_numbers(self) -> tuple[list[list[Any]], list[Any]]:
        """Splits `numbers` into those of each key's leaves, and those of the steps."""
        rest = itertools.chain(self.numbers, itertools.repeat(None))
        values = [[next(rest) for _ in range(tree.num_leaves)] for tree in self.trees]
        return values, [next(rest) for _ in self.steps]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The axes and extra operands that transformations have added to a call.

    Attributes:
        lanes: the number of lane axes, one per `vmap` around the call. They are the
            leading axes of all operands except the anchors.
        elements: whether values, steps and mask have an axis of elements after the
            lanes, each of which is a separate event (see `condition`).
        masked: whether a boolean operand says which lanes, and which elements, log the
            event.
        buffered: whether values and steps have a time axis after the lanes; an operand
            is the number of valid rows.
        anchors: the number of operands that only keep the event inside its loop (see
            `patches.scan_derivatives`).
        site: identifies the event in a loop that JAX splits in two (see
            `patches.repeated_while`).
        once: set inside `jacfwd`, whose `vmap` over tangents must not add a lane (see
            `recomputation`): "value" if the values do not depend on tangents, "rule" if
            they may.
        device_lanes: for an event in a `shard_map` whose step `lane` numbers the
            devices and the lanes of `vmap`s: how many devices there are, and how many
            lane axes it numbers. A `vmap` that comes later adds axes in front of these.
        problem: the message of the error that is raised unless the event is removed.
    """

    lanes: int = 0
    elements: bool = False
    masked: bool = False
    buffered: bool = False
    anchors: int = 0
    site: int = 0
    once: str = ""
    device_lanes: tuple[int, int] | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """The destination of an event.

    Attributes:
        sink: set once a transformation has collected the event; other transformations
            then ignore it.
        quiet: whether the event has passed through a transformation, and is therefore
            not printed by default.
        missed: if it is a cotangent, the `Selection`s of transformations inside the
            derivative, which cannot collect it.
        ordered: whether the sink receives the event in program order.
        devices: the number of devices that run the program; known when the program is
            lowered.
        local_devices: if each device delivers the event, in no order among devices, how
            many devices of this process do so; else 0.
        multi_row: for each key, whether the program may log it more than once; empty
            if that is unknown.
    """

    sink: Sink | None = None
    quiet: bool = False
    missed: tuple[Any, ...] = ()
    ordered: bool = False
    devices: int = 1
    local_devices: int = 0
    multi_row: tuple[bool, ...] = ()

    @property
    def per_device(self) -> bool:
        return self.local_devices > 0


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

    def __repr__(self) -> str:  # as printed in a jaxpr
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
        """Groups the operands by their meaning."""
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

    def select_keys(
        self, selected: Callable[[str], bool], operands: Sequence[Any]
    ) -> tuple["Event", list[Any]]:
        """Returns the event with only the selected keys, and its operands."""
        call, parts = self.call, self.split(operands)
        chosen = [i for i, key in enumerate(call.keys) if selected(key)]
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
    """The operands of an event, by their meaning (see `Event`)."""

    values: list[list[Any]]
    steps: list[Any]
    mask: Any
    filled: Any
    anchors: list[Any]

    def flat(self) -> list[Any]:
        leaves = [leaf for value in self.values for leaf in value]
        rest = [x for x in (self.mask, self.filled) if x is not None]
        return [*leaves, *self.steps, *rest, *self.anchors]
