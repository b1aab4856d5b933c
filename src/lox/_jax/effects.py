"""Effects that JAX allows wherever it allows those of `jax.debug.callback`."""

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import io_callback

from . import compat


def _effect_type(fun: Callable[[], Any]) -> type:
    (effect,) = compat.example(fun).effects
    return type(effect)


def _nothing() -> None:
    return None


# JAX's lists of allowed effects include subclasses. The ordered effect needs both base
# classes, because some lists have only one of them.
DebugEffect: Any = _effect_type(lambda: jax.debug.callback(_nothing))
_OrderedDebugEffect: Any = _effect_type(
    lambda: jax.debug.callback(_nothing, ordered=True)
)
_OrderedIOEffect: Any = _effect_type(lambda: io_callback(_nothing, None, ordered=True))


class OrderedEffect(_OrderedDebugEffect, _OrderedIOEffect):
    """An effect whose events stay in program order wherever JAX supports it."""
