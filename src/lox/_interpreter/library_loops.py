"""Loops and branches that a library batches by itself.

`lax.while_loop` and `lax.cond` with a predicate per lane are batched by JAX, whose
rules `_hooks` wraps. Equinox (and with it diffrax, optimistix and lineax) does not let
it come to that: its predicates go through a primitive such as `unvmap_any`, which takes
the lanes of every `vmap` together. JAX then sees one predicate for all lanes, and the
body is run for lanes that have ended, whose new values are thrown away.

The predicate that a lane has by itself is found in the program: it is the same
expression, without that primitive. The events inside get it as their mask. Nothing of
the library is imported or changed, so that the order of imports does not matter.

A loop may also *start* early for the sake of other lanes: if one lane of a diffrax
solve needs the first stage of a Runge-Kutta step, all lanes compute it. Then a counter
of the loop starts at a number that takes lanes together, and a lane by itself would
start at another: its events before that are masked too.

A loop that has been treated has another primitive in the place of `unvmap_any`, of the
same meaning, so that it is not treated twice.
"""

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._events.event import Event
from lox._jax import batching, hijax, jaxprs, primitives, rule_tables, tracing

from . import custom_rules, rules
from .contents import events_inside, events_of
from .handlers import State
from .patches.guard import Guard
from .patches.missing import events_in
from .patches.rewriter import EveryEvent
from .rows import Record
from .rule_table import Result, before_walk
from .walk import Walk, as_array, remembered

# --- primitives --------------------------------------------------------------

_UNVMAPS = frozenset({"unvmap_any", "unvmap_all", "unvmap_max"})


def _merges_lanes(eqn: Any) -> bool:
    return eqn.primitive.name in _UNVMAPS


# The same as one of the primitives above.
across_lanes_p: Any = primitives.Primitive("lox_across_lanes")
across_lanes_p.def_impl(lambda x, *, like: like.impl(x))
across_lanes_p.def_abstract_eval(lambda x, *, like: like.abstract_eval(x)[0])
rule_tables.register_lowering_as(across_lanes_p, lambda x, *, like: like.impl(x))
rule_tables.register_batching(
    across_lanes_p,
    lambda axis, args, dims, *, like: (across_lanes_p.bind(*args, like=like), None),
)
rule_tables.set_no_derivative(across_lanes_p)

# Whether a lane runs the code around it. Where nothing tells lanes apart, it does: code
# that is not run does not ask. So there is nothing to compute unless there is a `vmap`.
active_p: Any = primitives.Primitive("lox_active")
active_p.def_impl(lambda x: jnp.ones((), bool))
active_p.def_abstract_eval(lambda x: x)
rule_tables.register_lowering_as(active_p, lambda x: jnp.ones(x.shape, bool))


def _batch_active(
    axis: Any, args: Sequence[Any], dims: Sequence[Any]
) -> tuple[Any, Any]:
    del axis
    (x,), (dim,) = args, dims
    return (active_p.bind(x), None) if dim is None else (x, dim)


rule_tables.register_batching(active_p, _batch_active)
rule_tables.set_no_derivative(active_p)


# --- programs ----------------------------------------------------------------


@before_walk
def guarded(jaxpr: Any) -> Any:
    """A closed jaxpr with masks for the events in such loops and branches.

    Those in the jaxprs of its equations are left for later: whoever evaluates or
    batches these comes back.
    """
    if not events_of(jaxpr) or not _has_any(jaxpr):
        return jaxpr

    def make() -> Any:
        return jaxprs.trace(
            lambda *args: _evaluate(jaxpr, args)[0], jaxpr.in_avals, jaxpr
        )[0]

    return remembered(jaxpr, "lanes", make)


def _has_any(jaxpr: Any) -> bool:
    equations = jaxprs.open_jaxpr(jaxpr).eqns
    if any(map(_is_loop, equations)):
        return True
    return any(map(_merges_lanes, equations)) and bool(_merged(jaxpr))


def _is_loop(eqn: Any) -> bool:
    """Whether an equation is a loop with events that takes its lanes together."""
    if eqn.primitive is not primitives.while_p:
        return False
    cond = jaxprs.open_jaxpr(eqn.params["cond_jaxpr"])
    return any(map(_merges_lanes, cond.eqns)) and bool(events_inside(eqn))


