"""Observes the step size of a diffrax solver, without editing the solver.

The Van der Pol oscillator is stiff on some parts of its orbit. An adaptive solver then
rejects steps and takes smaller ones; `lox.observe` logs each of its attempts.
"""

import pathlib
import sys
import tempfile

import diffrax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import lox

STIFFNESS, START, END, MAX_STEPS = 8.0, 0.0, 30.0, 4096
# names from diffrax, as listed by `lox.observe(solve).loops(STIFFNESS)`
TIME, NEXT_TIME, REJECTED = "x[3].tprev", "x[3].tnext", "x[3].num_rejected_steps"


def van_der_pol(t: jax.Array, y: jax.Array, stiffness: jax.Array) -> jax.Array:
    position, velocity = y
    force = stiffness * (1 - position**2) * velocity - position
    return jnp.stack([velocity, force])


def solve(stiffness: float) -> diffrax.Solution:
    return diffrax.diffeqsolve(
        diffrax.ODETerm(van_der_pol),
        diffrax.Tsit5(),
        t0=START,
        t1=END,
        dt0=0.01,
        y0=jnp.array([2.0, 0.0]),
        args=stiffness,
        saveat=diffrax.SaveAt(ts=jnp.linspace(START, END, 500)),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=MAX_STEPS,
    )


def solve_and_log(stiffness: float) -> tuple[diffrax.Solution, lox.logdict]:
    """The solution, and the times of all attempted steps."""
    observed = lox.observe(solve, carry=True, loops="while[0]")
    shown = lox.progress(observed, label="solve", file=sys.stdout)
    keys = [TIME, NEXT_TIME, REJECTED]
    return lox.spool(shown, argnames=keys, capacity=MAX_STEPS)(stiffness)


def plot(solution: diffrax.Solution, logs: lox.logdict, path: pathlib.Path) -> None:
    figure, (above, below) = plt.subplots(2, 1, sharex=True)
    above.plot(solution.ts, solution.ys[:, 0])
    above.set_ylabel("position")
    below.semilogy(logs[TIME], logs[NEXT_TIME] - logs[TIME], ".", markersize=3)
    below.set_ylabel("next step size")
    below.set_xlabel("time")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main(directory: str | None = None) -> None:
    print("The loops of the program:")
    for loop in lox.observe(solve).loops(STIFFNESS):
        print(f"  {loop.address}, in {loop.function}")

    solution, logs = solve_and_log(STIFFNESS)

    sizes = (logs[NEXT_TIME] - logs[TIME])[:-1]  # no step follows the last one
    print(f"{len(logs[TIME])} steps, {logs[REJECTED][-1]} of them rejected")
    print(f"step sizes from {sizes.min():.4f} to {sizes.max():.4f}")

    path = pathlib.Path(directory or tempfile.mkdtemp()) / "ode.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(solution, logs, path)
    print("Saved the plot to", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
