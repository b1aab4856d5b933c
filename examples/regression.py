"""A linear regression, trained by gradient descent in one scan, for several seeds.

Its logs are shown while it runs, saved with a run for each seed, loaded and drawn.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import lox

STEPS, SEEDS = 200, 4


def train(key: jax.Array, lr: float) -> jax.Array:
    key_x, key_w, key_noise = jax.random.split(key, 3)
    x = jax.random.normal(key_x, (64, 3))
    target = x @ jnp.array([1.0, -2.0, 0.5]) + 0.1 * jax.random.normal(key_noise, (64,))

    def loss_fn(w: jax.Array) -> jax.Array:
        return jnp.mean((x @ w - target) ** 2)

    def step(w: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        loss, grad = jax.value_and_grad(loss_fn)(w)
        lox.log({"loss": loss, "grad_norm": jnp.linalg.norm(grad)}, step=i)
        lox.log({"weights": w}, step=i, tags=["debug"], explicit=True)
        return w - lr * grad, None

    w = jax.random.normal(key_w, (3,))
    return jax.lax.scan(step, w, jnp.arange(STEPS))[0]


def sparkline(values: np.ndarray, width: int = 60) -> str:
    bars = " ▁▂▃▄▅▆▇█"
    logs = np.log10(values[:: max(1, len(values) // width)])
    scaled = (logs - logs.min()) / max(np.ptp(logs), 1e-9)
    return "".join(bars[int(level * (len(bars) - 1))] for level in scaled)


def main(store: str) -> None:
    keys = jax.random.split(jax.random.key(0), SEEDS)
    lr = 0.05

    def train_and_save(key: jax.Array) -> jax.Array:
        # live: the mean of every 50 steps, which the device has reduced already
        def show(logs: lox.logdict) -> None:
            print(f"  step {logs.step['loss']:>3}  {logs}")

        live = lox.tap(
            train, show, "loss", keep_logs=True, reduce="mean", window=STEPS // 4
        )
        w, logs = lox.spool(live)(key, lr)
        lox.save(logs, store, mode="w", key=key)  # a run for each seed
        return w

    print(f"{SEEDS} seeds, vmapped; the mean loss of each, as it goes:")
    jax.jit(jax.vmap(train_and_save))(keys)
    jax.effects_barrier()

    print(f"\nWhat {store!r} has now, and its loss over {STEPS} steps:")
    for run in lox.runs(store):
        loss = run.load("loss")["loss"]
        print(f"  {run.name}  {sparkline(loss)}  {loss[0]:.3f} to {loss[-1]:.4f}")

    print("\nThe last of each seed, and its best loss:")
    _, logs = jax.vmap(lox.spool(train), in_axes=(0, None))(keys, lr)
    print(" ", logs.reduce("last"))
    print(" ", logs.reduce({"loss": "min"}).filter("loss"))

    print("\nThe weights, logged for debugging only, asked for by tag:")
    _, debug = lox.spool(train, tags="debug", interval=100)(keys[0], lr)
    for row in debug.rows():
        print(f"  step {row.step['weights']:>3}  {row}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".lox")
