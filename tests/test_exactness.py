"""Programs that once logged wrongly, each as small as it could be made."""

import dataclasses
import gc
import threading

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import lox
from lox._logs.access import key_of

from .waiting import in_threads, wait_for


def tapped(fun, *args):
    calls = []
    lox.tap(fun, calls.append)(*args)
    return calls


def count(fun, x=0.7):
    """How many events a tapped and a spooled call of `fun` give."""
    calls = tapped(fun, x)
    _, logs = lox.spool(fun)(x)
    rows = sum(key_of(logs, key).length() for key in logs)
    assert rows == len(calls)
    return rows


def log(**values):
    lox.log(values)


# --- loops that JAX takes apart ------------------------------------------------


def constant_loop(x, length=3):
    def body(c, t):
        log(lr=0.5)
        return c + t, None

    return lax.scan(body, x, jnp.arange(1.0 * length))[0]


def test_a_loop_called_by_a_derivative_rule_is_not_hoisted():
    f = jax.custom_jvp(constant_loop)
    f.defjvp(lambda p, t: (constant_loop(*p), t[0]))
    assert count(jax.grad(f)) == 3
    assert count(lambda x: jax.jvp(f, (x,), (1.0,))[0]) == 3


@pytest.mark.parametrize("length", [0, 3])
def test_an_undifferentiated_loop_in_a_checkpoint_is_not_hoisted(length):
    f = jax.checkpoint(lambda x: x * constant_loop(lax.stop_gradient(x), length))
    assert count(jax.grad(f)) == length
    assert count(jax.grad(jax.jit(f))) == length


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit, lambda f: f])
def test_a_loop_on_invariant_inputs_in_a_differentiated_loop_is_not_lost(wrap):
    def inner(x):
        def body(c, t):
            log(c=c)
            return c + t, None

        return lax.scan(body, x, jnp.arange(3.0))[0]

    h = wrap(lambda x: jnp.sin(x) * inner(jnp.float32(2)))

    def f(x):
        return lax.scan(lambda c, t: (h(c), None), x, jnp.arange(2.0))[0]

    assert count(f) == count(jax.grad(f)) == 6
    _, logs = jax.grad(lox.spool(f), has_aux=True)(0.7)
    assert logs["c"].tolist() == [2, 2, 3] * 2


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit, lambda f: f])
def test_a_branch_on_invariant_inputs_in_a_differentiated_loop_is_not_lost(wrap):
    def f(x, flag=True):
        def branch():
            log(flag=1.0)

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
        log(w=c[0])
        return c[0] * 0.5, c[1] + 1

    return lax.while_loop(lambda c: c[1] < 3, body, (x, 0))[0]


def test_a_while_loop_that_is_recomputed_or_linearized_logs_once():
    f = jax.checkpoint(lambda x: x * loop(lax.stop_gradient(x)))
    assert len(tapped(jax.grad(f), 0.7)) == 3
    assert len(tapped(jax.grad(jax.jit(f)), 0.7)) == 3
    for g in (loop, jax.checkpoint(loop), jax.jit(loop)):
        calls = tapped(lambda x, g=g: jax.linearize(g, x)[1](1.0), 1.0)
        assert [c["w"].item() for c in calls] == [1, 0.5, 0.25]
    y, f_lin = jax.linearize(lox.tap(loop, lambda logs: None), 1.0)
    assert (y, f_lin(1.0)) == (0.125, 0.125)


def test_a_while_loop_in_a_differentiated_scan():
    def f(x):
        def body(c, _):
            return c * loop(lax.stop_gradient(c)), None

        return lax.scan(body, x, None, length=2)[0]

    wanted = jax.grad(lox.nolog(f))(0.7)
    assert lox.nolog(jax.grad(f))(0.7) == wanted
    calls = tapped(jax.grad(f), 0.7)
    assert len(calls) == 6 and calls == tapped(f, 0.7)


def test_a_loop_in_a_while_loop_that_is_recomputed_logs_once():
    def w(x):
        def inner(i, y):
            log(a=y)
            return y * 0.5

        def body(c):
            return lax.fori_loop(0, 2, inner, c[0]), c[1] + 1

        return lax.while_loop(lambda c: c[1] < 2, body, (x, 0))[0]

    g = jax.grad(jax.checkpoint(lambda x: x * w(lax.stop_gradient(x))))
    assert tapped(w, 0.7) == tapped(g, 0.7) and len(tapped(w, 0.7)) == 4


