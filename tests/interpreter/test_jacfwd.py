"""`jacfwd`, `hessian` and nested Jacobians log what the function logs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.interpreter.programs_that_log import every_way, logged, printed, rows, tapped


def loss(x):
    lox.log({"loss": (x**2).sum()}, step=3)
    return (x**2).sum()


def loops(x):
    def body(c, i):
        lox.log({"loss": c.sum(), "constant": 0.5})
        return jnp.sin(c) * i, None

    x, _ = lax.scan(body, x, jnp.arange(1.0, 3))
    x = lax.cond(x.sum() > 0, lambda x: logged(x, "positive"), lambda x: x * 2, x)
    return lax.while_loop(lambda x: x.sum() < 9, lambda x: logged(x, "loop") + 5, x)


def lanes_inside(x):
    return jax.vmap(lambda v: logged(v, "lane") ** 2)(x).sum()


@jax.custom_jvp
def with_rule(x):
    return logged(x, "x").sum() ** 2


@with_rule.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    lox.log({"rule": x})
    return with_rule(x), 2 * x.sum() * t.sum()


PROGRAMS = [loss, loops, lanes_inside, with_rule]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
def test_jacfwd_logs_events_of_function(f, around):
    x = jnp.array([1.0, 2.0, 3.0])
    g = around(f)
    along = functools.partial(jax.jvp, g, (x,))
    expected = tapped(lambda t: along((t,)), jnp.ones(3))
    for derivative in (jax.jacfwd(g), jax.jit(jax.jacfwd(g))):
        found = tapped(derivative, x)
        for key in {key for call in expected for key in call}:
            assert rows(found, key) == rows(expected, key)
    plain = lox.spool(lambda t: along((t,)))(jnp.ones(3)) if f is not loops else None
    if plain is not None:
        logs = lox.spool(jax.jacfwd(g))(x)[1]
        assert logs.keys() == plain[1].keys()
        for key in logs:
            np.testing.assert_array_equal(logs[key], plain[1][key])
    np.testing.assert_allclose(jax.jacfwd(g)(x), jax.jacfwd(lox.nolog(f))(x), rtol=1e-6)


def test_hessian_and_nested_jacobians_log_events_of_function():
    x = jnp.arange(3.0)
    for derivative in (
        jax.hessian(loss),
        jax.jacfwd(jax.jacfwd(loss)),
        jax.jacrev(jax.jacfwd(loss)),
        jax.jit(jax.hessian(jax.jit(loss))),
    ):
        for found in every_way(derivative, x):
            assert found == [{"loss": 5.0}]
        logs = lox.spool(derivative)(x)[1]
        assert logs == {"loss": 5.0} and logs.step["loss"] == 3
        np.testing.assert_allclose(derivative(x), 2 * np.eye(3))


def test_jacfwd_keeps_lanes_around_and_inside():
    xs = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    assert rows(tapped(jax.vmap(jax.jacfwd(loss)), xs), "loss") == [5, 25]
    assert lox.spool(jax.vmap(jax.jacfwd(loss)))(xs)[1]["loss"].tolist() == [5, 25]
    assert jax.vmap(lox.spool(jax.jacfwd(loss)))(xs)[1]["loss"].tolist() == [5, 25]
    assert rows(tapped(jax.jacfwd(lanes_inside), xs[0]), "lane") == [1, 2]


@pytest.mark.parametrize("check_vma", [True, False])
def test_jacfwd_of_shard_map_logs_once_per_device(check_vma):
    @jax.shard_map(
        mesh=jax.sharding.Mesh(jax.devices()[:2], "d"),
        in_specs=jax.P("d"),
        out_specs=jax.P("d"),
        check_vma=check_vma,
    )
    def f(x):
        lox.log({"x": x.sum()})
        return lax.scan(lambda x, i: (logged(x * i, "loop"), None), x, jnp.ones(2))[0]

    x = jnp.arange(4.0)
    for derivative in (jax.jacfwd(f), jax.hessian(lambda x: (f(x) ** 3).sum())):
        for found in every_way(derivative, x):
            assert sorted(rows(found, "x")) == [1, 5]
            assert sorted(rows(found, "loop")) == [[0, 1], [0, 1], [2, 3], [2, 3]]
        logs = lox.spool(derivative)(x)[1]
        assert logs["x"].tolist() == [1, 5] and logs["loop"].shape == (2, 2, 2)
    np.testing.assert_allclose(jax.jacfwd(f)(x), np.eye(4))


def test_vmap_of_jvp_keeps_lanes():
    def pushed(t):
        return jax.jvp(loss, (jnp.ones(2),), (t,))[1]

    assert rows(tapped(jax.vmap(pushed), jnp.eye(2)), "loss") == [2, 2]


def test_jacfwd_of_transformed_function_transforms_once():
    x = jnp.arange(3.0)
    calls = []
    jax.jacfwd(lox.tap(loss, calls.append))(x)
    jax.effects_barrier()
    assert calls == [{"loss": 5.0}]
    logs = jax.jacfwd(lox.spool(loss), has_aux=True)(x)[1]
    assert logs == {"loss": 5.0}
    with printed() as seen:
        jax.jacfwd(lox.nolog(loss))(x)
    assert seen == []


def test_jacfwd_logs_tangents_of_rule_per_direction():
    @jax.custom_jvp
    def f(x):
        return x.sum()

    f.defjvp(lambda p, t: (f(*p), logged(t[0], "tangent").sum()))
    found = rows(tapped(jax.jacfwd(f), jnp.ones(2)), "tangent")
    assert found == [[1, 0], [0, 1]]


def test_jacfwd_raises_where_its_patch_is_missing(monkeypatch):
    from lox._jax import early_patches, patches

    def unmarked(x):
        return jax.vmap(lambda v: logged(v, "v"))(x).sum()

    monkeypatch.setitem(patches._missing, early_patches.JACFWD, "it is gone")
    with pytest.raises(lox.UnsupportedJaxError, match=r"'v'.*jacfwd.*jacrev"):
        jax.jacfwd(unmarked)(jnp.ones(2))
    assert tapped(unmarked, jnp.ones(2)) == [{"v": 1.0}, {"v": 1.0}]


def test_jacfwd_of_a_vmapped_while_loop_logs_each_iteration_once():
    def double(x):
        def body(x):
            lox.log({"x": x})
            return 2.0 * x

        return jax.lax.while_loop(lambda x: x < 4.0, body, x)

    def total(x):
        return jax.vmap(double)(x + jnp.array([0.0, 2.0])).sum()

    expected = lox.spool(total, capacity=9)(1.0)[1]
    assert [lane.compact()["x"].tolist() for lane in expected.lanes()] == [[1, 2], [3]]
    for derivative in (jax.jacfwd(total), jax.jacfwd(jax.jacfwd(total))):
        value, logs = lox.spool(derivative, capacity=9)(1.0)
        assert str(logs) == str(expected)
    assert lox.spool(jax.jacfwd(total), capacity=9)(1.0)[0] == 6.0
