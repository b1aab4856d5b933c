"""The traversal: a program is evaluated again, equation by equation.

There is one traversal and one table of rules, whatever a transformation does with an
event. What it does is a `Collector`: it receives each event and gives rows back, which
travel out of the program as extra results, or a changed state, which travels through
it (into loops as a carry, into branches and calls as an argument). No jaxpr is ever
changed in place; an equation that logs nothing is bound as it is, so that its caches,
shardings and custom derivatives stay what they were.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._jax import callbacks, hijax, jaxprs, rule_sources, tracing

from .rows import Record, join

State = Any


class Collector:
    """What a transformation does with the events of a program."""

    # whether rows come out; where none can (a backward rule), events are removed
    gives_rows = True
    # whether the state is only read: then it can be handed to derivative rules too
    constant_state = False
    # whether only the types of the rows matter, and not how many a loop gives
    types_only = False
    # whether it takes the events of a function, and not those of its derivative rules
    takes = False
    # whether the events of a custom function come beside its call, which has none then
    beside = False
    # set if there are neither rows nor a state: what it makes of a jaxpr is remembered
    # by this
    key: Any = None

    def wants(self, event: Event) -> bool:
        """Whether this event is to be received; if not, it stays where it is."""
        raise NotImplementedError

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        """Takes an event, and gives its rows and the new state."""
        raise NotImplementedError

    def per_lane_leaves(self, state: State) -> list[bool]:
        """Which leaves of the state have the lane axes of events in front."""
        return [False] * len(jax.tree.leaves(state))

    def part(self, state: State, eqn: Any) -> State:
        """What the events inside an equation need of the state."""
        del eqn
        return state

    def whole(self, state: State, part: State) -> State:
        """The state, once that part of it has changed."""
        del state
        return part

    def rows_only(self, walk: "Walk", eqn: Any) -> "Collector | None":
        """What collects the rows of an equation, to be put into the state after it.

        It may need some of the state nevertheless: that of `part`.
        """
        del walk, eqn
        return None

    def absorb(self, record: Record, state: State) -> tuple[Record, State]:
        """Puts rows into the state; gives back those that do not belong there."""
        return record, state

    def in_rules(self, lines: frozenset[Any] = frozenset()) -> "Collector":
        """What does the same with the events of a function's derivative rules.

        Args:
            lines: those by which the function itself logs, with their keys.
        """
        del lines
        return self


class Rule(Protocol):
    """How one higher-order primitive is evaluated with its logs.

    Args:
        walk: the traversal, to evaluate the jaxprs inside.
        eqn: the equation; at least one event inside is wanted.
        args: the values of its inputs.
        state: the collector's state before the equation.

    Returns:
        The equation's results, its rows, and the state after it.
    """

    def __call__(
        self, walk: "Walk", eqn: Any, args: list[Any], state: State
    ) -> tuple[list[Any], Record, State]: ...


_rules: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule for the primitives of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            _rules[name] = function
        return function

    return register


def has_rule(primitive: Any) -> bool:
    return primitive.name in _rules


# Finds the rules for primitives that are told by their parameters, not by their names.
_rule_finders: list[Callable[[Any], Rule | None]] = []


def foreign_rule(find: Callable[[Any], Rule | None]) -> Callable[[Any], Rule | None]:
    _rule_finders.append(find)
    return find


def _found_rule(eqn: Any) -> Rule | None:
    kind = hijax.kind_of(eqn)
    if kind in _rules:
        return _rules[kind]
    found = (find(eqn) for find in _rule_finders)
    return next((rule for rule in found if rule is not None), None)


# What a primitive runs that is not a jaxpr in its parameters, by its name.
_foreign: dict[str, Callable[[Any], list[Any]]] = {}


def foreign_jaxprs(name: str) -> Callable[[Callable[[Any], list[Any]]], Any]:
    def register(function: Callable[[Any], list[Any]]) -> Any:
        _foreign[name] = function
        return function

    return register


def jaxprs_of(eqn: Any) -> list[Any]:
    """Every jaxpr that an equation may run."""
    if eqn.primitive.name in _foreign:
        return _foreign[eqn.primitive.name](eqn)
    return list(jaxprs.jaxprs_of(eqn))


# How to change the parameters of an equation that logs nothing itself, but whose
# derivative rules, which nobody can look into before they run, may.
_hidden_rules: dict[str, Callable[["Walk", Any], dict[str, Any]]] = {}


def hidden_rules(
    name: str,
) -> Callable[[Callable[["Walk", Any], dict[str, Any]]], Any]:
    def register(function: Callable[["Walk", Any], dict[str, Any]]) -> Any:
        _hidden_rules[name] = function
        return function

    return register


# What is to be done to a program before it is evaluated.
_preparations: list[Callable[[Any], Any]] = []


def before_walk(prepare: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Registers what changes a closed jaxpr before any traversal of it."""
    _preparations.append(prepare)
    return prepare


