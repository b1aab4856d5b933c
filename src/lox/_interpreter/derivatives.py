"""Where JAX evaluates a function again to differentiate it.

An event that comes by a line which the function itself has passed is recomputation
then, and no event. JAX's rules are wrapped here, so that this holds with and without a
transformation of ours:

- **A `custom_vjp` function**: the forward rule runs under a watch that records its
  lines, the backward rule under one that drops what comes by these lines.
- **A `custom_jvp` function**: of a rule that calls the function itself, the first call
  counts.
- **`custom_root` and `custom_linear_solve`**: the solution counts, and not the solves
  for tangents and cotangents.
- **`jacfwd`** runs the function once, with a tangent for each dimension of its input.
  Its events are marked, and pass the `vmap` over the tangents once.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from lox._events import primitive
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._jax import compat

from .derivative_rules import (
    Changer,
    DerivativeRule,
    Line,
    Recomputation,
    Recorder,
    lines_of,
)
from .rows import Record
from .walk import Collector, State, events_of


def _of_vjp() -> tuple[Recorder, Recomputation]:
    lines: set[Line] = set()
    return Recorder(lines), Recomputation(lines)


def _of_jvp(name: str) -> DerivativeRule:
    return DerivativeRule(name=name)


# --- solvers -----------------------------------------------------------------


def _watched_solve(rule: Callable[..., Any]) -> Callable[..., Any]:
    """For the rule of `custom_linear_solve`."""

    def is_own(primitive: Any, params: Any) -> bool:
        del params
        return primitive is compat.linear_solve_p

    def wrapped(*args: Any, **params: Any) -> Any:
        jaxprs = params["jaxprs"]
        # the equation that is solved belongs to the function too
        events = (*events_of(jaxprs.solve), *events_of(jaxprs.matvec))
        if not events and not any(map(events_of, filter(None, jaxprs))):
            return rule(*args, **params)
        watch = DerivativeRule(is_own, lines=lines_of(events))
        return compat.watched(rule, watch)(*args, **params)

    return wrapped


def _watched_hijax(rule: Callable[..., Any]) -> Callable[..., Any]:
    """For the rules of high-level primitives.

    The linear function and the backward rule run later, under the same watch.
    """

    def wrapped(*args: Any, **params: Any) -> Any:
        watches = _watches_of_hijax(params["_prim"])
        prim = compat.hijax_with_watched_rules(params["_prim"], *watches)
        return rule(*args, **{**params, "_prim": prim})

    return wrapped


def _watches_of_hijax(prim: Any) -> tuple[compat.Watch, compat.Watch]:
    """The watches for the forward and the backward rules."""
    # the forward pass of a checkpoint logs, and what comes again is recomputation
    if compat.is_custom_vjp(prim) or compat.is_checkpoint(prim):
        return _of_vjp()
    watch = DerivativeRule(_is_hijax(prim)).begin()
    return watch, watch


def _is_hijax(prim: Any) -> Callable[[Any, Any], bool]:
    def is_own(primitive: Any, params: Any) -> bool:
        return type(compat.hijax_of(primitive, params)) is type(prim)

    return is_own


# --- jacfwd ------------------------------------------------------------------


class _Mark(Collector):
    """Marks events as such that pass the next `vmap` once."""

    gives_rows = False

    def __init__(self, mark: str = "value") -> None:
        self._mark = mark
        self.key = ("mark", mark)

    def wants(self, event: Event) -> bool:
        return bool(event.keys)

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        log_p.bind(*operands, event=dataclasses.replace(event, once=self._mark))
        return Record(), state

    def in_rules(self, lines: frozenset[Any] = frozenset()) -> Collector:
        del lines
        return _Mark("rule")


def install() -> None:
    """Wraps JAX's rules, once."""
    compat.watch_derivatives(_of_vjp, _of_jvp)
    compat.wrap_rule("jvp", compat.linear_solve_p, _watched_solve)
    if compat.hijax_p is not None:
        compat.wrap_rule("jvp", compat.hijax_p, _watched_hijax)
        compat.wrap_rule("linearize", compat.hijax_p, _watched_hijax)
        compat.watch_remat_rules(_of_vjp)
    primitive.jacfwd_is_known = compat.watch_jacfwd(Changer(_Mark()))


install()
