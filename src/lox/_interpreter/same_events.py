"""Whether two programs log the same values, by value numbering.

A derivative rule usually computes what its function computes, and logs the same values.
Its events can then replace those of the function. To prove that they are the same,
every value is numbered by its operation and the numbers of its operands: two values
with the same number are equal.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from lox._events.event import Event
from lox._events.primitive import log_p
from lox._jax import jaxprs, partial_eval, primitives

from .contents import events_inside, events_of
from .walk import without_events

_MAX_COMPARED = 64  # the size of arrays that are compared by value
# The calls that can be inlined, and the parameter with their jaxpr.
_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def _inlined_jaxpr(eqn: Any) -> Any:
    """The jaxpr of a call that can be inlined; None for other equations."""
    if jaxprs.hijax(eqn) is not None:
        return jaxprs.expanded_hijax(eqn)
    if eqn.primitive.name in ("closed_call", "core_call", "eval_jaxpr"):
        return primitives.called_jaxpr(eqn.params)
    name = _INLINED.get(eqn.primitive.name)
    return None if name is None else eqn.params[name]


def same_events(first: Any, second: Any, wants: Callable[[Event], bool]) -> bool:
    """Whether two closed jaxprs log the same values, given the same first inputs.

    Args:
        first: a closed jaxpr; it may have more inputs.
        second: another one.
        wants: which of their events to compare.
    """

    def selected(closed: Any) -> set[Event]:
        events = filter(wants, events_of(closed))
        return {_without_anchors(event) for event in events if event.call.keys}

    if selected(first) != selected(second):
        return False
    numbers = _ValueNumbering()

    def events(closed: Any) -> Hashable:
        quiet = without_events(closed, lambda event: not wants(event), collected=True)
        return numbers.of_program(*partial_eval.only_effects(quiet))

    return events(first) == events(second)


def _without_anchors(event: Event) -> Event:
    """An event without the fields that only `patches` use."""
    return event.with_layout(anchors=0, site=0)


class _ValueNumbering:
    """Numbers the values of programs; values with equal numbers are equal."""

    def __init__(self) -> None:
        self._table: dict[Any, int] = {}

    def of_program(self, jaxpr: Any, consts: Sequence[Any]) -> Hashable:
        """The events and results of an open jaxpr, by number.

        Args:
            jaxpr: the jaxpr.
            consts: the values of its first inputs.
        """
        events: list[Any] = []
        inputs = [("input", i) for i in range(len(jaxpr.invars) - len(consts))]
        outs = self._evaluate(jaxpr, [*map(_constant, consts), *inputs], events)
        return tuple(events), tuple(outs)

    def _evaluate(
        self, jaxpr: Any, inputs: Sequence[Hashable], events: list[Any]
    ) -> list[Any]:
        """Returns the numbers of the results; appends events to `events`."""

        def of_literal(atom: Any) -> Any:
            return "literal", atom.aval, _constant(atom.val)

        def evaluate(eqn: Any, ins: list[Any]) -> list[Any]:
            if eqn.primitive is log_p:
                event = eqn.params["event"]
                if event.call.keys:
                    values = tuple(ins[: len(ins) - event.layout.anchors])
                    events.append((_without_anchors(event), values))
                return []
            inlined = _inlined_jaxpr(eqn)
            if inlined is not None:
                inner, consts = jaxprs.constants_to_inputs(inlined)
                return self._evaluate(inner, [*map(_constant, consts), *ins], events)
            params = tuple(sorted(primitives.comparable_params(eqn).items()))
            key = (eqn.primitive, self._static(params), tuple(ins))
            number = self._table.setdefault(key, len(self._table))
            if events_inside(eqn):
                events.append(number)
            return [(number, i) for i in range(len(eqn.outvars))]

        return jaxprs.interpret(jaxpr, inputs, evaluate, of_literal)

    def _static(self, value: Any) -> Hashable:
        """A parameter in a form that can be compared."""
        if isinstance(value, tuple | list):
            return tuple(map(self._static, value))
        if jaxprs.is_jaxpr(value):
            return self.of_program(*jaxprs.constants_to_inputs(value))
        return _constant(value)


def _constant(value: Any) -> Hashable:
    """A constant in a form that can be compared: by value, or by identity."""
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return type(value), value
    if _is_small_array(value):
        array = np.asarray(value)
        return type(value), array.dtype, array.shape, array.tobytes()
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value


def _is_small_array(value: Any) -> bool:
    """Whether a value is a small array on the host, such as a literal of JAX."""
    if isinstance(value, type | jax.Array) or not hasattr(value, "__array__"):
        return False
    return np.size(value) <= _MAX_COMPARED


class _Identity:
    """Compares an object by identity, and keeps it alive."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
