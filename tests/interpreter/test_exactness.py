"""Small programs with logs that are easy to lose or repeat."""

import jax
import jax.custom_batching
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import lox
from lox._logs.access import key_of
from tests.interpreter.programs_that_log import tapped


def count(fun, x=0.7):
    """The number of events of a tapped and of a spooled call of `fun`."""
    calls = tapped(fun, x)
    _, logs = lox.spool(fun)(x)
    rows = sum(key_of(logs, key).length() for key in logs)
    assert rows == len(calls)
    return rows


# --- loops that JAX splits -------------------------------------------------


def constant_loop(x, length=3):
    def body(c, t):
        lox.log({"lr": 0.5})
        return c + t, None

    return lax.scan(body, x, jnp.arange(1.0 * length))[0]


def test_loop_in_derivative_rule_is_not_hoisted():
    f = jax.custom_jvp(constant_loop)
    f.defjvp(lambda p, t: (constant_loop(*p), t[0]))
    assert count(jax.grad(f)) == 3
    assert count(lambda x: jax.jvp(f, (x,), (1.0,))[0]) == 3


@pytest.mark.parametrize("length", [0, 3])
def test_undifferentiated_loop_in_checkpoint_is_not_hoisted(length):
    f = jax.checkpoint(lambda x: x * constant_loop(lax.stop_gradient(x), length))
    assert count(jax.grad(f)) == length
    assert count(jax.grad(jax.jit(f))) == length


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit, lambda f: f])
def test_loop_on_constants_in_differentiated_loop_logs_every_iteration(wrap):
    def inner(x):
        def body(c, t):
            lox.log({"c": c})
            return c + t, None

        return lax.scan(body, x, jnp.arange(3.0))[0]

    h = wrap(lambda x: jnp.sin(x) * inner(jnp.float32(2)))

    def f(x):
        return lax.scan(lambda c, t: (h(c), None), x, jnp.arange(2.0))[0]

    assert count(f) == count(jax.grad(f)) == 6
    _, logs = jax.grad(lox.spool(f), has_aux=True)(0.7)
    assert logs["c"].tolist() == [2, 2, 3] * 2


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit, lambda f: f])
def test_cond_on_constants_in_differentiated_loop_logs_every_iteration(wrap):
    def f(x, flag=True):
        def branch():
            lox.log({"flag": 1.0})

        def body(c, t):
            def call(c):
                lax.cond(flag, branch, lambda: None)
                return c

            return jnp.sin(wrap(call)(c)), None

        return lax.scan(body, x, jnp.arange(2.0))[0]

    def dynamic(x):
        return f(x, lax.stop_gradient(x) > 0)

    for g in (f, dynamic):
        assert count(g) == count(jax.grad(g)) == 2


def loop(x):
    def body(c):
        lox.log({"w": c[0]})
        return c[0] * 0.5, c[1] + 1

    return lax.while_loop(lambda c: c[1] < 3, body, (x, 0))[0]


def test_while_loop_that_is_recomputed_or_linearized_logs_once():
    f = jax.checkpoint(lambda x: x * loop(lax.stop_gradient(x)))
    assert len(tapped(jax.grad(f), 0.7)) == 3
    assert len(tapped(jax.grad(jax.jit(f)), 0.7)) == 3
    for g in (loop, jax.checkpoint(loop), jax.jit(loop)):
        calls = tapped(lambda x, g=g: jax.linearize(g, x)[1](1.0), 1.0)
        assert [c["w"].item() for c in calls] == [1, 0.5, 0.25]
    y, f_lin = jax.linearize(lox.tap(loop, lambda logs: None), 1.0)
    assert (y, f_lin(1.0)) == (0.125, 0.125)


def test_while_loop_in_differentiated_scan_logs_once():
    def f(x):
        def body(c, _):
            return c * loop(lax.stop_gradient(c)), None

        return lax.scan(body, x, None, length=2)[0]

    wanted = jax.grad(lox.nolog(f))(0.7)
    assert lox.nolog(jax.grad(f))(0.7) == wanted
    calls = tapped(jax.grad(f), 0.7)
    assert len(calls) == 6 and calls == tapped(f, 0.7)


def test_loop_in_recomputed_while_loop_logs_once():
    def w(x):
        def inner(i, y):
            lox.log({"a": y})
            return y * 0.5

        def body(c):
            return lax.fori_loop(0, 2, inner, c[0]), c[1] + 1

        return lax.while_loop(lambda c: c[1] < 2, body, (x, 0))[0]

    g = jax.grad(jax.checkpoint(lambda x: x * w(lax.stop_gradient(x))))
    assert tapped(w, 0.7) == tapped(g, 0.7) and len(tapped(w, 0.7)) == 4


def until(v):
    def body(k):
        lox.log({"k": k})
        return k + 1.0

    return lax.while_loop(lambda k: k < v, body, 0.0)