def until(v):
    def body(k):
        log(k=k)
        return k + 1.0

    return lax.while_loop(lambda k: k < v, body, 0.0)


def test_a_loop_with_lanes_of_its_own_inside_others():
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


def test_a_branch_that_two_conditionals_share():
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


def test_forward_mode_of_a_scan_without_inputs():
    def f(w):
        def body(_, __):
            log(lr=0.5)
            return None, w * 2

        return lax.scan(body, None, None, length=3)[1].sum()

    assert len(tapped(lambda w: jax.jvp(f, (w,), (1.0,)), 1.0)) == 3


# --- lanes -------------------------------------------------------------------


def test_a_predicate_that_only_the_axis_index_makes_differ():
    def f(x):
        def body(i):
            log(i=i)
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


def test_lanes_of_unrelated_vmaps_are_not_joined():
    def f(x):
        log(x=x)
        return x

    def g():
        return jax.vmap(f)(jnp.arange(3.0)), jax.vmap(f)(jnp.arange(2.0))

    with pytest.raises(lox.ShapeError, match=r"\(3,\) lanes.*\(2,\) lanes"):
        lox.spool(g)()


# --- rules of the user's -----------------------------------------------------


@jax.custom_vjp
def hidden(x):
    return x * 2


def _fwd(x):
    log(fwd=x)
    return x * 2, x


def _bwd(r, ct):
    log(bwd=ct)
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
def test_rules_deep_inside_are_reached(wrap, capsys):
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


def test_functions_of_jax_with_rules_stay_as_they_are():
    def jaxprs(jaxpr):
        for eqn in jaxpr.eqns:
            if "jaxpr" in eqn.params:
                yield eqn.params["jaxpr"]
                yield from jaxprs(eqn.params["jaxpr"])

    f = jax.jit(lambda x: jax.nn.relu(x) + 1)
    (before,) = jax.make_jaxpr(f)(1.0).eqns
    after = jaxprs(jax.make_jaxpr(lox.nolog(lambda x: f(x)))(1.0))
    assert any(jaxpr is before.params["jaxpr"] for jaxpr in after)


def test_a_logged_tangent_that_reverse_mode_never_computes_is_reported():
    @jax.custom_jvp
    def f(x):
        return x * x

    def rule(p, t):
        log(x=p[0], dx=t[0])
        return f(*p), 2 * p[0] * t[0]

    f.defjvp(rule)
    _, logs = lox.spool(lambda x: jax.jvp(f, (x,), (1.0,)))(3.0)
    assert logs == {"x": 3.0, "dx": 1.0}
    with pytest.warns(lox.LoxWarning, match=r"'x', 'dx', logged at .*tangent"):
        assert lox.spool(jax.grad(f))(3.0) == (6.0, {})


def test_a_rule_that_logs_the_same_keys_with_other_steps():
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


def test_custom_vmap_in_a_branch_that_logs():
    double = jax.custom_batching.custom_vmap(lambda x: x * 2)
    double.def_vmap(lambda n, b, x: (x * 2, b[0]))

    def f(x):
        def yes(x):
            log(x=x)
            return double(x)

        return lax.cond(x > 0, yes, lambda x: x, x)

    assert len(tapped(jax.vmap(f), jnp.array([1.0, -1.0]))) == 1
    assert jax.vmap(lox.nolog(f))(jnp.array([1.0, -1.0])).tolist() == [2, -1]


# --- branches ----------------------------------------------------------------


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


# --- meshes ------------------------------------------------------------------


@pytest.fixture
def explicit_mesh():
    with jax.set_mesh(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))):
        yield jax.device_put(jnp.arange(16.0).reshape(8, 2), P("x"))


def logging(r, scale=2):
    log(r=r)
    return r * scale


def test_explicit_mesh_vmapped_cond(explicit_mesh):
    def f(r):
        return lax.cond(r.sum() > 10, logging, lambda r: r, r)

    lanes = lox.spool(jax.vmap(f))(explicit_mesh)[1].lanes()
    assert [bool(lane) for lane in lanes] == [False] * 3 + [True] * 5
    lox.set_default("silent")
    jax.jit(jax.vmap(f))(explicit_mesh)


