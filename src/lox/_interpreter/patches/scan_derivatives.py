"""Differentiating a `scan`.

JAX hoists loop-invariant code out of a differentiated `scan`, so an event of constants
(for example, the learning rate) would be logged once instead of in every iteration.
Every event gets an *anchor*: an additional operand that changes.
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
from lox._interpreter.walk import Walk
from lox._jax import ad, array_types, jaxprs, partial_eval, primitives, rule_tables, vma
from lox._jax.array_types import as_array
from lox._source import Source

from .rewriter import AllEventsRewriter


class _AnchorAdder(AllEventsRewriter):
    """Adds an anchor to events: the context, a value that changes in the loop.

    In a backward rule it is None, since only forward code is hoisted.
    """

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if context is None:
            log_p.bind(*operands, event=event)
            return
        event = event.with_layout(anchors=event.layout.anchors + 1)
        log_p.bind(*operands, context, event=event)


def linearize_scan(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Wraps the linearization rule."""
    if _changing_input(params) is not None:
        return rule(*args, **_with_anchors(params))
    # since JAX 0.10, the first argument says whether this is for reverse mode
    flags = args[:1] if isinstance(args[0], bool) else ()
    nonzeros, *primals = args[len(flags) :]
    at = _counter_position(params)
    new = _with_anchors(_with_counter(params))
    outs, out_nonzeros, *residuals, tangent_fun = rule(
        *flags,
        list(_inserted(nonzeros, at, False)),
        *_inserted(primals, at, _ZERO),
        **new,
    )

    def new_tangent_fun(*args: Any) -> Any:
        # the residuals come first; the tangent of the counter is zero, and not used
        tangents = _inserted(args, len(residuals) + at, None)
        return tangent_fun(*tangents)[1:]

    return (outs[1:], out_nonzeros[1:], *residuals, new_tangent_fun)


def jvp_of_scan(
    rule: Callable[..., Any], primals: Any, tangents: Any, **params: Any
) -> Any:
    """Wraps the JVP rule, which hoists nothing, but may precede a rule that does."""
    if _changing_input(params) is not None:
        return rule(primals, tangents, **_with_anchors(params))
    at = _counter_position(params)
    outs, out_tangents = rule(
        list(_inserted(primals, at, _ZERO)),
        list(_inserted(tangents, at, ad.symbolic_zero(_ZERO))),
        **_with_anchors(_with_counter(params)),
    )
    return outs[1:], out_tangents[1:]


def partial_eval_scan(
    rule: Callable[..., Any], trace: Any, *tracers: Any, **params: Any
) -> Any:
    """Wraps partial evaluation, also of scans that are not differentiated."""
    if not _has_unanchored_events(params["jaxpr"]):
        return rule(trace, *tracers, **params)
    counted = _changing_input(params) is None
    if counted:
        tracers = _inserted(
            tracers,
            _counter_position(params),
            partial_eval.known_tracer(trace, _ZERO),
        )
        params = _with_counter(params)
    unknown = [not partial_eval.is_known(tracer) for tracer in tracers]
    outs = rule(trace, *tracers, **_with_anchors(params, unknown))
    return outs[1:] if counted else outs


def partial_eval_scan_equation(
    rule: Callable[..., Any], saveable: Any, unknown: Any, instantiated: Any, eqn: Any
) -> Any:
    """Wraps partial evaluation for `checkpoint`, whose rule takes an equation."""
    if not _has_unanchored_events(eqn.params["jaxpr"]):
        return rule(saveable, unknown, instantiated, eqn)
    if _changing_input(eqn.params) is not None:
        eqn = eqn.replace(params=_with_anchors(eqn.params, unknown))
        return rule(saveable, unknown, instantiated, eqn)
    at = _counter_position(eqn.params)
    unknown = _inserted(unknown, at, False)
    literal, unused = partial_eval.literal_and_unused(_ZERO)
    eqn = eqn.replace(
        params=_with_anchors(_with_counter(eqn.params), unknown),
        invars=list(_inserted(eqn.invars, at, literal)),
        outvars=[unused, *eqn.outvars],
    )
    instantiated = _inserted(instantiated, at, True)
    known, staged, out_unknown, out_instantiated, *rest = rule(
        saveable, list(unknown), list(instantiated), eqn
    )
    return (known, staged, out_unknown[1:], out_instantiated[1:], *rest)


def _has_unanchored_events(jaxpr: Any) -> bool:
    return any(event.layout.anchors == 0 for event in events_of(jaxpr))


def _with_anchors(
    params: dict[str, Any], unknown: Sequence[bool] = ()
) -> dict[str, Any]:
    """The parameters of a scan, with an anchor for every event of its body."""
    old = params["jaxpr"]
    changing = _changing_input(params, unknown)
    assert changing is not None
    walk = Walk(_AnchorAdder())
    # after branches that differ between devices, it varies like they do
    varying = frozenset[Any]().union(*map(vma.varying_axes, old.in_avals))

    def body(_: Any, *args: Any) -> list[Any]:
        anchor = anchor_p.bind(as_array(args[changing]))
        anchor = vma.vary_like(anchor, varying)
        outs, _, after = walk(old, args, State(context=anchor))
        if _logs_inside_equations(old):
            log_p.bind(after.context, event=_KEEP_ANCHOR)
        return outs

    return {**params, "jaxpr": walk.rebuilt(old, NO_STATE, body)[0]}


def _changing_input(params: dict[str, Any], unknown: Sequence[bool] = ()) -> int | None:
    """The index of an input of the body that changes; if possible, a known one."""
    avals = params["jaxpr"].in_avals
    consts, _, _ = primitives.scan_sizes(params, len(avals))
    found = [i for i in range(consts, len(avals)) if hasattr(avals[i], "dtype")]
    return min(found, key=lambda i: bool(unknown) and unknown[i], default=None)


# A scan without carries and scanned inputs has no input that changes. (JAX converts
# carries that the body does not change to constants.) It gets a counter as its first
# carry.
_ZERO = np.int32(0)


def _counter_position(params: dict[str, Any]) -> int:
    return primitives.scan_sizes(params, len(params["jaxpr"].in_avals))[0]


def _inserted(items: Sequence[Any], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at:])


def _with_counter(params: dict[str, Any]) -> dict[str, Any]:
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


# Depends on a value, but is a constant in the compiled program.
anchor_p: Any = primitives.Primitive("lox_anchor")
anchor_p.def_impl(lambda x: jnp.int32(0))
anchor_p.def_abstract_eval(array_types.anchor_aval)
rule_tables.register_lowering_as(anchor_p, lambda x: jnp.int32(0))
rule_tables.register_transpose(anchor_p, lambda ct, x: [None])
rule_tables.register_batching(
    anchor_p, lambda axis, args, dims: (anchor_p.bind(*args), None)
)
rule_tables.set_no_derivative(anchor_p)


def _logs_inside_equations(jaxpr: Any) -> bool:
    """Whether an event is inside an equation of the body.

    Partial evaluation always keeps an event, but not always an equation with an event
    inside, if its results are not used.
    """
    return any(
        eqn.primitive is not log_p and events_inside(eqn)
        for eqn in jaxprs.open_jaxpr(jaxpr).eqns
    )


# An event without keys. Its only operand is the anchor after the body, so the equations
# that the anchor passes through are kept.
_KEEP_ANCHOR = Event(
    Call((), (), (), Source("<lox>", 0)), Layout(anchors=1), Route(quiet=True)
)
