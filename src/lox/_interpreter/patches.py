"""Where JAX would log wrongly before any transformation of ours can look.

Some of JAX's own rules lose what an event means. Each is wrapped here; the wrapper acts
only on equations that log, and leaves everything else to JAX's rule, unread. (Loops
that lox has made of others are batched by the same wrappers: no differently, but faster
than JAX does it alone.)

- **Differentiating a scan** hoists what does not change in the loop out of it, so that
  an event made of constants (the learning rate, say) would be logged once instead of
  at every iteration. Such an event gets an *anchor*: an operand that does change.
- **`vmap` of `scan`** batches the body several times, and with it the loops inside.
  That loses nothing, but takes long; once is enough if it is known which carries get
  lanes.
- **`vmap` of `cond`** with a predicate per lane runs all branches for all lanes. The
  events inside get a *mask*: which lanes really took the branch.
- **`vmap` of `while_loop`** with a predicate per lane goes on for all lanes until the
  last has finished. Again, a mask says which lanes are still running.
- **Linearizing a `while_loop`**, or recomputing it under `checkpoint`, runs it twice.
  Its events are kept in one of the two runs.
- **A `checkpoint` whose results nobody uses** is removed with its events (JAX 0.10).
- **`jax.checking_leaks`** takes what partial evaluation keeps of events for leaks.
"""

import contextlib
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import LOG_EFFECT, ORDERED_LOG_EFFECT, log_p
from lox._jax import compat
from lox._source import Source

from .lane_flow import lanes_of_scan, lanes_of_while
from .rows import Record
from .walk import Collector, State, Walk, as_array, events_inside, events_of, remembered


class _Rewriter(Collector):
    """Binds each event again, with what the state adds to it."""

    gives_rows = False
    constant_state = True

    def wants(self, event: Event) -> bool:
        del event
        return True  # also the events that a transformation has taken


class _Anchor(_Rewriter):
    """The state is a value that changes in the loop; it becomes an operand.

    In a backward rule there is none: only what runs forward is hoisted.
    """

    constant_state = False

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        if state is None or isinstance(state, tuple):
            log_p.bind(*operands, event=event)
            return Record(), state
        event = dataclasses.replace(event, anchors=event.anchors + 1)
        log_p.bind(*operands, state, event=event)
        return Record(), state


class _Guard(_Rewriter):
    """The state says whether this part of the program is really being run."""

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        if not event.keys:
            log_p.bind(*operands, event=event)
            return Record(), state
        if state is None:
            raise UnsupportedPrimitiveError(
                f"{', '.join(map(repr, event.keys))}, logged at {event.source}, is in "
                "the `def_vmap` rule of a function in a branch or loop that differs "
                "between lanes. Log it in the function itself, or outside of it."
            )
        parts = event.split(operands)
        lanes = jnp.shape(parts.values[0][0])[: event.lanes]
        # the lanes of the loop or branch come first; those of a `vmap` inside, after
        inner = (1,) * (len(lanes) - jnp.ndim(state))
        active = jnp.broadcast_to(jnp.reshape(state, jnp.shape(state) + inner), lanes)
        parts.mask = active if parts.mask is None else parts.mask & active
        event = dataclasses.replace(event, masked=True)
        log_p.bind(*parts.flat(), event=event)
        return Record(), state


# --- differentiating a scan --------------------------------------------------


def _anchored_scan(rule: Callable[..., Any]) -> Callable[..., Any]:
    """For the rule that linearizes."""

    def wrapped(*args: Any, **params: Any) -> Any:
        if not events_of(params["jaxpr"]):
            return rule(*args, **params)
        if _changing(params) is not None:
            return rule(*args, **_anchored(params))
        # from 0.10 on, a flag comes first: whether it is for reverse mode
        flags = args[:1] if isinstance(args[0], bool) else ()
        nonzeros, *primals = args[len(flags) :]
        at = _counter_position(params)
        new = _anchored(_counted(params))
        outs, out_nonzeros, *residuals, tangent_fun = rule(
            *flags,
            list(_inserted(nonzeros, at, False)),
            *_inserted(primals, at, _ZERO),
            **new,
        )

        def tangents_of(*args: Any) -> Any:
            # the residuals come first; of a tangent that is zero, nothing is used
            tangents = _inserted(args, len(residuals) + at, None)
            return tangent_fun(*tangents)[1:]

        return (outs[1:], out_nonzeros[1:], *residuals, tangents_of)

    return wrapped