def test_vmapped_loop_in_vmapped_loop_logs_per_lane():
    def f(x):
        def body(c, _):
            return jnp.sin(c) + 0 * jax.vmap(until)(lax.stop_gradient(c)), None

        return lax.scan(body, x, None, length=2)[0].sum()

    x = jnp.array([1.0, 2.0])
    assert len(tapped(f, x)) == len(tapped(jax.grad(f), x)) == 5

    def h(x):
        return lax.while_loop(
            lambda c: c.sum() < 5, lambda c: jax.vmap(until)(c) + 1, x
        )

    alone = len(tapped(h, jnp.ones(2)))
    assert len(tapped(jax.vmap(h), jnp.ones((2, 2)))) == 2 * alone


def test_conds_that_share_a_branch_log_their_own_keys():
    def branch(key):
        def fun(x):
            lox.log({key: x})
            return x

        return fun

    g, h, shared = branch("g"), branch("h"), lambda x: x

    def f(x):
        lax.cond(x > 0, g, shared, x)
        return lax.cond(x > 0, h, shared, x + 1)

    assert lox.spool(f)(1.0)[1] == {"g": 1.0, "h": 2.0}


def test_jvp_of_scan_without_inputs_logs_every_iteration():
    def f(w):
        def body(_, __):
            lox.log({"lr": 0.5})
            return None, w * 2

        return lax.scan(body, None, None, length=3)[1].sum()

    assert len(tapped(lambda w: jax.jvp(f, (w,), (1.0,)), 1.0)) == 3


# --- lanes -----------------------------------------------------------------


def test_cond_on_axis_index_logs_per_lane():
    def f(x):
        def body(i):
            lox.log({"i": i})
            return i + 1 + lax.axis_index("l")

        return lax.while_loop(lambda i: i < 3, body, 0)

    for g in (
        lambda callback: lox.tap(jax.vmap(f, axis_name="l"), callback),
        lambda callback: jax.vmap(lox.tap(f, callback), axis_name="l"),
    ):
        calls = []
        g(calls.append)(jnp.arange(3.0))
        jax.effects_barrier()
        assert sorted(int(c["i"]) for c in calls) == [0, 0, 0, 1, 2, 2]


def test_lanes_of_separate_vmaps_are_not_joined():
    def f(x):
        lox.log({"x": x})
        return x

    def g():
        return jax.vmap(f)(jnp.arange(3.0)), jax.vmap(f)(jnp.arange(2.0))

    with pytest.raises(lox.ShapeError, match=r"\(3,\) lanes.*\(2,\) lanes"):
        lox.spool(g)()


# --- custom derivative rules -----------------------------------------------


@jax.custom_vjp
def hidden(x):
    return x * 2


def _fwd(x):
    lox.log({"fwd": x})
    return x * 2, x


def _bwd(r, ct):
    lox.log({"bwd": ct})
    return (ct * 3,)


hidden.defvjp(_fwd, _bwd)


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
        lambda f: lambda x: lax.cond(x > 0, f, lambda x: x, x),
        lambda f: jax.jit(jax.jit(f)),
    ],
    ids=["jit", "checkpoint", "scan", "cond", "nested"],
)
def test_derivative_rule_in_nested_calls_logs(wrap, capsys):
    f = wrap(hidden)
    assert jax.grad(lox.nolog(f))(1.0) == 3
    with pytest.warns(lox.LoxWarning, match="'(fwd|bwd)'.*derivative rule"):
        assert jax.grad(lambda x: lox.spool(f)(x)[0])(1.0) == 3
    calls = []
    with pytest.warns(lox.LoxWarning, match="'(fwd|bwd)'.*derivative rule"):
        assert jax.grad(lox.tap(f, calls.append))(1.0) == 3
        jax.effects_barrier()
    assert not calls
    lox.tap(jax.grad(f), calls.append)(1.0)
    assert [dict(c) for c in calls] == [{"fwd": 1.0}, {"bwd": 1.0}]
    assert capsys.readouterr().out == ""


def test_jax_functions_with_derivative_rules_are_unchanged():
    def jaxprs(jaxpr):
        for eqn in jaxpr.eqns:
            if "jaxpr" in eqn.params:
                yield eqn.params["jaxpr"]
                yield from jaxprs(eqn.params["jaxpr"])

    f = jax.jit(lambda x: jax.nn.relu(x) + 1)
    (before,) = jax.make_jaxpr(f)(1.0).eqns
    after = jaxprs(jax.make_jaxpr(lox.nolog(lambda x: f(x)))(1.0))
    assert any(jaxpr is before.params["jaxpr"] for jaxpr in after)


