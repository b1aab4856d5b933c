"""High-level primitives, whose rules are Python methods.

With JAX's flags `jax_remat3` and `jax_custom_vjp3` (both from 0.10 on), checkpoints and
calls of `custom_vjp` functions are such primitives; so are calls of `custom_vjp`
functions with `generic_batching` (0.12).
"""

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

from jax.extend.core import JaxprEqn

from . import compat, jaxprs, primitives, tracing, watches


def changed_equation(
    eqn: JaxprEqn, change: Callable[[Any], Any], watch: watches.Watch
) -> Callable[..., list[Any]]:
    """A function of the inputs that binds `eqn` with each of its jaxprs changed.

    The Python functions of a high-level primitive are watched instead.
    """
    prim = jaxprs.hijax(eqn)
    if prim is None:
        params = jaxprs.map_jaxprs(eqn.params, change)
        return lambda *args: tracing.bind(eqn, args, **params)
    new = watched(prim, change, watch)
    return lambda *args: tracing.bind(eqn, args, _prim=new)


def kind_of(eqn: JaxprEqn) -> str:
    """The name by which the rule of an equation is registered."""
    prim = jaxprs.hijax(eqn)
    return eqn.primitive.name if prim is None else _kind_of_hijax(prim)


CHECKPOINT = "high-level checkpoint"
CUSTOM_VJP = "high-level custom_vjp"
_HIGH_KINDS = {"RematTraced": CHECKPOINT, "CustomVJPTraced": CUSTOM_VJP}


def _kind_of_hijax(prim: Any) -> str:
    return _HIGH_KINDS.get(type(jaxprs.innermost(prim)).__name__, "call_hi_primitive")


def is_checkpoint(prim: Any) -> bool:
    """Whether a high-level primitive is a `jax.checkpoint`."""
    return _kind_of_hijax(prim) == CHECKPOINT


def is_custom_vjp(prim: Any) -> bool:
    """Whether a high-level primitive is a call of a `jax.custom_vjp` function."""
    return _kind_of_hijax(prim) == CUSTOM_VJP


def has_own_batching(prim: Any) -> bool:
    """Whether a high-level primitive has a batching rule that is not one of JAX's."""
    module = getattr(type(prim).batch, "__module__", None) or ""
    return not module.startswith("jax.")


def is_checkpoint_eqn(eqn: JaxprEqn) -> bool:
    """Whether an equation is a checkpoint of either kind."""
    return eqn.primitive is primitives.checkpoint_p or kind_of(eqn) == CHECKPOINT


def watched(prim: Any, change: Callable[[Any], Any], watch: watches.Watch) -> Any:
    """A high-level primitive with its jaxprs changed and its functions watched."""

    def watched_param(value: Any) -> Any:
        if jaxprs.is_hijax(value):
            return watched(value, lambda jaxpr: jaxpr, watch)
        if isinstance(value, types.FunctionType | functools.partial):
            return watches.watched(value, watch)
        return value

    new = jaxprs.with_changed_jaxprs(prim, change)
    if is_checkpoint(prim):  # it has a jaxpr, and no Python functions
        return new
    if is_custom_vjp(prim):
        return _with_watched_vjp(new, watch.inside("fwd"), watch.inside("bwd"))
    watched_params = {name: watched_param(x) for name, x in new.params.items()}
    new = jaxprs.with_params(new, watched_params)
    for name in ("expand", "batch", *_FORWARD_RULES, *_BACKWARD_RULES):
        inside = watch.inside("batch") if name == "batch" else watch
        if hasattr(prim, name) and inside is not None:
            setattr(new, name, watches.watched(getattr(new, name), inside))
    return new


