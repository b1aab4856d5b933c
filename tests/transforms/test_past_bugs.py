"""Bugs of an earlier logging library that lox must not have."""

import pickle

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox


def scanned(x, n=4, **options):
    def step(c, i):
        lox.log({"x": c + i}, step=i, **options)
        return c, None

    return lax.scan(step, x, jnp.arange(n))[0]


def test_spool_does_not_change_the_jitted_function():
    f = jax.jit(scanned)
    before = str(jax.make_jaxpr(f)(1))
    lox.spool(f)(1), lox.tap(f, lambda logs: None)(1), lox.nolog(f)(1)
    assert str(jax.make_jaxpr(f)(1)) == before


def test_spooled_jit_can_be_called_twice():
    f = jax.jit(scanned)
    _, logs = lox.spool(lambda x: f(f(x)))(1)
    assert logs["x"].tolist() == [1, 2, 3, 4] * 2


def test_tap_callbacks_do_not_accumulate():
    calls = []
    for _ in range(3):
        lox.tap(scanned, calls.append)(1)
    f = jax.jit(lox.tap(scanned, calls.append))
    f(1), f(1)
    jax.effects_barrier()
    assert len(calls) == 5 * 4


def test_log_after_cond_keeps_its_key():
    def f(x):
        def positive(x):
            lox.log({"b": x})
            lox.log({"a": -x})
            return x

        def negative(x):
            lox.log({"a": x * 10})
            lox.log({"b": x * 100})
            return x

        lox.log({"c": x})
        y = lax.cond(x > 0, positive, negative, x)
        lox.log({"d": y + 1})
        return y

    assert lox.spool(f)(1.0)[1] == {"c": 1.0, "b": 1.0, "a": -1.0, "d": 2.0}
    assert lox.spool(f)(-1.0)[1] == {"c": -1.0, "a": -10.0, "b": -100.0, "d": 0.0}


def test_spool_under_vmap_has_lane_and_time_axes():
    assert lox.spool(jax.vmap(scanned))(jnp.arange(3))[1]["x"].shape == (4, 3)
    assert jax.vmap(lox.spool(scanned))(jnp.arange(3))[1]["x"].shape == (3, 4)


def test_steps_are_as_long_as_values():
    def f(x):
        lox.log({"x": x}, step=-1)
        scanned(x)
        return scanned(x, 2)

    for g in (f, jax.vmap(f)):
        _, logs = lox.spool(g)(jnp.ones(3, int) if g is not f else 1)
        assert logs.step["x"].shape == logs["x"].shape
        assert logs["x"].shape[0] == 7


def test_reduce_keeps_axes_of_value():
    def f(x):
        def step(c, i):
            lox.log({"v": jnp.arange(5.0) * i})
            return c, None

        return lax.scan(step, x, jnp.arange(3))[0]

    assert lox.spool(f, reduce="mean")(1)[1]["v"].tolist() == [0, 1, 2, 3, 4]


def test_logdicts_of_nested_dicts_can_be_joined():
    def f(x):
        lox.log({"n": {"a": {"b": x}, "c": [x, x + 1]}})
        lox.log({"n": {"a": {"b": x * 2}, "c": [x, x]}})
        return x

    _, logs = lox.spool(f)(1)
    assert logs["n"]["a"]["b"].tolist() == [1, 2]
    assert (logs + logs)["n"]["c"][1].tolist() == [2, 1, 2, 1]


def test_floats_are_not_rounded_to_ints_of_another_call():
    def f(x):
        lox.log({"x": jnp.float32(1.5)})
        lox.log({"x": jnp.int32(2)})
        return x

    with pytest.raises(lox.DtypeError):
        lox.spool(f)(1)


def test_prefix_is_kept_in_scan():
    def f(x):
        return scanned(x, prefix="p/")

    assert list(lox.spool(f)(1)[1]) == ["p/x"]


def test_argnames_string_does_not_match_its_letters():
    def f(x):
        lox.log({"a": x, "c": x})
        return x

    with pytest.warns(lox.LoxWarning, match="'ca'.*available: 'a', 'c'"):
        assert lox.spool(f, argnames="ca")(1)[1] == {}


def test_logdict_can_be_pickled():
    _, logs = lox.spool(scanned)(1)
    again = pickle.loads(pickle.dumps(logs))
    assert again == logs and again.step["x"].tolist() == [0, 1, 2, 3]
