"""optimistix: root finding, least squares and minimisation, and their derivatives."""

import jax
import jax.numpy as jnp
import pytest

import lox

from .recording import (
    assert_bitwise,
    assert_tapped,
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

optx = pytest.importorskip("optimistix")

CAPACITY = scaled(60)


def newton(log, adjoint=None):
    adjoint = adjoint or optx.ImplicitAdjoint()

    def solve(lane, a):
        def residual(x, a):
            log({"x": x}, lane=lane)
            return x**3 - a

        solver = optx.Newton(rtol=1e-4, atol=1e-4)
        start = jnp.array([1.0, 2.0])
        solution = optx.root_find(residual, solver, start, a, adjoint=adjoint)
        log({"steps": solution.stats["num_steps"]}, lane=lane)
        return jnp.sum(solution.value)

    return solve


def least_squares(log):
    def solve(lane, rate):
        t = jnp.linspace(0, 1, 5)

        def residuals(p, rate):
            value = p[0] * jnp.exp(-p[1] * t) - 2 * jnp.exp(-rate * t)
            log({"p": p, "error": jnp.sum(value**2)}, lane=lane)
            return value

        solver = optx.LevenbergMarquardt(rtol=1e-3, atol=1e-3)
        start = jnp.array([1.0, 0.5])
        found = optx.least_squares(residuals, solver, start, rate, max_steps=64)
        return jnp.sum(found.value)

    return solve


def bfgs(log):
    def solve(lane, a):
        def fun(x, a):
            value = (1 - x[0]) ** 2 + a * (x[1] - x[0] ** 2) ** 2
            log({"value": value}, lane=lane)
            return value

        solver = optx.BFGS(rtol=1e-3, atol=1e-3)
        found = optx.minimise(fun, solver, jnp.array([0.5, 0.0]), a, max_steps=64)
        return jnp.sum(found.value)

    return solve


def nelder_mead(log):
    def solve(lane, a):
        def fun(x, a):
            value = jnp.sum((x - a) ** 2)
            log({"value": value}, lane=lane)
            return value

        solver = optx.NelderMead(rtol=0.1, atol=0.1)
        found = optx.minimise(fun, solver, jnp.zeros(2), a, max_steps=16, throw=False)
        return jnp.sum(found.value)

    return solve


ARGS = 0, 3.0


@pytest.mark.parametrize("make", (newton, least_squares, bfgs))
def test_solver_logs_every_evaluation_of_its_function(make):
    _, events = record(make, *ARGS, in_custom_rules=True)
    reduce = dict.fromkeys(by_key(events), "count")
    check_logs(make, ARGS, events, reduce, capacity=CAPACITY)


@pytest.mark.parametrize("make", (newton, pytest.param(bfgs, marks=long)))
def test_vmapped_solves_log_per_lane_until_they_end(make):
    args = jnp.arange(3), jnp.array([1.0, 3.0, 60.0])
    lanes = record_lanes(make, *args, in_custom_rules=True)
    assert len({len(events) for events in lanes}) > 1
    check_lanes(make, args, lanes, capacity=CAPACITY)


def test_nelder_mead_logs_simplex_and_points_on_one_line():
    # the simplex is evaluated under `vmap`, and later points are not: a callback gets
    # one event per point
    _, events = record(nelder_mead, *ARGS, in_custom_rules=True)
    solve = nelder_mead(lox.log)
    calls = []
    lox.tap(solve, calls.append)(*ARGS)
    assert_tapped(calls, events)
    plain = jax.jit(nelder_mead(quiet))(*ARGS)
    assert_bitwise(jax.jit(lox.nolog(solve))(*ARGS), plain)


@pytest.mark.parametrize("make", (newton, pytest.param(least_squares, marks=long)))
def test_implicit_differentiation_logs_events_of_solver(make):
    _, events = record(make, *ARGS, in_custom_rules=True)
    check_gradient(make, ARGS, events, capacity=CAPACITY)


def test_differentiation_through_checkpointed_steps_logs_events_of_solver():
    def make(log):
        return newton(log, optx.RecursiveCheckpointAdjoint())

    _, events = record(make, *ARGS, in_custom_rules=True)
    check_gradient(make, ARGS, events, capacity=CAPACITY)