def _anchored_jvp(rule: Callable[..., Any]) -> Callable[..., Any]:
    """For forward mode, which hoists nothing itself, but may come before what does."""

    def wrapped(primals: Any, tangents: Any, **params: Any) -> Any:
        if not events_of(params["jaxpr"]):
            return rule(primals, tangents, **params)
        if _changing(params) is not None:
            return rule(primals, tangents, **_anchored(params))
        at = _counter_position(params)
        outs, out_tangents = rule(
            list(_inserted(primals, at, _ZERO)),
            list(_inserted(tangents, at, compat.symbolic_zero(_ZERO))),
            **_anchored(_counted(params)),
        )
        return outs[1:], out_tangents[1:]

    return wrapped


def _still_anchored_scan(rule: Callable[..., Any]) -> Callable[..., Any]:
    """For partial evaluation, which also sees scans that are not differentiated."""

    def wrapped(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not _loose_events(params["jaxpr"]):
            return rule(trace, *tracers, **params)
        counted = _changing(params) is None
        if counted:
            tracers = _inserted(
                tracers, _counter_position(params), compat.known_tracer(trace, _ZERO)
            )
            params = _counted(params)
        unknown = [not compat.known(tracer) for tracer in tracers]
        outs = rule(trace, *tracers, **_anchored(params, unknown))
        return outs[1:] if counted else outs

    return wrapped


def _still_anchored_equation(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for the form of the rule that takes an equation (`checkpoint`)."""

    def wrapped(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        if not _loose_events(eqn.params["jaxpr"]):
            return rule(saveable, unknown, instantiated, eqn)
        if _changing(eqn.params) is not None:
            eqn = eqn.replace(params=_anchored(eqn.params, unknown))
            return rule(saveable, unknown, instantiated, eqn)
        at = _counter_position(eqn.params)
        unknown = _inserted(unknown, at, False)
        literal, unused = compat.literal_and_unused(_ZERO)
        eqn = eqn.replace(
            params=_anchored(_counted(eqn.params), unknown),
            invars=list(_inserted(eqn.invars, at, literal)),
            outvars=[unused, *eqn.outvars],
        )
        instantiated = _inserted(instantiated, at, True)
        known, staged, out_unknown, out_instantiated, *rest = rule(
            saveable, list(unknown), list(instantiated), eqn
        )
        return (known, staged, out_unknown[1:], out_instantiated[1:], *rest)

    return wrapped


def _loose_events(jaxpr: Any) -> bool:
    return any(event.anchors == 0 for event in events_of(jaxpr))


def _anchored(params: dict[str, Any], unknown: Sequence[bool] = ()) -> dict[str, Any]:
    """A scan's parameters, with every event of its body anchored."""
    old = params["jaxpr"]
    changing = _changing(params, unknown)
    assert changing is not None
    walk = Walk(_Anchor())

    def body(_: Any, *args: Any) -> list[Any]:
        outs, _, anchor = walk(old, args, anchor_p.bind(as_array(args[changing])))
        if _logs_deep(old):
            log_p.bind(anchor, event=_KEEP)
        return outs

    return {**params, "jaxpr": walk.rebuilt(old, (), body)[0]}


def _changing(params: dict[str, Any], unknown: Sequence[bool] = ()) -> int | None:
    """An input of a scan's body that is no constant; a known one, if there is one."""
    avals = params["jaxpr"].in_avals
    consts, _, _ = compat.scan_sizes(params, len(avals))
    found = [i for i in range(consts, len(avals)) if hasattr(avals[i], "dtype")]
    return min(found, key=lambda i: bool(unknown) and unknown[i], default=None)


# A scan with neither a carry nor inputs (JAX makes constants of carries that the body
# does not change) has nothing to hold an event. It gets a counter as its first carry.
_ZERO = np.int32(0)


def _counter_position(params: dict[str, Any]) -> int:
    return compat.scan_sizes(params, len(params["jaxpr"].in_avals))[0]


def _inserted(items: Sequence[Any], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at:])


def _counted(params: dict[str, Any]) -> dict[str, Any]:
    old = params["jaxpr"]
    consts, carry, xs = compat.scan_sizes(params, len(old.in_avals))

    def body(*args: Any) -> list[Any]:
        outs = compat.evaluate(old, [*args[:consts], *args[consts + 1 :]])
        return [args[consts] + 1, *outs]

    avals = _inserted(old.in_avals, consts, jax.typeof(jnp.asarray(_ZERO)))
    ys = len(old.out_avals) - carry
    return {
        **params,
        "jaxpr": compat.trace(body, avals, old)[0],
        **compat.scan_params(params, consts, carry + 1, xs, ys),
    }


# Something that depends on a value, and is nothing in the compiled program.
anchor_p: Any = compat.Primitive("lox_anchor")
anchor_p.def_impl(lambda x: jnp.int32(0))
anchor_p.def_abstract_eval(compat.anchor_aval)
compat.register_lowering(
    anchor_p, compat.mlir.lower_fun(lambda x: jnp.int32(0), multiple_results=False)
)
compat.ad.primitive_transposes[anchor_p] = lambda ct, x: [None]
compat.batching.primitive_batchers[anchor_p] = lambda args, dims: (
    anchor_p.bind(*args),
    None,
)


def _anchor_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    del tangents
    anchor = anchor_p.bind(*primals)
    return anchor, compat.symbolic_zero(anchor)


compat.ad.primitive_jvps[anchor_p] = _anchor_jvp


def _logs_deep(jaxpr: Any) -> bool:
    """Whether an event is inside an equation, and not only in the body itself.

    Partial evaluation keeps an event alive, but not always an equation that has one
    inside, if nobody uses its results.
    """
    return any(
        eqn.primitive is not log_p and events_inside(eqn)
        for eqn in compat.open_jaxpr(jaxpr).eqns
    )


# An event of nothing, which only needs the anchor that comes out of a loop's body, and
# so keeps what that went through.
_KEEP = Event((), (), (), Source("<lox>", 0), anchors=1, quiet=True)


# --- vmap of scan ------------------------------------------------------------


def _with_known_carries(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps JAX from batching the loops inside again and again."""

    def wrapped(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any
    ) -> Any:
        jaxpr = params["jaxpr"]
        if events_of(jaxpr) or compat.is_made_here(jaxpr):
            consts, carry, _ = compat.scan_sizes(params, len(args))
            lanes = lanes_of_scan(params, [dim is not None for dim in dims])[:carry]
            args, dims = _with_lanes(axis_data, args, dims, consts, lanes)
        return rule(axis_data, args, dims, **params)

    return wrapped


# --- vmap of cond ------------------------------------------------------------


def _guarded_cond(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any
    ) -> Any:
        branches = params["branches"]
        # with `platform_dependent`, the index is the same in all lanes whatever it says
        if (
            dims[0] is not None
            and "branches_platforms" not in params
            and any(events_of(branch) for branch in branches)
        ):
            index, *operands = args
            args, dims = [index, index, *operands], [dims[0], *dims]
            aval = compat.lane_aval(axis_data, dims[0], jax.typeof(index))
            params["branches"] = tuple(
                _guarded_branch(branch, i, aval) for i, branch in enumerate(branches)
            )
        return rule(axis_data, args, dims, **params)

    return wrapped


def _guarded_branch(branch: Any, i: int, index_aval: Any) -> Any:
    return remembered(
        branch, (i, index_aval), lambda: _new_guarded_branch(branch, i, index_aval)
    )


def _new_guarded_branch(branch: Any, i: int, index_aval: Any) -> Any:
    walk = Walk(_Guard())

    def fun(index: Any, *args: Any) -> list[Any]:
        # JAX clamps an index that is out of range before the conditional
        outs, _, _ = walk(branch, args, index == i)
        return outs

    return compat.trace(fun, [index_aval, *branch.in_avals], branch)[0]


# --- vmap of while_loop ------------------------------------------------------


def _guarded_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any
    ) -> Any:
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        logs = bool(events_of(cond) or events_of(body))
        if not logs and not compat.is_made_here(body):
            return rule(axis_data, args, dims, **params)
        predicate, carry = lanes_of_while(params, [dim is not None for dim in dims])
        # A predicate that has lanes already gets the new ones in any case: the lanes of
        # an event inside must begin with those of the predicate.
        has_lanes = bool(cond.out_avals[0].shape)
        if logs and not has_lanes and predicate is None:
            predicate = _batched_predicate(axis_data, dims, params)
        if logs and (has_lanes or predicate):
            return _guarded_loop(rule, axis_data, args, dims, params)
        if not has_lanes:  # then lanes that are new come first
            consts = params["cond_nconsts"] + params["body_nconsts"]
            args, dims = _with_lanes(axis_data, args, dims, consts, carry)
        return rule(axis_data, args, dims, **params)

    return wrapped


def _with_lanes(
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    consts: int,
    lanes: Sequence[bool | None],
) -> tuple[list[Any], list[Any]]:
    """The inputs of a loop, with those carries in lanes that get them in any case.

    JAX's own rules would do the same in the end. To find out for which carries, they
    batch the body until nothing changes; those that are known need not be found.

    Args:
        axis_data: the axis.
        args: the constants of the loop, then its carries, then others.
        dims: their axes.
        consts: the number of the constants.
        lanes: of the carries, which get lanes.
    """
    args, dims = list(args), list(dims)
    for i, known in enumerate(lanes, consts):
        if known and dims[i] is None:
            args[i], dims[i] = compat.broadcast_carry(args[i], axis_data), 0
    return args, dims


def _batched_predicate(
    axis_data: Any, dims: Sequence[Any], params: dict[str, Any]
) -> bool:
    """Whether lanes may leave the loop at different times, as JAX finds it out."""
    batched = [dim is not None for dim in dims]
    consts = params["cond_nconsts"] + params["body_nconsts"]
    of_consts, carry = batched[:consts], batched[consts:]
    cond, body = params["cond_jaxpr"], _rotated(params, True)["body_jaxpr"]
    of_cond = [*of_consts[: params["cond_nconsts"]], *carry]
    flags = [*compat.batched_outputs(cond, axis_data, of_cond, [False]), *carry]
    while True:
        found = compat.batched_outputs(body, axis_data, [*of_consts, *flags], flags)
        joined = [a or b for a, b in zip(flags, found, strict=True)]
        if joined == flags:
            return flags[0]
        flags = joined


def _guarded_loop(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    params: dict[str, Any],
) -> Any:
    """The rotated loop, whose predicate tells the body which lanes it runs for."""
    cond = params["cond_jaxpr"]
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    consts = cond_consts + body_consts

    front = [
        x if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    inputs = [*front[:cond_consts], *front[consts:]]
    mapped = [dim is not None for dim in [*dims[:cond_consts], *dims[consts:]]]
    (go,) = compat.evaluate(compat.batch_jaxpr(cond, axis_data, mapped), inputs)
    if jnp.ndim(go) == len(cond.out_avals[0].shape):
        go = compat.broadcast_lanes(go, axis_data)
    new_args, new_dims = _with_lanes(
        axis_data,
        [*args[:consts], go, *args[consts:]],
        [*dims[:consts], 0, *dims[consts:]],
        consts,
        [True] * (1 + len(args) - consts),
    )
    outs, out_dims = rule(axis_data, new_args, new_dims, **_rotated(params, True))
    return outs[1:], out_dims[1:]


def _rotated(params: dict[str, Any], guarded: bool = False) -> dict[str, Any]:
    """A loop with its condition evaluated before it and at the end of its body.

    The predicate is the first carry then.

    Args:
        params: those of the loop.
        guarded: whether its events get the predicate as a mask.
    """
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    consts = cond_consts + body_consts
    walk = Walk(_Guard())

    def run(jaxpr: Any, args: Sequence[Any], go: Any) -> list[Any]:
        return walk(jaxpr, args, go)[0] if guarded else compat.evaluate(jaxpr, args)

    def new_body(*args: Any) -> list[Any]:
        inner, go, carry = args[:consts], args[consts], args[consts + 1 :]
        outs = run(body, [*inner[cond_consts:], *carry], go)
        return [*run(cond, [*inner[:cond_consts], *outs], go), *outs]

    carry_avals = [cond.out_avals[0], *body.in_avals[body_consts:]]
    const_avals = [*cond.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    return {
        **params,
        "cond_nconsts": 0,
        "body_nconsts": consts,
        **remembered(
            body,
            (weakref.ref(cond), cond_consts, body_consts, guarded),
            lambda: {
                "cond_jaxpr": compat.trace(lambda go, *_: go, carry_avals, cond)[0],
                "body_jaxpr": compat.trace(
                    new_body, [*const_avals, *carry_avals], body
                )[0],
            },
        ),
    }


# --- a condition that XLA or checkify evaluates as it likes -------------------


def _lowered_condition(rule: Callable[..., Any]) -> Callable[..., Any]:
    """XLA drops a condition, events and all, if it knows how often the loop runs."""

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        # those that have an order are safe, and quiet ones are not delivered
        events = events_of(params["cond_jaxpr"])
        if all(event.ordered or event.quiet for event in events):
            return rule(ctx, *args, **params)

        def loop(*args: Any) -> list[Any]:
            return _run_rotated(args, params)

        return compat.mlir.lower_fun(loop, multiple_results=True)(ctx, *args)

    return lower


def _run_rotated(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    inputs = _condition_inputs(args, params)
    go = compat.evaluate(params["cond_jaxpr"], inputs)
    consts = params["cond_nconsts"] + params["body_nconsts"]
    rotated = [*args[:consts], *go, *args[consts:]]
    return list(compat.while_p.bind(*rotated, **_rotated(params)))[1:]


def _condition_inputs(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    cond_consts = params["cond_nconsts"]
    return [*args[:cond_consts], *args[cond_consts + params["body_nconsts"] :]]


def _checked_once(rule: Callable[..., Any]) -> Callable[..., Any]:
    """`checkify` evaluates a condition once to check it, and once to go by it."""

    def wrapped(*args: Any, **params: Any) -> Any:
        cond = params["cond_jaxpr"]
        if not events_of(cond) or cond.out_avals[0].shape:
            return rule(*args, **params)
        call, inputs = compat.checkify_call(args)
        error, go = call(cond, _condition_inputs(inputs, params))
        consts = params["cond_nconsts"] + params["body_nconsts"]
        front = args[: len(args) - len(inputs)]
        rotated = [*inputs[:consts], *go, *inputs[consts:]]
        error, outs = rule(
            *compat.checkify_with_error(front, error), *rotated, **_rotated(params)
        )
        return error, outs[1:]

    return wrapped


# --- a while_loop that runs twice --------------------------------------------


def _once_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Partial evaluation by tracing: `linearize`, and what a scan hoists."""

    def wrapped(trace: Any, *tracers: Any, **params: Any) -> Any:
        unknown = [not compat.known(tracer) for tracer in tracers]
        if not _loop_events(params) or not any(unknown) or all(unknown):
            return rule(trace, *tracers, **params)
        params = _numbered(params)
        with _numbers_kept():
            known, others = _events_by_knowledge(params, unknown)
        # JAX runs the loop for the known values, and again for all. The events get a
        # run of their own, of which nothing else is used.
        if known:
            values = [compat.known_value(tracer) for tracer in tracers]
            compat.while_p.bind(*values, **_without(params, others))
        return rule(trace, *tracers, **_without(params, known))

    return wrapped


def _once_while_equation(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The same for `checkpoint`, whose rule gives the two runs as equations."""

    def wrapped(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        if not _loop_events(eqn.params):
            return rule(saveable, unknown, instantiated, eqn)
        eqn = eqn.replace(params=_numbered(eqn.params))
        with _numbers_kept():
            known, staged, *rest = rule(saveable, unknown, instantiated, eqn)
        if known is not None and staged is not None:
            sites = {event.site for event in _loop_events(known.params)}
            params = _without(staged.params, sites)
            effects = {
                effect
                for name in ("cond_jaxpr", "body_jaxpr")
                for effect in params[name].effects
            }
            staged = staged.replace(params=params, effects=effects)
        return (known, staged, *rest)

    return wrapped


class _Number(_Rewriter):
    """Gives every event a number of its own.

    JAX cannot take a loop apart in which something has both an effect and results.
    """

    constant_state = False
    beside = True

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        log_p.bind(*operands, event=dataclasses.replace(event, site=next(self._count)))
        return Record(), state


_numbers = threading.local()


@contextlib.contextmanager
def _numbers_kept() -> Iterator[None]:
    """Loops inside a loop that is being taken apart have their numbers already."""
    before = getattr(_numbers, "kept", False)
    _numbers.kept = True
    try:
        yield
    finally:
        _numbers.kept = before


def _numbered(params: dict[str, Any]) -> dict[str, Any]:
    if getattr(_numbers, "kept", False):
        return params
    # a function that is called twice has events in two places, so that nothing of it
    # may be remembered
    walk = Walk(_Number(), remember=False)
    names = ("cond_jaxpr", "body_jaxpr")
    return {**params, **{name: walk.rebuilt(params[name], ())[0] for name in names}}


def _loop_events(params: dict[str, Any]) -> set[Event]:
    return {*events_of(params["cond_jaxpr"]), *events_of(params["body_jaxpr"])}


def _events_by_knowledge(
    params: dict[str, Any], unknown: Sequence[bool]
) -> tuple[set[int], set[int]]:
    """The sites in a loop that need known values only, and the others."""
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body = unknown[:cond_consts], unknown[cond_consts:][:body_consts]
    carry = list(unknown[cond_consts + body_consts :])
    while True:
        known, _, out = compat.known_part(
            params["body_jaxpr"], [*of_body, *carry], carry
        )
        if out == carry:
            break
        carry = [a or b for a, b in zip(carry, out, strict=True)]
    cond, _, _ = compat.known_part(params["cond_jaxpr"], [*of_cond, *carry], False)
    found = {event.site for event in (*events_of(known), *events_of(cond))}
    return found, {event.site for event in _loop_events(params)} - found


def _without(params: dict[str, Any], sites: set[int]) -> dict[str, Any]:
    def clean(jaxpr: Any) -> Any:
        walk = Walk(_Removed(sites))
        return walk.rebuilt(jaxpr, ())[0] if walk.wants_in(jaxpr) else jaxpr

    return {
        **params,
        "cond_jaxpr": clean(params["cond_jaxpr"]),
        "body_jaxpr": clean(params["body_jaxpr"]),
    }


class _Removed(_Rewriter):
    """Removes certain events, also such as a transformation has taken."""

    constant_state = False

    def __init__(self, sites: set[int]) -> None:
        self._sites = sites

    def wants(self, event: Event) -> bool:
        return event.site in self._sites

    def receive(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        del event, operands
        return Record(), state


# --- a checkpoint whose results nobody uses ----------------------------------


def _kept_checkpoint(rule: Callable[..., Any]) -> Callable[..., Any]:
    """JAX 0.10 drops one that needs no inputs any more, if it has an effect."""

    def wrapped(used: Sequence[bool], *rest: Any) -> Any:
        inputs, kept = rule(used, *rest)
        eqn = rest[-1]
        if kept is None and events_inside(eqn):
            return compat.without_unused(eqn, used)
        return inputs, kept

    return wrapped


def _kept_hijax(rule: Callable[..., Any]) -> Callable[..., Any]:
    """JAX drops a high-level primitive (up to 0.11) although it has an effect."""

    def wrapped(used: Sequence[bool], *rest: Any) -> Any:
        inputs, kept = rule(used, *rest)
        eqn = rest[-1]
        if kept is None and events_inside(eqn):
            return [True] * len(eqn.invars), eqn
        return inputs, kept

    return wrapped


# --- leak checks -------------------------------------------------------------


def _logs(eqn: Any) -> bool:
    return eqn.primitive is log_p or bool(events_inside(eqn))


def install() -> None:
    """Wraps JAX's rules, once."""
    scan, cond, loop = compat.scan_p, compat.cond_p, compat.while_p
    compat.wrap_rule("jvp", scan, _anchored_jvp)
    compat.wrap_rule("linearize", scan, _anchored_scan)
    compat.wrap_rule("partial_eval", scan, _still_anchored_scan)
    compat.wrap_rule("partial_eval_equation", scan, _still_anchored_equation)
    compat.wrap_lowering(loop, _lowered_condition)
    compat.when_checkify_is_imported(
        lambda: compat.wrap_rule("checkify", loop, _checked_once)
    )
    compat.wrap_rule("dce", compat.checkpoint_p, _kept_checkpoint)
    compat.wrap_rule("dce", compat.hijax_p, _kept_hijax)
    compat.give_hijax_effects(frozenset({LOG_EFFECT, ORDERED_LOG_EFFECT}))
    compat.wrap_rule("batching", scan, _with_known_carries)
    compat.wrap_rule("batching", cond, _guarded_cond)
    compat.wrap_rule("batching", loop, _guarded_while)
    compat.wrap_rule("partial_eval", loop, _once_while)
    compat.wrap_rule("partial_eval_equation", loop, _once_while_equation)
    compat.forget_effect_handles(_logs)


install()
