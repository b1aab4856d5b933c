"""What happens to the events of functions that JAX runs for us.

A derivative rule is a Python function that JAX calls when it differentiates, with
values of any kind. Nobody can evaluate it equation by equation without turning its
Python values into arrays. It runs as it is instead, under a watch: every primitive that
it binds passes by, and the events among them, or in the jaxprs that others hold, are
recorded or changed. Nothing of that enters JAX's caches, which know the functions and
jaxprs of the user only.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from lox._events.event import Event
from lox._events.log_grad import log_grad_p
from lox._events.primitive import log_p
from lox._jax import hijax, jaxprs, primitives
from lox._source import Source

from .contents import events_of, hides_rules
from .cotangents import rebound
from .handlers import NO_STATE, Handler, Remover, Rewriter, State
from .rule_table import has_rule
from .walk import Walk

# A line with one of the keys that it logs: a helper that logs whatever it is given is
# one line for all its callers.
Line = tuple[Source, str]


def lines_of(events: Iterable[Event]) -> set[Line]:
    return {(event.call.source, key) for event in events for key in event.call.keys}


_NEVER_PASS = (log_p, log_grad_p, primitives.hijax_p)


class _Watch:
    """A watch, as `_compat.Watch` says."""

    def begin(self) -> "_Watch":
        return self

    def passes(self, primitive: Any, params: dict[str, Any]) -> bool:
        if primitive is primitives.jit_p:
            inner: Any = (params["jaxpr"],)
        elif primitive in _NEVER_PASS:
            return False
        else:
            inner = jaxprs.jaxprs_in(params) if jaxprs.has_jaxprs(params) else ()
        return not any(events_of(jaxpr) or hides_rules(jaxpr) for jaxpr in inner)

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        raise NotImplementedError

    def inside(self, role: str, name: str) -> "_Watch | None":
        raise NotImplementedError


def _never(primitive: Any, params: Any) -> bool:
    del primitive, params
    return False


class Recorder(_Watch):
    """Notes the lines of all events, which go their way."""

    def __init__(self, lines: set[Line]) -> None:
        self._lines = lines

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive is log_p:
            self._lines |= lines_of([params["event"]])
        for jaxpr in jaxprs.jaxprs_in(params):
            self._lines |= lines_of(events_of(jaxpr))
        prim = jaxprs.hijax_of(primitive, params)
        if prim is not None:
            new = hijax.watched(prim, lambda jaxpr: jaxpr, self)
            params = {**params, "_prim": new}
        return primitive.bind(*args, **params)

    def inside(self, role: str, name: str) -> _Watch | None:
        del name
        return None if role == "bwd" else self


class Changer(_Watch):
    """Gives events to a handler, wherever they are.

    Args:
        handler: gives no rows, and does not change the state.
        state: what it gets with every event.
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
        if prim is not None and (stateless or not _takes_state(prim)):
            new = hijax.watched(prim, self.changed, self)
            return primitive.bind(*args, **{**params, "_prim": new})
        reached = any(map(self._reaches, jaxprs.jaxprs_in(params)))
        if not reached and (prim is None or not hijax.is_custom_vjp(prim)):
            return primitive.bind(*args, **params)
        if stateless and has_rule(primitive):
            return primitive.bind(*args, **jaxprs.map_jaxprs(params, self.changed))
        # the state must become an operand, or it takes more than to change the jaxprs
        walk = Walk(self._handler)
        closed = jax.make_jaxpr(lambda *xs: primitive.bind(*xs, **params))(*args)
        if not all(map(walk.has_rule_for, closed.eqns)):
            # as in the traversal, which changes what it has no rule for
            if stateless and self._handler.memo_key is not None:
                params = jaxprs.map_jaxprs(params, self.changed)
            return primitive.bind(*args, **params)
        outs, _, _ = walk(closed, args, self._state)
        return outs if primitive.multiple_results else outs[0]

    def inside(self, role: str, name: str) -> _Watch:
        del name
        if role == "call":
            return self
        return Changer(self._handler.in_rules(), self._state)

    def changed(self, jaxpr: Any) -> Any:
        return Walk(self._handler).rewritten(jaxpr)

    def _reaches(self, jaxpr: Any) -> bool:
        return Walk(self._handler).wants_in(jaxpr) or hides_rules(jaxpr)


