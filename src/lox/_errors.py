"""The errors and warnings of lox.

Each one names the keys, the user's own line of the `lox.log` call, and the remedy.
"""

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
    "UnsupportedPrimitiveError",
]


class LoxError(Exception):
    """The base of every error that lox raises."""


class LoxKeyError(LoxError, KeyError):
    """Logs have no such key."""

    # that of a `KeyError` is the repr of what was asked for
    __str__ = Exception.__str__


class LoxTypeError(LoxError, TypeError):
    """Something of the wrong type was passed to lox."""


class LoxValueError(LoxError, ValueError):
    """Something of the right type but the wrong value was passed to lox."""


class ShapeError(LoxError, ValueError):
    """One key was logged with different shapes or structures."""


class DtypeError(LoxError, TypeError):
    """One key was logged with different dtypes."""


class StepError(LoxError, ValueError):
    """One key was logged with different steps, or a step is no scalar."""


class RangeError(LoxValueError, OverflowError):
    """A number was logged that JAX has no dtype for."""


class StoreError(LoxError, ValueError):
    """A store on disk cannot be read or written."""


class UnboundedLoopError(LoxError, ValueError):
    """A key cannot be stacked, since its loop has no static length."""


class UnsupportedPrimitiveError(LoxError, NotImplementedError):
    """A key was logged where JAX has no way to give its values back."""


class LoxWarning(UserWarning):
    """Something was asked of lox that is probably not what was meant."""


for _name in __all__:
    globals()[_name].__module__ = "lox"


def describe(x: Any) -> str:
    """Something that the user gave, for a message of one line."""
    text = " ".join(repr(x).split())
    if len(text) > 60:
        text = f"{text[:57]}..."
    return f"{text} of type {type(x).__name__}"
