"""`Transformed`: the function that a transformation returns."""

import types
from collections.abc import Callable
from typing import Any

import jax

from lox._errors import LoxTypeError, describe

from .arguments import NO_STATIC, Static

_STAGES = ("clear_cache", "eval_shape", "lower", "trace")


# It is not a closure with `functools.wraps`, because creating one takes a fifth of a
# call, and `lox.spool(f)(x)` creates one each time. For the same reason, `__call__` is
# not a method that calls another function, but a slot that holds it. A docstring here
# would hide those of the functions.
class Transformed:
    __slots__ = (
        "__call__",
        "__dict__",
        "__weakref__",
        "__wrapped__",
        "_name",
        "_static",
    )
    __call__: Callable[..., Any]

    def __init__(
        self, name: str, fun: Any, call: Callable[..., Any], static: Static = NO_STATIC
    ) -> None:
        self.__wrapped__ = fun
        self.__call__ = call
        self._name = name
        self._static = static

    @classmethod
    def subclass(
        cls, name: str, call: Callable[..., Any], static: Static
    ) -> "type[Transformed]":
        """A class of transformed functions that share everything but `__wrapped__`.

        Creating an instance with `of` takes half as long as with `__init__`.

        Args:
            name: the transformation.
            call: what a call of the instance does; its first argument is the instance,
                which keeps the function alive.
            static: the static arguments.
        """
        shared = {"__call__": call, "_name": name, "_static": static, "__slots__": ()}
        return type(cls.__name__, (cls,), shared)

    @classmethod
    def of(cls, fun: Any) -> "Transformed":
        """An instance of a class that `subclass` has created."""
        transformed = object.__new__(cls)
        transformed.__wrapped__ = fun
        return transformed

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # not set yet, while `copy` creates a copy
            raise AttributeError(name)
        found = getattr(self.__wrapped__, name)
        if name not in _STAGES:
            return found
        # those of a jitted function would compile the function without lox
        names, numbers = self._static.argnames, self._static.argnums
        jitted = jax.jit(self, static_argnums=numbers, static_argnames=names)
        return getattr(jitted, name)

    def __repr__(self) -> str:
        return f"<lox.{self._name} of {self.__wrapped__!r}>"

    __doc__ = property(lambda self: self.__wrapped__.__doc__)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def check_callable(fun: Any, name: str, other_args: str = "") -> None:
    """Raises if the argument of a transformation is not a function.

    Args:
        fun: the argument.
        name: the transformation, as it is called.
        other_args: its other arguments, for the example in the message.
    """
    if not callable(fun):
        raise LoxTypeError(
            f"`{name}` transforms a function, but got {describe(fun)}. Pass the "
            f"function itself, not the result of calling it: `{name}(f{other_args})(x)`"
            f", not `{name}(f(x){other_args})`."
        )
