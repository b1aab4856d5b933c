"""What a traversal does with the events of a program.

A `Collector` takes events out of the program, as rows or into its state. A `Rewriter`
leaves them in the program, changed, or removes them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from lox._events.event import Event

from .rows import Record

if TYPE_CHECKING:
    from .walk import Walk


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What travels through a program: into loops as a carry, into calls as an argument.

    Attributes:
        streams: the states of a collector's streams by number. Their leaves have the
            lane axes of the streams' events in front; those of the rest have none.
        run: the words of the key of the run that events belong to; None if none.
        context: what a rewriter adds to events; None where it is not known, as in some
            derivative and batching rules of custom functions.
    """

    streams: dict[int, Any] = dataclasses.field(default_factory=dict)
    run: Any = None
    context: Any = None

    def per_lane_leaves(self) -> list[bool]:
        """For each leaf, whether it has lane axes."""
        streams, rest = map(jax.tree.leaves, (self.streams, (self.run, self.context)))
        return [True] * len(streams) + [False] * len(rest)

    def with_streams(self, streams: dict[int, Any]) -> "State":
        return State(streams, self.run, self.context)

    def updated(self, part: "State") -> "State":
        """The whole state after a part of it has changed."""
        if not self.streams:
            return part
        return part.with_streams({**self.streams, **part.streams})


NO_STATE = State()


class Handler:
    """What a transformation does with the events of a program.

    Attributes:
        memo_key: identifies a rewriter that needs no state: what it makes of a jaxpr is
            remembered by this key.
    """

    memo_key: Any = None

    def wants(self, event: Event) -> bool:
        """Whether to handle this event; if not, it stays in the program."""
        raise NotImplementedError

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        """Handles an event; returns its rows and the new state."""
        raise NotImplementedError

    def part(self, state: State, eqn: Any) -> State:
        """The part of the state that the events inside an equation need."""
        del eqn
        return state

    def in_rules(self, lines: frozenset[Any] = frozenset()) -> "Handler":
        """The handler for the events of a function's derivative rules.

        Args:
            lines: the lines that log in the function itself, with their keys.
        """
        del lines
        return self

    def in_cotangents(self) -> "Handler":
        """The handler for the events of cotangents, which derivatives add later on."""
        return self.in_rules()

    def without_rows(self) -> "Handler":
        """The handler for a place that rows cannot leave, such as a batching rule."""
        return self


class Collector(Handler):
    """Takes events out of a program: as rows, which leave it as extra results, or into
    its state.
    """

    def rows_only(self, walk: "Walk", eqn: Any) -> "Collector | None":
        """A collector of the rows of an equation, which `absorb` puts into the state.

        It may still need the `part` of the state that belongs to the equation.
        """
        del walk, eqn
        return None

    def absorb(self, record: Record, state: State) -> tuple[Record, State]:
        """Puts rows into the state; returns those that do not belong there."""
        return record, state

    def without_rows(self) -> Handler:
        return Remover(self.wants)


class Rewriter(Handler):
    """Binds events again, changed, or removes them.

    Attributes:
        rules_need_state: whether the events of derivative rules get the state, too.
    """

    rules_need_state = False

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        self.rewrite(event, operands, state.context)
        return Record(), state

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        """Binds what is left of an event.

        Args:
            event: the event.
            operands: its operands.
            context: as in `State`.
        """
        raise NotImplementedError


class Remover(Rewriter):
    """Removes events, unless a transformation has collected them already."""

    def __init__(self, wants: Callable[[Event], bool] | None = None) -> None:
        self._wants = wants
        self.memo_key = ("remove", wants)

    def wants(self, event: Event) -> bool:
        if event.route.sink is not None:
            return False
        return self._wants is None or self._wants(event)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        pass