def with_watched_rules(
    prim: Any, forward: watches.Watch, backward: watches.Watch
) -> Any:
    """A high-level primitive with its derivative rules watched, and nothing else."""
    if is_custom_vjp(prim):
        return _with_watched_vjp(prim, forward, backward)
    new = copy.copy(prim)
    for names, watch in ((_FORWARD_RULES, forward), (_BACKWARD_RULES, backward)):
        for name in names:
            if callable(getattr(prim, name, None)):
                setattr(new, name, watches.watched(getattr(prim, name), watch))
    return new


# the derivative rules of a high-level primitive
_FORWARD_RULES = ("jvp", "lin", "vjp_fwd")
_BACKWARD_RULES = ("linearized", "transpose", "vjp_bwd", "vjp_bwd_retval")


def _with_watched_vjp(
    prim: Any, forward: watches.Watch | None, backward: watches.Watch | None
) -> Any:
    """The call of a `custom_vjp` function with its rules watched.

    The rules are parameters, so that they stay watched when JAX transforms the call.
    """
    if jaxprs.innermost(prim) is not prim:
        inner = _with_watched_vjp(prim.params["prim"], forward, backward)
        return jaxprs.with_params(prim, {"prim": inner})

    def rule(fun: Any, watch: watches.Watch | None) -> Any:
        if fun is None or watch is None:
            return fun
        return functools.wraps(fun)(watches.watched(fun, watch))

    by_name = {"fwd": forward, "bwd": backward, "bwd_accums": backward}
    changes = {
        name: rule(prim.params[name], watch)
        for name, watch in by_name.items()
        if name in prim.params
    }
    of_remat = prim.params.get("remat_rules")  # from 0.12 on
    if of_remat is not None:
        of_each = (forward, forward, backward)
        changes["remat_rules"] = tuple(map(rule, of_remat, of_each))
    return jaxprs.with_params(prim, changes)


def checkpoint_jaxpr(eqn: JaxprEqn) -> Any:
    """The jaxpr of a checkpoint."""
    prim = jaxprs.hijax(eqn)
    return eqn.params["jaxpr"] if prim is None else prim.params["jaxpr"]


def called_jaxpr(eqn: JaxprEqn) -> Any:
    """The jaxpr that a checkpoint or a `custom_vjp` function evaluates, if it is known.

    None for other high-level primitives, and for batched ones.
    """
    prim = jaxprs.hijax(eqn)
    if prim is None or prim is not jaxprs.innermost(prim):
        return None
    if is_checkpoint(prim):
        return prim.params["jaxpr"]
    if not is_custom_vjp(prim):
        return None
    called = prim.params["traced"].jaxpr
    return called if len(called.in_avals) == len(eqn.invars) else None


def checkpoint_params(eqn: JaxprEqn, jaxpr: Any, inputs: int) -> dict[str, Any]:
    """Parameters of a checkpoint with another jaxpr, and more inputs in front."""
    prim = jaxprs.hijax(eqn)
    params = eqn.params if prim is None else prim.params
    changes = {"jaxpr": jaxpr}
    if isinstance(params.get("prevent_cse"), tuple):
        changes["prevent_cse"] = (False,) * inputs + params["prevent_cse"]
    if prim is None:
        return changes
    changes["jaxpr"] = jaxprs.close(jaxpr)
    return {"_prim": type(prim)(**{**params, **changes})}


_VJPHiPrimitive = compat.private(
    "hijax.VJPHiPrimitive",
    "from 0.11.2 on, high-level primitives have the effects of their jaxprs",
    default=None,
)


def propagate_effects(effects: frozenset[Any]) -> None:
    """Adds these effects to high-level primitives whose jaxprs have them.

    JAX does this from 0.11.2 on. Before, it would drop a `custom_vjp` function if none
    of its results is used, or run it twice under a checkpoint.
    """
    if _VJPHiPrimitive is None:
        return
    original = _VJPHiPrimitive.__init__

    def init(self: Any) -> None:
        original(self)
        for jaxpr in jaxprs.jaxprs_in(self.params):
            self.effects |= effects & jaxprs.open_jaxpr(jaxpr).effects

    _VJPHiPrimitive.__init__ = init
