"""`when`: events that happen only where a condition is true.

A scalar condition applies to the whole event. With an array, each true element is a
separate event: values and steps get one axis of elements, in C order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from lox._arrays import is_array
from lox._errors import LoxTypeError, ShapeError, describe
from lox._jax import host


class Condition(NamedTuple):
    """A checked `when`.

    Attributes:
        mask: the condition, a scalar or one axis of elements.
        shape: its shape, as the user gave it.
        caller: what was called, and where, for messages.
    """

    mask: Any
    shape: tuple[int, ...]
    caller: str

    @classmethod
    def of(cls, when: Any, caller: str) -> "Condition":
        if not is_array(when) or jnp.result_type(when) != jnp.bool_:
            kind = describe(when)
            if hasattr(when, "dtype"):
                kind += f" of dtype {when.dtype}"
            remedy = "Use a comparison: `when=x > 0`"
            if isinstance(when, list | tuple):
                remedy = "Convert it to an array: `when=jnp.array(done)`"
            raise LoxTypeError(
                f"{caller}: `when` must be a boolean or an array of booleans, not "
                f"{kind}. {remedy}. If it was meant as a step, give the step "
                "another name, such as `when_step`."
            )
        shape = np.shape(when)
        mask = when if isinstance(when, np.ndarray) else host.to_array(when)
        return cls(jnp.reshape(mask, -1) if shape else mask, shape, caller)

    def values(self, key: str, leaves: Sequence[Any]) -> list[Any]:
        """The leaves of a value, with one axis of elements in front."""
        for leaf in leaves:
            if jnp.shape(leaf)[: len(self.shape)] != self.shape:
                raise ShapeError(
                    f"{self.caller}: `when` has the shape {self.shape}, but {key!r} "
                    f"has the shape {jnp.shape(leaf)}, which does not begin with it. "
                    "An array `when` makes one event per element: its shape must be a "
                    "prefix of the shape of every value. To log all or nothing, "
                    "reduce it, as in `when=done.any()`."
                )
        return [self._with_elements(leaf) for leaf in leaves]

    def step(self, value: Any) -> Any:
        """A step, which is a number for all elements or one per element."""
        if not self.shape:
            return value
        numpy = np if isinstance(value, np.ndarray) else jnp
        return self._with_elements(numpy.broadcast_to(value, self.shape))

    def _with_elements(self, x: Any) -> Any:
        if not self.shape:
            return x
        return x.reshape(self.mask.shape + x.shape[len(self.shape) :])