class Walk:
    """One traversal of one program."""

    def __init__(self, collector: Collector, remember: bool = True) -> None:
        self.collector = collector
        self._remember = remember
        # Rebuilt jaxprs by what they were made from, so that a jitted function that is
        # called twice is still lowered once. The originals are kept alive beside.
        self._memo: dict[Any, tuple[Any, Any]] = {}

    def __call__(
        self, closed: Any, args: Sequence[Any], state: State
    ) -> tuple[list[Any], Record, State]:
        """Evaluates a closed jaxpr; gives its results, rows and the new state."""
        if not self._removes_all(closed):
            for prepare in _preparations:
                closed = prepare(closed)
        jaxpr = closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        last_use = _last_uses(jaxpr)
        places = _contents_of(jaxpr).places

        copy = tracing.equation_copier()
        # where only types matter, what logs nothing need not be evaluated at all
        unknown = tracing.unknown_values() if self.collector.types_only else None

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
                    if self.collector.wants(event):
                        record, state = self.collector.receive(event, ins, state)
                        if record:
                            records.append(record)
                    else:
                        log_p.bind(*ins, event=event)
                    outs: list[Any] = []
                elif i not in places:
                    outs = tracing.bind(eqn, ins)
                elif not self.wants_inside(eqn):
                    clean = _hidden_rules.get(hijax.kind_of(eqn))
                    changes = clean(self, eqn) if clean else {}
                    outs = tracing.bind(eqn, ins, **changes)
                else:
                    part = self.collector.part(state, eqn)
                    outs, record, part = self.rule_for(eqn)(self, eqn, ins, part)
                    state = self.collector.whole(state, part)
                    if record:
                        records.append(record)
            env.update(zip(eqn.outvars, outs, strict=True))
            for atom in last_use.get(i, ()):
                env.pop(atom, None)
        return [read(atom) for atom in jaxpr.outvars], join(records), state

    def _removes_all(self, jaxpr: Any) -> bool:
        return isinstance(self.collector, Remover) and all(
            map(self.collector.wants, events_of(jaxpr))
        )

    def wants_inside(self, eqn: Any) -> bool:
        """Whether the collector wants any event in the jaxprs of an equation."""
        if self.collector.constant_state and has_hidden_rules(eqn):
            return True  # nobody knows yet, and only a rule can hand the state on
        if hijax.kind_of(eqn) not in _hidden_rules and has_hidden_rules(eqn):
            return True  # to reach the custom functions inside
        return any(self.collector.wants(event) for event in events_inside(eqn))

    def wants_in(self, jaxpr: Any) -> bool:
        """Whether the collector wants any event in this jaxpr."""
        return any(self.collector.wants(event) for event in events_of(jaxpr))

    def has_rule_for(self, eqn: Any) -> bool:
        """Whether the primitive of an equation is known."""
        return _found_rule(eqn) is not None

    def rule_for(self, eqn: Any) -> Rule:
        found = _found_rule(eqn)
        if found is not None:
            return found
        wanted = any(self.collector.wants(event) for event in events_inside(eqn))
        if not wanted or self.collector.key is not None:
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
        """A jaxpr, closed or not, whose events the collector has received."""

        def make() -> Any:
            return jaxprs.rewritten(jaxpr, lambda x: self.rebuilt(x, ())[0])

        if not self.wants_in(jaxpr) and not hides_rules(jaxpr):
            return jaxpr
        key = self.collector.key
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
    inside = [event for event in events_inside(eqn) if event.keys]
    wanted = [event for event in inside if walk.collector.wants(event)]
    keys = ", ".join(dict.fromkeys(repr(key) for e in wanted for key in e.keys))
    return (
        f"{keys}, logged at {wanted[0].source}, cannot be taken out of "
        f"`{eqn.primitive.name}`: JAX gives no way to return values from inside it. "
        "Log outside of it, or wrap what it calls in `lox.nolog`."
    )


# --- which events are where --------------------------------------------------


