"""Watches that handle the events of derivative rules while JAX runs them.

A derivative rule is a Python function that JAX calls when it differentiates. Its
arguments may be Python values, which tracing it to a jaxpr would convert to arrays. So
the rule runs unchanged, under a watch: the watch sees every primitive that the rule
binds, and records, rewrites or removes the events among them and in their jaxprs. The
rewritten events do not enter JAX's caches, which only see the functions and jaxprs of
the user.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from lox._events.event import Event
from lox._events.log_grad import log_grad_p
from lox._events.primitive import log_p
from lox._jax import hijax, jaxprs, primitives, tracing
from lox._jax.rule_sources import NO_FUNCTION, CustomFunction
from lox._source import Source

from .contents import events_of, jaxpr_has_hidden_rules, may_log
from .cotangents import rebound
from .handlers import NO_STATE, Handler, Remover, Rewriter, State
from .rule_table import find_rule, has_other_jaxprs, has_rule
from .walk import Walk

# A line and a key that it logs. The line alone is not enough: a helper function may log
# different keys for different callers.
Line = tuple[Source, str]


def lines_of(events: Iterable[Event]) -> set[Line]:
    return {(event.call.source, key) for event in events for key in event.call.keys}


_NEVER_PASS = (log_p, log_grad_p, primitives.hijax_p)


class _Watch:
    """The base class of watches; for the contract, see `lox._jax.watches.Watch`."""

    def begin(self) -> "_Watch":
        return self

    def passes(self, primitive: Any, params: dict[str, Any]) -> bool:
        if primitive is primitives.jit_p:
            inner: Any = (params["jaxpr"],)
        elif primitive in _NEVER_PASS or has_other_jaxprs(primitive):
            return False
        else:
            inner = jaxprs.jaxprs_in(params) if jaxprs.has_jaxprs(params) else ()
        return not any(map(may_log, inner))

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        raise NotImplementedError

    def inside(
        self, role: str, function: CustomFunction = NO_FUNCTION
    ) -> "_Watch | None":
        raise NotImplementedError


def _jaxprs_inside(
    primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """The jaxprs that a primitive may run."""
    if has_other_jaxprs(primitive):
        return [tracing.traced_equation(primitive, args, params)[0]]
    return list(jaxprs.jaxprs_in(params))


def _never(primitive: Any, params: Any) -> bool:
    return False


class RecordingWatch(_Watch):
    """Records the lines of all events, and leaves the events in the program."""

    def __init__(self, lines: set[Line]) -> None:
        self._lines = lines

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive is log_p:
            self._lines |= lines_of([params["event"]])
        for jaxpr in _jaxprs_inside(primitive, args, params):
            self._lines |= lines_of(events_of(jaxpr))
        prim = jaxprs.hijax_of(primitive, params)
        if prim is not None:
            new = hijax.watched(prim, lambda jaxpr: jaxpr, self)
            params = {**params, "_prim": new}
        return primitive.bind(*args, **params)

    def inside(
        self, role: str, function: CustomFunction = NO_FUNCTION
    ) -> _Watch | None:
        return None if role == "bwd" else self


class HandlingWatch(_Watch):
    """Passes all events to a handler.

    Args:
        handler: returns no rows, and does not change the state.
        state: the state that it gets with every event.
    """

    def __init__(self, handler: Handler, state: State = NO_STATE) -> None:
        self._handler = handler
        self._state = state

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive is log_p:
            event = params["event"]
            if self._handler.wants(event):
                self._handler.receive(event, args, self._state)
            else:
                log_p.bind(*args, event=event)
            return []
        if primitive is log_grad_p:
            return rebound(self._handler, params["event"], args, self._state)
        prim = jaxprs.hijax_of(primitive, params)
        stateless = not jax.tree.leaves(self._state)
        if prim is not None and (stateless or not _can_take_state(prim)):
            new = hijax.watched(prim, self.rewritten, self)
            return primitive.bind(*args, **{**params, "_prim": new})
        walk = Walk(self._handler)
        handled = any(
            walk.wants_in_jaxpr(jaxpr) or jaxpr_has_hidden_rules(jaxpr)
            for jaxpr in _jaxprs_inside(primitive, args, params)
        )
        if not handled and (prim is None or not hijax.is_custom_vjp(prim)):
            return primitive.bind(*args, **params)
        if stateless and has_rule(primitive) and not has_other_jaxprs(primitive):
            return primitive.bind(*args, **jaxprs.map_jaxprs(params, self.rewritten))
        # rewriting the jaxprs is not enough: the state must become an operand, or the
        # rule of the primitive does more than that (see `rule_finder`)
        closed, args = tracing.traced_equation(primitive, args, params)
        if None in map(find_rule, closed.eqns):
            # as in the traversal: without a rule, the jaxprs are only rewritten
            if stateless and self._handler.memo_key is not None:
                params = jaxprs.map_jaxprs(params, self.rewritten)
            return primitive.bind(*args, **params)
        outs, _, _ = walk(closed, args, self._state)
        return outs if primitive.multiple_results else outs[0]

    def inside(self, role: str, function: CustomFunction = NO_FUNCTION) -> _Watch:
        if role == "call":
            return self
        handler = self._handler
        if role == "batch":
            inside = handler.inside_vmap()
        elif role == "bwd":
            inside = handler.for_backward_rules()
        else:
            inside = handler.for_derivative_rules()
        return HandlingWatch(inside, self._state)

    def rewritten(self, jaxpr: Any) -> Any:
        return Walk(self._handler).rewritten(jaxpr)


def _can_take_state(prim: Any) -> bool:
    """Whether the state can become an operand of a high-level primitive."""
    return hijax.is_checkpoint(prim) or hijax.is_custom_vjp(prim)


class _WithoutCotangents(Rewriter):
    """Removes `log_grad`, and leaves events alone."""

    memo_key = ("without cotangents",)

    def wants(self, event: Event) -> bool:
        return False

    def for_cotangents(self) -> Handler:
        return Remover()


class ForwardPassWatch(RecordingWatch):
    """For a forward pass that JAX computes separately from its derivative.

    It is that of a `checkpoint`, whose derivative has its own copy of `log_grad`. A
    derivative of the forward pass would log the cotangents again.
    """

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive is log_p or jaxprs.hijax_of(primitive, params) is not None:
            return super().bind(primitive, args, params)
        for jaxpr in _jaxprs_inside(primitive, args, params):
            self._lines |= lines_of(events_of(jaxpr))
        return HandlingWatch(_WithoutCotangents()).bind(primitive, args, params)


class LineRemover(Rewriter):
    """Removes the events of certain lines.

    Args:
        lines: the lines, with their keys.
        anchors: whether to also remove events without keys, which only keep others in
            a loop (see `patches`).
    """

    def __init__(self, lines: frozenset[Line], anchors: bool = False) -> None:
        self._lines = lines
        self._anchors = anchors
        self.memo_key = ("remove lines", lines, anchors)

    def wants(self, event: Event) -> bool:
        if not event.call.keys:
            return self._anchors
        return not self._lines.isdisjoint(lines_of([event]))

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        kept = self.remaining(event, operands)
        if kept is not None:
            log_p.bind(*kept[1], event=kept[0])

    def remaining(
        self, event: Event, operands: Sequence[Any]
    ) -> tuple[Event, Sequence[Any]] | None:
        """The rest of an event, or None if nothing is left."""
        keys = {
            key
            for key in event.call.keys
            if (event.call.source, key) not in self._lines
        }
        if keys and len(keys) == len(event.call.keys):
            return event, operands
        return event.select_keys(keys.__contains__, operands) if keys else None


class RecomputationWatch(_Watch):
    """Removes the events of lines that have been recorded so far."""

    def __init__(self, lines: set[Line]) -> None:
        self._lines = lines

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        watch = HandlingWatch(LineRemover(frozenset(self._lines)))
        return watch.bind(primitive, args, params)

    def inside(self, role: str, function: CustomFunction = NO_FUNCTION) -> _Watch:
        return self


class DerivativeRuleWatch(_Watch):
    """For a rule that computes values and tangents, and may call its own function.

    The first call of the function logs. Later events of the same lines are
    recomputation, and are removed.

    Args:
        is_own: whether a primitive, with these parameters, is the function.
        function: the function, if it is a custom function.
        lines: the lines of the function that are known to log.
    """

    def __init__(
        self,
        is_own: Callable[[Any, Any], bool] = _never,
        function: CustomFunction = NO_FUNCTION,
        lines: Iterable[Line] = (),
    ) -> None:
        self._is_own = is_own
        self._function = function
        self._lines = frozenset(lines)

    def begin(self) -> _Watch:
        return _DerivativeRuleRun(self._is_own, self._function, set(self._lines))


class _DerivativeRuleRun(RecomputationWatch):
    """The watch of one call of the rule."""

    def __init__(
        self,
        is_own: Callable[[Any, Any], bool],
        function: CustomFunction,
        lines: set[Line],
    ) -> None:
        super().__init__(lines)
        self._is_own = is_own
        self._function = function
        self._called = False

    def passes(self, primitive: Any, params: dict[str, Any]) -> bool:
        return super().passes(primitive, params) and (
            self._called or not self._is_own(primitive, params)
        )

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if not self._called and self._is_own(primitive, params):
            self._called = True
            if self._lines:
                return primitive.bind(*args, **params)
            return RecordingWatch(self._lines).bind(primitive, args, params)
        return super().bind(primitive, args, params)

    def inside(self, role: str, function: CustomFunction = NO_FUNCTION) -> _Watch:
        if self._called or not _are_same(self._function, function):
            return self
        # JAX runs either a custom function or its rule, and asks for the watch of the
        # function first
        self._called = role != "call"
        return RecordingWatch(self._lines)


def _are_same(own: CustomFunction, other: CustomFunction) -> bool:
    """Whether two custom functions are the same one, as far as that is known."""
    if not own.place or own.place != other.place:
        return False
    functions = own.function, other.function
    traced = list(map(jaxprs.is_jaxpr, functions))
    if all(traced):
        # a function of the same place that the function calls has fewer events
        first, second = map(_number_of_events, functions)
        return first == second
    unknown = any(x is None for x in functions)
    return any(traced) or unknown or functions[0] is functions[1]


def _number_of_events(jaxpr: Any) -> int:
    """The number of equations that log, at any depth, without anchors."""
    return sum(
        bool(eqn.params["event"].call.keys)
        if eqn.primitive is log_p
        else sum(map(_number_of_events, jaxprs.jaxprs_in(eqn.params)))
        for eqn in jaxprs.open_jaxpr(jaxpr).eqns
    )
