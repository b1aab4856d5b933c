"""Tangents and cotangents in JAX's own rules."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from . import array_types


def zero_tangent(x: Any) -> Any:
    """The zero tangent of `x`, as an array."""
    return array_types.zeros_of_aval(jax.typeof(x).to_tangent_aval())


def symbolic_zero(x: Any) -> Any:
    """The symbolic zero tangent of `x`."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def is_symbolic_zero(x: Any) -> bool:
    """Whether `x` is a symbolic zero tangent or cotangent."""
    return type(x) is ad.Zero


def is_linear_operand(x: Any) -> bool:
    """Whether `x` is a placeholder for a linear operand of a transposed equation."""
    return type(x) is ad.UndefinedPrimal


def instantiated(x: Any) -> Any:
    """A tangent or cotangent as an array, also if it is a symbolic zero.

    The rules of custom functions have a separate class of symbolic zeros.
    """
    is_zero = type(x) in (ad.Zero, SymbolicZero)
    return array_types.zeros_of_aval(x.aval) if is_zero else x


def jvp_of_perturbed(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """`jax.jvp` in a rule with symbolic zeros, with respect to perturbed inputs only.

    Some primitives reject a tangent that is not needed, even if it is zero.
    """
    perturbed = [i for i, x in enumerate(tangents) if type(x) is not SymbolicZero]

    def run(*values: Any) -> Any:
        full = list(primals)
        for i, x in zip(perturbed, values, strict=True):
            full[i] = x
        return fun(*full)

    outs, out_tangents = jax.jvp(
        run, [primals[i] for i in perturbed], [tangents[i] for i in perturbed]
    )
    return outs, out_tangents
