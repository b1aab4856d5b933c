"""The traversal: evaluates a program again, equation by equation.

There is one traversal and one table of rules for all transformations. A `Handler`
decides what happens to an event. Rows are extra results of the program; the state is a
carry of loops and an argument of branches and calls. Jaxprs are never modified. An
equation that does not log is bound unchanged, so its caches, shardings and custom
derivatives are preserved.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import check, log_p
from lox._jax import jaxprs, tracing

from .contents import (
    equation_has_hidden_rules,
    events_inside,
    events_of,
    indices_with_events,
    jaxpr_has_hidden_rules,
)
from .handlers import NO_STATE, Collector, Handler, Remover, State
from .joining import join
from .rows import Record
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
        handler: receives the events.
        cache: whether a jaxpr that occurs twice is rebuilt only once.
        types_only: whether only the types of rows are needed, not their values or, in a
            `while_loop`, their number.
        separate_events: whether the events of a custom function are evaluated
            separately, after a call of the function without events.
    """

    def __init__(
        self,
        handler: Handler,
        cache: bool = True,
        types_only: bool = False,
        separate_events: bool = False,
    ) -> None:
        self.handler = handler
        self.types_only = types_only
        self.separate_events = separate_events
        self._cache = cache
        # Rebuilt jaxprs, so that a jitted function that is called twice is still
        # lowered once. The originals are kept alive, since keys contain their `id`.
        self._memo: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, closed: Any, args: Sequence[Any], state: State) -> Result:
        """Evaluates a closed jaxpr; returns its results, its rows and the new state."""
        if not self._removes_all(closed):
            for prepare in preparations:
                closed = prepare(closed)
        jaxpr = closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        indices = indices_with_events(jaxpr)

        copy = tracing.equation_copier(jaxpr)
        # values of a program that is being traced occupy no memory yet
        last_use = _last_uses(jaxpr) if copy is None else {}
        # for types only, equations without events are not evaluated at all
        unknown = tracing.unknown_values() if self.types_only else None

        def read(atom: Any) -> Any:
            if isinstance(atom, jaxprs.Literal):
                return atom.val
            if unknown is not None and atom not in env:
                env[atom] = unknown(atom.aval)
            return env[atom]

        records: list[Record] = []
        for i, eqn in enumerate(jaxpr.eqns):
            if i not in indices and unknown is not None:
                continue
            if i not in indices and copy is not None:
                copied = copy(eqn, env)
                if copied is not None:
                    env.update(zip(eqn.outvars, copied, strict=True))
                    continue
            ins = [read(atom) for atom in eqn.invars]
            with tracing.equation_context(eqn):
                if eqn.primitive is log_p:
                    event = eqn.params["event"]
                    if self.handler.wants(event):
                        if isinstance(self.handler, Collector):
                            check(event)
                        record, state = self.handler.receive(event, ins, state)
                        if record:
                            records.append(record)
                    else:
                        log_p.bind(*ins, event=event)
                    outs: list[Any] = []
                elif i not in indices:
                    outs = tracing.bind(eqn, ins)
                elif not self.wants_in_equation(eqn):
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

    def for_derivative_rules(self) -> "Walk":
        """The traversal of the derivative rules of a function."""
        return Walk(self.handler.for_derivative_rules())

    def _removes_all(self, jaxpr: Any) -> bool:
        return isinstance(self.handler, Remover) and all(
            map(self.handler.wants, events_of(jaxpr))
        )

    def wants_in_equation(self, eqn: Any) -> bool:
        """Whether an equation needs a rule: the handler wants an event inside."""
        if equation_has_hidden_rules(eqn):
            if self.handler.rules_need_state:
                return True  # they may log, and only a rule can pass the state to them
            if change_of_hidden_rules(eqn) is None:
                return True  # the custom functions are deeper inside
        return any(map(self.handler.wants, events_inside(eqn)))

    def wants_in_jaxpr(self, jaxpr: Any) -> bool:
        """Whether the handler wants any event in this jaxpr."""
        return any(map(self.handler.wants, events_of(jaxpr)))

    def rule_for(self, eqn: Any) -> Rule:
        found = find_rule(eqn, self.types_only)
        if found is not None:
            return found
        wanted = any(map(self.handler.wants, events_inside(eqn)))
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
            state: the state before it.
            fun: by default, the evaluation of `like` by this traversal.
            at: the index of the argument before which the leaves of the state go.
            key: the result is cached by the jaxpr, the type of the state, and this.

        Returns:
            A closed jaxpr, and the structure of its result.
        """
        closed = jaxprs.close(like)
        leaves, tree = jax.tree.flatten(state)
        inside = tuple(map(jax.typeof, leaves))
        memo_key = (id(like), tree, inside, at, key)
        kept = self._memo.get(memo_key) if self._cache else None
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

    def row_types(self, jaxpr: Any) -> Record:
        """The types of the rows of a jaxpr, for traversals without a state."""
        new, tree = self.rebuilt(jaxpr, NO_STATE)
        record: Record = tree.unflatten(new.out_avals)[1]
        return record

    def rewritten(self, jaxpr: Any) -> Any:
        """Returns a jaxpr, closed or open, with its events handled."""

        def make() -> Any:
            return jaxprs.rewritten(jaxpr, lambda x: self.rebuilt(x, NO_STATE)[0])

        if not self.wants_in_jaxpr(jaxpr) and not jaxpr_has_hidden_rules(jaxpr):
            return jaxpr
        key = self.handler.memo_key
        return make() if key is None else cached(jaxpr, key, make)


# Values computed from a jaxpr, for as long as the jaxpr lives. JAX's own caches
# compare jaxprs by identity, so the same input must return the same object.
_cache: "weakref.WeakKeyDictionary[Any, dict[Any, Any]]" = weakref.WeakKeyDictionary()


def cached(jaxpr: Any, key: Any, make: Callable[[], Any]) -> Any:
    """Returns `make()`, cached by the jaxpr and the key."""
    kept = _cache.setdefault(jaxpr, {})
    key = (key, tracing.trace_context())
    if key not in kept:
        kept[key] = make()
    return kept[key]


def unsupported(walk: Walk, eqn: Any) -> str:
    # an event without keys only keeps others in a loop (see `patches`)
    inside = [event for event in events_inside(eqn) if event.call.keys]
    wanted = [event for event in inside if walk.handler.wants(event)]
    keys = ", ".join(dict.fromkeys(repr(key) for e in wanted for key in e.call.keys))
    return (
        f"{keys}, logged at {wanted[0].call.source}, cannot be collected inside "
        f"`{eqn.primitive.name}`: JAX cannot return additional values from it. Log "
        "outside it, or apply `lox.nolog` to the function that it calls."
    )


def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """The variables by the index of the last equation that uses them."""
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
    """Rewrites every jaxpr inside; enough where there are no rows and no state."""
    params = jaxprs.map_jaxprs(eqn.params, walk.rewritten)
    return tracing.bind(eqn, args, **params), Record(), state


def without_events(
    closed: Any,
    wants: Callable[[Event], bool] | None = None,
    collected: bool = False,
) -> Any:
    """Returns the same closed jaxpr without its events; for the options: `Remover`."""
    walk = Walk(Remover(wants, collected))
    if not walk.wants_in_jaxpr(closed):
        return closed
    return walk.rebuilt(closed, NO_STATE)[0]
