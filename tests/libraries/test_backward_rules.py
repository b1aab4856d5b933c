"""Derivatives of loops and solvers of libraries: recomputation logs nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import long

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def logged(x, key="x"):
    lox.log({key: x})
    return x


def tapped(fun, *args):
    calls = []
    lox.tap(fun, lambda logs: calls.append(np.asarray(logs["x"]).tolist()))(*args)
    return calls


def assert_derivatives_log_what_the_function_logs(f, x, capacity=50):
    expected = tapped(f, x)
    assert expected
    gradient = jax.grad(f)(x)
    assert tapped(jax.grad(f), x) == expected
    assert tapped(jax.jit(jax.grad(f)), x) == expected
    logs = lox.spool(jax.grad(f), capacity=capacity)(x)[1].compact()
    np.testing.assert_array_equal(np.ravel(logs["x"]), np.ravel(expected))
    inside = lox.spool(f, capacity=capacity)
    found, logs = jax.grad(inside, has_aux=True)(x)
    np.testing.assert_array_equal(np.ravel(logs.compact()["x"]), np.ravel(expected))
    np.testing.assert_allclose(found, gradient, rtol=1e-6)
    calls = []
    tap = lox.tap(f, lambda logs: calls.append(np.asarray(logs["x"]).tolist()))
    np.testing.assert_allclose(jax.grad(tap)(x), gradient, rtol=1e-6)
    jax.effects_barrier()
    assert calls == expected
    np.testing.assert_allclose(jax.grad(lox.nolog(f))(x), gradient, rtol=1e-6)


# --- equinox ---------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "checkpointed", "max_steps": 16, "checkpoints": 4},
        {"kind": "bounded", "max_steps": 16},
    ],
    ids=lambda options: options["kind"],
)
def test_equinox_loops_log_once_when_differentiated(options):
    eqxi = pytest.importorskip("equinox.internal")

    def f(x):
        return eqxi.while_loop(lambda c: c > 1, lambda c: logged(c) / 2, x, **options)

    assert tapped(f, 20.0) == [20, 10, 5, 2.5, 1.25]
    assert_derivatives_log_what_the_function_logs(f, 20.0)


def test_filter_custom_vjp_gets_its_flags_unchanged():
    eqx = pytest.importorskip("equinox")

    @eqx.filter_custom_vjp
    def f(x, scale, flag):
        return logged(x) * scale

    @f.def_fwd
    def _(perturbed, x, scale, flag):
        assert perturbed is True
        return f(x, scale, flag), flag

    @f.def_bwd
    def _(residuals, g, perturbed, x, scale, flag):
        assert residuals is True and perturbed is True
        return g * scale if flag else g

    def loss(x):
        return f(x, 3.0, True)

    x = jnp.float32(2.0)  # Equinox does not differentiate Python numbers
    assert jax.grad(lox.nolog(loss))(x) == jax.grad(loss)(x) == 3.0
    assert tapped(jax.grad(loss), x) == [2.0]
    gradient, logs = jax.grad(lox.spool(loss), has_aux=True)(x)
    assert logs == {"x": 2.0} and gradient == 3.0


# --- diffrax ---------------------------------------------------------------


@long
@pytest.mark.parametrize(
    "name", ["RecursiveCheckpointAdjoint", "DirectAdjoint", "BacksolveAdjoint"]
)
def test_diffrax_adjoints_repeat_no_events(name):
    diffrax = pytest.importorskip("diffrax")

    def f(x):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, rate: -logged(y) * rate),
            diffrax.Heun(),
            t0=0.0,
            t1=1.0,
            dt0=0.25,
            y0=x,
            args=x,
            adjoint=getattr(diffrax, name)(),
            max_steps=16,
        )
        return solution.ys[-1]

    assert_derivatives_log_what_the_function_logs(f, 1.5)


# --- solvers ---------------------------------------------------------------


@long
def test_optimistix_recomputation_logs_nothing():
    optimistix = pytest.importorskip("optimistix")

    def f(x):
        return optimistix.root_find(
            lambda y, a: logged(y) ** 2 - a,
            optimistix.Newton(1e-5, 1e-5),
            jnp.float32(1.5),
            x,
            max_steps=16,
            adjoint=optimistix.RecursiveCheckpointAdjoint(),
        ).value

    assert_derivatives_log_what_the_function_logs(f, 2.0)


@pytest.mark.parametrize("solver", ["gradient descent", "fixed point"])
def test_jaxopt_derivatives_add_no_events(solver):
    jaxopt = pytest.importorskip("jaxopt")

    def f(x):
        if solver == "fixed point":
            run = jaxopt.FixedPointIteration(
                lambda p, a: jnp.cos(logged(p)) * a, maxiter=4, tol=0.0
            )
            return run.run(jnp.float32(0.1), x).params
        run = jaxopt.GradientDescent(
            lambda p, a: logged((p - a) ** 2).sum(), maxiter=3, stepsize=0.1
        )
        return run.run(jnp.zeros(2), x).params.sum()

    assert_derivatives_log_what_the_function_logs(f, 0.5)
