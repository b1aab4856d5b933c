"""The step `iteration` of observed loops, and of results at any depth inside a loop.

The number is a carry that lox adds to the loop. An observed result is bound without the
number, which is a value of the loop's body. When the body is complete, a traversal
passes the number to the events, also into calls, branches and derivative rules.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import captured_events, log_p
from lox._jax import jaxprs, primitives, rule_tables

from .handlers import Rewriter, State
from .walk import Walk

_UNNUMBERED = "without the number of its iteration"

# The number of the next iteration. It is a separate primitive so that
# `of_lanes_that_run` can distinguish the number from other carries.
_next_p: Any = primitives.Primitive("lox_next_iteration")
_next_p.def_impl(lambda number: number + 1)
_next_p.def_abstract_eval(lambda number: number)
rule_tables.register_lowering_as(_next_p, lambda number: number + 1)
rule_tables.register_batching(
    _next_p, lambda axis, args, dims: (_next_p.bind(*args), dims[0])
)
rule_tables.set_no_derivative(_next_p)


def next_iteration(number: Any) -> Any:
    return _next_p.bind(number)


def of_lanes_that_run(
    body: Any, carry: Sequence[Any], outs: Sequence[Any], running: Any
) -> list[Any]:
    """Keeps the numbers of lanes that do not run an iteration.

    Args:
        body: the body of a loop, as a closed jaxpr.
        carry: the carry before the iteration; the last inputs of the body except those
            that a scan slices.
        outs: the results of the body, which begin with the new carry.
        running: which lanes need the iteration; others run it only because of these.
    """
    jaxpr = body.jaxpr
    numbers = {
        eqn.outvars[0]: eqn.invars[0] for eqn in jaxpr.eqns if eqn.primitive is _next_p
    }
    outs = list(outs)
    for i, var in enumerate(jaxpr.outvars[: len(carry)]):
        if not isinstance(var, jaxprs.Literal) and var in numbers:
            outs[i] = jnp.where(running, outs[i], carry[i])
    return outs


def bind_unnumbered(log: Callable[[], None]) -> None:
    """Binds the events of `log()`, which get their numbers later."""
    with captured_events() as events:
        log()
    for event, operands in events:
        log_p.bind(*operands, event=event.with_call(api_data=_UNNUMBERED))


def evaluate_numbered(closed: Any, args: Sequence[Any], number: Any) -> list[Any]:
    """Evaluates a closed jaxpr, whose events without numbers get this one."""
    # after a `vmap` there is one number per lane, and all are equal
    number = jnp.ravel(number)[0] if jnp.ndim(number) else number
    return Walk(_Numbering())(closed, args, State(context=number))[0]


class _Numbering(Rewriter):
    """Adds the context, the number of the iteration, to events without one."""

    rules_need_state = True

    def wants(self, event: Event) -> bool:
        return event.call.api_data == _UNNUMBERED

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if context is None:
            raise UnsupportedPrimitiveError(
                f"{event.call.description}, is observed in the backward or batching "
                "rule of a function inside a loop, where the number of the iteration "
                "is not known. Observe it outside the loop, or select other loops "
                "with `loops=`."
            )
        parts = event.split(operands)
        parts.steps = [context]
        log_p.bind(*parts.flat(), event=event.with_call(api_data=None))