def test_logged_tangent_that_reverse_mode_never_computes_is_reported():
    @jax.custom_jvp
    def f(x):
        return x * x

    def rule(p, t):
        lox.log({"x": p[0], "dx": t[0]})
        return f(*p), 2 * p[0] * t[0]

    f.defjvp(rule)
    _, logs = lox.spool(lambda x: jax.jvp(f, (x,), (1.0,)))(3.0)
    assert logs == {"x": 3.0, "dx": 1.0}
    with pytest.warns(lox.LoxWarning, match=r"'x', 'dx', logged at .*tangent"):
        assert lox.spool(jax.grad(f))(3.0) == (6.0, {})


def test_derivative_rule_that_logs_same_keys_with_other_steps_is_an_event():
    @jax.custom_vjp
    def f(x):
        lox.log({"k": x}, step=3)
        return x * 2

    def fwd(x):
        lox.log({"k": x * 10}, other=7)
        return x * 2, None

    f.defvjp(fwd, lambda _, ct: (ct * 2,))
    _, logs = jax.grad(lox.spool(f), has_aux=True)(1.0)
    assert logs == {"k": 1.0} and logs.step["k"] == 3


def test_custom_vmap_in_branch_logs():
    double = jax.custom_batching.custom_vmap(lambda x: x * 2)
    double.def_vmap(lambda n, b, x: (x * 2, b[0]))

    def f(x):
        def yes(x):
            lox.log({"x": x})
            return double(x)

        return lax.cond(x > 0, yes, lambda x: x, x)

    assert len(tapped(jax.vmap(f), jnp.array([1.0, -1.0]))) == 1
    assert jax.vmap(lox.nolog(f))(jnp.array([1.0, -1.0])).tolist() == [2, -1]


# --- branches --------------------------------------------------------------


def branch(value, **options):
    def fun():
        lox.log({"k": value}, **options)

    return fun


def test_branches_agree_on_dtypes_and_reductions():
    def f(x):
        lax.cond(x > 0, branch(jnp.float32(1 / 3)), branch(0.25))
        lox.log({"k": jnp.bfloat16(1)})
        return x

    with pytest.raises(lox.DtypeError, match="'k'"):
        lox.spool(f)(1.0)

    def reduced(one, other):
        def element(x):
            return lax.cond(x > 0, branch(x, **one), branch(x, **other))

        return lox.spool(lambda xs: lax.map(element, xs))(jnp.array([1.0, 3.0]))[1]

    assert reduced({"reduce": "mean"}, {}) == {"k": 2.0}
    with pytest.raises(lox.LoxValueError, match="`reduce='sum'`|`reduce='mean'`"):
        reduced({"reduce": "mean"}, {"reduce": "sum"})


# --- meshes ----------------------------------------------------------------


@pytest.fixture
def explicit_mesh():
    with jax.set_mesh(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))):
        yield jax.device_put(jnp.arange(16.0).reshape(8, 2), P("x"))


def logging(r, scale=2):
    lox.log({"r": r})
    return r * scale


def test_vmapped_cond_logs_under_explicit_mesh(explicit_mesh):
    def f(r):
        return lax.cond(r.sum() > 10, logging, lambda r: r, r)

    lanes = lox.spool(jax.vmap(f))(explicit_mesh)[1].lanes()
    assert [bool(lane) for lane in lanes] == [False] * 3 + [True] * 5
    lox.set_default("silent")
    jax.jit(jax.vmap(f))(explicit_mesh)


def test_differentiated_scan_logs_under_explicit_mesh(explicit_mesh):
    def f(x):
        def body(c, _):
            lox.log({"k": 0.5})
            return jnp.sin(c), None

        return lax.scan(body, x, None, length=3)[0].sum()

    grad, logs = jax.jit(lox.spool(jax.grad(f)))(explicit_mesh)
    assert logs["k"].shape == (3,)
    assert grad.sharding == jax.jit(jax.grad(lox.nolog(f)))(explicit_mesh).sharding


def test_cond_with_different_branches_logs_under_explicit_mesh(explicit_mesh):
    def twice(x):
        lox.log({"r": x})
        return logging(x)

    for other in (twice, lambda x: x * 2):
        f = jax.jit(lox.spool(lambda x, o=other: lax.cond(x.sum() > 0, o, logging, x)))
        value = f(explicit_mesh)[1]["r"]
        assert "x" in str(jax.typeof(value)) and value.shape[-2:] == (8, 2)
    logs = lox.spool(lambda x: lax.cond(x.sum() > 0, twice, logging, x))(explicit_mesh)[
        1
    ]
    assert logs["r"].shape == (2, 8, 2)


def test_cond_in_shard_map_logs_only_on_devices_that_take_the_branch():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def f(x):
        def yes():
            lox.log({"c": x.sum()})

        lax.cond(lax.axis_index("x") == 1, yes, lambda: None)
        return x

    g = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    _, logs = lox.spool(g)(jnp.arange(8.0))
    assert [dict(lane).get("c") for lane in logs.lanes()][:3] == [None, 1.0, None]
