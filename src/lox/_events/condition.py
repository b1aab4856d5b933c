"""`when`: events that happen only where a condition is true.

A scalar condition applies to the whole event. With an array, each true element is a
separate event: values and steps get one axis of elements, in C order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._arrays import is_array
from lox._errors import LoxTypeError, ShapeError, describe
from lox._jax import host
from lox._logs.key import KeyInfo
from lox._logs.logdict import logdict, make_logdict
from lox._logs.metadata import Metadata


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
                f"{kind}. {remedy}. To log a step of this name, give it another name: "
                "`when_step`."
            )
        shape = np.shape(when)
        mask = when if isinstance(when, np.ndarray) else host.to_array(when)
        return cls(jnp.reshape(mask, -1) if shape else mask, shape, caller)

    def values(self, key: str, leaves: Sequence[Any]) -> list[Any]:
        """The leaves of a value, with one axis of elements in front."""
        for leaf in leaves:
            if jnp.shape(leaf)[: len(self.shape)] != self.shape:
                raise ShapeError(
                    f"{self.caller}: `when` has the shape {self.shape}, and {key!r} "
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


def event_logs(
    values: Mapping[str, Any],
    steps: Mapping[str, Any],
    condition: Condition | None = None,
    tags: tuple[str, ...] = (),
) -> logdict:
    """The values of one event as a logdict, masked if they have a condition.

    Args:
        values: the values by key, with the axis of elements that `condition` adds.
        steps: the steps by name, with the same axis.
        condition: the condition, if there is one.
        tags: the tags.
    """
    stacked = condition is not None and bool(condition.shape)
    info = {
        key: KeyInfo(
            stacked,
            0,
            tuple(jnp.ndim(x) - stacked for x in jax.tree.leaves(value)),
            tags,
        )
        for key, value in values.items()
    }
    by_key = {name: dict.fromkeys(values, step) for name, step in steps.items()}
    mask = {} if condition is None else dict.fromkeys(values, condition.mask)
    return make_logdict(dict(values), Metadata(by_key, mask, info))
