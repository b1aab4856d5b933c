"""Reductions and windows in differentiated programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.streams.programs_with_streams import counted, reduced, tapped


@pytest.mark.parametrize("name", ["mean", "sum", "min", "max", "last", "var", "std"])
def test_reduced_logs_are_differentiable(name):
    xs = jnp.array([1.0, 1.0, 4.0, 3.5])
    found = jax.grad(lambda xs: reduced(xs, name)["x"])(xs)
    functions = {"last": lambda xs: xs[-1]}
    function = functions.get(name, getattr(jnp, name, None))
    if name == "min":  # ties are shared out differently
        np.testing.assert_allclose(found.sum(), 1.0)
    else:
        np.testing.assert_allclose(found, jax.grad(function)(xs), rtol=1e-5)
    windowed = jax.grad(lambda xs: reduced(xs, name, window=4)["x"].sum())(xs)
    np.testing.assert_allclose(windowed, found, rtol=1e-5)


@jax.custom_jvp
def with_jvp(x):
    lox.log({"x": x})
    return x


with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0]))


@jax.custom_vjp
def with_vjp(x):
    lox.log({"x": x})
    return x


with_vjp.defvjp(lambda x: (with_vjp(x), None), lambda _, g: (g,))


@pytest.mark.parametrize("custom", [with_jvp, with_vjp])
@pytest.mark.parametrize("options", [{"reduce": "sum"}, {"interval": 1}])
def test_custom_function_keeps_derivative_of_earlier_rows(custom, options):
    def f(xs):
        def body(s, x):
            lox.log({"x": x * 2})
            return s + custom(x), None

        return lax.scan(body, 0.0, xs)[0]

    xs = jnp.arange(3.0)
    logs = lox.spool(f, **options)(xs)[1]
    assert logs["x"].sum() == 9
    for of in (options, {}):
        gradient = jax.grad(lambda x, of=of: lox.spool(f, **of)(x)[1]["x"].sum())(xs)
        assert gradient.tolist() == [2, 2, 2]


def test_reduction_ignores_events_that_are_not_selected():
    def f(x):
        lox.log({"a": x.sum()}, tags="m")

        def one(x):
            return lax.while_loop(
                lambda c: c < 3, lambda c: (lox.log({"a": c}), c + 1)[1], x
            )

        return jax.vmap(one)(x)

    assert lox.spool(f, tags="m", reduce="sum")(jnp.arange(3.0))[1] == {"a": 3.0}
    assert tapped(f, jnp.arange(3.0), tags="m", buffer=2) == [{"a": jnp.array([3.0])}]


def logs_nothing(x):
    return x, None


def logs_another_value(x):
    lox.log({"a": x * 7})
    return x, None


def logs_another_shape(x):
    lox.log({"a": jnp.ones(3)})
    return x, None


@pytest.mark.parametrize("rule", [logs_nothing, logs_another_value, logs_another_shape])
@pytest.mark.parametrize("options", [{}, {"reduce": "mean"}, {"buffer": 2}])
def test_reduction_ignores_other_events_of_derivative_rules(rule, options):
    @jax.custom_vjp
    def f(x):
        lox.log({"a": x * 10})
        return x

    f.defvjp(rule, lambda r, g: (g,))
    calls = []
    assert jax.grad(lox.tap(f, calls.append, **options))(1.0) == 1
    jax.effects_barrier()
    assert [float(jnp.sum(c["a"])) for c in calls] == [10]
    if "buffer" not in options:
        gradient, logs = jax.grad(lox.spool(f, **options), has_aux=True)(1.0)
        assert gradient == 1 and logs == {"a": 10.0}


def test_reduction_in_unbounded_loop_keeps_derivative_of_other_keys():
    @jax.custom_jvp
    def c(x):
        lox.log({"a": x})
        counted(2)
        return jnp.sin(x)

    c.defjvp(lambda p, t: (c(p[0]), jnp.cos(p[0]) * t[0]))

    def f(x):
        lox.log({"a": x**2})
        y = c(x)
        lox.log({"a": y})
        return y

    for options in ({}, {"argnames": "a"}):
        spooled = lox.spool(f, reduce="sum", **options)
        gradient = jax.grad(lambda x, g=spooled: g(x)[1]["a"])(0.7)
        np.testing.assert_allclose(gradient, 1.4 + np.cos(0.7), rtol=1e-6)
    assert lox.spool(f, reduce="sum")(0.7)[1]["i"] == 1


def test_second_derivative_of_reduced_custom_function_treats_logs_as_constant():
    def f(x):
        def body(c, i):
            lox.log({"x": c * 2})
            return with_jvp(jnp.sin(c)), None

        return lax.scan(body, x, jnp.arange(2))[0]

    def loss(x):
        return lox.spool(f, reduce="var")(x)[1]["x"]

    second = [
        outer(inner(loss))(0.7)
        for outer in (jax.grad, jax.jacfwd)
        for inner in (jax.grad, jax.jacfwd)
    ]
    np.testing.assert_allclose(second, second[-1], rtol=1e-4)
