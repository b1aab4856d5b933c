"""Logs under `checkpoint`, in custom derivatives and in differentiated programs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import lox
from tests.interpreter.programs_that_log import (
    custom_jvp,
    custom_vjp,
    logged,
    model,
    rows,
    spooled,
    tapped,
)

# --- checkpoint --------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [None, jax.checkpoint_policies.dots_saveable], ids=["none", "dots"]
)
def test_checkpoint_recomputation_logs_nothing(policy):
    @partial(jax.checkpoint, policy=policy)
    def block(x):
        return jnp.sin(logged(x))

    def f(x):
        return lax.scan(lambda c, _: (block(c), None), x, None, length=3)[0]

    expected = rows(tapped(f, 0.5), "x")
    assert len(expected) == 3
    assert rows(tapped(jax.grad(f), 0.5), "x") == expected
    assert spooled(jax.grad(f), 0.5)["x"].tolist() == expected
    grad, logs = jax.grad(lox.spool(f), has_aux=True)(0.5)
    assert logs["x"].tolist() == expected
    assert grad == jax.grad(lox.nolog(f))(0.5)


def offloading(*names):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


@pytest.mark.parametrize("outside", [False, True], ids=["block", "loop"])
def test_checkpoint_with_offloaded_residuals_logs_once(outside):
    remat = partial(jax.checkpoint, policy=offloading("h"))

    def block(c):
        h = checkpoint_name(jnp.sin(c), "h")
        lox.log({"h": h, "lr": 0.1})
        return jnp.cos(h)

    def loop(x):
        body = block if outside else remat(block)
        return lax.scan(lambda c, _: (body(c), None), x, None, length=3)[0]

    f = remat(loop) if outside else loop
    expected = spooled(f, 0.5)
    gradient = jax.grad(lox.nolog(f))(0.5)
    assert spooled(jax.grad(f), 0.5) == expected
    for derivative in (jax.grad(f), jax.jit(jax.grad(f))):
        calls = []
        assert lox.tap(derivative, calls.append)(0.5) == gradient
        assert jax.jit(lox.tap(derivative, calls.append))(0.5) == gradient
        jax.effects_barrier()
        for key, values in expected.items():
            assert rows(calls, key) == values.tolist() * 2
    calls = []
    assert jax.grad(lox.tap(f, calls.append))(0.5) == gradient
    assert rows(calls, "h") == expected["h"].tolist()
    (batch, rest) = lox.tap(jax.grad(f), calls.append, buffer=2)(0.5), calls[3:]
    assert batch == gradient
    assert [logs["h"].tolist() for logs in rest] == [
        expected["h"].tolist()[:2],
        expected["h"].tolist()[2:],
    ]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_checkpoint_with_unused_result_logs_constants(wrap, capsys):
    @jax.checkpoint
    def block(x):
        lox.log({"lr": 0.1})
        return x * 2

    @wrap
    def f(x):
        block(x)
        return x * 3

    assert spooled(f, 1.5) == {"lr": np.float32(0.1)}
    assert spooled(jax.grad(f), 1.5) == {"lr": np.float32(0.1)}
    for g in (f, jax.jit(f), jax.grad(f)):
        assert rows(tapped(g, 1.5), "lr") == [np.float32(0.1)]
    assert jax.grad(lox.spool(f), has_aux=True)(1.5)[1] == {"lr": np.float32(0.1)}
    assert capsys.readouterr().out == ""
    jax.jit(f)(1.5)
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'lr': 0.1}\n"


def test_checkpoint_without_logs_has_second_derivatives():
    def f(x):
        loop = lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=3)
        return logged(x) + loop[0]

    def g(x):
        return jax.checkpoint(lox.nolog(f))(x)

    expected = jax.hessian(lox.nolog(f))(0.5)
    for hessian in (jax.hessian(g), jax.jit(jax.hessian(g)), jax.jacfwd(jax.grad(g))):
        np.testing.assert_allclose(hessian(0.5), expected, rtol=1e-6)
    y, logs = lox.spool(jax.hessian(jax.checkpoint(f)))(0.5)
    assert logs == {"x": 0.5}
    np.testing.assert_allclose(y, expected, rtol=1e-6)


# --- custom derivatives ------------------------------------------------------


def test_custom_jvp_logs_in_function_and_rule():
    assert spooled(custom_jvp, 1.0) == {"primal": 1.0}
    grad, logs = lox.spool(jax.grad(custom_jvp))(1.0)
    assert grad == 5 and logs == {"rule": 1.0, "primal": 1.0}
    assert [dict(c) for c in tapped(jax.grad(custom_jvp), 1.0)] == [
        {"rule": 1.0},
        {"primal": 1.0},
    ]


def test_grad_of_spool_returns_logs_of_function_and_prints_nothing():
    printed = []
    lox.set_default(printed.append)
    with pytest.warns(lox.LoxWarning, match="'rule'.*only by a derivative"):
        (y, logs), grad = jax.value_and_grad(lox.spool(custom_jvp), has_aux=True)(1.0)
    assert (y, grad) == (2, 5) and logs == {"primal": 1.0}
    with pytest.warns(lox.LoxWarning, match="'(fwd|bwd)'.*only by a derivative"):
        (y, logs), grad = jax.value_and_grad(lox.spool(custom_vjp), has_aux=True)(1.0)
    assert (y, grad) == (2, 7) and logs == {"primal": 1.0}
    assert jax.grad(lox.nolog(custom_vjp))(1.0) == 7
    assert jax.grad(lox.nolog(hidden))(1.0) == 7
    with pytest.warns(lox.LoxWarning, match="'(fwd|bwd)'.*only by a derivative"):
        assert jax.grad(lambda x: lox.spool(hidden)(x)[0])(1.0) == 7
    jax.effects_barrier()
    assert not printed


@jax.custom_vjp
def hidden(x):
    return x * 2


hidden.defvjp(
    lambda x: (logged(x, "fwd") * 2, x), lambda x, ct: (logged(ct, "bwd") * 7,)
)


def test_custom_vjp_logs_in_function_or_in_both_rules():
    assert spooled(custom_vjp, 1.0) == {"primal": 1.0}
    for f in (custom_vjp, hidden):
        grad, logs = lox.spool(jax.grad(f))(3.0)
        assert grad == 7 and logs == {"fwd": 3.0, "bwd": 1.0}
        assert [dict(c) for c in tapped(jax.grad(f), 3.0)] == [
            {"fwd": 3.0},
            {"bwd": 1.0},
        ]


def test_custom_vjp_in_scan_logs_backward_rule_in_reverse():
    def f(x):
        return lax.scan(lambda c, i: (custom_vjp(c) * i, None), x, jnp.arange(1.0, 4))[
            0
        ]

    grad, logs = lox.spool(jax.grad(f))(1.0)
    assert logs["fwd"].tolist() == [1, 2, 8]
    # the cotangents come in the order of the backward pass
    assert logs["bwd"].tolist() == [3, 42, 294]
    assert grad == jax.grad(lox.nolog(f))(1.0)


def test_custom_linear_solve_logs_events_of_its_solver():
    def f(b):
        def solve(matvec, b):
            return logged(b, "b") / logged(matvec(jnp.ones_like(b)), "a")

        return lax.custom_linear_solve(
            lambda x: logged(x, "x") * 4, b, solve, symmetric=True
        ).sum()

    y, logs = lox.spool(f)(jnp.array([8.0]))
    assert y == 2 and logs["b"].tolist() == [8] and logs["a"].tolist() == [4]
    (y, logs), grad = jax.value_and_grad(lox.spool(f), has_aux=True)(jnp.array([8.0]))
    assert grad.tolist() == [0.25] and logs["b"].tolist() == [8]
    assert jax.grad(lox.nolog(f))(jnp.array([8.0])).tolist() == [0.25]
    assert [list(c) for c in tapped(f, jnp.array([8.0]))] == [["x"], ["a"], ["b"]] or [
        list(c) for c in tapped(f, jnp.array([8.0]))
    ] == [["b"], ["x"], ["a"]]


def test_custom_root_logs_events_of_its_solver():
    def f(a):
        def solve(g, x):
            return x - logged(g(x), "residual") / 2.0

        return lax.custom_root(lambda x: 2 * x - a, 0.0, solve, lambda g, y: y / g(1.0))

    y, logs = lox.spool(f)(4.0)
    assert y == 2 and logs == {"residual": -4.0}
    assert rows(tapped(f, 4.0), "residual") == [-4]
    (y, logs), grad = jax.value_and_grad(lox.spool(f), has_aux=True)(4.0)
    assert (y, grad) == (2, 0.5) and logs == {"residual": -4.0}
    assert jax.grad(lox.nolog(f))(4.0) == 0.5


def test_custom_vmap_logs_unless_its_rule_replaces_the_function():
    from jax.custom_batching import custom_vmap

    @custom_vmap
    def f(x):
        return logged(x) * 2

    @f.def_vmap
    def _(axis_size, in_batched, x):
        return logged(x, "batch") * 2, in_batched[0]

    assert spooled(f, 1.0) == {"x": 1.0}
    assert spooled(jax.vmap(f), jnp.arange(2.0))["batch"].tolist() == [0, 1]
    with pytest.raises(lox.UnsupportedPrimitiveError, match="after `jax.vmap`, not"):
        jax.vmap(lox.spool(f))(jnp.arange(2.0))
    calls = []
    assert jax.vmap(lox.tap(f, calls.append))(jnp.arange(2.0)).tolist() == [0, 2]
    jax.effects_barrier()
    assert rows(calls, "batch") == [[0, 1]]


# --- derivatives -------------------------------------------------------------


@pytest.mark.parametrize(
    "derivative",
    [
        jax.grad,
        jax.value_and_grad,
        jax.jacfwd,
        jax.jacrev,
        lambda f: jax.grad(jax.grad(f)),
        lambda f: jax.jacfwd(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: lambda w: jax.jvp(f, (w,), (1.0,)),
        lambda f: lambda w: jax.linearize(f, w)[1](1.0),
        lambda f: lambda w: jax.vjp(f, w)[1](1.0),
    ],
    ids=str.split(
        "grad value_grad jacfwd jacrev grad_grad hessian jit remat jvp linearize vjp"
    ),
)
def test_derivative_logs_events_of_function_including_constants(derivative):
    plain = spooled(model, 0.5)
    assert plain["lr"].shape == (4,)
    for logs in (
        spooled(derivative(model), 0.5),
        jax.jit(lox.spool(derivative(model)))(0.5)[1],
    ):
        for lane in logs.lanes():
            for key in plain:
                np.testing.assert_allclose(lane[key], plain[key], rtol=1e-6)
                assert lane.step[key].tolist() == [0, 1, 2, 3]
    result = jax.tree.leaves(derivative(lox.nolog(model))(0.5))
    assert jax.tree.leaves(lox.spool(derivative(model))(0.5)[0]) == result


def test_constant_logged_in_jit_in_nested_scan_is_not_hoisted():
    log_lr = jax.jit(lambda lr: lox.log({"lr": lr})["lr"])

    def f(w):
        def inner(c, _):
            log_lr(0.5)
            return c, None

        def outer(c, _):
            lax.scan(inner, 0, None, length=2)
            return c * w, None

        return lax.scan(outer, 1.0, None, length=3)[0]

    assert spooled(jax.grad(f), 2.0)["lr"].shape == (6,)
    assert len(tapped(jax.grad(f), 2.0)) == 6


def test_differentiated_scan_with_constant_body_logs_every_iteration():
    def f(w):
        def body(_, __):
            lox.log({"lr": 0.5})
            return None, w * 2

        return lax.scan(body, None, None, length=3)[1].sum()

    assert spooled(f, 1.0)["lr"].shape == (3,)
    gradient, logs = lox.spool(jax.grad(f))(1.0)
    assert gradient == 6.0 and logs["lr"].tolist() == [0.5] * 3


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_differentiated_scan_with_unchanged_carry_logs_every_iteration(
    around, reverse, length
):
    def f(x):
        def body(c, _):
            lox.log({"c": c})
            return c, c * 2

        c, ys = lax.scan(body, x, None, length=length, reverse=reverse)
        return c + ys.sum()

    differentiated = jax.grad(around(f))
    gradient, logs = lox.spool(differentiated)(1.5)
    assert gradient == 1 + 2 * length
    assert logs["c"].tolist() == [1.5] * length
    seen = []
    lox.tap(jax.vmap(differentiated), seen.append)(jnp.array([1.5, 2.5]))
    assert [logs["c"] for logs in seen] == [1.5, 2.5] * length
    _, tangent = jax.jvp(lox.nolog(f), (1.5,), (1.0,))
    assert tangent == gradient