def test_explicit_mesh_differentiated_scan(explicit_mesh):
    def f(x):
        def body(c, _):
            log(k=0.5)
            return jnp.sin(c), None

        return lax.scan(body, x, None, length=3)[0].sum()

    grad, logs = jax.jit(lox.spool(jax.grad(f)))(explicit_mesh)
    assert logs["k"].shape == (3,)
    assert grad.sharding == jax.jit(jax.grad(lox.nolog(f)))(explicit_mesh).sharding


def test_explicit_mesh_branches_that_differ(explicit_mesh):
    def twice(x):
        log(r=x)
        return logging(x)

    for other in (twice, lambda x: x * 2):
        f = jax.jit(lox.spool(lambda x, o=other: lax.cond(x.sum() > 0, o, logging, x)))
        value = f(explicit_mesh)[1]["r"]
        assert "x" in str(jax.typeof(value)) and value.shape[-2:] == (8, 2)
    logs = lox.spool(lambda x: lax.cond(x.sum() > 0, twice, logging, x))(explicit_mesh)[
        1
    ]
    assert logs["r"].shape == (2, 8, 2)


def test_a_branch_in_a_shard_map_that_only_one_device_takes():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def f(x):
        def yes():
            log(c=x.sum())

        lax.cond(lax.axis_index("x") == 1, yes, lambda: None)
        return x

    g = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    _, logs = lox.spool(g)(jnp.arange(8.0))
    assert [dict(lane).get("c") for lane in logs.lanes()][:3] == [None, 1.0, None]


# --- callbacks ---------------------------------------------------------------


def test_a_second_shape_gets_axes_of_its_own():
    calls = []

    def f(x):
        log(x=x)
        return x

    for x in (1.0, jnp.arange(3.0), jnp.ones((2, 2))):
        lox.tap(f, calls.append)(x)
    assert [len(c.lanes()) for c in calls] == [1, 1, 1]
    assert (calls[1] + calls[1])["x"].shape == (2, 3)


def test_first_calls_in_threads_share_one_sink():
    for _ in range(5):

        def f(x):
            log(x=x)
            return x

        barrier = threading.Barrier(4)
        found = {}

        def work(i, f=f, barrier=barrier, found=found):
            calls = []
            barrier.wait()
            lox.tap(f, calls.append)(i)
            found[i] = [int(c["x"]) for c in calls]

        in_threads(work, [(i,) for i in range(4)])
        assert found == {i: [i] for i in range(4)}


def bad(logs):
    raise KeyError("mine")


def test_errors_of_a_callback_hit_only_its_own_call_or_a_barrier():
    def f(x):
        log(x=x)
        return x

    def program(x):
        y = lox.tap(f, bad)(x)
        lox.log({"y": y})  # which comes after the error
        return y

    failed = threading.Event()
    jax.jit(lox.tap(program, lambda logs: failed.set()))(1.0)
    wait_for(failed)
    seen = []
    lox.set_default(seen.append)
    lox.log({"unrelated": 1})
    assert lox.tap(f, seen.append)(2.0) == 2 and len(seen) == 2
    with pytest.raises(KeyError, match="mine"):
        jax.effects_barrier()
    jax.effects_barrier()


def test_errors_of_several_callbacks_are_all_told():
    def f(x):
        lox.tap(lambda x: log(x=x), lambda logs: 1 / 0)(x)
        lox.tap(lambda x: log(x=x), bad)(x)
        return x

    jax.jit(f)(1.0)
    with pytest.raises((ZeroDivisionError, KeyError)) as caught:
        jax.effects_barrier()
    assert len(caught.value.__notes__) == 1


# --- logdict -----------------------------------------------------------------


def steps(x):
    def body(c, t):
        lox.log({"x": c + t}, step=t)
        return c, None

    return lax.scan(body, x, jnp.arange(4.0))[0]


def test_count_keeps_lanes():
    _, logs = lox.spool(jax.vmap(steps), reduce="count")(jnp.arange(3.0))
    assert logs["x"].tolist() == [4, 4, 4]
    assert [lane["x"].item() for lane in logs.lanes()] == [4, 4, 4]


