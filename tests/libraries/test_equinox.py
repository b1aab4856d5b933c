"""Equinox's transformations, and primitives that lox does not know."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.equinox_programs import (
    SPOOLED,
    TAPPED,
    counted,
    eqx,
    eqxi,
    rows,
    rows_per_lane,
    tapped,
)

# --- noinline ----------------------------------------------------------------


@eqxi.noinline
def wave(x):
    lox.log({"x": x})
    return x * jnp.sin(x)


def waves(x):
    return wave(x) + wave(2 * x)


def test_noinline_functions_are_spooled():
    value = 1.0 * np.sin(1.0) + 2.0 * np.sin(2.0)
    for fun in (waves, jax.jit(waves), eqx.filter_jit(waves)):
        result, logs = lox.spool(fun)(1.0)
        np.testing.assert_allclose(result, value, rtol=1e-6)
        assert rows(logs) == {"x": [1.0, 2.0]}
    assert rows(lox.spool(waves, reduce="mean")(1.0)[1]) == {"x": 1.5}
    assert rows(jax.jit(lox.spool(waves))(1.0)[1]) == {"x": [1.0, 2.0]}


def test_noinline_functions_log_per_lane():
    xs = jnp.array([1.0, 3.0])
    expected = [{"x": [1.0, 2.0]}, {"x": [3.0, 6.0]}]
    for way in ("vmap(spool)", "spool(vmap)"):
        assert rows_per_lane(SPOOLED[way](waves)(xs)[1]) == expected
    _, received = tapped(TAPPED["vmap(tap)"], waves, xs)
    assert received == counted(expected)


def test_derivatives_of_noinline_functions_log_once():
    gradient = jax.grad(lambda x: x * jnp.sin(x) + 2 * x * jnp.sin(2 * x))(1.0)
    found, logs = jax.grad(lox.spool(waves), has_aux=True)(1.0)
    np.testing.assert_allclose(found, gradient, rtol=1e-6)
    assert rows(logs) == {"x": [1.0, 2.0]}
    found, logs = lox.spool(jax.grad(waves))(1.0)
    np.testing.assert_allclose(found, gradient, rtol=1e-6)
    assert rows(logs) == {"x": [1.0, 2.0]}
    _, received = tapped(lambda f, c: lox.tap(jax.grad(f), c), waves, 1.0)
    assert received == counted([{"x": [1.0, 2.0]}])


def test_nolog_removes_the_events_of_noinline_functions(capfd):
    lox.set_default("print")
    lox.nolog(waves)(1.0)
    lox.nolog(jax.grad(waves))(1.0)
    jax.grad(lox.nolog(waves))(1.0)
    lox.nolog(jax.vmap(waves))(jnp.ones(2))
    jax.effects_barrier()
    assert capfd.readouterr().out == ""


def test_noinline_functions_in_loops_log_per_lane():
    def fun(x):
        def body(x):
            return x + 1 + 0 * wave(x)

        return eqxi.while_loop(lambda x: x < 3, body, x, kind="lax")

    xs = [0.5, 2.0, 4.0]
    expected = [{"x": [0.5, 1.5, 2.5]}, {"x": [2.0]}, {}]
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](fun, capacity=9)(jnp.array(xs))[1]
        assert rows_per_lane(logs) == expected


def test_noinline_functions_that_are_arguments_are_spooled():
    call = eqx.filter_jit(lambda function, x: function(x))
    logs = lox.spool(call)(wave, 1.0)[1]
    assert rows(logs) == {"x": 1.0}


def test_unknown_noinline_function_raises():
    def other(x):
        lox.log({"other": x})
        return x

    function = eqxi.noinline(other, lambda dynamic, x: x)
    assert rows(lox.spool(lambda x: function(x))(1.0)[1]) == {"other": 1.0}
    call = eqx.filter_jit(lambda function, x: function(x))
    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'other' \(.*abstract_fn"):
        lox.spool(call)(function, 1.0)


# --- Equinox's transformations -----------------------------------------------


class Layer(eqx.Module):
    weight: jax.Array
    name: str = eqx.field(static=True)

    def __call__(self, x):
        lox.log({self.name: x})
        return jnp.tanh(self.weight * x)


class Model(eqx.Module):
    layers: list[Layer]
    activation: object = jnp.tanh

    def __call__(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return eqx.error_if(x, x > 2, "too large")


@pytest.fixture
def model():
    return Model([Layer(jnp.array(0.5), "first"), Layer(jnp.array(2.0), "second")])


def activations(x):
    hidden = np.tanh(np.tanh(0.5 * x))
    return {"first": x, "second": hidden}


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        eqx.filter_jit,
        lambda f: eqx.filter_jit(eqx.filter_checkpoint(f)),
        eqx.filter_checkpoint,
        lambda f: lambda m, x: eqx.filter_vmap(f, in_axes=(None, 0))(m, x[None])[0],
        lambda f: lambda m, x: eqx.filter_value_and_grad(f)(m, x)[0],
        lambda f: (
            lambda m, x: eqx.filter_jvp(
                f, (m, x), eqx.filter((m, x), eqx.is_inexact_array)
            )[0]
        ),
        lambda f: lambda m, x: eqx.filter_vjp(lambda m: f(m, x), m)[0],
    ],
)
def test_equinox_transformations_keep_each_event(transform, model):
    def loss(model, x):
        return model(x)

    fun = transform(loss)
    x = jnp.array(0.7)
    expected = activations(0.7)
    result = jax.jit(lambda x: loss(model, x))(x)
    spooled, logs = lox.spool(fun)(model, x)
    np.testing.assert_allclose(spooled, result, rtol=1e-6)
    found = {key: float(np.ravel(value)[0]) for key, value in logs.items()}
    assert found == pytest.approx(expected, rel=1e-6)
    assert all(np.size(value) == 1 for value in logs.values())
    np.testing.assert_allclose(lox.nolog(fun)(model, x), result, rtol=1e-6)
    tapped_result, received = tapped(lox.tap, fun, model, x)
    np.testing.assert_allclose(tapped_result, result, rtol=1e-6)
    assert sum(received.values()) == 2


@pytest.mark.parametrize("outside", [eqx.filter_jit, eqx.filter_checkpoint])
def test_equinox_transformations_accept_spooled_functions(outside, model):
    spooled = outside(lox.spool(lambda model, x: model(x)))
    logs = spooled(model, jnp.array(0.7))[1]
    assert {key: float(value) for key, value in logs.items()} == pytest.approx(
        activations(0.7), rel=1e-6
    )


def test_filter_grad_of_spooled_loss_returns_logs(model):
    spooled = eqx.filter_grad(lox.spool(lambda model, x: model(x)), has_aux=True)
    gradients, logs = spooled(model, jnp.array(0.7))
    expected = eqx.filter_grad(lox.nolog(lambda m, x: m(x)))(model, jnp.array(0.7))
    for found, other in zip(
        jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(found, other, rtol=1e-6)
    assert {key: float(value) for key, value in logs.items()} == pytest.approx(
        activations(0.7), rel=1e-6
    )


def test_filter_vmap_over_models_logs_per_lane(model):
    xs = jnp.array([0.1, 0.7])
    fun = eqx.filter_vmap(lox.spool(lambda m, x: m(x)), in_axes=(None, 0))
    logs = fun(model, xs)[1]
    for key in ("first", "second"):
        expected = [activations(x)[key] for x in (0.1, 0.7)]
        np.testing.assert_allclose(logs[key], expected, rtol=1e-6)


# --- primitives that lox does not know ---------------------------------------


def test_unknown_primitive_with_open_jaxpr_is_cleaned_or_refused():
    """The constants of its jaxpr are inputs of the equation."""
    held_p = jax.extend.core.Primitive("held")
    held_p.multiple_results = True

    def run(*args, jaxpr):
        count = len(jaxpr.constvars)
        return jax.core.eval_jaxpr(jaxpr, args[:count], *args[count:])

    held_p.def_impl(run)
    held_p.def_abstract_eval(lambda *avals, jaxpr: [v.aval for v in jaxpr.outvars])
    jax.interpreters.mlir.register_lowering(
        held_p, jax.interpreters.mlir.lower_fun(run, multiple_results=True)
    )
    weights = jnp.array([1.0, 2.0])

    def logged(x):
        lox.log({"x": x})
        return x * weights

    def fun(x):
        closed = jax.make_jaxpr(logged)(x)
        return held_p.bind(*closed.consts, x, jaxpr=closed.jaxpr)[0]

    np.testing.assert_array_equal(lox.nolog(fun)(3.0), [3.0, 6.0])
    assert not jax.make_jaxpr(lox.nolog(fun))(3.0).effects
    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'x', logged at .*`held`"):
        lox.spool(fun)(3.0)


def test_python_numbers_in_modules_are_unchanged():
    class Model(eqx.Module):
        weight: jax.Array
        rate: float

    def train(model, x):
        grads = eqx.filter_grad(lambda model: model.rate * model.weight * x)(model)
        lox.log({"grad": grads.weight})
        return eqx.apply_updates(model, grads)

    model = Model(jnp.array(1.0), 0.5)
    spooled, removed = lox.spool(train), lox.nolog(train)
    # twice: later calls take a shorter path
    for transformed in 2 * (spooled, lambda *args: (removed(*args), 0)):
        new, _ = transformed(model, 2.0)
        assert new.rate == 0.5 and isinstance(new.rate, float)
        assert new.weight == 2.0


@eqxi.noinline
def logs_value_and_cotangent(x):
    lox.log({"x": x})
    x = lox.log_grad("dx", x)
    x = lox.watch("w", x, stats=("max_abs",), grad=True)
    return jnp.sin(x)


def test_noinline_function_logs_its_cotangents_once():
    gradient = jax.grad(lambda x: 2 * logs_value_and_cotangent(x))
    xs = jnp.arange(3.0)
    keys = {"x", "dx", "w/max_abs", "w/grad/max_abs"}
    for spooled in (jax.vmap(lox.spool(gradient)), lox.spool(jax.vmap(gradient))):
        result, logs = spooled(xs)
        assert logs.keys() == keys
        np.testing.assert_allclose(result, 2 * np.cos(xs), rtol=1e-6)
        np.testing.assert_array_equal(logs["x"], xs)
        np.testing.assert_array_equal(logs["dx"], result)
        np.testing.assert_array_equal(logs["w/grad/max_abs"], np.abs(result))
    calls = []
    lox.tap(gradient, calls.append)(1.0)
    assert sorted(key for logs in calls for key in logs) == sorted(keys)
    assert lox.spool(logs_value_and_cotangent)(1.0)[1].keys() == {"x", "w/max_abs"}
