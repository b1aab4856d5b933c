"""The rule of all Equinox and lineax primitives except `noinline`."""

from typing import Any

from lox._interpreter.contents import cotangents_of, events_of
from lox._interpreter.handlers import Collector, Remover, State
from lox._interpreter.kept_derivatives import with_derivative_of
from lox._interpreter.rows import Record
from lox._interpreter.rule_table import Result, other_jaxprs, rule_finder
from lox._interpreter.rule_watches import lines_of
from lox._interpreter.walk import Walk
from lox._jax import jaxprs, tracing

from .expansion import expand, filtered_params
from .silent import SilentCall, expand_silent, silent_p


@rule_finder
def _rule_for(eqn: Any) -> Any:
    is_filtered = filtered_params(eqn.params) is not None
    return _filtered_rule if is_filtered or eqn.primitive is silent_p else None


@other_jaxprs("linear_solve")
@other_jaxprs("vprim")
def _jaxprs_of_filtered(eqn: Any) -> list[Any]:
    """What an equation does, and the functions that only its derivatives call.

    A function that closes over no array has not been traced: it is itself a parameter,
    like the methods of a solver.
    """
    inside = list(jaxprs.jaxprs_of(eqn))
    if filtered_params(eqn.params) is None:
        return inside
    try:
        expanded = expand(eqn)
    except Exception:  # it needs axes of a `vmap` or `shard_map` around it
        return inside
    if not (events_of(expanded) or cotangents_of(expanded)):
        return inside
    lines = lines_of(events_of(expanded))
    return [expanded, *(one for one in inside if lines_of(events_of(one)) - lines)]


def _filtered_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    handler = walk.handler
    if handler.memo_key is not None:  # no rows and no state
        call = SilentCall.of(eqn, handler)
        return silent_p.bind(*args, call=call), Record(), state
    expanded = expand_silent(eqn) if eqn.primitive is silent_p else expand(eqn)
    if not isinstance(handler, Collector) or not walk.wants_in_jaxpr(expanded):
        return tracing.bind(eqn, args), Record(), state
    call = SilentCall.of(eqn, Remover(handler.wants))

    def silent(*args: Any) -> list[Any]:
        return silent_p.bind(*args, call=call)

    return with_derivative_of(walk, eqn, args, state, expanded, list, silent)
