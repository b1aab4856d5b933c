"""Varying manual axes: over which devices of a `shard_map` a value varies."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import compat, primitives, rule_tables

_pvary_p: Any = compat.private(
    "core.pvary_p",
    "log in branches that differ between the devices of a `shard_map` under `vmap`",
    default=None,
)


def varying_axes(aval: Any) -> frozenset[Any]:
    """The manual mesh axes over which a value in a `shard_map` varies."""
    kind = getattr(aval, "manual_axis_type", None)  # from 0.10 on
    if kind is not None:
        return frozenset(kind.varying)
    return frozenset(getattr(aval, "vma", None) or ())


def may_have_derivative(x: Any) -> bool:
    """Whether `x` is the same on all devices, and may be differentiated."""
    aval = jax.typeof(x)
    return jnp.issubdtype(aval.dtype, jnp.inexact) and not varying_axes(aval)


def vary_like(x: Any, axes: frozenset[Any]) -> Any:
    """Casts `x` to a value that varies over these manual mesh axes."""
    missing = tuple(sorted(axes - varying_axes(jax.typeof(x)), key=str))
    if not missing:
        return x
    if _pvary_p is None:
        return lax.pcast(x, missing, to="varying")
    return _vary_p.bind(x, axes=missing)


# Like `lax.pcast`, but accepts values that already vary. Values in a `cond` begin to
# vary when `vmap` turns it into a selection, and then JAX's casts (as of 0.12) fail.
_vary_p: Any = primitives.Primitive("lox_vary")
_vary_p.def_impl(lambda x, *, axes: x)
_vary_p.def_abstract_eval(lambda x, *, axes: _type_of_cast(x, axes))
rule_tables.register_lowering_as(_vary_p, lambda x, *, axes: x)


def _type_of_cast(aval: Any, axes: tuple[Any, ...]) -> Any:
    missing = _missing(aval, axes)
    return _pvary_p.abstract_eval(aval, axes=missing)[0] if missing else aval


def _missing(aval: Any, axes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(axis for axis in axes if axis not in varying_axes(aval))


def unvary_like(x: Any, axes: frozenset[Any]) -> Any:
    """Casts `x` to a type that varies only over these axes, even if `x` varies more."""
    more = tuple(sorted(varying_axes(jax.typeof(x)) - axes, key=str))
    return _unvary_p.bind(x, axes=more) if more else x


def _batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, axes: tuple[Any, ...]
) -> tuple[Any, Any]:
    del axis
    return _vary_p.bind(*args, axes=axes), dims[0]


def _transpose(ct: Any, x: Any, *, axes: tuple[Any, ...]) -> list[Any]:
    missing = _missing(x.aval, axes)
    if not missing:
        return [ct]
    return list(rule_tables.transpose_rule(_pvary_p)(ct, x, axes=missing))


rule_tables.register_batching(_vary_p, _batch)
rule_tables.register_linear(_vary_p, _transpose)


# JAX itself gives such types to the results of loops whose predicate varies.
_unvary_p: Any = primitives.Primitive("lox_unvary")
_unvary_p.def_impl(lambda x, *, axes: x)
_unvary_p.def_abstract_eval(lambda x, *, axes: _without(x, frozenset(axes)))
rule_tables.register_lowering_as(_unvary_p, lambda x, *, axes: x)
rule_tables.register_batching(
    _unvary_p,
    lambda axis, args, dims, *, axes: (_unvary_p.bind(*args, axes=axes), dims[0]),
)
rule_tables.register_linear(
    _unvary_p, lambda ct, x, *, axes: [vary_like(ct, frozenset(axes))]
)


def _without(aval: Any, axes: frozenset[Any]) -> Any:
    varying = varying_axes(aval) - axes
    kind = getattr(aval, "manual_axis_type", None)  # from 0.10 on
    if kind is not None:
        return aval.update(manual_axis_type=kind.update(varying=varying))
    return aval.update(vma=varying)
