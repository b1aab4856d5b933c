"""`lox.spool(jax.grad(f))` with `log_grad`: cotangents at the price of returning them.

By hand, they are the gradient with respect to zeros that are added to each value. The
zeros are arguments, whose memory is not counted.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox

from .figure import Figure
from .hlo import bytes_of
from .interleaved import NOISE, best_times

_LAYERS, _BATCH, _WIDTH = 12, 64, 256


def figures() -> Iterator[Figure]:
    keys = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(keys[0], (_LAYERS, _WIDTH, _WIDTH)) * _WIDTH**-0.5
    x = jax.random.normal(keys[1], (_BATCH, _WIDTH))
    zeros = jnp.zeros((_LAYERS, _BATCH, _WIDTH))
    logged = jax.jit(lox.spool(jax.grad(_logged)))
    grads, logs = logged(weights, x)
    by_hand = jax.jit(jax.grad(_perturbed, (0, 2)))
    _check((grads, logs["dh"][::-1]), by_hand(weights, x, zeros))
    time, time_by_hand = best_times(
        lambda: jax.block_until_ready(logged(weights, x)),
        lambda: jax.block_until_ready(by_hand(weights, x, zeros)),
        rounds=5,
        repeats=60,
    )
    yield Figure(
        "spool(grad(f)) with log_grad / cotangents by hand: run time",
        time / time_by_hand,
        1.0 + NOISE,
    )
    bytes_by_hand = bytes_of(by_hand, weights, x, zeros)
    yield Figure("  bytes", bytes_of(logged, weights, x) / bytes_by_hand, 1.0)


def _logged(weights: Any, x: Any) -> Any:
    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(lox.log_grad("dh", h) @ w), None

    return jnp.mean(lax.scan(layer, x, weights)[0] ** 2)


def _perturbed(weights: Any, x: Any, zeros: Any) -> Any:
    def layer(h: Any, inputs: Any) -> tuple[Any, None]:
        w, zero = inputs
        return jnp.tanh((h + zero) @ w), None

    return jnp.mean(lax.scan(layer, x, (weights, zeros))[0] ** 2)


def _check(given: Any, expected: Any) -> None:
    """Checks that both programs return the same values."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-8),
        given,
        expected,
    )
