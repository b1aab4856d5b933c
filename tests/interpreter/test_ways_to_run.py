"""Logs in exported and ahead-of-time compiled programs, `checkify` and `jet`."""

import contextlib
import gc
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify

import lox
from tests.interpreter.programs_that_log import (
    branchy,
    custom_jvp,
    custom_vjp,
    logged,
    model,
    rows,
    spooled,
    tapped,
)

# --- other ways to run ------------------------------------------------------


def test_export_of_spooled_function_returns_its_logs():
    from jax import export

    exported = export.export(jax.jit(lambda x: dict(lox.spool(model)(x)[1])))(0.5)
    again = export.deserialize(exported.serialize())
    assert again.call(0.5)["lr"].shape == (4,)


def test_ahead_of_time_compiled_spool_returns_its_logs():
    compiled = jax.jit(lox.spool(model)).lower(0.5).compile()
    assert compiled(0.5)[1] == lox.spool(model)(0.5)[1]
    assert jax.jit(lox.spool(model)).trace(0.5).jaxpr.effects == set()


def test_disable_jit_does_not_change_logs():
    expected = spooled(model, 0.5)
    with jax.disable_jit():
        logs = spooled(model, 0.5)
        calls = tapped(model, 0.5)
    assert logs.keys() == expected.keys()
    for key in logs:
        np.testing.assert_allclose(logs[key], expected[key], rtol=1e-6)
    assert rows(calls, "lr") == pytest.approx([0.1] * 4)


@contextlib.contextmanager
def checking_leaks():
    """Like `jax.checking_leaks`, but it examines only new objects, which is faster."""
    gc.freeze()
    try:
        with jax.checking_leaks():
            yield
    finally:
        gc.unfreeze()


def test_checking_leaks_finds_none_in_transformed_functions():
    with checking_leaks():
        spooled(branchy, 1.0)
        lox.spool(jax.grad(custom_jvp))(0.5)
        jax.vmap(lox.spool(branchy))(jnp.ones(2))
        tapped(jax.vmap(branchy), jnp.ones(2))
        with warnings.catch_warnings(action="ignore", category=lox.LoxWarning):
            jax.grad(lox.spool(custom_vjp), has_aux=True)(1.0)


def looped(body, x):
    return lax.scan(lambda c, i: (body(c, i), None), x, jnp.arange(3))[0]


def logging_loop(x):
    def body(c, i):
        lox.log({"c": c, "lr": 0.1}, step=i)
        return jnp.sin(c) * x

    return looped(body, x)


@pytest.mark.parametrize(
    "fun",
    [
        jax.jit(logging_loop),
        jax.checkpoint(logging_loop),
        lambda x: looped(jax.checkpoint(lambda c, i: jnp.sin(logged(c))), x),
        lambda x: looped(lambda c, i: custom_vjp(c) * x, x),
        lambda x: looped(lambda c, i: custom_jvp(c) * x, x),
    ],
    ids=["jit", "remat", "remat inside", "vjp", "jvp"],
)
@pytest.mark.filterwarnings("ignore::lox.LoxWarning")  # about events of rules
def test_checking_leaks_finds_none_in_differentiated_loops(fun):
    def ways(fun, calls):
        yield lox.spool(jax.grad(fun))
        yield jax.grad(lox.spool(fun), has_aux=True)
        yield lox.nolog(jax.grad(fun))
        yield jax.grad(lox.tap(fun, calls.append))
        yield jax.jit(lox.tap(jax.value_and_grad(fun), calls.append, buffer=2))

    lox.set_default("silent")
    found, checked = [], []
    expected = [way(0.5) for way in ways(fun, found)]
    with checking_leaks():
        results = [way(0.5) for way in ways(fun, checked)]
    jax.effects_barrier()
    jax.tree.map(np.testing.assert_array_equal, results, expected)
    assert checked == found


