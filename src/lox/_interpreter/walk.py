"""The traversal: evaluates a program again, equation by equation.

There is one traversal and one table of rules for all transformations. What happens to
an event is up to the `Handler`: rows travel out of the program as extra results, a
state travels through it (into loops as a carry, into branches and calls as an
argument). Jaxprs are never changed in place. An equation that does not log is bound as
it is, so that its caches, shardings and custom derivatives are unchanged.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._jax import jaxprs, tracing

from .contents import events_inside, events_of, has_hidden_rules, hides_rules, places_of
from .handlers import NO_STATE, Handler, Remover, Rewriter, State
from .rows import Record, join
from .rule_table import (
    Result,
    Rule,
    change_of_hidden_rules,
    find_rule,
    preparations,
)


class Walk:
    """One traversal of one program.

    Args:
        handler: what happens to events.
        remember: whether a jaxpr that occurs twice is rebuilt only once.
        types_only: whether only the types of rows matter, not how many a loop gives.
        events_beside: whether the events of a custom function are to stand beside its
            call, which then has none.
    """

    def __init__(
        self,
        handler: Handler,
        remember: bool = True,
        types_only: bool = False,
        events_beside: bool = False,
    ) -> None:
        self.handler = handler
        self.types_only = types_only
        self.events_beside = events_beside
        self._remember = remember
        # Rebuilt jaxprs by what they were made from, so that a jitted function that is
        # called twice is still lowered once. The originals are kept alive, too.
        self._memo: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, closed: Any, args: Sequence[Any], state: State) -> Result:
        """Evaluates a closed jaxpr; gives its results, rows and the new state."""
        if not self._removes_all(closed):
            for prepare in preparations:
                closed = prepare(closed)
        jaxpr = closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        last_use = _last_uses(jaxpr)
        places = places_of(jaxpr)

        copy = tracing.equation_copier()
        # where only types matter, what logs nothing need not be evaluated at all
        unknown = tracing.unknown_values() if self.types_only else None

        def read(atom: Any) -> Any:
            if isinstance(atom, jaxprs.Literal):
                return atom.val
            if unknown is not None and atom not in env:
                env[atom] = unknown(atom.aval)
            return env[atom]

        records: list[Record] = []
        for i, eqn in enumerate(jaxpr.eqns):
            if i not in places and unknown is not None:
                continue
            if i not in places and copy is not None:
                copied = copy(eqn, env)
                if copied is not None:
                    env.update(zip(eqn.outvars, copied, strict=True))
                    for atom in last_use.get(i, ()):
                        env.pop(atom, None)
                    continue
            ins = [read(atom) for atom in eqn.invars]
            with tracing.equation_context(eqn):
                if eqn.primitive is log_p:
                    event = eqn.params["event"]
                    if self.handler.wants(event):
                        record, state = self.handler.receive(event, ins, state)
                        if record:
                            records.append(record)
                    else:
                        log_p.bind(*ins, event=event)
                    outs: list[Any] = []
                elif i not in places:
                    outs = tracing.bind(eqn, ins)
                elif not self.wants_inside(eqn):
                    change = change_of_hidden_rules(eqn)
                    changes = change(self, eqn) if change else {}
                    outs = tracing.bind(eqn, ins, **changes)
                else:
                    part = self.handler.part(state, eqn)
                    outs, record, part = self.rule_for(eqn)(self, eqn, ins, part)
                    state = state.updated(part)
                    if record:
                        records.append(record)
            env.update(zip(eqn.outvars, outs, strict=True))
            for atom in last_use.get(i, ()):
                env.pop(atom, None)
        return [read(atom) for atom in jaxpr.outvars], join(records), state

    def _removes_all(self, jaxpr: Any) -> bool:
        return isinstance(self.handler, Remover) and all(
            map(self.handler.wants, events_of(jaxpr))
        )

    def wants_inside(self, eqn: Any) -> bool:
        """Whether the collector wants any event in the jaxprs of an equation."""
        if has_hidden_rules(eqn):
            if isinstance(self.handler, Rewriter) and self.handler.rules_need_state:
                return True  # they may log, and only a rule can hand the state on
            if change_of_hidden_rules(eqn) is None:
                return True  # to reach the custom functions inside
        return any(self.handler.wants(event) for event in events_inside(eqn))

    def wants_in(self, jaxpr: Any) -> bool:
        """Whether the collector wants any event in this jaxpr."""
        return any(self.handler.wants(event) for event in events_of(jaxpr))

    def has_rule_for(self, eqn: Any) -> bool:
        """Whether the primitive of an equation is known."""
        return find_rule(eqn) is not None

    def rule_for(self, eqn: Any) -> Rule:
        found = find_rule(eqn)
        if found is not None:
            return found
        wanted = any(self.handler.wants(event) for event in events_inside(eqn))
        if not wanted or self.handler.memo_key is not None:
            return _rewrite_rule
        raise UnsupportedPrimitiveError(unsupported(self, eqn))

    def rebuilt(
        self,
        like: Any,
        state: State,
        fun: Callable[..., Any] | None = None,
        at: int = 0,
        key: Any = None,
    ) -> tuple[Any, Any]:
        """Traces `fun(state, *args)`, which replaces the jaxpr `like`.

        Args:
            like: the jaxpr.
            state: the state, as it enters.
            fun: by default, the evaluation of `like` by this traversal.
            at: before which argument the state's leaves go.
            key: the result is remembered by the jaxpr, the state's type, and this.

        Returns:
            A closed jaxpr, and the structure of its result.
        """
        closed = jaxprs.close(like)
        leaves, tree = jax.tree.flatten(state)
        inside = tuple(map(jax.typeof, leaves))
        memo_key = (id(like), tree, inside, at, key)
        kept = self._memo.get(memo_key) if self._remember else None
        if kept is None:
            end = at + len(leaves)

            def flat(*args: Any) -> Any:
                inner = tree.unflatten(args[at:end])
                rest = (*args[:at], *args[end:])
                if fun is None:
                    return self(closed, rest, inner)
                return fun(inner, *rest)

            avals = [*closed.in_avals[:at], *inside, *closed.in_avals[at:]]
            new, out_tree, _ = jaxprs.trace(flat, avals, like)
            kept = self._memo[memo_key] = (like, (new, out_tree))
        return kept[1]

    def rewritten(self, jaxpr: Any) -> Any:
        """A jaxpr, closed or not, whose events the handler has received."""

        def make() -> Any:
            return jaxprs.rewritten(jaxpr, lambda x: self.rebuilt(x, NO_STATE)[0])

        if not self.wants_in(jaxpr) and not hides_rules(jaxpr):
            return jaxpr
        key = self.handler.memo_key
        return make() if key is None else remembered(jaxpr, key, make)


# What was made of a jaxpr, as long as that lives: JAX's own caches go by identity.
_made: "weakref.WeakKeyDictionary[Any, dict[Any, Any]]" = weakref.WeakKeyDictionary()


def remembered(jaxpr: Any, key: Any, make: Callable[[], Any]) -> Any:
    """`make()`, or what it gave for this jaxpr and key before."""
    kept = _made.setdefault(jaxpr, {})
    key = (key, tracing.trace_context())
    if key not in kept:
        kept[key] = make()
    return kept[key]


def unsupported(walk: Walk, eqn: Any) -> str:
    # an event without keys only holds others in a loop (see `patches`)
    inside = [event for event in events_inside(eqn) if event.call.keys]
    wanted = [event for event in inside if walk.handler.wants(event)]
    keys = ", ".join(dict.fromkeys(repr(key) for e in wanted for key in e.call.keys))
    return (
        f"{keys}, logged at {wanted[0].call.source}, cannot be taken out of "
        f"`{eqn.primitive.name}`: JAX gives no way to return values from inside it. "
        "Log outside of it, or wrap what it calls in `lox.nolog`."
    )


def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """The variables that no equation after the i-th needs."""
    last: dict[Any, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for atom in (*eqn.invars, *eqn.outvars):
            if not isinstance(atom, jaxprs.Literal):
                last[atom] = i
    for atom in jaxpr.outvars:
        if not isinstance(atom, jaxprs.Literal):
            last.pop(atom, None)
    uses: dict[int, list[Any]] = {}
    for atom, i in last.items():
        uses.setdefault(i, []).append(atom)
    return uses


def _rewrite_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Without rows and a state, it is enough to make every jaxpr inside anew."""
    params = jaxprs.map_jaxprs(eqn.params, walk.rewritten)
    return tracing.bind(eqn, args, **params), Record(), state


def without_events(closed: Any, wants: Callable[[Event], bool] | None = None) -> Any:
    """A closed jaxpr that does the same, without its events."""
    walk = Walk(Remover(wants))
    if not walk.wants_in(closed):
        return closed
    return walk.rebuilt(closed, NO_STATE)[0]


def as_array(x: Any) -> Any:
    """Literals reach an interpreter as Python numbers."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
