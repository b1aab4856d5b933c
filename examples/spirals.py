"""Trains small networks to classify two spirals: several seeds in one vmapped scan.

The logs are shown in the terminal during training and saved, with one run per seed.
Then they are loaded and plotted.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import lox
import lox.loggers

STEPS, SEEDS, BATCH, RATE = 3000, 4, 64, 0.001
Params = list[tuple[jax.Array, jax.Array]]


def spirals(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A batch of points, and the spiral that each belongs to."""
    key_angle, key_side, key_noise = jax.random.split(key, 3)
    angle = 3 * jnp.pi * jnp.sqrt(jax.random.uniform(key_angle, (BATCH,)))
    side = jax.random.bernoulli(key_side, shape=(BATCH,))
    direction = angle + jnp.pi * side
    points = angle[:, None] * jnp.stack([jnp.cos(direction), jnp.sin(direction)], 1)
    return (points + 0.5 * jax.random.normal(key_noise, points.shape)) / 5, side


def network(params: Params, x: jax.Array) -> jax.Array:
    for weights, bias in params[:-1]:
        x = jax.nn.gelu(x @ weights + bias)
    weights, bias = params[-1]
    return (x @ weights + bias)[:, 0]


def init(key: jax.Array, sizes: tuple[int, ...] = (2, 32, 32, 1)) -> Params:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) * jnp.sqrt(2 / m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def loss_fn(params: Params, key: jax.Array, i: jax.Array) -> jax.Array:
    points, side = spirals(key)
    score = network(params, points)
    # logs work inside the differentiated function
    lox.log({"accuracy": jnp.mean((score > 0) == side)}, step=i)
    return jnp.mean(jnp.logaddexp(0, jnp.where(side, -score, score)))


def train(key: jax.Array) -> Params:
    key_init, key_data = jax.random.split(key)

    def step(carry: tuple[Params, Params, Params], i: jax.Array) -> tuple:
        params, mean, square = carry
        key = jax.random.fold_in(key_data, i)
        loss, grad = jax.value_and_grad(loss_fn)(params, key, i)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grad)))
        lox.log({"loss": loss, "grad_norm": norm}, step=i)
        lox.log({"weights": params[0][0]}, step=i, tags=["debug"], explicit=True)
        # Adam
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grad)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, square, grad)
        rate = RATE * (1 - i / STEPS) * jnp.sqrt(1 - 0.99 ** (i + 1.0))
        rate = rate / (1 - 0.9 ** (i + 1.0))
        params = jax.tree.map(
            lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square
        )
        return (params, mean, square), None

    params = init(key_init)
    zeros = jax.tree.map(jnp.zeros_like, params)
    (params, _, _), _ = jax.lax.scan(step, (params, zeros, zeros), jnp.arange(STEPS))
    return params


def sparkline(values: np.ndarray, width: int = 50) -> str:
    bars = "▁▂▃▄▅▆▇█"
    means = np.array([part.mean() for part in np.array_split(values, width)])
    scaled = (means - means.min()) / max(np.ptp(means), 1e-9)
    return "".join(bars[int(level * (len(bars) - 1))] for level in scaled)


def main(store: str) -> None:
    console = lox.loggers.ConsoleLogger(total=STEPS)
    saved = lox.loggers.SaveLogger(store, config={"rate": RATE}, exists="overwrite")
    logger = lox.loggers.MultiLogger(console, saved)

    def run(key: jax.Array) -> Params:
        state = logger.init(key)  # under `vmap`, one run per seed
        params = logger.tap(train, state, reduce="mean", window=10)(key)
        logger.finish(state)
        return params

    print(f"{SEEDS} seeds, vmapped, {STEPS} steps; means over 10 steps:")
    keys = jax.random.split(jax.random.key(0), SEEDS)
    jax.jit(jax.vmap(run))(keys)
    jax.effects_barrier()

    runs = lox.runs(store)
    print(f"\nThe runs in {store!r}, with their loss:")
    for one in runs:
        loss = one.load("loss")["loss"]
        print(f"  {one.name}  {sparkline(loss)}  {loss[0]:.3f} to {loss[-1]:.4f}")

    logs = runs.load()  # one lane per run, as if they came from one `vmap`
    picture = pathlib.Path(store) / "spirals.png"
    logs.plot("loss", "grad_norm", "accuracy", band="ci").savefig(picture)
    print(f"\nSaved the plot to {picture}. The debug logs, selected by tag:")
    _, debug = lox.spool(train, tags="debug", interval=STEPS // 2)(keys[0])
    for row in debug.rows():
        spread = float(row["weights"].std())
        print(f"  step {row.step['weights']:>4}  standard deviation {spread:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".lox/spirals")
