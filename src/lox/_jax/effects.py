"""Effects that JAX allows wherever it allows those of its own callbacks."""

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


# A subclass of these is allowed wherever JAX allows its parents: every allow-list
# tests with isinstance. The ordered one needs both parents, since some lists name
# only one of them.
DebugEffect: Any = _effect_type(lambda: jax.debug.callback(_nothing))
_OrderedDebugEffect: Any = _effect_type(
    lambda: jax.debug.callback(_nothing, ordered=True)
)
_OrderedIOEffect: Any = _effect_type(lambda: io_callback(_nothing, None, ordered=True))


class OrderedEffect(_OrderedDebugEffect, _OrderedIOEffect):
    """An effect whose events keep program order wherever JAX can keep one."""