def _merged(
    jaxpr: Any, roots: Iterable[Any] = (), seeds: Iterable[Any] = ()
) -> set[Any]:
    """The variables between the merging of lanes and what decides about events.

    That are the predicates of branches, and the first values of counters of loops.

    Args:
        jaxpr: the jaxpr.
        roots: other variables to treat like these.
        seeds: variables that depend on several lanes themselves.
    """
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    sources = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    known: dict[Any, bool] = dict.fromkeys(seeds, True)

    def depends(atom: Any) -> bool:
        if isinstance(atom, jaxprs.Literal):
            return False
        if atom not in known and atom in sources:
            eqn = sources[atom]
            # what comes out of a loop or a branch is each lane's own already
            inner = eqn.invars if _is_elementary(eqn) else ()
            known[atom] = any(list(map(depends, inner))) or _merges_lanes(eqn)
        return known.get(atom, False)

    for eqn in jaxpr.eqns:
        if events_inside(eqn):
            roots = [*roots, *filter(_may_decide, eqn.invars)]
    for root in roots:
        depends(root)
    return {atom for atom, found in known.items() if found}


def _may_decide(atom: Any) -> bool:
    """Whether it may be a predicate or a counter."""
    kind = getattr(getattr(atom.aval, "dtype", None), "kind", "")
    return bool(kind) and kind in "biu" and not atom.aval.shape


def _is_elementary(eqn: Any) -> bool:
    return eqn.primitive.name in ("jit", "pjit") or not any(
        True for _ in jaxprs.jaxprs_in(eqn.params)
    )


def _evaluate(
    closed: Any,
    args: Sequence[Any],
    with_own: bool = False,
    own_args: dict[int, Any] | None = None,
) -> tuple[list[Any], list[Any]]:
    """Evaluates a closed jaxpr with masks.

    Args:
        closed: the jaxpr.
        args: its arguments.
        with_own: whether the second list is asked for.
        own_args: those arguments that a lane by itself has another value of.

    Returns:
        Its results, and those that each lane has by itself.
    """
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    # where a lane by itself has something else
    own = {jaxpr.invars[i]: value for i, value in (own_args or {}).items()}
    merged = _merged(jaxpr, jaxpr.outvars if with_own else (), own)

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jaxprs.Literal) else env[atom]

    def is_same(atom: Any) -> bool:
        return isinstance(atom, jaxprs.Literal) or atom not in own

    def read_own(atom: Any) -> Any:
        return read(atom) if is_same(atom) else own[atom]

    for eqn in jaxpr.eqns:
        ins = [read(atom) for atom in eqn.invars]
        with tracing.equation_context(eqn):
            if any(var in merged for var in eqn.outvars):
                outs, own_outs = _bind_both(eqn, ins, map(read_own, eqn.invars))
                own.update(zip(eqn.outvars, own_outs, strict=True))
            elif events_inside(eqn):
                others = {
                    i: as_array(own[atom])
                    for i, atom in enumerate(eqn.invars)
                    if _may_decide(atom) and not is_same(atom)
                }
                outs = _bind_guarded(eqn, ins, others)
            else:
                outs = tracing.bind(eqn, ins)
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars)), list(map(read_own, jaxpr.outvars))


def _bind_guarded(eqn: Any, args: list[Any], own: dict[int, Any]) -> list[Any]:
    """Binds an equation with events inside.

    Args:
        eqn: the equation.
        args: its inputs.
        own: those inputs that a lane by itself has another value of.
    """
    if _is_loop(eqn) or (own and eqn.primitive is primitives.while_p):
        return _guarded_loop(eqn, args, own)
    if own and eqn.primitive is primitives.cond_p:
        return _guarded_cond(eqn, args, own[0]) if 0 in own else tracing.bind(eqn, args)
    kind = hijax.kind_of(eqn)
    if own and kind in _PASSING:
        state = State(context=list(own.values()))
        return _PASSING[kind](_Passing(eqn, own), eqn, args, state)[0]
    return tracing.bind(eqn, args)


def _bind_both(
    eqn: Any, args: Sequence[Any], own_args: Iterable[Any]
) -> tuple[list[Any], list[Any]]:
    """Binds an equation for all lanes together, and for each by itself."""
    own = list(own_args)
    if _merges_lanes(eqn):
        (x,), (own_x,) = map(as_array, args), map(as_array, own)
        outs = [across_lanes_p.bind(x, like=eqn.primitive)]
        return outs, [eqn.primitive.impl(own_x)]
    outs = tracing.bind(eqn, args)
    if eqn.primitive.name == "nonbatchable":  # an identity that refuses lanes
        return outs, own
    return outs, tracing.bind(eqn, own)


def _guarded_cond(eqn: Any, args: Sequence[Any], own_index: Any) -> list[Any]:
    index, *operands = args
    own_index = as_array(own_index)
    branches = tuple(
        _guarded_branch(branch, i, jax.typeof(own_index))
        for i, branch in enumerate(eqn.params["branches"])
    )
    return tracing.bind(eqn, [index, own_index, *operands], branches=branches)


