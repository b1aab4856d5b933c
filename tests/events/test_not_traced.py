"""Events outside the traced program are collected or reported."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import lox

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def host(x):
    lox.log({"host": x})
    return np.float32(x)


class Host:
    def method(self, x):
        return host(x)


def pure(x):
    return jax.pure_callback(host, SCALAR, x, vmap_method="sequential")


def ordered(x):
    return io_callback(host, SCALAR, x, ordered=True)


def debugged(x):
    jax.debug.callback(host, x)
    return x


def of_a_method(x):
    return jax.pure_callback(Host().method, SCALAR, x)


def of_a_partial(x):
    return jax.pure_callback(functools.partial(lambda _, x: host(x), 0), SCALAR, x)


def in_a_loop(x):
    return lax.scan(lambda c, _: (jax.jit(pure)(c), None), x, None, length=1)[0]


@pytest.mark.parametrize(
    "fun", [pure, ordered, debugged, of_a_method, of_a_partial, in_a_loop]
)
@pytest.mark.parametrize(
    "transform",
    [
        lox.spool,
        lambda f: lox.tap(f, lambda logs: None),
        lox.nolog,
        lambda f: jax.jit(lox.spool(f)),
    ],
    ids=["spool", "tap", "nolog", "jit"],
)
def test_event_in_host_function_is_reported(fun, transform, capsys):
    with pytest.warns(lox.LoxWarning, match="'host', logged at .*host function") as all:
        for _ in range(2):
            transform(fun)(1.0)
            jax.effects_barrier()
    place = __file__, host.__code__.co_firstlineno + 1
    assert {(warning.filename, warning.lineno) for warning in all} == {place}
    assert capsys.readouterr().out == "{'host': 1.0}\n" * 2


def test_event_in_host_function_is_reported_once_per_line():
    lox.set_default("silent")
    f = lox.spool(lambda x: jax.pure_callback(lambda x: host(x), SCALAR, x))
    with warnings.catch_warnings(action="default", record=True) as caught:
        for _ in range(3):
            f(1.0)
    assert len(caught) <= 1  # no warning if another test has caused it already


def test_host_function_outside_transformations_logs_as_usual(capsys):
    def own(x):
        return host(x)

    def f(x):
        return jax.pure_callback(own, SCALAR, x)

    f(1.0)
    jax.jit(f)(2.0)
    lox.spool(lambda x: x)(3.0)
    with pytest.warns(lox.LoxWarning):
        lox.spool(f)(4.0)
    own(5.0)  # no callback got them
    expected = "".join(f"{{'host': {i}.0}}\n" for i in (1, 2, 4, 5))
    assert capsys.readouterr().out == expected


# --- compile-time evaluation -----------------------------------------------


def at_compile_time(x):
    with jax.ensure_compile_time_eval():
        table = jnp.arange(3.0)
        lox.log({"sum": table.sum(), "n": 3}, step=jnp.argmax(table))
    return x * table[1]


def looped(x):
    return lax.scan(lambda c, _: (at_compile_time(c), None), x, None, length=3)[0]


def branched(x):
    return lax.cond(x > 0, at_compile_time, lambda x: x, x)


def logs_of(fun, x):
    """What a plain Python run logs."""
    calls = []
    lox.set_default(calls.append)
    with jax.disable_jit():
        fun(x)
    lox.set_default("print")
    return calls


@pytest.mark.parametrize(
    "fun", [at_compile_time, jax.jit(at_compile_time), looped, branched]
)
def test_event_under_compile_time_eval_is_collected(fun, capsys):
    expected = logs_of(fun, 1.0)
    count = len(expected)
    for _ in range(2):  # also when it is not traced again
        calls = []
        lox.tap(fun, calls.append)(1.0)
        assert calls == expected
        for derivative in (fun, jax.grad(fun)):
            logs = lox.spool(derivative)(1.0)[1]
            assert jnp.ravel(logs["sum"]).tolist() == [3.0] * count
            assert jnp.ravel(logs["n"]).tolist() == [3] * count
            assert jnp.ravel(logs.step["sum"]).tolist() == [2] * count
        lanes = lox.spool(jax.vmap(fun))(jnp.ones(2))[1].lanes()
        assert [jnp.ravel(lane["sum"]).tolist() for lane in lanes] == [
            [3.0] * count
        ] * 2
        lox.nolog(fun)(1.0)
    assert capsys.readouterr().out == ""
    jitted = jax.jit(fun)
    for _ in range(2):
        jitted(1.0)
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'sum': 3.0, 'n': 3}\n" * 2 * count


def test_tap_under_compile_time_eval_delivers_events():
    calls = []

    @jax.jit
    def f(x):
        with jax.ensure_compile_time_eval():
            y, logs = lox.spool(lambda y: (lox.log({"y": y}), y)[1])(3.0)
            assert logs["y"] == y == 3.0
            lox.tap(lambda y: (lox.log({"y": y}), y)[1], calls.append)(3.0)
        return x * y

    assert [float(f(1.0)), float(f(2.0))] == [3.0, 6.0]
    jax.effects_barrier()
    assert calls == [{"y": 3.0}] * 2


def test_program_that_runs_at_compile_time_reports_its_events(capsys):
    def inner(y):
        lox.log({"inner": y})
        return y + 1

    def f(x):
        with jax.ensure_compile_time_eval():
            table = jax.jit(inner)(3.0)
            count = lax.scan(lambda c, _: (inner(c), None), 0.0, None, length=2)[0]
            assert (table, count) == (4.0, 2.0)
        return x * table

    with pytest.warns(lox.LoxWarning, match="'inner'.*ensure_compile_time_eval") as all:
        assert lox.spool(f)(1.0) == (4.0, {})
    assert {w.lineno for w in all} == {inner.__code__.co_firstlineno + 1}
    jax.effects_barrier()
    assert capsys.readouterr().out == "".join(
        f"{{'inner': {value}.0}}\n" for value in (3, 0, 1)
    )


def test_program_with_traced_inputs_is_collected_under_compile_time_eval():
    def inner(y):
        lox.log({"inner": y})
        return y + 1

    def f(x):
        with jax.ensure_compile_time_eval():
            return jax.jit(inner)(x)

    assert lox.spool(f)(1.0) == (2.0, {"inner": 1.0})