def _takes_state(prim: Any) -> bool:
    """Whether the state can become an operand of a high-level primitive."""
    return hijax.is_checkpoint(prim) or hijax.is_custom_vjp(prim)


class _WithoutCotangents(Rewriter):
    """Removes `log_grad`, and leaves events alone."""

    memo_key = ("without cotangents",)

    def wants(self, event: Event) -> bool:
        del event
        return False

    def in_cotangents(self) -> Handler:
        return Remover()


class ForwardPass(Recorder):
    """For a forward pass that is computed beside its derivative, as by `checkpoint`.

    The derivative has its own copy of `log_grad`. A derivative of the forward pass
    would log the cotangents again.
    """

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive is log_p or jaxprs.hijax_of(primitive, params) is not None:
            return super().bind(primitive, args, params)
        for jaxpr in jaxprs.jaxprs_in(params):
            self._lines |= lines_of(events_of(jaxpr))
        return Changer(_WithoutCotangents()).bind(primitive, args, params)


class Dropper(Rewriter):
    """Removes what was logged by certain lines.

    Args:
        lines: the lines.
        anchors: whether to remove the events without keys too (see `patches`).
    """

    def __init__(self, lines: frozenset[Line], anchors: bool = False) -> None:
        self._lines = lines
        self._anchors = anchors
        self.memo_key = ("drop", lines, anchors)

    def wants(self, event: Event) -> bool:
        if not event.call.keys:
            return self._anchors
        return not self._lines.isdisjoint(lines_of([event]))

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        del context
        kept = self.kept(event, operands)
        if kept is not None:
            log_p.bind(*kept[1], event=kept[0])

    def kept(
        self, event: Event, operands: Sequence[Any]
    ) -> tuple[Event, Sequence[Any]] | None:
        """What is left of an event."""
        keys = {
            key
            for key in event.call.keys
            if (event.call.source, key) not in self._lines
        }
        if keys and len(keys) == len(event.call.keys):
            return event, operands
        return event.only(keys.__contains__, operands) if keys else None


class Recomputation(_Watch):
    """Drops the events of lines that have been recorded by the time they come."""

    def __init__(self, lines: set[Line]) -> None:
        self._lines = lines

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        changer = Changer(Dropper(frozenset(self._lines)))
        return changer.bind(primitive, args, params)

    def inside(self, role: str, name: str) -> _Watch:
        del role, name
        return self


class DerivativeRule(_Watch):
    """For a rule that gives values and tangents, and may call its own function.

    What the function logs is an event where it is called first. What comes by the same
    lines after that is recomputation.

    Args:
        is_own: whether a primitive, with these parameters, is the function.
        name: the name of the function, if it is a custom function.
        lines: the function's lines, as far as they are known.
    """

    def __init__(
        self,
        is_own: Callable[[Any, Any], bool] = _never,
        name: str = "",
        lines: Iterable[Line] = (),
    ) -> None:
        self._is_own = is_own
        self._name = name
        self._lines = frozenset(lines)

    def begin(self) -> _Watch:
        return _RunOfRule(self._is_own, self._name, set(self._lines))


class _RunOfRule(Recomputation):
    def __init__(
        self, is_own: Callable[[Any, Any], bool], name: str, lines: set[Line]
    ) -> None:
        super().__init__(lines)
        self._is_own = is_own
        self._name = name
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
            return Recorder(self._lines).bind(primitive, args, params)
        return super().bind(primitive, args, params)

    def inside(self, role: str, name: str) -> _Watch:
        if self._called or not name or name != self._name:
            return self
        # of a custom function, either itself runs or its rule, for which we are asked
        # after it
        self._called = role != "call"
        return Recorder(self._lines)
