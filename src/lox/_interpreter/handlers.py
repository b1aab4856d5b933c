"""Handlers: what a traversal does with the events of a program.

A `Collector` removes events from the program and collects them, as rows or in its
state. A `Rewriter` binds them again with changes, or only removes them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from lox._events.event import Event

from .rows import Record


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """The state of a handler: a carry of loops, an argument of branches and calls.

    Attributes:
        streams: the states of a collector's streams by number. Their leaves begin with
            the lane axes of the streams' events; other leaves have no lane axes.
        run: the key data of the run that the events belong to, if any.
        context: the value that a rewriter adds to events; None where it is unknown, as
            in some derivative and batching rules of custom functions.
    """

    streams: dict[int, Any] = dataclasses.field(default_factory=dict)
    run: Any = None
    context: Any = None

    def device_axes(
        self, axes: tuple[Any, ...], over: Mapping[int, frozenset[Any]]
    ) -> list[tuple[Any, ...]]:
        """For each leaf, the mesh axes along which each device has its own.

        Args:
            axes: the axes of the `shard_map`.
            over: for streams, the axes along which all devices have the same state.
        """
        found: list[tuple[Any, ...]] = []
        for number, stream in sorted(self.streams.items()):
            same = over.get(number, ())
            own = tuple(axis for axis in axes if axis not in same)
            found += [own] * len(jax.tree.leaves(stream))
        rest = jax.tree.leaves((self.run, self.context))
        return [*found, *[()] * len(rest)]

    def per_lane_leaves(self) -> list[bool]:
        """For each leaf, whether it has lane axes."""
        streams, rest = map(jax.tree.leaves, (self.streams, (self.run, self.context)))
        return [True] * len(streams) + [False] * len(rest)

    def with_streams(self, streams: dict[int, Any]) -> "State":
        return State(streams, self.run, self.context)

    def updated(self, part: "State") -> "State":
        """Returns the whole state after `part` of it has changed."""
        if not self.streams:
            return part
        return part.with_streams({**self.streams, **part.streams})


NO_STATE = State()


class Handler:
    """What a transformation does with the events of a program.

    Attributes:
        memo_key: identifies a rewriter that needs no state; the jaxprs that it rewrites
            are cached by this key. None for other handlers.
        rules_need_state: whether events in derivative rules also need the state.
        removes_all: whether it removes every event that has not been collected.
    """

    memo_key: Any = None
    rules_need_state = False
    removes_all = False

    def wants(self, event: Event) -> bool:
        """Whether to handle this event; if not, it stays in the program unchanged."""
        raise NotImplementedError

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        """Handles an event; returns its rows and the new state."""
        raise NotImplementedError

    def part(self, state: State, eqn: Any) -> State:
        """Returns the part of the state that the events inside an equation need."""
        return state

    def over(self, eqn: Any) -> Mapping[int, frozenset[Any]]:
        """The `over` of events inside an equation, by the number of their stream."""
        del eqn
        return {}

    def for_derivative_rules(self, lines: frozenset[Any] = frozenset()) -> "Handler":
        """Returns the handler for the events in the derivative rules of a function.

        Args:
            lines: the lines of the function itself that log, with their keys.
        """
        return self

    def for_backward_rules(self, lines: frozenset[Any] = frozenset()) -> "Handler":
        """As `for_derivative_rules`, for rules that run in the backward pass."""
        return self.for_derivative_rules(lines)

    def for_cotangents(self) -> "Handler":
        """The handler for the events of cotangents, which derivatives add later on."""
        return self.for_derivative_rules()

    def inside_vmap(self) -> "Handler":
        """Returns the handler for events that have the lanes of a later `vmap`."""
        return self

    def without_rows(self) -> "Handler":
        """Returns the handler for code that cannot return rows (batching rules)."""
        return self


class Collector(Handler):
    """Removes events from a program and collects them.

    They become rows, which are extra results of the program, or update the state.
    """

    def rows_only(self, eqn: Any) -> "Collector | None":
        """Returns a collector that returns the events of an equation as rows.

        `absorb` then puts these rows into the state. The collector may still need the
        `part` of the state that belongs to the equation.
        """
        return None

    def absorb(self, record: Record, state: State) -> tuple[Record, State]:
        """Updates the state with rows; returns the rows that do not belong to it."""
        return record, state

    def without_rows(self) -> Handler:
        return Remover(self.wants)


class Rewriter(Handler):
    """Binds events again with changes, or removes them."""

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        self.rewrite(event, operands, state.context)
        return Record(), state

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        """Binds the rewritten event, if it is not removed.

        Args:
            event: the event.
            operands: its operands.
            context: see `State`.
        """
        raise NotImplementedError


class Remover(Rewriter):
    """Removes events.

    Args:
        wants: which events; by default, all.
        collected: whether to also remove those that a transformation has collected
            already, and that only have to be delivered.
    """

    def __init__(
        self,
        wants: Callable[[Event], bool] | None = None,
        collected: bool = False,
    ) -> None:
        self._wants = wants
        self._collected = collected
        self.memo_key = ("remove", wants, collected)
        self.removes_all = wants is None

    def wants(self, event: Event) -> bool:
        if event.route.sink is not None and not self._collected:
            return False
        return self._wants is None or self._wants(event)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        pass
