"""diffrax: adaptive solves, alone and vmapped, and three adjoints."""

import jax
import jax.numpy as jnp
import pytest

import lox

from .recording import (
    assert_close,
    assert_lanes,
    by_key,
    check_gradient,
    check_lanes,
    check_logs,
    long,
    quiet,
    record,
    record_lanes,
    scaled,
)

diffrax = pytest.importorskip("diffrax")

ADJOINTS = {
    "checkpoint": diffrax.RecursiveCheckpointAdjoint,
    "direct": diffrax.DirectAdjoint,
    "backsolve": diffrax.BacksolveAdjoint,
}
END = 0.5 * scaled(1)
CAPACITY = scaled(150)


def solving(adjoint, solver=diffrax.Bosh3):
    """A pendulum whose stiffness differs between lanes, so that its steps do."""

    def make(log):
        def solve(lane, stiffness):
            def field(t, y, k):
                log({"y": y}, t=t, lane=lane)
                return jnp.stack([y[1], -k * jnp.sin(y[0])])

            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(field),
                solver(),
                t0=0.0,
                t1=END,
                dt0=0.1,
                y0=jnp.array([1.0, 0.0]),
                args=stiffness,
                stepsize_controller=diffrax.PIDController(rtol=1e-2, atol=1e-3),
                max_steps=16 * scaled(1),
                adjoint=ADJOINTS[adjoint](),
            )
            log({"steps": solution.stats["num_steps"]}, lane=lane)
            return jnp.sum(solution.ys)

        return solve

    return make


ARGS = 0, 20.0
LANES = jnp.arange(3), jnp.array([1.0, 20.0, 200.0])


def recorded(make):
    _, events = record(make, *ARGS, in_custom_rules=True)
    assert len(by_key(events)["y"]) > 6
    return events


def test_solve_logs_every_evaluation_of_the_vector_field():
    make = solving("checkpoint")
    events = recorded(make)
    reduce = {"y": "mean", "steps": "last"}
    check_logs(make, ARGS, events, reduce, capacity=CAPACITY)


@pytest.mark.parametrize("adjoint", ("checkpoint", pytest.param("direct", marks=long)))
def test_vmapped_adaptive_solves_log_their_own_steps(adjoint):
    make = solving(adjoint)
    lanes = record_lanes(make, *LANES, in_custom_rules=True)
    assert len({len(events) for events in lanes}) > 1
    check_lanes(make, LANES, lanes, capacity=CAPACITY)


@pytest.mark.parametrize(  # the next test has the gradient of "checkpoint", with lanes
    "adjoint",
    [*(pytest.param(x, marks=long) for x in ("checkpoint", "direct")), "backsolve"],
)
def test_gradient_of_solve_logs_forward_pass(adjoint):
    make = solving(adjoint)
    events = recorded(make)
    check_gradient(make, ARGS, events, capacity=CAPACITY)


def test_gradient_of_vmapped_solves_logs_forward_pass_per_lane():
    make = solving("checkpoint")
    lanes = record_lanes(make, *LANES, in_custom_rules=True)
    gradient = jax.vmap(jax.grad(make(lox.log), argnums=1))
    grads, logs = jax.jit(lox.spool(gradient, capacity=CAPACITY))(*LANES)
    assert_lanes(logs, lanes)
    plain = jax.jit(jax.vmap(jax.grad(make(quiet), argnums=1)))(*LANES)
    assert_close(grads, plain)