def _guarded_branch(branch: Any, i: int, index_aval: Any) -> Any:
    def fun(index: Any, *args: Any) -> list[Any]:
        return Walk(Guard())(branch, args, _active(index == i))[0]

    def make() -> Any:
        return jaxprs.trace(fun, [index_aval, *branch.in_avals], branch)[0]

    return remembered(branch, ("lanes", i, index_aval), make)


def _guarded_loop(eqn: Any, args: Sequence[Any], own: dict[int, Any]) -> list[Any]:
    """The loop, whose body begins with the predicate of each lane by itself.

    A predicate that logs is evaluated before the loop and at the end of its body
    instead, which is as often as before.
    """
    params = eqn.params
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    consts = cond_consts + body_consts
    counters = [
        i - consts
        for i in own
        if i >= consts and _is_counter(body, i - cond_consts, i - consts)
    ]
    starts = [own[consts + i] for i in counters]
    rotated = bool(events_of(cond))
    front = 2 if rotated else 0
    predicates = _predicates(cond)

    def new_cond(*args: Any) -> Any:
        return args[0] if rotated else jaxprs.evaluate(predicates, args)[0]

    def new_body(*args: Any) -> list[Any]:
        of_cond, of_body = args[:cond_consts], args[cond_consts:consts]
        first = args[consts : consts + len(starts)]
        again = list(args[consts + len(starts) :][:front])
        carry = args[-carried:]
        if not rotated:
            again = jaxprs.evaluate(predicates, [*of_cond, *carry])
        runs = again[1]
        for i, start in zip(counters, first, strict=True):
            runs = runs & (carry[i] >= start)
        active = _active(runs)
        walk = Walk(Guard())
        outs, _, _ = walk(body, [*of_body, *carry], active)
        if not rotated:
            return outs
        again, _, _ = walk(predicates, [*of_cond, *outs], active)
        return [*again, *outs]

    first: list[Any] = []
    if rotated:
        first = jaxprs.evaluate(predicates, [*args[:cond_consts], *args[consts:]])
    carried = len(args) - consts
    const_avals = [*cond.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    start_avals = list(map(jax.typeof, starts))
    carry_avals = [*predicates.out_avals[:front], *body.in_avals[body_consts:]]
    used = 0 if rotated else cond_consts

    def make() -> dict[str, Any]:
        cond_avals = [*const_avals[:used], *carry_avals]
        body_avals = [*const_avals, *start_avals, *carry_avals]
        return {
            "cond_jaxpr": jaxprs.trace(new_cond, cond_avals, cond)[0],
            "body_jaxpr": jaxprs.trace(new_body, body_avals, body)[0],
            "cond_nconsts": used,
            "body_nconsts": consts + len(starts),
        }

    key = "lanes", weakref.ref(cond), cond_consts, body_consts, *counters, *start_avals
    changes = remembered(body, key, make)
    operands = [*args[:used], *args[:consts], *starts, *first, *args[consts:]]
    return tracing.bind(eqn, operands, **changes)[front:]


def _active(lanes: Any) -> State:
    """The state of a `Guard` for the lanes that run."""
    return State(context=active_p.bind(lanes))


def _predicates(cond: Any) -> Any:
    """A condition that gives two results: for all lanes, and for each by itself."""

    def fun(*args: Any) -> list[Any]:
        (together,), (own,) = _evaluate(cond, args, with_own=True)
        return [together, as_array(own)]

    def make() -> Any:
        return jaxprs.trace(fun, cond.in_avals, cond)[0]

    return remembered(cond, "predicates", make)


# --- counters ----------------------------------------------------------------


def _is_counter(jaxpr: Any, input: int, output: int) -> bool:
    """Whether an output of a loop's body is an input of it, or something more."""
    jaxpr = jaxprs.open_jaxpr(jaxpr)
    if jaxpr.invars[input].aval.dtype.kind not in "iu":
        return False
    sources = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    return _counts(sources, jaxpr.invars[input], jaxpr.outvars[output])


def _counts(sources: dict[Any, Any], counter: Any, atom: Any) -> bool:
    if isinstance(atom, jaxprs.Literal):
        return False
    if atom is counter:
        return True
    eqn = sources.get(atom)
    if eqn is None:
        return False

    def counts(inner: Any) -> bool:
        return _counts(sources, counter, inner)

    name = eqn.primitive.name
    if name in ("copy", "copy_p", "convert_element_type", "nonbatchable"):
        return counts(eqn.invars[0])
    if name in ("select_n", "select_if_vmap"):
        return all(map(counts, eqn.invars[1:]))
    if name == "add":
        x, y = eqn.invars
        return isinstance(y, jaxprs.Literal) and bool(y.val > 0) and counts(x)
    if eqn.primitive is primitives.cond_p:
        output = eqn.outvars.index(atom)
        inputs = [i for i, operand in enumerate(eqn.invars[1:]) if counts(operand)]
        return all(
            any(_is_counter(branch, i, output) for i in inputs)
            for branch in eqn.params["branches"]
        )
    return False


# --- a counter on its way to its loop ----------------------------------------


class _Passed(EveryEvent):
    """Changes nothing: its traversal only hands its context on."""


class _Passing(Walk):
    """Hands what lanes have by themselves on to the loops inside an equation.

    The context is the list of these values.
    """

    def __init__(self, eqn: Any, own: dict[int, Any]) -> None:
        super().__init__(_Passed())
        self._eqn = eqn
        self._positions = list(own)

    def __call__(self, closed: Any, args: Sequence[Any], state: State) -> Result:
        positions = self._positions
        if state.context is None:  # a backward rule, which has nothing to do with them
            return jaxprs.evaluate(closed, args), Record(), state
        if len(closed.in_avals) < len(self._eqn.invars):  # a derivative rule
            consts = self._eqn.params.get("num_consts", 0)
            positions = [i - consts for i in positions]
        own = {i: x for i, x in zip(positions, state.context, strict=True) if i >= 0}
        if self._eqn.primitive is not primitives.scan_p:
            return _evaluate(closed, args, own_args=own)[0], Record(), state
        active = self._active(closed, args, own)
        if active is None:
            return jaxprs.evaluate(closed, args), Record(), state
        outs, _, _ = Walk(Guard())(closed, args, active)
        return outs, Record(), state

    def _active(self, closed: Any, args: Sequence[Any], own: dict[int, Any]) -> Any:
        """Whether a step of a scan is one that a lane by itself would make."""
        # scans in a scan, as in `kind="bounded"`, are steps together: not looked into
        if any(map(hijax.is_checkpoint_eqn, closed.jaxpr.eqns)):
            return None
        consts, carry, _ = primitives.scan_sizes(self._eqn.params, len(args))
        runs = [
            args[i] >= start
            for i, start in own.items()
            if consts <= i < consts + carry and _is_counter(closed, i, i - consts)
        ]
        return _active(functools.reduce(operator.and_, runs)) if runs else None


# How they get into an equation.
_PASSING: dict[str, Any] = {
    "jit": rules._jit_rule,
    "pjit": rules._jit_rule,
    "closed_call": rules._call_rule,
    "remat2": rules._checkpoint_rule,
    "checkpoint": rules._checkpoint_rule,
    hijax.CHECKPOINT: rules._checkpoint_rule,
    "scan": rules._scan_rule,
    "custom_jvp_call": custom_rules._custom_jvp_rule,
    "custom_vjp_call": custom_rules._custom_vjp_rule,
    hijax.CUSTOM_VJP: custom_rules._custom_vjp_rule,
}


# --- before JAX batches a program --------------------------------------------


def guarded_jaxprs(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """For the batching of whatever has programs inside."""
    for name in ("jaxpr", "body_jaxpr", "cond_jaxpr"):
        if name in params:
            params[name] = _guarded_inside(params[name])
    prim = params.get("_prim")
    if prim is not None and hijax.is_checkpoint(prim):
        params["_prim"] = jaxprs.with_changed_jaxprs(prim, _guarded_inside)
    if "branches" in params:
        params["branches"] = tuple(map(_guarded_inside, params["branches"]))
    return rule(*args, **params)


def _guarded_inside(jaxpr: Any) -> Any:
    if not events_of(jaxpr) or not _has_any(jaxpr):
        return jaxpr
    return jaxprs.rewritten(jaxpr, guarded)


def guarded_while(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> Any:
    """For the batching of a loop, which may be such a loop itself."""
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    if not any(map(_merges_lanes, jaxprs.open_jaxpr(cond).eqns)):
        return guarded_jaxprs(rule, axis_data, args, dims, **params)
    counts = params["cond_nconsts"], params["body_nconsts"]

    def make() -> Any:
        carry = body.in_avals[counts[1] :]
        consts = [*cond.in_avals[: counts[0]], *body.in_avals[: counts[1]]]
        return guarded(
            jaxprs.trace(
                lambda *args: primitives.while_p.bind(*args, **params),
                [*consts, *carry],
                body,
            )[0]
        )

    loop = remembered(body, ("batched", weakref.ref(cond), counts), make)
    return batching.batch(loop, axis_data, args, dims)


def events_with_lanes_merged(params: dict[str, Any]) -> tuple[Event, ...]:
    """The events inside an equation that has such a loop or branch inside."""
    events = events_in(params)
    merges = events and any(map(_merges_inside, jaxprs.jaxprs_in(params)))
    return events if merges else ()


def _merges_inside(jaxpr: Any) -> bool:
    return any(
        _merges_lanes(eqn) or any(map(_merges_inside, jaxprs.jaxprs_in(eqn.params)))
        for eqn in jaxprs.open_jaxpr(jaxpr).eqns
    )
