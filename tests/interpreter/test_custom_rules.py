"""Derivative rules: their own events are logged, and recomputation logs nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests import programs
from tests.interpreter.programs_that_log import every_way, logged, printed, rows, tapped

# --- recomputation ----------------------------------------------------------


def recomputing(log_in_bwd=True):
    """A function whose backward rule computes the forward pass again."""

    def body(x):
        return jnp.sin(logged(x, "x"))

    @jax.custom_vjp
    def f(x):
        return body(x)

    def bwd(x, ct):
        _, pullback = jax.vjp(body, x)
        if log_in_bwd:
            logged(ct, "ct")
        return pullback(ct)

    f.defvjp(lambda x: (body(x), x), bwd)
    return f


def jitted_recomputing():
    """The same with jitted functions, which JAX traces once."""
    body = jax.jit(lambda x: jnp.sin(logged(x, "x")))

    @jax.custom_vjp
    def f(x):
        return body(x)

    @jax.jit
    def bwd(x, ct):
        return jax.vjp(body, x)[1](logged(ct, "ct"))

    f.defvjp(lambda x: (body(x), x), bwd)
    return f


RECOMPUTING = [recomputing, jitted_recomputing]


@pytest.mark.parametrize("make", RECOMPUTING)
def test_recomputation_in_backward_rule_logs_nothing(make):
    f = make()
    for found in every_way(jax.grad(f), 0.5):
        assert found == [{"x": 0.5}, {"ct": 1.0}]
    gradient, logs = lox.spool(jax.grad(f))(0.5)
    assert logs == {"x": 0.5, "ct": 1.0}
    np.testing.assert_allclose(gradient, np.cos(0.5), rtol=1e-6)
    with printed() as seen:
        lox.nolog(jax.grad(f))(0.5)
        lox.spool(jax.grad(f))(0.5)
    assert seen == []


@pytest.mark.parametrize("make", RECOMPUTING)
@pytest.mark.parametrize(
    "around", [jax.jit, jax.checkpoint, lambda f: lambda x: lax.cond(x > 0, f, f, x)]
)
def test_recomputation_under_other_transformations_logs_nothing(make, around):
    f = around(make())
    for found in every_way(jax.grad(f), 0.5):
        assert rows(found, "x") == [0.5] and rows(found, "ct") == [1.0]
    assert lox.spool(jax.grad(f))(0.5)[1] == {"x": 0.5, "ct": 1.0}


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_recomputation_in_shard_map_logs_nothing(kind):
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    shard_map = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")
    )
    square = shard_map(lambda x: logged(x.sum()) * x)
    only_in_rule = shard_map(lambda x: logged(x.sum(), "rule") * x)

    def derivative(x, t):
        return 2 * x * t + 0 * square(x) + 0 * only_in_rule(x)

    f = getattr(jax, kind)(lambda x: square(x).sum())
    if kind == "custom_vjp":
        f.defvjp(lambda x: (square(x).sum(), x), lambda x, t: (derivative(x, t),))
    else:
        f.defjvp(lambda xs, ts: (f(*xs), derivative(*xs, *ts).sum()))
    x = jnp.array([1.0, 2.0])
    for found in every_way(jax.grad(f), x):
        assert sorted(rows(found, "x")) == [1, 2]
        assert sorted(rows(found, "rule")) == [1, 2]
    gradient, logs = lox.spool(jax.grad(f))(x)
    assert logs["x"].tolist() == logs["rule"].tolist() == [1, 2]
    assert gradient.tolist() == [2, 4]


@pytest.mark.parametrize("make", RECOMPUTING)
def test_recomputation_in_scan_logs_nothing(make):
    f = make()

    def loop(x):
        return lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]

    xs = [0.5, float(jnp.sin(0.5)), float(jnp.sin(jnp.sin(0.5)))]
    for found in every_way(jax.grad(loop), 0.5):
        np.testing.assert_allclose(rows(found, "x"), xs, rtol=1e-6)
        assert len(rows(found, "ct")) == 3
    logs = lox.spool(jax.grad(loop))(0.5)[1]
    np.testing.assert_allclose(logs["x"], xs, rtol=1e-6)
    assert logs["ct"].shape == (3,) and logs["ct"][0] == 1


@pytest.mark.parametrize("make", RECOMPUTING)
def test_recomputation_under_vmap_logs_nothing(make):
    f = make()
    xs = jnp.array([0.5, 1.5])
    for g in (jax.vmap(jax.grad(f)), jax.grad(lambda xs: jax.vmap(f)(xs).sum())):
        for found in every_way(g, xs):
            assert rows(found, "x") == [0.5, 1.5] and rows(found, "ct") == [1, 1]
        logs = lox.spool(g)(xs)[1]
        assert logs["x"].tolist() == [0.5, 1.5] and logs["ct"].tolist() == [1, 1]


def test_recomputation_in_second_derivatives_logs_nothing():
    f = recomputing(log_in_bwd=False)
    once = tapped(jax.grad(f), 0.5)
    assert once == [{"x": 0.5}]
    second, logs = lox.spool(jax.grad(jax.grad(f)))(0.5)
    assert set(np.ravel(logs["x"]).tolist()) == {0.5}
    np.testing.assert_allclose(second, -np.sin(0.5), rtol=1e-6)


def test_recomputation_through_helper_is_recognized_by_line_and_key():
    @jax.custom_vjp
    def f(x):
        return logged(x, "value") * 2

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (logged(ct, "cotangent") * 2,))
    for found in every_way(jax.grad(f), 3.0):
        assert found == [{"value": 3.0}, {"cotangent": 1.0}]


def test_recomputation_with_new_keys_logs_only_those():
    def report(**values):
        lox.log(values)

    @jax.custom_vjp
    def f(x):
        report(x=x)
        return x * 2

    def bwd(x, ct):
        report(x=x, ct=ct)
        return (ct * 2,)

    f.defvjp(lambda x: (f(x), x), bwd)
    for found in every_way(jax.grad(f), 3.0):
        assert found == [{"x": 3.0}, {"ct": 1.0}]


def test_recomputation_of_one_function_does_not_silence_another():
    body = jax.jit(lambda x: logged(x, "x") * 2)

    @jax.custom_vjp
    def first(x):
        return body(x)

    first.defvjp(lambda x: (body(x), x), lambda x, ct: (ct * body(x) / x,))

    @jax.custom_vjp
    def second(x):
        return x * 2

    second.defvjp(lambda x: (x * 2, x), lambda x, ct: (ct * body(x) / x,))
    for _ in range(2):  # JAX must be able to reuse its trace of `body`
        assert tapped(jax.grad(first), 3.0) == [{"x": 3.0}]
        assert tapped(jax.grad(second), 5.0) == [{"x": 5.0}]
        assert tapped(body, 7.0) == [{"x": 7.0}]
        with printed() as seen:
            jax.grad(first)(3.0)
            jax.grad(second)(5.0)
            body(7.0)
        assert seen == [{"x": 3.0}, {"x": 5.0}, {"x": 7.0}]


def test_rule_that_calls_its_function_twice_logs_once():
    @jax.custom_jvp
    def exp(x):
        return jnp.exp(logged(x, "x"))

    exp.defjvp(lambda p, t: (exp(*p), exp(*p) * t[0]))
    for g in (jax.grad(exp), jax.jit(jax.grad(exp)), jax.grad(jax.jit(exp))):
        for found in every_way(g, 0.5):
            assert found == [{"x": 0.5}]
    gradient, logs = jax.grad(lox.spool(exp), has_aux=True)(0.5)
    assert logs == {"x": 0.5}
    np.testing.assert_allclose(gradient, np.exp(0.5), rtol=1e-6)
    assert tapped(lambda x: jax.jvp(exp, (x,), (1.0,)), 0.5) == [{"x": 0.5}]


def test_python_control_flow_in_eager_rule_works():
    @jax.custom_vjp
    def f(x):
        return logged(x, "x") * 2

    def fwd(x):
        assert float(x) > 0  # eager values are concrete
        return f(x), float(x)

    def bwd(x, ct):
        return (ct * 2 if float(x) > 0 and float(ct) else ct,)

    f.defvjp(fwd, bwd)
    with printed() as seen:
        assert jax.grad(f)(jnp.float32(3.0)) == 2
    assert seen == [{"x": 3.0}]


def test_scan_in_backward_rule_repeats_no_events():
    def steps(x):
        return lax.scan(lambda c, i: (logged(c, "c") * i, None), x, jnp.arange(1.0, 4))

    @jax.custom_vjp
    def f(x):
        return steps(x)[0]

    f.defvjp(lambda x: (steps(x)[0], x), lambda x, ct: jax.vjp(steps, x)[1]((ct, None)))
    for found in every_way(jax.grad(f), 1.0):
        assert rows(found, "c") == [1, 1, 2]
    assert jax.grad(f)(1.0) == 6


# --- solvers ---------------------------------------------------------------


def root(x):
    def equation(y):
        return logged(y, "y") ** 2 - x

    def solve(f, y):
        return lax.fori_loop(0, 3, lambda i, y: y - f(y) / (2 * y), y)

    return lax.custom_root(equation, x, solve, lambda g, y: y / g(1.0))


def linear(x):
    def solve(matvec, b):
        return logged(b, "b") / matvec(jnp.ones_like(b))

    def matvec(v):
        return logged(v, "v") * x

    return lax.custom_linear_solve(matvec, x * jnp.ones(1), solve, symmetric=True).sum()


@pytest.mark.parametrize("solver", [root, linear])
def test_derivative_of_solver_adds_no_events(solver):
    expected = tapped(solver, 1.5)
    by_key = {key: rows(expected, key) for call in expected for key in call}
    for derivative in (
        jax.grad(solver),
        lambda x: jax.jvp(solver, (x,), (1.0,)),
        lambda x: jax.linearize(solver, x)[0],
        lambda x: jax.vmap(jax.grad(solver))(x[None]),
        jax.grad(jax.jit(solver)),
        jax.grad(jax.checkpoint(solver)),
    ):
        for found in every_way(derivative, jnp.float32(1.5)):
            for key, values in by_key.items():
                assert rows(found, key) == values
            assert {key for call in found for key in call} == set(by_key)
        logs = lox.spool(derivative)(jnp.float32(1.5))[1]
        assert set(logs) == set(by_key)


@pytest.mark.parametrize("solver", [root, linear])
def test_derivative_of_solver_leaks_no_events(solver):
    plain = lox.spool(solver)(1.5)[1]
    expected = jax.grad(lox.nolog(solver))(1.5)
    with printed() as seen:
        for _ in range(2):
            gradient, logs = jax.grad(lox.spool(solver), has_aux=True)(1.5)
            assert gradient == expected
            assert logs.keys() == plain.keys()
            for key, value in plain.items():
                np.testing.assert_array_equal(logs[key], value)
            jax.grad(lox.nolog(solver))(1.5)
            lox.nolog(jax.grad(solver))(1.5)
            jax.vmap(lox.nolog(solver))(jnp.array([1.5, 2.0]))
            jax.vmap(jax.grad(lox.nolog(solver)))(jnp.array([1.5, 2.0]))
            lox.spool(jax.grad(solver))(1.5)
            calls = []
            jax.grad(lox.tap(solver, calls.append))(1.5)
            jax.effects_barrier()
            assert calls == tapped(solver, 1.5)
    assert seen == []


def test_tangent_solve_logs_its_own_events():
    def f(x):
        return lax.custom_root(
            lambda y: y - x,
            x,
            lambda g, y: y - logged(g(y), "residual"),
            lambda g, y: y / logged(g(1.0), "slope"),
        )

    assert tapped(f, 2.0) == [{"residual": 0.0}]
    found = tapped(lambda x: jax.jvp(f, (x,), (1.0,)), 2.0)
    assert found == [{"residual": 0.0}, {"slope": 1.0}]


# --- a transformation inside a derivative ----------------------------------


def helper(x):
    lox.log({"h": x})
    return x * x


def same_line_jvp():
    @jax.custom_jvp
    def f(x):
        return helper(x)

    f.defjvp(lambda p, t: (p[0] * p[0], helper(p[0] + 10.0) * t[0]))
    return f


def same_line_vjp():
    @jax.custom_vjp
    def f(x):
        return helper(x)

    f.defvjp(lambda x: (x * x, helper(x + 10.0)), lambda r, ct: (ct * r,))
    return f


def same_line_in_a_scan():
    def loop(x):
        return lax.scan(lambda c, _: (helper(c), None), x, None, length=2)[0]

    @jax.custom_vjp
    def f(x):
        return loop(x)

    f.defvjp(lambda x: (loop(x + 0.5), x), lambda x, ct: (ct * x,))
    return f


@pytest.mark.parametrize(
    "make",
    [same_line_jvp, same_line_vjp, same_line_in_a_scan],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("options", [{}, {"reduce": "sum"}])
def test_grad_of_spool_returns_values_of_function_if_rule_logs_same_line(make, options):
    f = make()
    expected = lox.spool(f, **options)(1.5)[1]
    for g in (f, jax.jit(f), lambda x: jax.vmap(f)(x[None])[0]):
        x = jnp.float32(1.5)
        for spooled in (lox.spool(g, **options), jax.jit(lox.spool(g, **options))):
            _, logs = jax.grad(spooled, has_aux=True)(x)
            logs = logs.compact()
            np.testing.assert_array_equal(np.ravel(logs["h"]), np.ravel(expected["h"]))
    calls = []
    jax.grad(lox.tap(f, calls.append, **options))(1.5)
    jax.effects_barrier()
    found = np.ravel([c["h"] for c in calls])
    np.testing.assert_array_equal(found, np.ravel(expected["h"]))


def equations(jaxpr, name):
    """The number of equations of a primitive, at any depth."""
    count = 0
    for eqn in jaxpr.eqns:
        count += eqn.primitive.name == name
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    count += equations(inner, name)
    return count


def rule_calls_function():
    @jax.custom_vjp
    def f(x):
        return lax.scan(lambda c, _: (jnp.sin(helper(c)), None), x, None, length=2)[0]

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * x,))
    return f


def rule_linearizes_function():
    def body(x):
        return lax.scan(lambda c, _: (jnp.sin(helper(c)), None), x, None, length=2)[0]

    f = jax.custom_vjp(body)
    f.defvjp(lambda x: jax.vjp(body, x), lambda pullback, ct: pullback(ct))
    return f


def jvp_rule_calls_function():
    @jax.custom_jvp
    def f(x):
        return lax.scan(lambda c, _: (jnp.sin(helper(c)), None), x, None, length=2)[0]

    f.defjvp(lambda p, t: (f(*p), t[0]))
    return f


def jvp_rule_with_literals_calls_function():
    """The literals beside an array with a strong type are arrays of JAX."""

    @jax.custom_jvp
    def f(x):
        x = jnp.float32(x)

        def body(c, _):
            lox.log({"h": c}, when=c > 0)
            return jnp.sin(c * 2), None

        return lax.scan(body, x, None, length=2)[0]

    f.defjvp(lambda p, t: (f(*p), t[0]))
    return f


@pytest.mark.parametrize(
    "make",
    [
        rule_calls_function,
        rule_linearizes_function,
        jvp_rule_calls_function,
        jvp_rule_with_literals_calls_function,
    ],
    ids=lambda f: f.__name__,
)
def test_rule_that_calls_its_function_is_not_evaluated_twice(make):
    f = make()
    count = equations(jax.make_jaxpr(jax.grad(lox.nolog(f)))(0.5), "scan")
    spooled = jax.grad(lox.spool(f), has_aux=True)
    assert equations(jax.make_jaxpr(spooled)(0.5), "scan") == count
    expected = lox.spool(f)(0.5)[1]
    assert spooled(0.5)[1]["h"].tolist() == expected["h"].tolist()


def factory(kind):
    """Makes custom functions that call each other, all defined in the same place."""

    def layer(inner):
        def f(x):
            y = inner(x)
            lox.log({"c": y})
            return y * 2

        if kind.startswith("jvp"):
            g = jax.custom_jvp(f)
            g.defjvp(
                {
                    "jvp, calls f": lambda p, t: (f(*p), 2 * t[0]),
                    "jvp, calls f twice": lambda p, t: (f(*p), f(*p) * t[0]),
                    "jvp, calls g": lambda p, t: (g(*p), 2 * t[0]),
                    "jvp, calls g twice": lambda p, t: (g(*p), g(*p) * t[0]),
                    "jvp of f": lambda p, t: jax.jvp(f, p, t),
                }[kind]
            )
        else:
            g = jax.custom_vjp(f)
            h = f if kind == "vjp, calls f" else g
            g.defvjp(lambda x: (h(x), None), lambda _, ct: (2 * ct,))
        return g

    return layer


@pytest.mark.parametrize(
    "kind",
    [
        "jvp, calls f",
        "jvp, calls g",
        "jvp, calls g twice",
        "jvp of f",
        "vjp, calls f",
        "vjp, calls g",
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        lambda f: f,
        jax.jit,
        jax.checkpoint,
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    ],
    ids=["plain", "jit", "checkpoint", "scan"],
)
def test_nested_custom_functions_of_one_factory_log_all_events(kind, around):
    layer = factory(kind)
    net = around(layer(layer(layer(lambda x: x))))
    expected = [1.0, 2.0, 4.0]
    assert rows(tapped(net, 1.0), "c") == expected
    for found in every_way(jax.grad(net), 1.0):
        assert sorted(rows(found, "c")) == expected  # they are printed in any order
    assert lox.spool(jax.grad(net))(1.0)[1]["c"].tolist() == expected
    logs = jax.grad(lox.spool(net), has_aux=True)(1.0)[1]
    assert logs["c"].tolist() == expected


def inner_tap(kind, calls, **options):
    """A custom function in which another transformation collects an event."""

    def inner(x):
        lox.log({"a": x})
        return x * 1.0

    def h(x):
        y = lox.tap(inner, calls.append, **options)(x)
        lox.log({"b": y})
        return y * 2

    if kind.startswith("vjp"):
        f = jax.custom_vjp(h)
        called = h if kind == "vjp, calls h" else f
        f.defvjp(lambda x: (called(x), None), lambda _, ct: (ct * 2,))
    else:
        f = jax.custom_jvp(h)
        called = h if kind == "jvp, calls h" else f
        f.defjvp(lambda p, t: (called(*p), 2 * t[0]))
    return f


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "kind", ["vjp, calls h", "vjp, calls f", "jvp, calls h", "jvp, calls f"]
)
def test_tap_in_custom_function_delivers_once_under_grad(kind, keep):
    kept = ["a"] if keep else []
    for transform in (lambda f: f, jax.jit):
        calls, outer = [], []
        f = inner_tap(kind, calls, keep_logs=keep)
        logs = transform(jax.grad(lox.spool(f), has_aux=True))(0.5)[1]
        jax.effects_barrier()
        assert calls == [{"a": 0.5}] and sorted(logs) == [*kept, "b"]
        calls.clear()
        transform(jax.grad(lox.tap(f, outer.append)))(0.5)
        jax.effects_barrier()
        assert calls == [{"a": 0.5}]
        assert [key for call in outer for key in call] == [*kept, "b"]


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_tap_that_keeps_logs_of_custom_jvp_delivers_under_grad(shift):
    @jax.custom_jvp
    def f(x):
        lox.log({"b": x}, when=x > 0)
        return x * 2

    # the rule logs another value than the function, if it is shifted
    f.defjvp(lambda p, t: (f(p[0] + shift), t[0] * 2))
    for derivative in (jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (x,))):
        calls, outer = [], []
        kept = derivative(lox.tap(f, calls.append, keep_logs=True))
        lox.tap(kept, outer.append)(jnp.float32(0.5))
        assert calls == [{"b": 0.5}] and outer == [{"b": 0.5 + shift}]


@jax.custom_vjp
def rules_log(x):
    return logged(x, "value") * 2


rules_log.defvjp(
    lambda x: (rules_log(x), x), lambda x, ct: (logged(ct, "cotangent") * 7,)
)


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
def test_grad_of_tap_delivers_events_of_function_and_warns_about_rules(around):
    f = around(rules_log)
    calls = []
    with (
        printed() as seen,
        pytest.warns(lox.LoxWarning, match="'cotangent'.*transform the derivative"),
    ):
        assert jax.grad(lox.tap(f, calls.append))(3.0) == 7
        jax.effects_barrier()
    assert calls == [{"value": 3.0}] and seen == []
    with printed() as seen, pytest.warns(lox.LoxWarning, match="'cotangent'"):
        assert jax.grad(lox.spool(f), has_aux=True)(3.0)[1] == {"value": 3.0}
    assert seen == []
    with printed() as seen:
        assert jax.grad(lox.nolog(f))(3.0) == 7
    assert seen == []
    assert tapped(jax.grad(f), 3.0) == [{"value": 3.0}, {"cotangent": 1.0}]


def test_rule_events_that_are_not_selected_reach_outer_transformation():
    inner = functools.partial(lox.tap, callback=lambda logs: None, argnames="value")
    assert tapped(jax.grad(inner(rules_log)), 3.0) == [{"cotangent": 1.0}]
    spooled = lox.spool(rules_log, argnames="value")
    (_, inside), logs = lox.spool(jax.grad(spooled, has_aux=True))(3.0)
    assert inside == {"value": 3.0} and logs == {"cotangent": 1.0}
    kept = lox.spool(rules_log, keep_logs=True)
    _, logs = lox.spool(jax.grad(kept, has_aux=True))(3.0)
    assert logs == {"value": 3.0, "cotangent": 1.0}


def loop_in_bwd(x, ct):
    def body(c):
        return logged(c, "ct") + 1

    return (lax.while_loop(lambda c: c < 3, body, ct) * x,)


def custom_function_in_bwd(x, ct):
    f = jax.custom_jvp(lambda c: logged(c, "ct"))
    f.defjvp(lambda p, t: (p[0], t[0]))
    return (f(ct) * x,)


@pytest.mark.parametrize("bwd", [loop_in_bwd, custom_function_in_bwd])
def test_backward_rule_logs_in_loops_and_custom_functions(bwd):
    f = jax.custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (x * x, x), bwd)
    expected = [1.0, 2.0] if bwd is loop_in_bwd else [1.0]
    for found in every_way(jax.grad(f), 3.0):
        assert rows(found, "ct") == expected
    assert lox.spool(jax.grad(f), capacity=5)(3.0)[1]["ct"].tolist() in (expected, 1.0)
    gradient = jax.grad(lox.nolog(f))(3.0)
    with pytest.warns(lox.LoxWarning, match="'ct'"):
        assert jax.grad(lox.tap(f, lambda logs: None))(3.0) == gradient
    with pytest.warns(lox.LoxWarning, match="'ct'"):
        assert jax.grad(lox.tap(f, lambda logs: None, buffer=2))(3.0) == gradient
    with pytest.warns(lox.LoxWarning, match="'ct'"):
        assert jax.grad(lambda x: lox.spool(f)(x)[0])(3.0) == gradient


def test_odeint_backward_pass_repeats_no_events():
    from jax.experimental.ode import odeint

    def f(x):
        def field(y, t):
            return -logged(y, "y") * x

        return odeint(field, x, jnp.array([0.0, 0.1]))[-1]

    expected = rows(tapped(f, 1.5), "y")
    assert rows(tapped(jax.grad(f), 1.5), "y") == expected
    calls = []
    gradient = jax.grad(lox.tap(f, calls.append))(1.5)
    jax.effects_barrier()
    assert rows(calls, "y") == expected
    # two programs, which XLA may round differently
    np.testing.assert_allclose(gradient, jax.grad(lox.nolog(f))(1.5), rtol=1e-6)


# --- rules made by other functions of JAX ----------------------------------


@jax.custom_gradient
def with_custom_gradient(x):
    def pullback(ct):
        return logged(ct, "ct") * 2 * x

    return logged(x, "x") ** 2, pullback


def test_custom_gradient_logs_in_function_and_rule():
    assert tapped(jax.grad(with_custom_gradient), 3.0) == [{"x": 3.0}, {"ct": 1.0}]
    with printed() as seen:
        assert jax.grad(lox.nolog(with_custom_gradient))(3.0) == 6
        assert lox.nolog(jax.grad(with_custom_gradient))(3.0) == 6
        with pytest.warns(lox.LoxWarning, match="'ct'"):
            logs = jax.grad(lox.spool(with_custom_gradient), has_aux=True)(3.0)[1]
        assert logs == {"x": 3.0}
        calls = []
        with pytest.warns(lox.LoxWarning, match="'ct'"):
            jax.grad(lox.tap(with_custom_gradient, calls.append))(3.0)
            jax.effects_barrier()
        assert calls == [{"x": 3.0}]
    assert seen == []


def test_defjvps_rules_log():
    @jax.custom_jvp
    def f(x):
        return x * x

    f.defjvps(lambda t, ans, x: 2 * logged(x, "x") * t)
    with printed() as seen:
        assert jax.grad(lox.nolog(f))(3.0) == 6
    assert seen == []
    assert tapped(jax.grad(f), 3.0) == [{"x": 3.0}]


def test_closure_convert_function_logs():
    def f(x, y):
        converted, consts = jax.closure_convert(lambda v: logged(v, "v") * y, x)

        @jax.custom_vjp
        def call(x, *consts):
            return converted(x, *consts)

        def bwd(res, ct):
            return jax.vjp(converted, *res)[1](ct)

        call.defvjp(lambda *args: (converted(*args), args), bwd)
        return call(x, *consts)

    for found in every_way(jax.grad(f), 3.0, 2.0):
        assert found == [{"v": 3.0}]
    with printed() as seen:
        assert jax.grad(lox.nolog(f))(3.0, 2.0) == 2
    assert seen == []


# --- residuals -------------------------------------------------------------


def with_residual(residual, use):
    @jax.custom_vjp
    def f(x):
        return logged(x, "x") * 2

    f.defvjp(lambda x: (f(x), residual), lambda r, ct: (ct * (2 if use(r) else 0),))
    return f


RESIDUALS = {
    "bool": (True, lambda r: bool(r)),
    "int": (3, lambda r: len(range(int(r))) == 3),
    "none": (None, lambda r: r is None),
    "dict": (
        {"flag": True, "n": 2, "none": None},
        lambda r: r["flag"] and int(r["n"]) == 2 and r["none"] is None,
    ),
    "string in the structure": (
        jax.tree_util.Partial(str.upper),
        lambda r: r("a") == "A",
    ),
}


@pytest.mark.parametrize("name", RESIDUALS)
@pytest.mark.parametrize(
    "around", [lambda f: f, lambda f: jax.jit(jax.jit(f))], ids=["eager", "jit"]
)
def test_python_residuals_reach_backward_rule_unchanged(name, around):
    f = around(with_residual(*RESIDUALS[name]))
    assert jax.grad(f)(1.0) == 2
    gradient, logs = jax.grad(lox.spool(f), has_aux=True)(1.0)
    assert gradient == 2 and logs == {"x": 1.0}
    gradient, logs = lox.spool(jax.grad(f))(1.0)
    assert gradient == 2 and logs == {"x": 1.0}
    for options in ({}, {"reduce": "mean"}, {"buffer": 2}, {"argnames": "x"}):
        calls = []
        assert jax.grad(lox.tap(f, calls.append, **options))(1.0) == 2
        jax.effects_barrier()
        assert len(calls) == 1
    assert jax.grad(lox.nolog(f))(1.0) == 2
    assert jax.jit(jax.grad(lox.nolog(f)))(1.0) == 2
    assert jax.vmap(jax.grad(lox.nolog(f)))(jnp.ones(2)).tolist() == [2, 2]


def test_nondiff_arguments_reach_rules_unchanged():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def f(mode, n, x):
        return logged(x, "x") * n

    def bwd(mode, n, res, ct):
        assert mode == "fast" and isinstance(n, int)
        return (ct * n,)

    f.defvjp(lambda mode, n, x: (f(mode, n, x), None), bwd)

    @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
    def g(n, x):
        return logged(x, "x") * n

    @g.defjvp
    def _(n, primals, tangents):
        assert isinstance(n, int)
        return g(n, *primals), tangents[0] * n

    for h in (functools.partial(f, "fast", 3), functools.partial(g, 3)):
        gradient, logs = jax.grad(lox.spool(h), has_aux=True)(1.0)
        assert gradient == 3 and logs == {"x": 1.0}
        assert jax.grad(lox.nolog(h))(1.0) == 3
        assert tapped(jax.grad(h), 1.0) == [{"x": 1.0}]


# --- custom functions in loops under checkpoint ----------------------------


def logging_custom_jvp(x):
    f = jax.custom_jvp(lambda v: logged(v, "v") * 1.5)
    f.defjvp(lambda p, t: (p[0] * 1.5, t[0]))
    return f(x)


def logging_custom_vjp(x):
    f = jax.custom_vjp(lambda v: logged(v, "v") * 1.5)
    f.defvjp(lambda v: (f(v), None), lambda r, ct: (ct,))
    return f(x)


def logging_root(x):
    return lax.custom_root(
        lambda y: logged(y, "v") - 1.5 * x,
        x,
        lambda f, y: y - f(y),
        lambda g, y: y / g(1.0),
    )


def logging_solve(x):
    return lax.custom_linear_solve(
        lambda v: v / 1.5, x, lambda _, b: logged(b, "v") * 1.5, symmetric=True
    )


@pytest.mark.parametrize(
    "custom",
    [logging_custom_jvp, logging_custom_vjp, logging_root, logging_solve],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit])
def test_custom_function_in_loop_in_checkpoint_logs(custom, inner):
    def f(x):
        def body(c):
            return c[0] + 1, inner(custom)(c[1])

        loop = lax.while_loop(lambda c: c[0] < 2, body, (0, lax.stop_gradient(x)))
        return x + 0.1 * loop[1]

    g = jax.grad(jax.checkpoint(f))
    for found in every_way(g, 1.0):
        assert rows(found, "v") == [1.0, 1.5]
    assert g(1.0) == lox.nolog(g)(1.0) == jax.grad(jax.checkpoint(lox.nolog(f)))(1.0)
    assert lox.spool(g, capacity=3)(1.0)[1]["v"].tolist() == [1.0, 1.5]
    xs = jnp.ones(2)
    assert rows(tapped(jax.vmap(g), xs), "v") == [1.0, 1.0, 1.5, 1.5]


BACKWARD_RULE_IN_BRANCH = """
import jax
import jax.numpy as jnp
from jax import lax
import lox

@jax.custom_vjp
def sine(x):
    return jnp.sin(x)

def bwd(x, ct):
    lox.log({"ct": ct})
    return (jnp.cos(x) * ct,)

sine.defvjp(lambda x: (jnp.sin(x), x), bwd)

def of_all(xs):
    return jax.vmap(lambda x: lax.cond(x > 1, sine, lambda x: 2 * x, x))(xs).sum()

_, logs = lox.spool(jax.grad(of_all))(jnp.array([0.5, 2.0]))
print([dict(lane.compact()) for lane in logs.lanes()] == [{}, {"ct": 1.0}])
"""


def test_backward_rule_in_branch_logs_only_in_lanes_that_took_it():
    # in a new process, where no event precedes the one of the rule
    assert programs.run(BACKWARD_RULE_IN_BRANCH).stdout.split()[-1] == "True"