class _Contents(NamedTuple):
    """What is known of a jaxpr, found once and kept as long as it lives."""

    events: tuple[Event, ...]
    hides_rules: bool
    # what it calls on the host
    host_functions: tuple[Any, ...]
    # the equations with either inside; all others are bound as they are
    places: frozenset[int]


_contents: "weakref.WeakKeyDictionary[Any, _Contents]" = weakref.WeakKeyDictionary()


def _contents_of(jaxpr: Any) -> _Contents:
    key = jaxprs.open_jaxpr(jaxpr)
    found = _contents.get(key)
    if found is None:
        events: dict[Event, None] = {}
        places = set()
        hides_rules = False
        host: list[Any] = []
        for i, eqn in enumerate(key.eqns):
            if eqn.primitive is log_p:
                events[eqn.params["event"]] = None
                places.add(i)
                continue
            if not _may_contain_any(eqn):
                continue
            inside = [_contents_of(jaxpr) for jaxpr in jaxprs_of(eqn)]
            hides = _hides_rules_itself(eqn) or any(one.hides_rules for one in inside)
            hides_rules |= hides
            host += callbacks.host_functions_of(eqn)
            for one in inside:
                events.update(dict.fromkeys(one.events))
                host += one.host_functions
            if hides or any(one.events for one in inside):
                places.add(i)
        found = _Contents(tuple(events), hides_rules, tuple(host), frozenset(places))
        _contents[key] = found
    return found


def _may_contain_any(eqn: Any) -> bool:
    """Whether any of that may be in an equation; most equations are told by little."""
    name = eqn.primitive.name
    return bool(
        eqn.effects
        or name in _foreign
        or name in _hidden_rules
        or name in callbacks.PRIMITIVES
        or jaxprs.has_jaxprs(eqn.params)
    )


def events_of(jaxpr: Any) -> tuple[Event, ...]:
    """The events in a jaxpr, at any depth, each once, in program order.

    Effects are not enough to tell: some primitives do not pass them on.
    """
    return _contents_of(jaxpr).events


def host_functions_in(jaxpr: Any) -> tuple[Any, ...]:
    """The functions that a jaxpr calls on the host, at any depth."""
    return _contents_of(jaxpr).host_functions


def equations_with_events(jaxpr: Any) -> list[Any]:
    """The equations that log, or have something inside that may."""
    equations = jaxprs.open_jaxpr(jaxpr).eqns
    return [equations[i] for i in sorted(_contents_of(jaxpr).places)]


def has_hidden_rules(eqn: Any) -> bool:
    """Whether an equation has derivative rules of the user's, at any depth."""
    return _hides_rules_itself(eqn) or any(
        _contents_of(jaxpr).hides_rules for jaxpr in jaxprs_of(eqn)
    )


def _hides_rules_itself(eqn: Any) -> bool:
    kind = hijax.kind_of(eqn)
    return kind in _hidden_rules and not rule_sources.rules_of_jax(eqn)


def hides_rules(jaxpr: Any) -> bool:
    """Whether a jaxpr has derivative rules of the user's, at any depth."""
    return _contents_of(jaxpr).hides_rules


def events_inside(eqn: Any) -> tuple[Event, ...]:
    """The events in the jaxprs of an equation."""
    events: dict[Event, None] = {}
    for jaxpr in jaxprs_of(eqn):
        events.update(dict.fromkeys(events_of(jaxpr)))
    return tuple(events)


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


# --- collectors that every transformation may need ---------------------------


class Remover(Collector):
    """Removes events."""

    gives_rows = False

    def __init__(self, wants: Callable[[Event], bool] | None = None) -> None:
        self._wants = wants
        self.key = ("remove", wants)

    def wants(self, event: Event) -> bool:
        if event.sink is not None:
            return False
        return self._wants is None or self._wants(event)

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        del event, operands
        return Record(), state


def _rewrite_rule(
    walk: Walk, eqn: Any, args: list[Any], state: State
) -> tuple[list[Any], Record, State]:
    """Without rows and a state, it is enough to make every jaxpr inside anew."""
    params = jaxprs.map_jaxprs(eqn.params, walk.rewritten)
    return tracing.bind(eqn, args, **params), Record(), state


def without_events(closed: Any, wants: Callable[[Event], bool] | None = None) -> Any:
    """A closed jaxpr that does the same, without its events."""
    walk = Walk(Remover(wants))
    if not walk.wants_in(closed):
        return closed
    return walk.rebuilt(closed, ())[0]


def as_array(x: Any) -> Any:
    """Literals reach an interpreter as Python numbers."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