def test_checking_leaks_still_finds_leaks_of_the_user():
    leaked = []

    def f(x):
        def body(c, i):
            leaked.append(logged(c))
            return jnp.sin(c)

        return looped(body, x)

    with checking_leaks(), pytest.raises(Exception, match="Leaked trace"):
        lox.spool(jax.grad(f))(0.5)


# --- checkify --------------------------------------------------------------


def test_checkify_logs_while_condition_once():
    def f(x, check=checkify.check):
        def cond(c):
            return logged(c, "p") < 4

        def body(c):
            check(c > -100, "too small")
            return logged(c, "c") + 1

        return lax.while_loop(cond, body, x)

    def twice(f, x):
        return lax.scan(lambda c, _: (f(c) - 2, None), x, None, length=2)[0]

    def unchecked(x):
        return f(x, check=lambda *_: None)

    for fun, plain in (
        (f, unchecked),
        (jax.jit(f), unchecked),
        (partial(twice, f), partial(twice, unchecked)),
    ):
        expected = tapped(plain, 1.5)
        assert rows(expected, "p")[:4] == [1.5, 2.5, 3.5, 4.5]
        for checked in (checkify.checkify(fun), jax.jit(checkify.checkify(fun))):
            assert tapped(checked, 1.5) == expected
            (error, y), logs = lox.spool(checked, capacity=20)(1.5)
            error.throw()
            assert y == lox.nolog(plain)(1.5)
            assert logs == lox.spool(plain, capacity=20)(1.5)[1]
    error, _ = lox.nolog(checkify.checkify(f))(-200.0)
    with pytest.raises(checkify.JaxRuntimeError, match="too small"):
        error.throw()


def test_primitive_without_rule_raises_unsupported_primitive_error():
    def f(x):
        def add(a, b):
            lox.log({"a": a})
            return a + b

        return lax.reduce(x, 0.0, add, (0,))

    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'a'.*`reduce`.*nolog"):
        lox.spool(f)(jnp.ones(3))
    assert lox.nolog(f)(jnp.ones(3)) == 3


# --- jet -------------------------------------------------------------------


def test_jet_logs_events_of_function(capsys):
    from jax.experimental import jet

    def f(x):
        lox.log({"x": x, "constant": 1.0}, step=2)
        return jnp.sin(x)

    def g(fun):
        return lambda x: jet.jet(fun, (x,), ((1.0, 0.0),))

    wanted = g(jnp.sin)(0.5)
    assert jax.tree.all(jax.tree.map(np.allclose, g(f)(0.5), wanted))
    assert capsys.readouterr().out == "{'x': 0.5, 'constant': 1.0}\n"
    for fun in (f, jax.jit(f)):
        out, logs = lox.spool(g(fun))(0.5)
        assert jax.tree.all(jax.tree.map(np.allclose, out, wanted))
        assert logs == {"x": 0.5, "constant": 1.0} and logs.step["x"] == 2
    calls = []
    jax.jit(g(lox.tap(f, calls.append)))(0.5)
    jax.effects_barrier()
    assert [float(call["x"]) for call in calls] == [0.5]
    assert jax.tree.all(jax.tree.map(np.allclose, g(lox.nolog(f))(0.5), wanted))
    assert capsys.readouterr().out == ""


def test_custom_root_without_logs_works_in_loop():
    # since JAX 0.12, `custom_root` must be found inside the functions that call it
    @jax.jit
    def root(x):
        def solve(f, y):
            return lax.fori_loop(0, 8, lambda _, y: y - f(y) / (2 * y), y)

        return lax.custom_root(lambda y: y**2 - x, x, solve, lambda g, y: y / g(1.0))

    def step(x, i):
        lox.log({"x": x}, step=i)
        return root(x), None

    def loop(x):
        return lax.scan(step, x, jnp.arange(2))[0]

    result, logs = lox.spool(loop)(16.0)
    assert result == 2 and logs["x"].tolist() == [16, 4]
    assert lox.nolog(loop)(16.0) == 2
    received = []
    assert jax.jit(lox.tap(loop, received.append))(16.0) == 2
    jax.effects_barrier()
    assert [float(logs["x"]) for logs in received] == [16, 4]
