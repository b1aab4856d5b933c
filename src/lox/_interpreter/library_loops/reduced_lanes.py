"""Refuses events that depend on lanes that JAX has reduced before lox sees the program.

In `lox.spool(jax.vmap(f))`, JAX calls the batching rules of the primitives that `f`
binds directly. The rule of `unvmap_any` reduces over the lanes immediately: the
traversed program has the merged value, and an operand whose lanes cannot be
distinguished from other axes. In a function that is called by `jit`, or in a loop or
branch, lox masks events before JAX batches it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from lox._events.event import Event
from lox._events.primitive import log_p
from lox._interpreter.contents import cotangents_inside, events_inside
from lox._interpreter.handlers import NO_STATE
from lox._interpreter.patches.rewriter import AllEventsRewriter
from lox._interpreter.walk import Walk
from lox._jax import jaxprs

from .deciding_inputs import called_jaxpr, deciding_inputs, is_elementary, is_event
from .lane_primitives import merges_lanes


def reduced_variables(jaxpr: Any) -> set[Any]:
    """The variables of a jaxpr that may depend on lanes that were reduced in it."""
    found: set[Any] = set()
    for eqn in jaxprs.open_jaxpr(jaxpr).eqns:
        if _reduces(eqn) or (is_elementary(eqn) and _any_in(eqn.invars, found)):
            found.update(eqn.outvars)
    return found


def _reduces(eqn: Any) -> bool:
    if merges_lanes(eqn):
        return bool(eqn.invars[0].aval.shape)
    called = called_jaxpr(eqn)
    return called is not None and any(map(_reduces, called.jaxpr.eqns))


def _any_in(atoms: Iterable[Any], found: set[Any]) -> bool:
    return any(not isinstance(x, jaxprs.Literal) and x in found for x in atoms)


def depends_on_reduced(eqn: Any, reduced: set[Any]) -> bool:
    """Whether events of an equation that have lanes depend on reduced lanes."""
    if is_event(eqn):
        events: Sequence[Event] = [eqn.params["event"]]
    else:
        events = (*events_inside(eqn), *cotangents_inside(eqn))
    if not any(event.layout.lanes and event.call.keys for event in events):
        return False
    return _any_in((eqn.invars[i] for i in deciding_inputs(eqn)), reduced)


def bind_refused(eqn: Any, args: list[Any]) -> list[Any]:
    """Binds an equation; its events are an error, unless they are removed."""
    walk = Walk(_EventRefuser())
    if eqn.primitive is log_p:
        walk.handler.receive(eqn.params["event"], args, NO_STATE)
        return []
    return walk.rule_for(eqn)(walk, eqn, args, NO_STATE)[0]


class _EventRefuser(AllEventsRewriter):
    memo_key = "reduced lanes"

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if event.layout.lanes and event.call.keys and event.call.api != "progress":
            event = event.with_layout(problem=_problem(event))
        log_p.bind(*operands, event=event)


def _problem(event: Event) -> str:
    return (
        f"{event.call.description}, depends on `eqxi.unvmap_any`, `unvmap_all` or "
        "`unvmap_max`, which JAX has reduced over the lanes of `jax.vmap` before lox "
        "sees the program, so it is not known which lanes log it. Write "
        "`jax.vmap(lox.spool(f))` instead of `lox.spool(jax.vmap(f))`, or put "
        "`jax.jit` around the function that `jax.vmap` gets: `jax.vmap(jax.jit(f))`. "
        "To reduce over an array that is not made of lanes, use `jnp.any`."
    )
