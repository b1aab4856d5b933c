"""Trains a small Flax NNX transformer, and watches every layer.

The blocks run in `nnx.scan` and are rematerialized by `nnx.remat`. `lox.watch` logs
the activations and their gradients in the blocks, and the updates in the optimizer.
"""

import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import lox

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH, STEPS = 4, 32, 4, 8, 16, 32, 100
STATS = ("rms", "max_abs")


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm_1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm_2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.expand = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.contract = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, h: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(h[..., 0])
        h = h + self.attention(self.norm_1(h), mask=mask)
        h = h + self.contract(nnx.gelu(self.expand(self.norm_2(h))))
        return lox.watch("h", h, stats=STATS, grad=True)


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make_blocks(rngs: nnx.Rngs) -> Block:
            return Block(rngs)

        self.token = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.position = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = make_blocks(rngs)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        @nnx.remat
        def apply(h: jax.Array, block: Block) -> jax.Array:
            return block(h)

        h = self.token(tokens) + self.position(jnp.arange(tokens.shape[1]))
        return self.head(self.norm(apply(h, self.blocks)))


def batch(step: int) -> jax.Array:
    """Random tokens that repeat with a period of 4."""
    key = jax.random.fold_in(jax.random.key(1), step)
    tokens = jax.random.randint(key, (BATCH, 4), 0, VOCABULARY)
    return jnp.tile(tokens, LENGTH // 4)


def loss_fn(model: Transformer, tokens: jax.Array) -> jax.Array:
    logits, labels = model(tokens)[:, :-1], tokens[:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def watch_updates(updates: nnx.State, params: nnx.State) -> nnx.State:
    # the blocks are stacked along the first axis; each gets its own statistics
    lox.watch("updates", updates["blocks"], stats="rms", split=0)
    return updates


def make() -> tuple[Transformer, nnx.Optimizer]:
    model = Transformer(nnx.Rngs(0))
    optimizer = optax.chain(optax.adamw(3e-3), optax.stateless(watch_updates))
    return model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)


def train_step(
    model: Transformer, optimizer: nnx.Optimizer, tokens: jax.Array
) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn)(model, tokens)
    optimizer.update(model, grads)
    lox.log({"loss": loss})
    return loss


def train(steps: int = STEPS) -> lox.logdict:
    model, optimizer = make()
    logged_step = lox.spool(nnx.jit(train_step))
    logs = []
    for i in range(steps):
        _, logs_of_step = logged_step(model, optimizer, batch(i))
        logs.append(logs_of_step)
    return sum(jax.device_get(logs))


def plot(logs: lox.logdict, path: pathlib.Path) -> None:
    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(6, 7))
    axes[0].plot(logs["loss"])
    axes[0].set_ylabel("loss")
    axes[1].semilogy(logs["h/rms"].reshape(-1, LAYERS))
    axes[1].set_ylabel("rms of activations")
    # the backward pass starts at the last layer
    axes[2].semilogy(logs["h/grad/rms"].reshape(-1, LAYERS)[:, ::-1])
    axes[2].set(ylabel="rms of their gradients", xlabel="step")
    axes[1].legend(range(LAYERS), title="layer")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main(directory: str | None = None) -> None:
    logs = train()
    print(f"loss {logs['loss'][0]:.2f} to {logs['loss'][-1]:.2f}")
    rms = np.asarray(logs["h/rms"]).reshape(-1, LAYERS)
    for i in range(LAYERS):
        update = logs[f"updates/{i}/expand/kernel/rms"]
        print(
            f"layer {i}: rms of activations {rms[0, i]:.2f} to {rms[-1, i]:.2f}, "
            f"of updates {update[0]:.1e} to {update[-1]:.1e}"
        )
    path = pathlib.Path(directory or tempfile.mkdtemp()) / "nnx_transformer.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(logs, path)
    print("Saved the plot to", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
