"""Tangents and cotangents in JAX's own rules."""

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
