"""Observes BlackJAX's NUTS sampler, including its warm-up, without editing it.

The model is "eight schools": how much coaching helped the students of each school.
`lox.observe` logs the carry and outputs of BlackJAX's loops, for several chains.
"""

import pathlib
import sys
import tempfile

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import lox

CHAINS, WARMUP, DRAWS = 4, 200, 200
EFFECT = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

# names from BlackJAX, as listed by `lox.observe(sample).loops(key)`
STEP_SIZE = "scan[0]/carry[1].ss_state.log_step_size_avg"
MEAN = "scan[1]/state.position['mean']"
LEAPS = "scan[1]/ys[1].num_integration_steps"
DIVERGENT = "scan[1]/ys[1].is_divergent"


def log_density(position: dict[str, jax.Array]) -> jax.Array:
    mean, log_spread, school = (position[k] for k in ("mean", "log_spread", "school"))
    spread = jnp.exp(log_spread)
    prior = -0.5 * (mean / 5) ** 2 - jnp.log1p((spread / 5) ** 2) + log_spread
    residual = (EFFECT - mean - spread * school) / ERROR
    return prior - 0.5 * jnp.sum(school**2) - 0.5 * jnp.sum(residual**2)


def sample(
    key: jax.Array, warmup: int = WARMUP, draws: int = DRAWS
) -> dict[str, jax.Array]:
    """One chain, as in the documentation of BlackJAX."""
    warmup_key, sample_key = jax.random.split(key)
    start = {"mean": 0.0, "log_spread": 0.0, "school": jnp.zeros(8)}
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = adaptation.run(warmup_key, start, num_steps=warmup)
    _, (states, _) = blackjax.util.run_inference_algorithm(
        sample_key,
        blackjax.nuts(log_density, **parameters),
        num_steps=draws,
        initial_state=state,
    )
    return states.position


def sample_and_log(keys: jax.Array, **lengths: int) -> tuple:
    """The draws and the logs of all chains."""

    def chain(key: jax.Array) -> dict[str, jax.Array]:
        return sample(key, **lengths)

    observed = lox.observe(chain, carry=True, ys=True)
    # keys that are not selected are neither computed nor stored
    spooled = lox.spool(observed, argnames=[STEP_SIZE, MEAN, LEAPS, DIVERGENT])
    return jax.vmap(spooled)(keys)


def plot(logs: lox.logdict, path: pathlib.Path) -> None:
    figure, (above, below) = plt.subplots(2, 1)
    above.semilogy(jnp.exp(logs[STEP_SIZE]).T)
    above.set(xlabel="step of the warm-up", ylabel="average step size")
    below.plot(logs[MEAN].T, linewidth=0.7)
    below.set(xlabel="draw", ylabel="mean effect")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main(directory: str | None = None) -> None:
    keys = jax.random.split(jax.random.key(0), CHAINS)
    _, logs = lox.progress(sample_and_log, label="nuts", file=sys.stdout)(keys)
    for i, chain in enumerate(logs.lanes()):
        print(
            f"chain {i}: step size {jnp.exp(chain[STEP_SIZE][-1]):.2f}, "
            f"{chain[LEAPS].mean():.1f} leapfrog steps per draw, "
            f"{chain[DIVERGENT].sum()} divergences, "
            f"mean effect {chain[MEAN].mean():.1f}"
        )
    path = pathlib.Path(directory or tempfile.mkdtemp()) / "nuts.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(logs, path)
    print("Saved the plot to", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
