"""Finds vanishing gradients in a deep Equinox network.

The layers run in a `scan` and are rematerialized in the backward pass. `lox.watch` logs
the activations, their gradients and the updates of every layer.
"""

import pathlib
import sys
import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import lox

DEPTH, WIDTH, BATCH, STEPS = 12, 32, 64, 100
GAINS = jnp.array([0.5, 1.0, 1.5])


class DeepMLP(eqx.Module):
    first: eqx.nn.Linear
    layers: eqx.nn.Linear  # all hidden layers, stacked
    last: eqx.nn.Linear

    def __init__(self, key: jax.Array, gain: jax.Array) -> None:
        first_key, layers_key, last_key = jax.random.split(key, 3)
        self.first = eqx.nn.Linear(2, WIDTH, key=first_key)
        self.last = eqx.nn.Linear(WIDTH, 1, key=last_key)

        @eqx.filter_vmap
        def make_layers(key: jax.Array) -> eqx.nn.Linear:
            weight = gain * jax.random.normal(key, (WIDTH, WIDTH)) / np.sqrt(WIDTH)
            layer = eqx.nn.Linear(WIDTH, WIDTH, key=key)
            return eqx.tree_at(lambda layer: layer.weight, layer, weight)

        self.layers = make_layers(jax.random.split(layers_key, DEPTH))

    def __call__(self, x: jax.Array) -> jax.Array:
        arrays, static = eqx.partition(self.layers, eqx.is_array)

        @eqx.filter_checkpoint
        def layer(h: jax.Array, xs: tuple) -> tuple:
            arrays, i = xs
            h = jnp.tanh(jax.vmap(eqx.combine(arrays, static))(h))
            return lox.watch("h", h, stats="rms", grad=True, layer=i), None

        h = jnp.tanh(jax.vmap(self.first)(x))
        h, _ = jax.lax.scan(layer, h, (arrays, jnp.arange(DEPTH)))
        return jax.vmap(self.last)(h)[:, 0]


def loss_fn(model: DeepMLP, x: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - x[:, 0] * x[:, 1]) ** 2)


def train(key: jax.Array, gain: jax.Array, steps: int = STEPS) -> DeepMLP:
    model_key, data_key = jax.random.split(key)
    model = DeepMLP(model_key, gain)
    params, static = eqx.partition(model, eqx.is_array)
    optimizer = optax.adam(1e-3)

    def step(carry: tuple, i: jax.Array) -> tuple:
        params, opt_state = carry
        model = eqx.combine(params, static)
        x = jax.random.normal(jax.random.fold_in(data_key, i), (BATCH, 2))
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x)
        updates, opt_state = optimizer.update(grads, opt_state)
        lox.log({"loss": loss}, step=i)
        lox.watch("grads", grads.layers, stats="rms", split=0, step=i)
        lox.watch("updates", updates.layers, stats="rms", split=0, step=i)
        return (eqx.apply_updates(params, updates), opt_state), None

    start = params, optimizer.init(params)
    (params, _), _ = jax.lax.scan(step, start, jnp.arange(steps))
    return eqx.combine(params, static)


def train_and_log(key: jax.Array, gains: jax.Array, **sizes: int) -> tuple:
    """One model per gain, and their logs."""

    def run(gain: jax.Array) -> DeepMLP:
        return train(key, gain, **sizes)

    return jax.vmap(lox.spool(run))(gains)


def by_layer(logs: lox.logdict, key: str) -> np.ndarray:
    """The rows of one lane, as an array of layers and steps.

    The rows of gradients come in the order of the backward pass: last layer first.
    """
    return np.asarray(logs.filter(key).sort("layer")[key]).reshape(DEPTH, -1)


def plot(lanes: list[lox.logdict], path: pathlib.Path) -> None:
    figure, axes = plt.subplots(1, len(lanes), sharey=True, figsize=(10, 3.5))
    for one, lane, gain in zip(axes, lanes, GAINS, strict=True):
        gradient = by_layer(lane, "h/grad/rms")
        for step in (0, STEPS // 2, STEPS - 1):
            one.semilogy(range(DEPTH), gradient[:, step], label=f"step {step}")
        one.set(title=f"gain {gain}", xlabel="layer")
    axes[0].set_ylabel("rms of the gradient of h")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main(directory: str | None = None) -> None:
    _, logs = train_and_log(jax.random.key(0), GAINS)
    lanes = logs.lanes()
    for lane, gain in zip(lanes, GAINS, strict=True):
        print(f"gain {gain}: loss {lane['loss'][0]:.2f} to {lane['loss'][-1]:.2f}")
        print("  rms at step 0     activation  gradient   update")
        activation, gradient = by_layer(lane, "h/rms"), by_layer(lane, "h/grad/rms")
        for i in (0, DEPTH // 2, DEPTH - 1):
            update = lane[f"updates/{i}/weight/rms"][0]
            print(
                f"  layer {i:2}            {activation[i, 0]:.1e}   "
                f"{gradient[i, 0]:.1e}  {update:.1e}"
            )
    path = pathlib.Path(directory or tempfile.mkdtemp()) / "equinox_mlp.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(lanes, path)
    print("Saved the plot to", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
