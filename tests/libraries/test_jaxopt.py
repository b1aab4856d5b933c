"""jaxopt: solvers, and derivatives of their solutions by implicit differentiation."""

import jax.numpy as jnp
import numpy as np
import pytest

from .recording import (
    check_gradient,
    check_lanes,
    check_logs,
    long,
    record,
    record_lanes,
    scaled,
)

jaxopt = pytest.importorskip("jaxopt")

CAPACITY = scaled(100)
Y = np.arange(6, dtype=np.float32)
X = np.stack([np.sin(Y), np.cos(Y)], axis=-1)


def ridge(log, make_solver):
    """The minimum of a ridge regression, as a function of its regularization."""

    def solve(lane, penalty):
        def objective(w, penalty):
            loss = jnp.mean((X @ w - Y) ** 2) + penalty * jnp.sum(w**2)
            log({"w": w, "loss": loss}, lane=lane)
            return loss

        solver = make_solver(objective)
        w, state = solver.run(jnp.zeros(2), penalty)
        log({"iterations": state.iter_num}, lane=lane)
        return jnp.sum(w**2)

    return solve


def lbfgs(log):
    def make_solver(objective):
        return jaxopt.LBFGS(objective, maxiter=scaled(8), tol=1e-4)

    return ridge(log, make_solver)


def descent(log):
    def make_solver(objective):
        return jaxopt.GradientDescent(objective, maxiter=scaled(6), tol=1e-2)

    return ridge(log, make_solver)


def bisection(log):
    def solve(lane, a):
        def optimality(x, a):
            log({"x": x}, lane=lane)
            return x**3 - x - a

        solver = jaxopt.Bisection(
            optimality, lower=1.0, upper=3.0, maxiter=scaled(6), check_bracket=False
        )
        return solver.run(None, a).params

    return solve


ARGS = 0, 0.1
LANES = jnp.arange(2), jnp.array([0.1, 100.0])


def test_lbfgs_logs_every_evaluation_of_the_objective():
    _, events = record(lbfgs, *ARGS)
    reduce = {"loss": "min", "w": "count"}
    check_logs(lbfgs, ARGS, events, reduce, capacity=CAPACITY)


def test_vmapped_gradient_descent_logs_per_lane_until_it_ends():
    lanes = record_lanes(descent, *LANES)
    assert len({len(events) for events in lanes}) > 1
    check_lanes(descent, LANES, lanes, capacity=CAPACITY)


@pytest.mark.parametrize("make", (pytest.param(lbfgs, marks=long), bisection))
def test_implicit_differentiation_logs_events_of_solver(make):
    # linearizing the optimality condition at the solution evaluates the objective
    # again: by the same line, so that it is not an event
    _, events = record(make, *ARGS)
    check_gradient(make, ARGS, events, capacity=CAPACITY)
