"""The errors and warnings of lox.

Each message names the keys, the line of the user's `lox.log` call, and the remedy.
"""

from collections.abc import Collection
from typing import Any

__all__ = [
    "DtypeError",
    "LoxError",
    "LoxKeyError",
    "LoxTypeError",
    "LoxValueError",
    "LoxWarning",
    "RangeError",
    "ShapeError",
    "StepError",
    "StoreError",
    "UnboundedLoopError",
    "UnsupportedJaxError",
    "UnsupportedPrimitiveError",
]


class LoxError(Exception):
    """Base class of all errors raised by lox."""


class LoxKeyError(LoxError, KeyError):
    """A key is not in the logs."""

    # `KeyError.__str__` would show the repr of the message
    __str__ = Exception.__str__


class LoxTypeError(LoxError, TypeError):
    """An argument has the wrong type."""


class LoxValueError(LoxError, ValueError):
    """An argument has the right type but an invalid value."""


class ShapeError(LoxError, ValueError):
    """A key was logged with different shapes or tree structures."""


class DtypeError(LoxError, TypeError):
    """A key was logged with different dtypes."""


class StepError(LoxError, ValueError):
    """A key was logged with different steps, or a step is not a scalar."""


class RangeError(LoxValueError, OverflowError):
    """A number was logged that does not fit into any JAX dtype."""


class StoreError(LoxError, ValueError):
    """A store on disk cannot be read or written."""


class UnboundedLoopError(LoxError, ValueError):
    """A key cannot be stacked, because its loop has no static length."""


class UnsupportedJaxError(LoxError, NotImplementedError):
    """The installed version of JAX lacks a feature that lox needs for this program."""


class UnsupportedPrimitiveError(LoxError, NotImplementedError):
    """A key was logged inside a JAX primitive that cannot return its values."""


class LoxWarning(UserWarning):
    """A warning about a call that probably does not do what was intended."""


for _name in __all__:
    globals()[_name].__module__ = "lox"


def describe(x: Any) -> str:
    """Describes a user's argument on one line, for a message."""
    text = " ".join(repr(x).split())
    if len(text) > 60:
        text = f"{text[:57]}..."
    return f"{text} of type {type(x).__name__}"


def check_choice(value: Any, choices: Collection[str], option: str) -> None:
    """Raises if the value of an option is not one of its choices."""
    if value not in choices:
        known = ", ".join(map(repr, choices))
        raise LoxValueError(f"{option} is {value!r}; it must be one of {known}.")
