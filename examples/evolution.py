"""Evolves solutions with CMA-ES in a `while_loop`, until they are good enough.

The number of generations differs between seeds. Under `vmap`, a seed that has finished
logs nothing more.
"""

import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from evosax.algorithms import CMA_ES

import lox

SEEDS, POPULATION, DIMENSIONS = 4, 16, 5
TARGET, MAX_GENERATIONS = 1e-4, 300


def rosenbrock(x: jax.Array) -> jax.Array:
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def evolve(key: jax.Array, target: float = TARGET) -> jax.Array:
    """The best solution that was found."""
    strategy = CMA_ES(POPULATION, solution=jnp.zeros(DIMENSIONS))
    params = strategy.default_params
    state = strategy.init(key, jnp.zeros(DIMENSIONS), params)

    def unfinished(carry: tuple) -> jax.Array:
        state, generation = carry
        return (state.best_fitness > target) & (generation < MAX_GENERATIONS)

    def evolve_once(carry: tuple) -> tuple:
        state, generation = carry
        ask_key, tell_key = jax.random.split(jax.random.fold_in(key, generation))
        population, state = strategy.ask(ask_key, state, params)
        fitness = jax.vmap(rosenbrock)(population)
        state, _ = strategy.tell(tell_key, population, fitness, state, params)
        lox.log({"fitness": fitness, "std": state.std}, generation=generation)
        return state, generation + 1

    state, _ = jax.lax.while_loop(unfinished, evolve_once, (state, 0))
    return state.best_solution


def plot(lanes: list[lox.logdict], path: pathlib.Path) -> None:
    figure, axes = plt.subplots()
    for i, lane in enumerate(lanes):
        best = lane["fitness"].min(axis=1)
        axes.semilogy(lane.generation["fitness"], best, label=f"seed {i}")
    axes.axhline(TARGET, color="gray", linestyle=":")
    axes.set(xlabel="generation", ylabel="best fitness of the generation")
    axes.legend()
    figure.savefig(path)
    plt.close(figure)


def main(directory: str | None = None) -> None:
    keys = jax.random.split(jax.random.key(0), SEEDS)
    # the length of the loop is unknown, so `spool` is told how many rows to keep
    spooled = lox.spool(evolve, capacity=MAX_GENERATIONS)
    _, logs = jax.jit(jax.vmap(spooled))(keys)
    lanes = logs.lanes()
    for i, lane in enumerate(lanes):
        fitness = lane["fitness"]
        print(
            f"seed {i}: {len(fitness)} generations, best fitness {fitness.min():.1e}, "
            f"standard deviation {lane['std'][0]:.2f} to {lane['std'][-1]:.4f}"
        )
    path = pathlib.Path(directory or tempfile.mkdtemp()) / "evolution.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(lanes, path)
    print("Saved the plot to", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
