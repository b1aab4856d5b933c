"""Where JAX would log wrongly before any transformation of ours can look.

Some of JAX's own rules lose what an event means. Each is wrapped here; the wrapper acts
only on equations that log, and leaves everything else to JAX's rule, unread.

- **Differentiating a scan** hoists what does not change in the loop out of it, so that
  an event made of constants (the learning rate, say) would be logged once instead of
  at every iteration. Such an event gets an *anchor*: an operand that does change.
- **`vmap` of `cond`** with a predicate per lane runs all branches for all lanes. The
  events inside get a *mask*: which lanes really took the branch.
- **`vmap` of `while_loop`** with a predicate per lane goes on for all lanes until the
  last has finished. Again, a mask says which lanes are still running.
- **Linearizing a `while_loop`** runs it twice, once for the values and once more for
  the tangents. The second run's events are removed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import _compat
from ._errors import UnsupportedPrimitiveError
from ._events import Event
from ._primitive import log_p
from ._rows import Record
from ._walk import State, Walk, as_array, events_of


class _Rewriter:
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
        if state is None:
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
        parts = event.split(operands)
        lanes = jnp.shape(parts.values[0][0])[: event.lanes]
        active = jnp.broadcast_to(state, lanes)
        parts.mask = active if parts.mask is None else parts.mask & active
        event = dataclasses.replace(event, masked=True)
        log_p.bind(*parts.flat(), event=event)
        return Record(), state


# --- differentiating a scan --------------------------------------------------


def _anchored_scan(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **params: Any) -> Any:
        if events_of(params["jaxpr"]):
            params["jaxpr"] = _anchored(params)
        return rule(*args, **params)

    return wrapped


def _anchored(params: dict[str, Any]) -> Any:
    old = params["jaxpr"]
    consts, _, _ = _compat.scan_sizes(params, len(old.in_avals))
    changing = _changing_input(old.in_avals, consts)
    if changing is None:
        raise UnsupportedPrimitiveError(
            f"{', '.join(map(repr, events_of(old)[0].keys))}, logged at "
            f"{events_of(old)[0].source}, is in a `scan` without a carry and without "
            "inputs, which JAX moves out of the loop when it is differentiated. Scan "
            "over `jnp.arange(length)` instead of `None`."
        )
    walk = Walk(_Anchor())

    def body(_: Any, *args: Any) -> list[Any]:
        outs, _, _ = walk(old, args, _scalar(args[changing]))
        return outs

    return walk.rebuilt(old, (), body)[0]


def _changing_input(avals: Sequence[Any], consts: int) -> int | None:
    """The smallest input of a scan's body that is no constant."""
    sizes = {
        i: aval.size
        for i, aval in enumerate(avals)
        if i >= consts and hasattr(aval, "dtype") and aval.size
    }
    return min(sizes, key=lambda i: sizes[i]) if sizes else None


