"""Differentiating a `scan`.

JAX hoists what does not change in a loop out of it, so that an event made of constants
(the learning rate, say) would be logged once instead of at every iteration. Such an
event gets an *anchor*: an operand that does change.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._events.event import Call, Event, Layout, Route
from lox._events.primitive import log_p
from lox._interpreter.contents import events_inside, events_of
from lox._interpreter.handlers import NO_STATE, State
from lox._interpreter.walk import Walk, as_array
from lox._jax import ad, array_types, jaxprs, partial_eval, primitives, rule_tables
from lox._source import Source

from .rewriter import EveryEvent


class _Anchor(EveryEvent):
    """Adds an operand: the context, a value that changes in the loop.

    In a backward rule there is none: only what runs forward is hoisted.
    """

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if context is None:
            log_p.bind(*operands, event=event)
            return
        event = event.with_layout(anchors=event.layout.anchors + 1)
        log_p.bind(*operands, context, event=event)


def anchored_scan(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """For the rule that linearizes."""
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


def anchored_jvp(
    rule: Callable[..., Any], primals: Any, tangents: Any, **params: Any
) -> Any:
    """For forward mode, which hoists nothing itself, but may come before what does."""
    if _changing(params) is not None:
        return rule(primals, tangents, **_anchored(params))
    at = _counter_position(params)
    outs, out_tangents = rule(
        list(_inserted(primals, at, _ZERO)),
        list(_inserted(tangents, at, ad.symbolic_zero(_ZERO))),
        **_anchored(_counted(params)),
    )
    return outs[1:], out_tangents[1:]


def still_anchored_scan(
    rule: Callable[..., Any], trace: Any, *tracers: Any, **params: Any
) -> Any:
    """For partial evaluation, which also sees scans that are not differentiated."""
    if not _loose_events(params["jaxpr"]):
        return rule(trace, *tracers, **params)
    counted = _changing(params) is None
    if counted:
        tracers = _inserted(
            tracers,
            _counter_position(params),
            partial_eval.known_tracer(trace, _ZERO),
        )
        params = _counted(params)
    unknown = [not partial_eval.is_known(tracer) for tracer in tracers]
    outs = rule(trace, *tracers, **_anchored(params, unknown))
    return outs[1:] if counted else outs


def still_anchored_equation(
    rule: Callable[..., Any], saveable: Any, unknown: Any, instantiated: Any, eqn: Any
) -> Any:
    """The same, for the form of the rule that takes an equation (`checkpoint`)."""
    if not _loose_events(eqn.params["jaxpr"]):
        return rule(saveable, unknown, instantiated, eqn)
    if _changing(eqn.params) is not None:
        eqn = eqn.replace(params=_anchored(eqn.params, unknown))
        return rule(saveable, unknown, instantiated, eqn)
    at = _counter_position(eqn.params)
    unknown = _inserted(unknown, at, False)
    literal, unused = partial_eval.literal_and_unused(_ZERO)
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


def _loose_events(jaxpr: Any) -> bool:
    return any(event.layout.anchors == 0 for event in events_of(jaxpr))


def _anchored(params: dict[str, Any], unknown: Sequence[bool] = ()) -> dict[str, Any]:
    """A scan's parameters, with every event of its body anchored."""
    old = params["jaxpr"]
    changing = _changing(params, unknown)
    assert changing is not None
    walk = Walk(_Anchor())

    def body(_: Any, *args: Any) -> list[Any]:
        anchor = State(context=anchor_p.bind(as_array(args[changing])))
        outs, _, after = walk(old, args, anchor)
        if _logs_deep(old):
            log_p.bind(after.context, event=_KEEP)
        return outs

    return {**params, "jaxpr": walk.rebuilt(old, NO_STATE, body)[0]}


def _changing(params: dict[str, Any], unknown: Sequence[bool] = ()) -> int | None:
    """An input of a scan's body that is no constant; a known one, if there is one."""
    avals = params["jaxpr"].in_avals
    consts, _, _ = primitives.scan_sizes(params, len(avals))
    found = [i for i in range(consts, len(avals)) if hasattr(avals[i], "dtype")]
    return min(found, key=lambda i: bool(unknown) and unknown[i], default=None)


# A scan with neither a carry nor inputs (JAX makes constants of carries that the body
# does not change) has nothing to hold an event. It gets a counter as its first carry.
_ZERO = np.int32(0)


def _counter_position(params: dict[str, Any]) -> int:
    return primitives.scan_sizes(params, len(params["jaxpr"].in_avals))[0]


def _inserted(items: Sequence[Any], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at:])


def _counted(params: dict[str, Any]) -> dict[str, Any]:
    old = params["jaxpr"]
    consts, carry, xs = primitives.scan_sizes(params, len(old.in_avals))

    def body(*args: Any) -> list[Any]:
        outs = jaxprs.evaluate(old, [*args[:consts], *args[consts + 1 :]])
        return [args[consts] + 1, *outs]

    avals = _inserted(old.in_avals, consts, jax.typeof(jnp.asarray(_ZERO)))
    ys = len(old.out_avals) - carry
    return {
        **params,
        "jaxpr": jaxprs.trace(body, avals, old)[0],
        **primitives.scan_params(params, consts, carry + 1, xs, ys),
    }


# Something that depends on a value, and is nothing in the compiled program.
anchor_p: Any = primitives.Primitive("lox_anchor")
anchor_p.def_impl(lambda x: jnp.int32(0))
anchor_p.def_abstract_eval(array_types.anchor_aval)
rule_tables.register_lowering_as(anchor_p, lambda x: jnp.int32(0))
rule_tables.register_transpose(anchor_p, lambda ct, x: [None])
rule_tables.register_batching(
    anchor_p, lambda axis, args, dims: (anchor_p.bind(*args), None)
)
rule_tables.set_no_derivative(anchor_p)


def _logs_deep(jaxpr: Any) -> bool:
    """Whether an event is inside an equation, and not only in the body itself.

    Partial evaluation keeps an event alive, but not always an equation that has one
    inside, if nobody uses its results.
    """
    return any(
        eqn.primitive is not log_p and events_inside(eqn)
        for eqn in jaxprs.open_jaxpr(jaxpr).eqns
    )


# An event of nothing, which only needs the anchor that comes out of a loop's body, and
# so keeps what that went through.
_KEEP = Event(
    Call((), (), (), Source("<lox>", 0)), Layout(anchors=1), Route(quiet=True)
)
