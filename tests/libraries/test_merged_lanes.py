"""Predicates that `eqxi.unvmap_any`, `unvmap_all` and `unvmap_max` merge over lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.equinox_programs import (
    KINDS,
    alone,
    eqxi,
    rows_per_lane,
)

XS = jnp.array([0.0, 2.0, 3.0])
# JAX batches the functions of these while lox can still see which lane is which
WAYS = {
    "vmap(spool)": lambda f, **o: jax.vmap(lox.spool(f, **o)),
    "spool(vmap(jit))": lambda f, **o: lox.spool(jax.vmap(jax.jit(f)), **o),
}


def log(key, x):
    lox.log({key: x})
    return x


def nothing(x):
    return x


def high(x):
    return log("high", x)


def low(x):
    return log("low", x)


def assert_same_as_alone(fun, xs=XS):
    expected = alone(fun, xs)
    assert any(expected)
    for way in WAYS.values():
        assert rows_per_lane(way(fun, capacity=20)(xs)[1]) == expected


# --- events that a lane would not log alone -----------------------------------


def test_branch_that_a_lane_takes_because_of_another_logs_nothing():
    for fun in (
        lambda x: jax.lax.cond(eqxi.unvmap_any(x > 1), high, nothing, x),
        lambda x: jax.lax.cond(eqxi.unvmap_all(x > 1), nothing, low, x),
        lambda x: jax.lax.cond(~eqxi.unvmap_any(x > 1), nothing, high, x),
        lambda x: jax.lax.switch(
            eqxi.unvmap_max(x.astype(int)), [nothing, nothing, nothing, high], x
        ),
    ):
        assert_same_as_alone(fun)


def test_when_of_merged_lanes_is_that_of_each_lane():
    def once(x):
        lox.log({"x": x}, when=eqxi.unvmap_any(x > 1))
        lox.log({"y": x}, when=eqxi.unvmap_all(x > 1))

    def elements(x):
        when = eqxi.unvmap_any(x > 1) & (jnp.arange(3) > 0)
        lox.log({"x": x * jnp.arange(3.0)}, when=when)

    def inside(x):
        merged = eqxi.unvmap_any(x > 1)

        @jax.jit
        def step(total, i):
            lox.log({"total": total}, when=merged & (i > 0))
            return total + x, None

        jax.lax.scan(step, 0.0, jnp.arange(3))

    for fun in (once, elements, inside):
        assert_same_as_alone(fun)


def test_when_of_merged_cotangents_is_that_of_each_lane():
    def fun(x):
        return lox.log_grad("dx", x, when=eqxi.unvmap_any(x > 1)) ** 2

    assert_same_as_alone(jax.grad(fun))


def test_lane_whose_loop_has_ended_does_not_log_again():
    def fun(x):
        def running(x):
            return eqxi.unvmap_any((x % 5 != 0) & (x < 12))

        return jax.lax.while_loop(running, lambda x: log("x", x) + 1, x)

    assert_same_as_alone(fun, jnp.array([4.0, 2.0, 8.0]))


def test_condition_of_a_loop_that_has_ended_does_not_log_again():
    def fun(x):
        def running(x):
            return eqxi.unvmap_any((log("c", x) % 5 != 0) & (x < 12))

        return jax.lax.while_loop(running, lambda x: x + 1, x)

    assert_same_as_alone(fun, jnp.array([4.0, 2.0, 8.0]))


# --- events that a lane would log alone, but does not run ----------------------


def counted(start):
    def fun(x):
        first = jnp.where(eqxi.unvmap_any(x > 1), *start)
        last = jnp.where(x > -1, 4, 0)
        return jax.lax.fori_loop(first, last, lambda i, x: x + log("i", i), x)

    return fun


@pytest.mark.parametrize(
    ("fun", "key"),
    [
        (lambda x: jax.lax.cond(eqxi.unvmap_any(x > 1), nothing, low, x), "low"),
        (lambda x: jax.lax.cond(eqxi.unvmap_any(x > 1), high, low, x), "low"),
        (lambda x: jax.lax.cond(eqxi.unvmap_all(x > 1), high, nothing, x), "high"),
        (lambda x: jax.lax.cond(~eqxi.unvmap_any(x > 1), high, nothing, x), "high"),
        (
            lambda x: jax.lax.cond(
                jnp.sin(eqxi.unvmap_max(x.astype(int))) > 0.5, high, nothing, x
            ),
            "high",
        ),
        (
            lambda x: jax.lax.while_loop(
                lambda x: eqxi.unvmap_all(x < 5), lambda x: log("x", x) + 1, x
            ),
            "x",
        ),
        (counted((2, 0)), "i"),
    ],
    ids=["any", "both", "all", "not any", "unknown", "loop", "start"],
)
def test_event_that_a_lane_may_miss_because_of_another_is_refused(fun, key):
    assert any(alone(fun, XS))
    message = rf"'{key}', logged at .*\.py:\d+, .*because of another lane.*when="
    for way in WAYS.values():
        with pytest.raises(lox.UnsupportedPrimitiveError, match=message):
            way(fun, capacity=20)(XS)


def test_loop_that_starts_early_because_of_another_lane_logs_its_own_steps():
    assert_same_as_alone(counted((0, 2)))


# --- lanes that are reduced before lox sees the program ------------------------


def test_event_that_depends_on_reduced_lanes_is_refused():
    def branch(x):
        return jax.lax.cond(eqxi.unvmap_any(x > 1), high, nothing, x)

    def conditional(x):
        lox.log({"high": x}, when=eqxi.unvmap_any(x > 1))
        return x

    message = r"'high', logged at .*\.py:\d+, .*jax\.vmap\(lox\.spool\(f\)\)"
    for fun in (branch, conditional):
        with pytest.raises(lox.LoxValueError, match=message):
            lox.spool(jax.vmap(fun))(XS)
        np.testing.assert_array_equal(lox.nolog(jax.vmap(fun))(XS), XS)


def test_value_of_merged_lanes_is_logged_as_it_is():
    def fun(x):
        lox.log({"largest": eqxi.unvmap_max(x.astype(int))})

    for way in (*WAYS.values(), lambda f: lox.spool(jax.vmap(f))):
        assert [lane["largest"] for lane in rows_per_lane(way(fun)(XS)[1])] == [3] * 3


# --- observed loops ------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_iterations_that_a_lane_runs_because_of_another_are_not_counted(kind):
    def fun(x):
        def body(carry):
            i, y = carry
            return i + 1, jnp.where(i == 0, y, jnp.tanh(y) + i)

        first = jnp.where(eqxi.unvmap_any(x > 2), 0, 1)
        options = {} if kind == "lax" else {"max_steps": 8}
        if kind == "bounded":
            options["base"] = 8
        cond = lambda carry: carry[0] < x + 1  # noqa: E731
        return eqxi.while_loop(cond, body, (first, 1.0), kind=kind, **options)[1]

    observed = lox.observe(fun, outputs={"tanh": True})
    expected = [lox.spool(observed, capacity=20)(x)[1] for x in XS]
    assert [len(logs.get("tanh", ())) for logs in expected] == [0, 2, 4]
    for way in WAYS.values():
        lanes = way(observed, capacity=20)(XS)[1].lanes()
        for lane, one in zip(lanes, expected, strict=True):
            lane = lane.compact()
            assert lane.keys() == one.keys()
            for key in one:
                np.testing.assert_allclose(lane[key], one[key], rtol=1e-6)
                np.testing.assert_array_equal(lane.iteration[key], one.iteration[key])