def _scalar(x: Any) -> Any:
    """One number of an array: what is carried through inner loops should be small."""
    x = as_array(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    for _ in range(x.ndim):
        x = jax.lax.index_in_dim(x, 0, keepdims=False)
    return jax.lax.convert_element_type(x, x.dtype)


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
            params["branches"] = tuple(
                _guarded_branch(branch, i, jax.typeof(index).dtype)
                for i, branch in enumerate(branches)
            )
        return rule(axis_data, args, dims, **params)

    return wrapped


def _guarded_branch(branch: Any, i: int, dtype: Any) -> Any:
    walk = Walk(_Guard())

    def fun(index: Any, *args: Any) -> list[Any]:
        # JAX clamps an index that is out of range before the conditional
        outs, _, _ = walk(branch, args, index == i)
        return outs

    return walk.rebuilt(branch, jax.ShapeDtypeStruct((), dtype), fun)[0]


# --- vmap of while_loop ------------------------------------------------------


def _guarded_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(
        axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any
    ) -> Any:
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        if events_of(cond) or events_of(body):
            batched = [dim is not None for dim in dims]
            if _batched_predicate(batched, params):
                return _guarded_loop(rule, axis_data, args, dims, params)
        return rule(axis_data, args, dims, **params)

    return wrapped


def _batched_predicate(batched: list[bool], params: dict[str, Any]) -> bool:
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body = batched[:cond_consts], batched[cond_consts:][:body_consts]
    carry = batched[cond_consts + body_consts :]
    while True:
        out = _depends(params["body_jaxpr"], [*of_body, *carry])
        joined = [a or b for a, b in zip(carry, out, strict=True)]
        if joined == carry:
            return _depends(params["cond_jaxpr"], [*of_cond, *carry])[0]
        carry = joined


def _depends(closed: Any, inputs: Sequence[bool]) -> list[bool]:
    """Which results of a jaxpr depend on the inputs that are marked."""
    jaxpr = closed.jaxpr
    marked = {var for var, mark in zip(jaxpr.invars, inputs, strict=True) if mark}

    def is_marked(atom: Any) -> bool:
        return not isinstance(atom, _compat.Literal) and atom in marked

    for eqn in jaxpr.eqns:
        if any(map(is_marked, eqn.invars)):
            marked.update(eqn.outvars)
    return [is_marked(atom) for atom in jaxpr.outvars]


def _guarded_loop(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    params: dict[str, Any],
) -> Any:
    """The loop with its condition evaluated before it and at the end of its body.

    The predicate is a carry then, and tells the body which lanes it runs for.
    """
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    consts = cond_consts + body_consts
    walk = Walk(_Guard())

    front = [
        x if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    inputs = [*front[:cond_consts], *front[consts:]]
    mapped = [dim is not None for dim in [*dims[:cond_consts], *dims[consts:]]]
    (go,) = _compat.evaluate(_compat.batch_jaxpr(cond, axis_data, mapped), inputs)

    def new_body(*args: Any) -> list[Any]:
        inner, go, carry = args[:consts], args[consts], args[consts + 1 :]
        outs, _, _ = walk(body, [*inner[cond_consts:], *carry], go)
        (again,), _, _ = walk(cond, [*inner[:cond_consts], *outs], go)
        return [again, *outs]

    bool_aval = cond.out_avals[0]
    carry_avals = [bool_aval, *body.in_avals[body_consts:]]
    const_avals = [*cond.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    new_params = {
        **params,
        "cond_nconsts": 0,
        "body_nconsts": consts,
        "cond_jaxpr": _compat.trace(lambda go, *_: go, carry_avals, cond)[0],
        "body_jaxpr": _compat.trace(new_body, [*const_avals, *carry_avals], body)[0],
    }
    new_args = [*args[:consts], go, *args[consts:]]
    new_dims = [*dims[:consts], 0, *dims[consts:]]
    outs, out_dims = rule(axis_data, new_args, new_dims, **new_params)
    return outs[1:], out_dims[1:]


# --- linearizing a while_loop ------------------------------------------------


def _once_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(trace: Any, *tracers: Any, **params: Any) -> Any:
        events = [*events_of(params["cond_jaxpr"]), *events_of(params["body_jaxpr"])]
        known = [_compat.known(tracer) for tracer in tracers]
        if events and any(known) and not all(known):
            keys = ", ".join(dict.fromkeys(repr(k) for e in events for k in e.keys))
            raise UnsupportedPrimitiveError(
                f"{keys}, logged at {events[0].source}, is in a `while_loop` that "
                "`jax.linearize` would run twice, and log twice. Use `jax.jvp`, or "
                "remove the logs with `lox.nolog`."
            )
        return rule(trace, *tracers, **params)

    return wrapped


def install() -> None:
    """Wraps JAX's rules, once."""
    _compat.wrap_rule("jvp", _compat.scan_p, _anchored_scan)
    _compat.wrap_rule("linearize", _compat.scan_p, _anchored_scan)
    _compat.wrap_rule("batching", _compat.cond_p, _guarded_cond)
    _compat.wrap_rule("batching", _compat.while_p, _guarded_while)
    _compat.wrap_rule("partial_eval", _compat.while_p, _once_while)


install()