def test_logging_logs_keeps_what_did_not_happen_out():
    def f(x):
        lax.cond(x > 5, lambda: log(k=x + 100), lambda: None)
        lox.log({"s": x}, step=x)
        return x

    def g(x):
        y, logs = lox.spool(f)(x)
        lox.log(logs)
        return y

    logs = lox.spool(g)(1.0)[1]
    assert logs == {"s": 1.0} and logs.step["s"] == 1
    assert lox.spool(g)(6.0)[1] == {"k": 106.0, "s": 6.0}

    def stacked(xs):
        def body(c, x):
            return c, f(x)

        _, logs = lox.spool(lambda xs: lax.scan(body, 0, xs))(xs)
        lox.log(logs)

    with pytest.raises(lox.LoxTypeError, match="'k'.*reduce"):
        lox.spool(stacked)(jnp.arange(3.0))


def even_steps(x):
    def body(c, t):
        lax.cond(t % 2 == 0, lambda: log(e=t), lambda: None)
        return c, None

    return lax.scan(body, x, jnp.arange(4.0))[0]


def test_slices_count_rows_that_happened():
    _, logs = jax.jit(lox.spool(even_steps))(1.0)
    assert logs.slice[-1] == {"e": 2.0} and logs.slice[:2]["e"].tolist() == [0, 2]
    with pytest.raises(lox.LoxTypeError, match="outside `jax.jit`"):
        jax.jit(lambda logs: logs.slice[-1])(logs)

    def ragged(n):
        lax.fori_loop(
            0, 3, lambda i, c: lax.cond(i < n, lambda: log(i=i), lambda: None) or c, 0
        )

    _, logs = jax.vmap(lox.spool(ragged))(jnp.array([1, 3]))
    with pytest.raises(lox.LoxValueError, match="'i'.*`logs.lanes"):
        _ = logs.slice[-1]


def test_axes_that_were_taken_away_are_noticed():
    _, logs = lox.spool(steps)(1.0)
    last = jax.tree.map(lambda a: a[-1], logs)
    with pytest.raises(lox.LoxValueError, match=r"`logs.slice\[-1\]`"):
        last.reduce("mean")
    logs.update(x=5.0)
    assert "x" not in logs.steps.get("step", {})
    _, logs = lox.spool(steps)(1.0)
    assert logs.pop("x").shape == (4,)
    logs.setdefault("x", 1.0)
    assert logs.reduce("mean") == {"x": 1.0} and not logs.steps.get("step")
    _, logs = lox.spool(steps)(1.0)
    logs.popitem()
    logs["x"] = jnp.ones(4)
    assert logs.slice[0]["x"].shape == (4,)
    logs.clear()
    assert logs == {} and jax.tree.leaves(logs) == []


def test_a_loop_that_never_ran_can_be_reduced():
    def f(x):
        def body(c, t):
            lox.log({"x": t}, step=t)
            return c, None

        return lax.scan(body, x, jnp.arange(0.0))[0]

    for name in ("sum", "last", "min"):
        logs = lox.spool(f, reduce=name)(1.0)[1]
        assert logs == {}  # as of a `while_loop` that never ran


def test_a_mean_of_no_rows_divides_by_nothing():
    def f(x):
        lax.cond(x > 5, lambda: log(k=x), lambda: None)
        return x

    with jax.debug_nans(True):
        for name in ("mean", "std", "var"):
            assert lox.spool(f, reduce=name)(1.0)[1] == {}
            assert set(lox.spool(f, reduce=name)(6.0)[1]) == {"k"}


def test_explicit_events_are_not_printed(capsys):
    lox.log({"x": 1}, explicit=True)
    jax.jit(lambda x: lox.log({"x": x}, explicit=True))(1)
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


# --- caches ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Model:
    k: int

    def __call__(self, x):
        log(x=x * self.k)
        return x

    def apply(self, x):
        return self(x)


def test_functions_that_are_equal_are_not_the_same():
    a, b = Model(2), Model(2)
    first, second = lox.spool(a), lox.spool(b)
    bound = lox.spool(b.apply)
    first(1.0)
    del a, first
    gc.collect()
    assert second(1.0)[1] == {"x": 2.0} and bound(1.0)[1] == {"x": 2.0}


def test_static_arguments_must_be_hashable():
    def f(x, names):
        log(x=x + len(names))
        return x

    assert lox.spool(f)(1.0, frozenset({1}))[1] == {"x": 2.0}
    with pytest.raises(lox.LoxTypeError, match="set.*hashable"):
        lox.spool(f)(1.0, {1})


def test_numpy_and_python_numbers_in_results_pass_through():
    def f(x):
        return np.float32(2), 3, "text", x

    out, _ = lox.spool(f)(1.0)
    assert out == (2, 3, "text", 1)
