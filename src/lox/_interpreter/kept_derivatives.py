"""Rules of primitives that keep their own derivatives.

These are `custom_linear_solve` and high-level (HiJAX) primitives. The events are
collected from a jaxpr of what the primitive computes. To differentiate it, JAX uses the
derivative of the primitive itself, with the events removed.
"""

from collections.abc import Sequence
from typing import Any

import jax

from lox._events.event import Event
from lox._events.primitive import log_p
from lox._jax import ad, hijax, jaxprs, primitives, tracing

from .custom_calls import evaluate_body, lines_in, separates_events, state_outside
from .handlers import Handler, Remover, Rewriter, State
from .rows import Record
from .rule_table import Result, rule
from .rule_watches import HandlingWatch, Line, LineRemover
from .walk import Walk


def _solve(eqn: Any, args: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Only `solve` runs; the other functions describe its derivatives."""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    consts = args[start : start + lengths.solve]
    return eqn.params["jaxprs"].solve, [*consts, *args[sum(lengths) :]]


@rule("custom_linear_solve")
@state_outside
@separates_events(_solve)
def _linear_solve_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    def inputs(args: Sequence[Any]) -> list[Any]:
        return _solve(eqn, args)[1]

    return with_derivative_of(walk, eqn, args, state, _solve(eqn, args)[0], inputs)


@rule("call_hi_primitive")
@state_outside
@separates_events(lambda eqn, args: (jaxprs.expanded_hijax(eqn), args))
def _hijax_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    expanded = jaxprs.expanded_hijax(eqn)
    if isinstance(walk.handler, Rewriter) and not jax.tree.leaves(state):
        watch = HandlingWatch(walk.handler)
        new = hijax.watched(jaxprs.hijax(eqn), watch.rewritten, watch)
        return tracing.bind(eqn, args, _prim=new), Record(), state
    return with_derivative_of(walk, eqn, args, state, expanded, list)


def with_derivative_of(
    walk: Walk,
    eqn: Any,
    args: list[Any],
    state: State,
    solution: Any,
    inputs: Any,
    clean: Any = None,
) -> Result:
    """Evaluates `solution` with its events, and with the derivatives of `eqn`.

    Args:
        walk, eqn, args, state: the arguments of a rule.
        solution: the jaxpr of what the equation computes.
        inputs: selects the inputs of this jaxpr from those of the equation.
        clean: the equation without its events, if rewriting its jaxprs is not enough.
    """
    leaves, state_tree = jax.tree.flatten(state)
    front = len(leaves)
    avals = [*map(jax.typeof, leaves), *(var.aval for var in eqn.invars)]

    def flat_run(*flat: Any) -> Any:
        before = state_tree.unflatten(flat[:front])
        return walk(solution, inputs(flat[front:]), before)

    new, tree, _ = jaxprs.trace(flat_run, avals, solution)
    results = len(eqn.outvars)

    def rewritten_equation() -> Any:
        lines = lines_in(solution)
        if eqn.primitive is primitives.linear_solve_p:
            # the equation to solve is part of the function as well
            lines |= lines_in(eqn.params["jaxprs"].matvec)
        watch = HandlingWatch(
            _SolutionEventRemover(walk.handler, lines, stateless=not front)
        )
        return hijax.changed_equation(eqn, watch.rewritten, watch)

    @jax.custom_jvp
    def fun(*flat: Any) -> list[Any]:
        return evaluate_body(new, flat, results)

    def jvp(primals: Any, tangents: Any) -> Any:
        run = clean or rewritten_equation()
        outs, out_tangents = ad.jvp_of_perturbed(run, primals[front:], tangents[front:])
        rest = evaluate_body(new, primals, results)[results:]
        return [*outs, *rest], [
            *out_tangents,
            *map(ad.zero_tangent, rest),
        ]

    fun.defjvp(jvp, symbolic_zeros=True)
    return tree.unflatten(fun(*leaves, *args))


class _SolutionEventRemover(Rewriter):
    """Removes the events of a solution where its derivatives evaluate it again.

    Other events are handled as in derivative rules. They do not get the state: if there
    is one, they are removed.

    Args:
        handler: the handler of the traversal.
        lines: the lines of the solution that log.
        stateless: whether there is no state.
    """

    def __init__(
        self, handler: Handler, lines: frozenset[Line], stateless: bool
    ) -> None:
        self._handler = (
            handler.for_derivative_rules(lines) if stateless else Remover(handler.wants)
        )
        self._of_solution = LineRemover(lines)
        self.memo_key = (self,)

    def wants(self, event: Event) -> bool:
        return self._of_solution.wants(event) or self._handler.wants(event)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        remaining = self._of_solution.remaining(event, operands)
        if remaining is not None and self._handler.wants(event):
            self._handler.receive(*remaining, State(context=context))
        elif remaining is not None:
            log_p.bind(*remaining[1], event=remaining[0])
