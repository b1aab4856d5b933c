"""`logify`: the imperative API."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logify
import lox


def values(logs):
    return jax.tree.map(lambda x: np.asarray(x).tolist(), logs.asdict())


def test_logify_example_prints_as_shown(capsys):
    @jax.jit
    @logify.logify
    def f(a, b):
        logify.log("b", b, reduction="mean")
        logify.log("b", b + 1, reduction="mean")
        logify.log("b", b + 1, reduction="mean")
        x = jnp.sum(a + b)
        logify.log("y", x**2 - 1)
        logify.log("y", x**2)
        return x

    out, logs = f(jnp.arange(3), jnp.zeros(3))
    print(out)
    print(json.dumps(logs.asdict(), indent=2, default=str))
    expected = """3.0
{
  "b": {
    "mean": "[0.6666667 0.6666667 0.6666667]"
  },
  "y": {
    "replace": "9.0"
  }
}
"""
    assert capsys.readouterr().out == expected


def test_log_without_logify_does_nothing(capsys):
    def f(x):
        logify.log("x", x)
        return x + 1

    assert f(1) == 2
    assert jax.jit(f)(1) == 2
    assert jax.grad(f)(1.0) == 1
    jax.effects_barrier()
    assert capsys.readouterr().out == ""
    assert "callback" not in jax.jit(f).lower(1).as_text()


ALL = {
    "replace": 5.0,
    "append": [1.0, 4.0, 5.0],
    "mean": 10 / 3,
    "sum": 10.0,
    "min": 1.0,
    "max": 5.0,
    "first": 1.0,
    "last": 5.0,
    "count": 3,
    "std": np.std([1, 4, 5]),
    "var": np.var([1, 4, 5]),
}


def logs_all(x):
    for name in ALL:
        logify.log("x", x, reduction=name)


def in_scan(xs):
    return lax.scan(lambda c, x: (logs_all(x), (c, None))[1], 0.0, xs)[0]


def in_while(xs):
    def body(i):
        logs_all(xs[i])
        return i + 1

    return lax.while_loop(lambda i: i < len(xs), body, 0)


def unrolled(xs):
    for x in xs:
        logs_all(x)


def in_cond(xs):
    def one(x):
        return lax.cond(x > 0, lambda x: (logs_all(x), x)[1], lambda x: x, x)

    return lax.map(one, jnp.concatenate([jnp.zeros(1), xs]))


@pytest.mark.parametrize("fun", [unrolled, in_scan, in_while, in_cond])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_reductions_work_in_loops_branches_and_transformations(fun, wrap):
    xs = jnp.array([1.0, 4.0, 5.0])
    _, logs = wrap(logify.logify(fun, capacity=8))(xs)
    found = logs.asdict()["x"]
    assert found.keys() == ALL.keys()
    for name, expected in ALL.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_custom_reduction_has_its_own_result():
    product = lox.Reduction(1.0, lambda state, x: state * x)
    power = lox.Reduction(2.0, lambda state, x: state**x)

    def f(xs):
        def body(c, x):
            logify.log("x", x, reduction=product)
            logify.log("x", x, reduction=power)
            return c, None

        return lax.scan(body, 0.0, xs)[0]

    found = logify.logify(f)(jnp.array([2.0, 3.0]))[1].asdict()
    assert found["x"][product] == 6 and found["x"][power] == 64


def test_logify_works_inside_jit_grad_and_vmap():
    @logify.logify
    def f(x):
        logify.log("x", x)
        logify.log("square", x**2, reduction="append")
        return x**3

    assert values(jax.jit(f)(2.0)[1]) == {
        "x": {"replace": 2.0},
        "square": {"append": [4.0]},
    }
    gradient, logs = jax.grad(f, has_aux=True)(2.0)
    assert gradient == 12 and values(logs)["x"] == {"replace": 2.0}
    result, logs = jax.vmap(f)(jnp.array([1.0, 2.0]))
    assert result.tolist() == [1, 8]
    assert values(logs) == {
        "x": {"replace": [1.0, 2.0]},
        "square": {"append": [[1.0], [4.0]]},
    }


def test_logify_works_outside_jit_grad_and_vmap():
    def f(x):
        logify.log("x", x)
        return x**3

    assert values(logify.logify(jax.jit(f))(2.0)[1]) == {"x": {"replace": 2.0}}
    gradient, logs = logify.logify(jax.grad(f))(2.0)
    assert gradient == 12 and values(logs) == {"x": {"replace": 2.0}}
    logs = logify.logify(jax.vmap(f))(jnp.array([1.0, 2.0]))[1]
    assert values(logs) == {"x": {"replace": [1.0, 2.0]}}


def test_asdict_omits_values_that_were_never_logged():
    @logify.logify
    def f(x):
        return lax.cond(x > 0, lambda x: (logify.log("x", x), x)[1], lambda x: x, x)

    assert values(f(1.0)[1]) == {"x": {"replace": 1.0}}
    assert f(-1.0)[1].asdict() == {}
    assert jax.jit(f)(-1.0)[1].asdict() == {}


@pytest.mark.parametrize("reduction, first", [("mean", {}), ("append", {})])
@pytest.mark.parametrize("around", [True, False])
def test_asdict_separates_lanes_that_logged_differently(reduction, first, around):
    def f(x):
        lax.cond(x > 1, lambda: logify.log("x", x, reduction=reduction), lambda: None)
        return x

    mapped = jax.vmap(logify.logify(f)) if around else logify.logify(jax.vmap(f))
    _, logs = mapped(jnp.array([0.5, 2.0]))
    with pytest.raises(lox.LoxValueError, match=r"'x'.*lane.asdict\(\) for lane in"):
        logs.asdict()
    lanes = [values(lane) for lane in logs.lanes()]
    wanted = 2.0 if reduction == "mean" else [2.0]
    assert lanes == [first, {"x": {reduction: wanted}}]
    assert "-" in repr(logs)


def test_asdict_in_trace_raises_error_with_remedy():
    @jax.jit
    def f(x):
        return logify.logify(
            lambda x: lax.cond(x > 1, lambda: logify.log("x", x), lambda: None)
        )(x)[1].asdict()

    with pytest.raises(lox.LoxTypeError, match=r"`asdict`.*outside `jax.jit`"):
        f(1.0)


def both(x):
    lox.log({"lox": x})
    logify.log("logify", x)
    return x + 1


def test_lox_and_logify_events_do_not_mix(capsys):
    (result, logs), of_lox = lox.spool(logify.logify(both))(1.0)
    assert result == 2 and values(logs) == {"logify": {"replace": 1.0}}
    assert of_lox == {"lox": 1.0}
    (_, of_lox), logs = logify.logify(lox.spool(both))(1.0)
    assert of_lox == {"lox": 1.0} and values(logs) == {"logify": {"replace": 1.0}}
    assert lox.spool(both)(1.0)[1] == {"lox": 1.0}
    calls = []
    lox.tap(both, calls.append)(1.0)
    assert calls == [{"lox": 1.0}]
    assert values(logify.logify(lox.nolog(both))(1.0)[1]) == values(logs)
    jax.effects_barrier()
    assert capsys.readouterr().out == ""
    # an event of lox that is not collected prints, as without logify
    logify.logify(both)(1.0)
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'lox': 1.0}\n"


def test_inner_logify_consumes_its_events():
    @logify.logify
    def inner(x):
        logify.log("x", x)
        return x

    @logify.logify
    def outer(x):
        y, logs = inner(x)
        logify.log("y", logs.asdict()["x"]["replace"] + 1)
        return y

    _, logs = outer(1.0)
    assert values(logs) == {"y": {"replace": 2.0}}


def test_bad_input_raises_error_with_remedy():
    with pytest.raises(lox.LoxTypeError, match=r'must be a string: `logify.log\("loss'):
        logify.log(3, 1.0)
    with pytest.raises(lox.LoxValueError, match="`logify.log` at .*'median'; it must"):
        logify.log("x", 1.0, reduction="median")
    with pytest.raises(lox.LoxValueError, match="unknown reduction None"):
        logify.log("x", 1.0, reduction=None)
    with pytest.raises(lox.LoxTypeError, match="`logify.log` at .*test_logify.*'na"):
        logify.log("x", "name")
    with pytest.raises(lox.LoxTypeError, match=r"`logify.logify\(f\)\(x\)`"):
        logify.logify(3)
    with pytest.raises(lox.LoxValueError, match="`capacity` of `logify.logify`"):
        logify.logify(in_while, capacity=0)
    with pytest.raises(lox.UnboundedLoopError, match=r"x \(append\).*capacity="):
        logify.logify(in_while)(jnp.ones(3))


def test_capacity_reports_values_beyond_it():
    _, logs = logify.logify(in_while, capacity=2)(jnp.arange(3.0))
    with pytest.warns(lox.LoxWarning, match=r"dropped: 1 row of 'x \(append\)'"):
        assert logs.asdict()["x"]["append"].tolist() == [0, 1]


def test_name_logged_with_different_shapes_raises():
    def f(x):
        logify.log("x", x, reduction="mean")
        logify.log("x", jnp.stack([x, x]), reduction="mean")

    with pytest.raises(lox.ShapeError, match=r"'x \(mean\)'"):
        logify.logify(f)(1.0)


def test_logs_are_printed_like_their_dict():
    _, logs = logify.logify(both)(1.0)
    assert repr(logs) == "{'logify': {'replace': 1.0}}"


def test_logify_is_a_decorator_with_options():
    @logify.logify(static_argnums=1)
    def f(x, name):
        logify.log(name, x)

    assert values(f(1.0, "a")[1]) == {"a": {"replace": 1.0}}


def test_exported_program_returns_same_logs_after_serialization():
    def f(x):
        logify.log("x", x, reduction="mean")
        logify.log("x", x + 1)
        return x

    x = jnp.float32(2)
    first = jax.export.export(jax.jit(logify.logify(f)))(x)
    _, logs = jax.export.deserialize(first.serialize()).call(x)
    assert values(logs) == {"x": {"mean": 2.0, "replace": 3.0}}

    def own(x):
        logify.log("x", x, reduction=lox.Reduction(0.0, lambda a, b: a + b))
        return x

    with pytest.raises(lox.LoxTypeError, match="'x'.*cannot be exported"):
        jax.export.export(jax.jit(logify.logify(own)))(x).serialize()
