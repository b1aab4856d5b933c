"""Tangents and cotangents, as JAX's own rules see them."""

from typing import Any

import jax
from jax.interpreters import ad

from . import array_types


def zero_tangent(x: Any) -> Any:
    """The zero tangent of `x`, as an array."""
    return array_types.zeros_of_aval(jax.typeof(x).to_tangent_aval())


def symbolic_zero(x: Any) -> Any:
    """The tangent of a value that does not vary, in JAX's own rules."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def is_symbolic_zero(x: Any) -> bool:
    """Whether `x` is a tangent or cotangent of zeros that JAX does not compute."""
    return type(x) is ad.Zero


def is_linear_operand(x: Any) -> bool:
    """Whether `x` stands for an operand in which a transposed equation is linear."""
    return type(x) is ad.UndefinedPrimal
