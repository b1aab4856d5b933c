"""Calls and solves of other libraries whose inputs do not depend on the lane."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.equinox_programs import (
    SPOOLED,
    TAPPED,
    alone,
    assert_same_rows,
    counted,
    eqxi,
    lx,
    rows,
    rows_per_lane,
    tapped,
)

dfx = pytest.importorskip("diffrax")
jaxopt = pytest.importorskip("jaxopt")
optx = pytest.importorskip("optimistix")


def logged(y):
    lox.log({"y": y})
    return y


def solve(operator, y, solver=None):
    vector = y * jnp.array([1.0, 2.0])
    structure = jax.ShapeDtypeStruct((2,), jnp.float32)
    operator = lx.FunctionLinearOperator(
        operator, structure, lx.positive_semidefinite_tag
    )
    solver = solver or lx.CG(1e-3, 1e-3)
    return lx.linear_solve(operator, vector, solver, throw=False).value.sum()


def linear(y):
    """The operator closes over an array, so Equinox traces it."""

    def operator(v):
        lox.log({"y": v[0]})
        return v * jnp.array([1.0, 3.0]) + 0 * y

    return solve(operator, y)


def linear_without_closure(y):
    """The operator closes over nothing, and stays a Python function."""

    def operator(v):
        lox.log({"y": v[0]})
        return v * jnp.array([1.0, 3.0])

    return solve(operator, y)


def norm_of_solver(y):
    def norm(x):
        lox.log({"y": jnp.clip(jnp.max(jnp.abs(x)), 0, 1)})
        return jnp.max(jnp.abs(x))

    return solve(lambda v: v * jnp.array([1.0, 3.0]), y, lx.CG(1e-3, 1e-3, norm=norm))


def root(y):
    newton = optx.Newton(1e-3, 1e-3)
    return optx.root_find(lambda z, _: logged(z) ** 2 - y, newton, y).value


def differential_equation(y):
    term = dfx.ODETerm(lambda t, z, _: -logged(z))
    return dfx.diffeqsolve(term, dfx.Euler(), 0.0, 1.0, 0.5, y).ys[0]


def descent(y):
    loss = jaxopt.GradientDescent(lambda z: (logged(z) - 1.0) ** 2, maxiter=2)
    return loss.run(y).params


PROGRAMS = {
    "noinline": eqxi.noinline(logged),
    "linear_solve": linear,
    "linear_solve without closure": linear_without_closure,
    "linear_solve with norm": norm_of_solver,
    "root_find": root,
    "diffeqsolve": differential_equation,
    "GradientDescent": descent,
}
OF_EQUINOX = list(PROGRAMS)[:4]


def program_of(call):
    """A program whose events do not depend on its argument."""
    return lambda x: x + call(jnp.zeros(()) + 3.0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_constants_are_logged_in_every_lane(name):
    fun = program_of(PROGRAMS[name])
    xs = jnp.zeros(3)
    expected = alone(fun, xs[:1], capacity=99) * 3
    ways = ("vmap(spool)", "spool(vmap)") if name in OF_EQUINOX else ("spool(vmap)",)
    for way in ways:
        _, logs = jax.jit(SPOOLED[way](fun, capacity=99))(xs)
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-4)
    _, received = tapped(TAPPED["tap(vmap)"], fun, xs)
    assert received.total() == counted(expected).total()


DEPENDS_ON = {
    "outer": lambda a, b: a,
    "inner": lambda a, b: b,
    "neither": lambda a, b: jnp.zeros(()) + 2.0,
}


@pytest.mark.parametrize("depends_on", DEPENDS_ON)
@pytest.mark.parametrize("name", ["noinline", "linear_solve without closure"])
def test_lanes_of_several_vmaps_are_in_order(name, depends_on):
    def fun(a, b):
        return a * b + PROGRAMS[name](DEPENDS_ON[depends_on](a, b))

    outer, inner = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0, 5.0])
    both = jax.vmap(jax.vmap(fun, (None, 0)), (0, None))
    alone = jax.jit(lox.spool(fun, capacity=9))
    expected = [rows(alone(a, b)[1].compact()) for a in outer for b in inner]

    def loss(scale):
        return both(scale * outer, scale * inner).sum()

    half = jax.vmap(lox.spool(jax.vmap(fun, (None, 0)), capacity=9), (0, None))
    for logs in (
        lox.spool(both, capacity=9)(outer, inner)[1],
        jax.jit(half)(outer, inner)[1],
        lox.spool(jax.grad(loss), capacity=9)(1.0)[1],
    ):
        assert_same_rows(rows_per_lane(logs, 2), expected, rtol=1e-3)
    gradient = jax.jit(jax.grad(lox.nolog(loss)))(1.0)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(1.0), gradient, rtol=1e-4)


@pytest.mark.parametrize("name", OF_EQUINOX)
def test_constants_are_printed_in_every_lane(name):
    fun = program_of(PROGRAMS[name])
    ((_, expected),) = alone(fun, [0.0], capacity=99)[0].items()
    seen = []
    lox.set_default(lambda logs: seen.append(float(logs["y"])))
    jax.jit(jax.vmap(fun))(jnp.zeros(2))
    jax.effects_barrier()
    count = collections.Counter(np.round(seen, 4).tolist())
    assert count == collections.Counter(np.round(2 * np.ravel(expected).tolist(), 4))


def test_observed_loops_of_a_solve_without_lanes_log_in_every_lane():
    fun = program_of(lambda y: solve(lambda v: v * jnp.array([1.0, 3.0]), y))
    observed = lox.observe(fun, carry=lambda leaves: {"count": len(leaves)})
    expected = rows(lox.spool(observed, capacity=9)(0.0)[1])
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](observed, capacity=9)(jnp.zeros(3))[1]
        assert rows_per_lane(logs) == [expected] * 3
    assert lox.observe(jax.vmap(fun), carry=True).loops(jnp.zeros(3))


def test_solver_that_is_a_python_function_logs_once_under_grad():
    for name in OF_EQUINOX[2:]:
        expected = alone(PROGRAMS[name], [3.0], capacity=99)
        for derivative in (jax.grad, jax.jacfwd):
            logs = lox.spool(derivative(PROGRAMS[name]), capacity=99)(3.0)[1]
            assert_same_rows([rows(logs)], expected, rtol=1e-3)


def test_log_grad_in_a_call_without_lanes_is_refused():
    double = eqxi.noinline(lambda y: lox.log_grad("dy", y) * 2)

    def loss(y):
        return jax.vmap(lambda x: x * double(y))(jnp.arange(3.0)).sum()

    with pytest.raises(lox.LoxError, match=r"'dy', logged at .*`eqxi.noinline`, whose"):
        lox.spool(jax.grad(loss))(1.0)
    assert lox.nolog(jax.grad(loss))(1.0) == 6
    assert loss(1.0) == 6
