"""Logs under `vmap`, `shard_map` and `pmap`."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import lox
from tests.interpreter.programs_that_log import (
    branchy,
    custom_vjp,
    logged,
    rows,
    spooled,
    tapped,
)

# --- vmap -------------------------------------------------------------------


def test_vmap_inside_puts_lanes_after_time_and_outside_before():
    def f(x):
        lax.scan(lambda c, i: (logged(x + i), None), x, jnp.arange(3))
        return x

    xs = jnp.arange(2) * 10
    assert spooled(jax.vmap(f), xs)["x"].tolist() == [[0, 10], [1, 11], [2, 12]]
    _, logs = jax.vmap(lox.spool(f))(xs)
    assert logs["x"].tolist() == [[0, 1, 2], [10, 11, 12]]
    nested = spooled(jax.vmap(jax.vmap(f)), jnp.arange(6).reshape(2, 3))
    assert nested["x"].shape == (3, 2, 3)


def test_vmap_supports_in_axes_out_axes_and_unmapped_values():
    def f(x, y):
        lox.log({"x": x, "y": y, "one": 1.0})
        return x

    xs = jnp.arange(6.0).reshape(2, 3)
    vf = jax.vmap(f, in_axes=(1, None), out_axes=1)
    y, logs = lox.spool(vf)(xs, 5.0)
    assert y.tolist() == xs.tolist()
    assert logs["x"].tolist() == xs.T.tolist()
    assert logs["y"].tolist() == [5, 5, 5] and logs["one"].tolist() == [1, 1, 1]


def test_vmap_logs_constants_in_every_lane():
    def f(x):
        lox.log({"one": 1})
        return x

    assert len(tapped(jax.vmap(f), jnp.zeros(3))) == 3


def test_vmap_supports_named_axes_and_spmd_axes():
    def f(x):
        return logged(lax.psum(x, "i"))

    assert spooled(jax.vmap(f, axis_name="i"), jnp.arange(3.0))["x"].tolist() == [3] * 3
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        g = jax.vmap(logged, spmd_axis_name="d")
        assert spooled(g, jnp.arange(8.0))["x"].tolist() == list(range(8))


def test_vmapped_cond_logs_taken_branch_of_each_lane():
    xs = jnp.array([1.0, -1.0, 2.0])
    alone = [spooled(branchy, x) for x in xs]
    assert spooled(jax.vmap(branchy), xs).lanes() == alone
    assert jax.vmap(lox.spool(branchy))(xs)[1].lanes() == alone
    assert jax.jit(lox.spool(jax.vmap(branchy)))(xs)[1].lanes() == alone
    for calls in (tapped(jax.vmap(branchy), xs),):
        assert sorted(rows(calls, "pos")) == [1, 2] and rows(calls, "neg") == [-1]
        assert rows(calls, "loop") == [1, 2, 2, 3]


def test_vmapped_while_loop_logs_per_lane_until_it_ends():
    def f(n):
        def cond(i):
            lox.log({"cond": i}, n=n)
            return i < n

        def body(i):
            lox.log({"body": i}, n=n)
            return lax.cond(i % 2 == 0, lambda i: logged(i, "even"), lambda i: i, i) + 1

        return lax.while_loop(cond, body, 0)

    ns = jnp.array([0, 3, 1])
    for calls in (
        tapped(jax.vmap(f), ns),
        tapped(jax.vmap(jax.vmap(f)), ns[None]),
        tapped(jax.jit(jax.vmap(f)), ns),
    ):
        for n in (0, 3, 1):
            mine = [c for c in calls if "n" in c.steps and c.n[next(iter(c))] == n]
            assert rows(mine, "body") == list(range(n))
            assert rows(mine, "cond") == list(range(n + 1))
        assert sorted(rows(calls, "even")) == [0, 0, 2]
    assert jax.vmap(lox.nolog(f))(ns).tolist() == [0, 3, 1]


def test_vmapped_cond_prints_only_taken_branches():
    seen = []
    lox.set_default(lambda logs: seen.append(dict(logs)))
    jax.vmap(branchy)(jnp.array([-1.0, 2.0]))
    jax.effects_barrier()
    assert seen == [{"neg": -1.0}, {"pos": 2.0}, {"loop": 2.0}, {"loop": 3.0}]


def test_vmapped_cond_logs_backward_rule_only_where_it_ran():
    def f(x):
        return lax.cond(x > 0, custom_vjp, lambda x: x * 3, x)

    def total(xs):
        return jax.vmap(f)(xs).sum()

    xs = jnp.array([1.0, -1.0, 2.0])
    for g in (jax.grad(total), jax.vmap(jax.grad(f))):
        calls = tapped(g, xs)
        assert rows(calls, "fwd") == [1, 2]
        assert rows(calls, "bwd") == [1, 1]
    assert jax.grad(total)(xs).tolist() == [7, 3, 7]


# --- devices ---------------------------------------------------------------


def mesh_of(*names, kind=jax.sharding.AxisType.Auto):
    shape = {1: (8,), 2: (4, 2)}[len(names)]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def test_shard_map_adds_device_axis():
    mesh = mesh_of("i")

    def f(x):
        def body(c, i):
            return c + logged(x.sum() * i), None

        return x + lax.scan(body, x.sum() * 0, jnp.arange(2.0))[0]

    g = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    x = jnp.arange(16.0)
    sums = (x[0::2] + x[1::2]).tolist()
    y, logs = lox.spool(g)(x)
    assert logs["x"].tolist() == [[0.0] * 8, sums]
    assert y.tolist() == jax.jit(g)(x).tolist()
    assert spooled(jax.jit(g), x)["x"].tolist() == logs["x"].tolist()
    assert sorted(rows(tapped(g, x), "x")) == sorted([0.0] * 8 + sums)


@pytest.mark.parametrize("differentiate", [False, True])
def test_vmapped_nested_branches_in_shard_map_log_what_does_not_vary(differentiate):
    """JAX alone fails if an operand of both conditionals does not vary over devices."""

    def f(x):
        def step(c, i):
            def deep(c):
                lox.log({"deep": c}, step=i)
                return c * 0.5 + i

            def inner(c):
                return lax.switch(jnp.int32(c) % 2, [lambda c: c * i, deep], c)

            def outer(c):
                lox.log({"outer": c}, step=i)
                return c + 1

            c = lax.cond(c > 2, inner, outer, c)
            lox.log({"every": c}, step=i)
            return c, None

        return lax.scan(step, x, jnp.arange(4))[0]

    xs = jnp.arange(4.0)
    fun = jax.grad(f) if differentiate else f
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    mapped = jax.shard_map(jax.vmap(fun), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    expected = [lox.spool(fun)(x) for x in xs]
    out, logs = lox.spool(mapped)(xs)
    assert out.tolist() == [value for value, _ in expected]
    lanes = [lane.compact() for device in logs.lanes() for lane in device.lanes()]
    for lane, (_, own) in zip(lanes, expected, strict=True):
        assert lane.keys() == own.keys()
        for key in own:
            assert lane[key].tolist() == own[key].tolist()
            assert lane.step[key].tolist() == own.step[key].tolist()
    calls = tapped(mapped, xs)
    count = sum(jnp.size(value) for _, own in expected for value in own.values())
    assert len(calls) == count


@pytest.mark.parametrize("order", ["vmap(spool)", "spool(vmap)", "grad(vmap(spool))"])
def test_vmap_around_shard_map_logs_branch_that_each_device_takes(order):
    """JAX's type of the branch's constants does not say that they vary over devices."""

    def branch(x, i):
        lox.log({"taken": i, "constant": 0.5, "x": x}, step=i)
        return x * 2

    def f(block):
        (x,) = block
        y = lax.cond(x > 2, branch, lambda x, i: x, x, 7)
        return y[None]

    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    fun = jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    xs = jnp.arange(6.0).reshape(3, 2)
    if order == "spool(vmap)":  # JAX moves the `vmap` into the `shard_map`
        logs, taken = lox.spool(jax.vmap(fun))(xs)[1], xs.T > 2
    elif order == "vmap(spool)":
        logs, taken = jax.vmap(lox.spool(fun))(xs)[1], xs > 2
    else:

        def total(xs):
            y, logs = jax.vmap(lox.spool(fun))(xs)
            return y.sum() + logs["x"].sum(), logs

        gradient, logs = jax.grad(total, has_aux=True)(xs)
        assert gradient.tolist() == [[1, 1], [1, 3], [3, 3]]
        taken = xs > 2
    assert all(logs.mask[key].tolist() == taken.tolist() for key in logs)
    for value, wanted in [
        (logs["taken"], 7),
        (logs["constant"], 0.5),
        (logs["x"], xs.T if order == "spool(vmap)" else xs),
        (logs.step["x"], 7),
    ]:
        assert jnp.where(taken, value, wanted).tolist() == (
            jnp.broadcast_to(wanted, taken.shape).tolist()
        )


def branch_in_scan(x):
    def body(carry, _):
        h, n = carry

        def branch(h):
            lox.log({"n": n})
            return h + 0.25

        return (lax.cond(h > 1, branch, lambda h: h + 0.5, h), n + 1), None

    return lax.scan(body, (x, 0), None, length=3)[0][0]


@pytest.mark.parametrize(
    "order", ["vmap(spool)", "vmap(shard_map(spool))", "shard_map(vmap(spool))"]
)
def test_reductions_of_branches_that_differ_between_devices_under_vmap(order):
    xs = jnp.array([[0.0, 1.5], [0.75, 0.25]])
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    on_devices = partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    spool = partial(lox.spool, reduce="sum")
    first = partial(jax.tree.map, lambda x: x[None])
    if order == "vmap(spool)":
        fun = spool(on_devices(lambda x: branch_in_scan(x[0])[None]))
        logs = jax.vmap(fun)(xs)[1]
    elif order == "vmap(shard_map(spool))":
        fun = on_devices(lambda x: first(spool(branch_in_scan)(x[0])))
        logs = jax.vmap(fun)(xs)[1]
    else:
        fun = on_devices(lambda x: first(jax.vmap(spool(branch_in_scan))(x[0])))
        logs = jax.jit(fun)(xs)[1]
    alone = [[lox.spool(branch_in_scan, reduce="sum")(x)[1] for x in row] for row in xs]
    wanted = jnp.array([[float(own.get("n", -1)) for own in row] for row in alone])
    assert jnp.where(logs.mask["n"], logs["n"], -1).tolist() == wanted.tolist()


@pytest.mark.parametrize("follows", ["cond", "scan", "fori_loop"])
def test_counter_of_logging_while_loop_has_its_type_under_vmap_in_shard_map(follows):
    def f(x):
        def body(carry):
            count, v = carry
            lox.log({"v": v})
            return count + 1, v + 0.5

        count, v = lax.while_loop(lambda carry: carry[1] < 2, body, (0, x))
        if follows == "cond":
            return lax.cond(count > 2, lambda v: v * 2, lambda v: v, v)
        if follows == "scan":
            return lax.scan(lambda c, i: (c + i, None), count, jnp.arange(3))[0] + v
        return lax.fori_loop(0, count, lambda i, v: v * 1.5, v)

    xs = jnp.array([[0.5, 1.5], [1.0, 0.25]])
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    mapped = jax.shard_map(
        lambda xs: jax.vmap(f)(xs[0])[None],
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
    )
    out, logs = lox.spool(mapped, capacity=5)(xs)
    assert out.tolist() == jax.vmap(jax.vmap(lox.nolog(f)))(xs).tolist()
    lanes = [lane["v"].tolist() for device in logs.lanes() for lane in device.lanes()]
    alone = [lox.spool(f, capacity=5)(x)[1]["v"].tolist() for x in xs.ravel()]
    assert lanes == alone


def test_shard_map_logs_over_one_or_both_of_two_axes():
    mesh = mesh_of("i", "j")
    x = jnp.arange(8.0).reshape(4, 2)

    def f(x):
        return logged(x.sum()) + x

    both = jax.shard_map(f, mesh=mesh, in_specs=P("i", "j"), out_specs=P("i", "j"))
    assert spooled(both, x)["x"].tolist() == list(range(8))
    one = jax.shard_map(
        f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"}
    )
    assert spooled(jax.jit(one), x)["x"].tolist() == [1, 5, 9, 13]
    assert sorted(set(rows(tapped(jax.jit(one), x), "x"))) == [1, 5, 9, 13]


def logging_loop():
    def body(i, carry):
        lox.log({"k": 7.0}, step=i)
        return carry

    return lax.fori_loop(0, 2, body, jnp.zeros(1))


def logs_in_derivative(y):
    """The derivative uses neither `y` nor what the loop computes from it."""
    step = jax.custom_vjp(lambda y, i: (lox.log({"k": 7.0}, step=i), jnp.sin(y))[1])
    step.defvjp(lambda y, i: (step(y, i), None), lambda _, ct: (ct * 0.5, None))
    return lax.fori_loop(0, 2, lambda i, c: step(c, i), y)


@pytest.mark.parametrize("ways", ["no input", "unused input", "derivative"])
def test_loop_in_shard_map_that_uses_no_input_is_tapped_once_per_device(ways):
    # XLA copied the loop, with its callbacks
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    shard_map = partial(jax.shard_map, mesh=mesh, out_specs=P("d"))
    by_name = {
        "no input": lambda x: shard_map(logging_loop, in_specs=())(),
        "unused input": lambda x: shard_map(lambda x: logging_loop(), in_specs=P())(x),
        "derivative": jax.grad(
            lambda x: shard_map(logs_in_derivative, in_specs=P("d"))(
                jnp.stack([x, x])
            ).sum()
        ),
    }
    calls = []
    lox.tap(by_name[ways], calls.append)(1.0)
    found = sorted((int(c.lane["k"]), int(c.step["k"])) for c in calls)
    assert found == [(lane, i) for lane in range(2) for i in range(2)]


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_spool_keeps_sharding_of_values(kind):
    mesh = mesh_of("i", kind=getattr(jax.sharding.AxisType, kind))
    with jax.set_mesh(mesh):
        split = jax.sharding.NamedSharding(mesh, P("i"))
        x = jax.device_put(jnp.arange(8.0), split)

        def f(x):
            def body(c, _):
                return logged(c * 2), None

            return lax.scan(body, x, None, length=3)[0]

        y, logs = lox.spool(f)(x)
        assert y.sharding == jax.jit(lox.nolog(f))(x).sharding
        assert logs["x"][0].tolist() == (x * 2).tolist()
        assert logs["x"].shape == (3, 8)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_tap_works_in_program_partitioned_over_devices(kind):
    mesh = mesh_of("i", kind=getattr(jax.sharding.AxisType, kind))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(mesh, P("i")))

        def f(x):
            lox.log({"x": x, "sum": x.sum()})
            return x * 2

        calls = tapped(f, x)
        assert rows(calls, "sum") == [28] and rows(calls, "x") == [list(range(8))]
        calls = []
        jax.jit(lox.tap(f, calls.append))(x)
        jax.effects_barrier()
        assert rows(calls, "sum") == [28]
        seen = []
        lox.set_default(seen.append)
        jax.jit(f)(x)
        jax.effects_barrier()
        assert rows(seen, "sum") == [28]


# --- pmap ------------------------------------------------------------------


def test_pmap_logs_on_every_device():
    def f(x):
        lox.log({"x": x}, step=1)

        def body(c, i):
            lox.log({"c": c})
            return c + i, None

        return lax.scan(body, lax.pmean(x, "d"), jnp.arange(2.0))[0]

    xs = jnp.array([1.0, 3.0])
    pmapped = partial(jax.pmap, axis_name="d")
    wanted = [3.0, 3.0]
    for _ in range(2):  # the second call reuses what the first one compiled
        out, logs = lox.spool(pmapped(f))(xs)
        assert out.tolist() == wanted and logs["x"].tolist() == [1.0, 3.0]
        assert logs["c"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
        assert logs.step["x"].tolist() == [1, 1]
        out, logs = pmapped(lox.spool(f))(xs)
        assert out.tolist() == wanted
        assert [lane["x"].item() for lane in logs.lanes()] == [1.0, 3.0]
    _, logs = lox.spool(pmapped(f), reduce="sum")(xs)
    assert logs["c"].tolist() == [4.0, 4.0]
    for make in (
        lambda f, c: lox.tap(pmapped(f), c),
        lambda f, c: pmapped(lox.tap(f, c)),
    ):
        calls = []
        assert make(f, calls.append)(xs).tolist() == wanted
        jax.effects_barrier()
        assert sorted(float(call["x"]) for call in calls if "x" in call) == [1.0, 3.0]
        assert sum("c" in call for call in calls) == 4
    assert lox.nolog(pmapped(f))(xs).tolist() == wanted
    gradient = lox.spool(pmapped(jax.grad(lambda x: x * f(x))))(xs)[1]
    assert gradient["x"].tolist() == [1.0, 3.0]
