"""Logs update norms inside an optax optimizer that accumulates and skips gradients.

`log_norm` is a gradient transformation that can be put anywhere in an `optax.chain`,
also inside `apply_if_finite` and `MultiSteps`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import lox

STEPS, BATCH, FEATURES, ACCUMULATE = 200, 8, 4, 4
BAD_BATCHES = (37, 38, 120)
TARGET = jnp.arange(1.0, FEATURES + 1)


class LogNormState(NamedTuple):
    count: jax.Array


def log_norm(name: str) -> optax.GradientTransformation:
    """Logs the norm of the updates, unless they are zero, and passes them on."""

    def init(params: optax.Params) -> LogNormState:
        return LogNormState(jnp.array(0))

    def update(
        updates: optax.Updates, state: LogNormState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, LogNormState]:
        norm = optax.tree.norm(updates)
        lox.log({name: norm}, when=norm != 0, step=state.count)
        return updates, LogNormState(state.count + 1)

    return optax.GradientTransformation(init, update)


def make_optimizer() -> optax.GradientTransformation:
    inner = optax.chain(
        optax.clip_by_global_norm(1.0),
        log_norm("accumulated"),
        optax.adam(0.1),
    )
    accumulating = optax.MultiSteps(inner, every_k_schedule=ACCUMULATE)
    return optax.chain(
        log_norm("gradient"),
        optax.apply_if_finite(
            accumulating.gradient_transformation(), max_consecutive_errors=5
        ),
        log_norm("update"),
    )


def batches(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Data for a linear regression; some batches are not finite."""
    x = jax.random.normal(key, (STEPS, BATCH, FEATURES))
    x = x.at[np.array(BAD_BATCHES)].set(jnp.inf)
    return x, x @ TARGET


def loss_fn(weights: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = batch
    return jnp.mean((x @ weights - y) ** 2)


def train(key: jax.Array) -> jax.Array:
    """The weights after training."""
    optimizer = make_optimizer()

    def step(carry: tuple, batch: tuple[jax.Array, jax.Array]) -> tuple:
        weights, state = carry
        grad = jax.grad(loss_fn)(weights, batch)
        updates, state = optimizer.update(grad, state, weights)
        return (optax.apply_updates(weights, updates), state), None

    weights = jnp.zeros(FEATURES)
    carry, _ = jax.lax.scan(step, (weights, optimizer.init(weights)), batches(key))
    return carry[0]


def main() -> None:
    weights, logs = lox.spool(train)(jax.random.key(0))
    for name, norm in logs.items():
        finite = norm[jnp.isfinite(norm)]
        print(
            f"{name}: {len(norm)} rows, {len(norm) - len(finite)} not finite, "
            f"norm {finite[0]:.2f} to {finite[-1]:.2f}"
        )
    bad = logs.step["gradient"][~jnp.isfinite(logs["gradient"])]
    print("batches with gradients that are not finite:", *bad)
    print("weights:", np.round(weights, 1))


if __name__ == "__main__":
    main()
