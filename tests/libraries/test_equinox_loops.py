"""Equinox's loops, and the solvers of diffrax, optimistix and lineax that use them."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.equinox_programs import (
    KINDS,
    SPOOLED,
    STARTS,
    TAPPED,
    alone,
    assert_same_rows,
    counted,
    eqxi,
    halve,
    halvings,
    lx,
    rows,
    rows_per_lane,
    tapped,
)

from .recording import long

# --- loops -------------------------------------------------------------------


@pytest.mark.parametrize("way", SPOOLED)
@pytest.mark.parametrize("kind", KINDS)
def test_ended_lanes_of_an_equinox_loop_log_nothing(kind, way):
    fun = halve(kind)
    result, logs = SPOOLED[way](fun, capacity=9)(jnp.array(STARTS))
    found = rows_per_lane(logs)
    assert [lane.get("x", []) for lane in found] == list(map(halvings, STARTS))
    if way != "vmap(spool(spool))":
        np.testing.assert_array_equal(result, jax.vmap(fun)(jnp.array(STARTS)))


@pytest.mark.parametrize("reduce", ["mean", "count", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_reductions_skip_ended_lanes_of_an_equinox_loop(kind, reduce):
    fun = halve(kind)
    expected = alone(fun, STARTS, reduce=reduce)
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](fun, reduce=reduce)(jnp.array(STARTS))[1]
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_of_an_equinox_loop_that_carries_a_typed_key_log_as_alone(kind):
    def walk(steps, key):
        def body(carry):
            x, i, key = carry
            key, used = jax.random.split(key)
            x = jax.lax.fori_loop(
                0, 2, lambda _, c: (c[0] + jax.random.normal(c[1]), c[1]), (x, used)
            )[0]
            lox.log({"x": x}, step=i)
            return x, i + 1, key

        start = jnp.float32(0), jnp.int32(0), key
        options = {} if kind == "lax" else {"max_steps": 6}
        return eqxi.while_loop(
            lambda c: c[1] < steps, body, start, kind=kind, **options
        )[0]

    args = jnp.array([0, 3, 5]), jax.random.split(jax.random.key(0), 3)
    expected = [
        rows(lox.spool(walk, capacity=6)(*jax.tree.map(lambda x, i=i: x[i], args))[1])
        for i in range(3)
    ]
    assert [len(one.get("x", [])) for one in expected] == [0, 3, 5]
    for way in ("vmap(spool)", "spool(vmap)"):
        found = SPOOLED[way](walk, capacity=6)(*args)[1]
        assert_same_rows(rows_per_lane(found), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_interval_and_window_count_the_running_lanes_of_an_equinox_loop(kind):
    fun = halve(kind)
    for options in (
        {"interval": 2, "capacity": 9},
        {"window": 2, "reduce": "sum", "capacity": 9},
    ):
        expected = alone(fun, STARTS, **options)
        for way in ("vmap(spool)", "spool(vmap)"):
            found = SPOOLED[way](fun, **options)(jnp.array(STARTS))[1]
            assert rows_per_lane(found) == expected


@pytest.mark.parametrize("way", TAPPED)
@pytest.mark.parametrize("kind", KINDS)
def test_tap_skips_ended_lanes_of_an_equinox_loop(kind, way):
    _, received = tapped(TAPPED[way], halve(kind), jnp.array(STARTS))
    expected = [{"x": halvings(x)} for x in STARTS]
    assert received == counted(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_buffered_tap_skips_ended_lanes_of_an_equinox_loop(kind):
    received = []
    fun = jax.vmap(
        lox.tap(halve(kind), lambda logs: received.extend(logs["x"].tolist()), buffer=2)
    )
    fun(jnp.array(STARTS))
    jax.effects_barrier()
    expected = counted({"x": halvings(x)} for x in STARTS)
    assert collections.Counter(("x", x) for x in received) == expected


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_printing_skips_ended_lanes_of_an_equinox_loop(kind, jit, capfd):
    lox.set_default("print")
    fun = jax.vmap(halve(kind))
    jax.block_until_ready((jax.jit(fun) if jit else fun)(jnp.array([3.0, 10.0])))
    jax.effects_barrier()
    printed = capfd.readouterr().out
    for number in ("1.5", "10.0", "5.0", "2.5", "1.25"):
        assert printed.count(number) == 1
    assert "0.75" not in printed


@pytest.mark.parametrize("kind", KINDS)
def test_nested_vmaps_of_an_equinox_loop_log_per_lane(kind):
    fun = halve(kind)
    xs = jnp.array(STARTS).reshape(2, 2)
    for spooled in (
        jax.vmap(jax.vmap(lox.spool(fun, capacity=9))),
        lox.spool(jax.vmap(jax.vmap(fun)), capacity=9),
        jax.vmap(lox.spool(jax.vmap(fun), capacity=9)),
    ):
        found = rows_per_lane(spooled(xs)[1], depth=2)
        assert [lane.get("x", []) for lane in found] == list(map(halvings, STARTS))


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_that_does_not_reach_the_predicate_masks_nothing(kind):
    def fun(x, y):
        def body(carry):
            x, y = carry
            lox.log({"y": y})
            return x / 2, y + 1

        options = {} if kind == "lax" else {"max_steps": 16}
        return eqxi.while_loop(lambda c: c[0] > 1, body, (x, y), kind=kind, **options)

    ys = jnp.arange(3.0)
    xs = jnp.array([3.0, 7.0])
    per_y = [
        [rows(lox.spool(fun, capacity=9)(x, y)[1]) for y in ys.tolist()]
        for x in xs.tolist()
    ]
    over_y = jax.vmap(fun, (None, 0))
    logs = lox.spool(jax.vmap(over_y, (0, None)), capacity=9)(xs, ys)[1]
    assert rows_per_lane(logs, 2) == [lane for lanes in per_y for lane in lanes]
    over_x = jax.vmap(jax.vmap(fun, (0, None)), (None, 0))
    logs = lox.spool(over_x, capacity=9)(xs, ys)[1]
    found = rows_per_lane(logs, 2)
    assert found == [per_y[j][i] for i in range(3) for j in range(2)]


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", KINDS)
def test_nested_equinox_loops_log_per_lane(outer, inner):
    def options(kind):
        return {"kind": kind} | ({} if kind == "lax" else {"max_steps": 16})

    def fun(x):
        def body(carry):
            i, x = carry
            lox.log({"outer": x})

            def inner_body(y):
                lox.log({"inner": y})
                return y - 1

            y = eqxi.while_loop(lambda y: y > x - i, inner_body, x, **options(inner))
            return i + 1, y

        return eqxi.while_loop(lambda c: c[1] > 0, body, (1.0, x), **options(outer))[1]

    def python(x):
        log = {"outer": [], "inner": []}
        i = 1.0
        while x > 0:
            log["outer"].append(x)
            y = x
            while y > x - i:
                log["inner"].append(y)
                y -= 1
            i, x = i + 1, y
        return {key: values for key, values in log.items() if values}

    xs = [5.0, 0.0, 9.0, 2.0]
    for way in ("vmap(spool)", "spool(vmap)"):
        found = rows_per_lane(SPOOLED[way](fun, capacity=60)(jnp.array(xs))[1])
        assert found == list(map(python, xs))


@pytest.mark.parametrize("kind", KINDS)
def test_condition_of_an_equinox_loop_logs_per_lane(kind):
    fun = halve(kind, log_condition=True)
    expected = alone(fun, STARTS)
    for way in ("vmap(spool)", "spool(vmap)"):
        found = rows_per_lane(SPOOLED[way](fun, capacity=99)(jnp.array(STARTS))[1])
        assert found == expected
    for way in ("vmap(tap)", "tap(vmap)"):
        _, received = tapped(TAPPED[way], fun, jnp.array(STARTS))
        assert received == counted(expected)


@pytest.mark.parametrize("kind", ["bounded", "checkpointed"])
def test_derivatives_of_vmapped_equinox_loops_log_per_lane(kind):
    fun = halve(kind)
    xs = jnp.array(STARTS)
    expected = jax.vmap(jax.grad(lox.nolog(fun)))(xs)
    grads, logs = jax.vmap(jax.grad(lox.spool(fun, capacity=9), has_aux=True))(xs)
    np.testing.assert_array_equal(grads, expected)
    found = rows_per_lane(logs)
    assert [lane.get("x", []) for lane in found] == list(map(halvings, STARTS))

    def total(xs):
        values, logs = jax.vmap(lox.spool(fun, capacity=9))(xs)
        return values.sum(), logs

    grads, logs = jax.grad(total, has_aux=True)(xs)
    np.testing.assert_array_equal(grads, expected)
    found = rows_per_lane(logs)
    assert [lane.get("x", []) for lane in found] == list(map(halvings, STARTS))

    def spooled_total(xs):
        return lox.spool(lambda xs: jax.vmap(fun)(xs).sum(), capacity=9)(xs)

    grads, logs = jax.grad(spooled_total, has_aux=True)(xs)
    np.testing.assert_array_equal(grads, expected)
    found = rows_per_lane(logs)
    assert [lane.get("x", []) for lane in found] == list(map(halvings, STARTS))


def test_derivative_of_a_bounded_loop_logs_per_lane():
    fun = halve("bounded")
    xs = jnp.array(STARTS)
    grads, logs = lox.spool(jax.vmap(jax.grad(fun)), capacity=9)(xs)
    np.testing.assert_array_equal(grads, jax.vmap(jax.grad(lox.nolog(fun)))(xs))
    found = rows_per_lane(logs)
    assert [lane.get("x", []) for lane in found] == list(map(halvings, STARTS))


def test_forward_mode_of_equinox_loops_logs_per_lane():
    fun = halve("lax")

    def tangent(x):
        return jax.jvp(fun, (x,), (jnp.ones_like(x),))[1]

    logs = lox.spool(jax.vmap(tangent), capacity=9)(jnp.array(STARTS))[1]
    found = rows_per_lane(logs)
    assert [lane.get("x", []) for lane in found] == list(map(halvings, STARTS))


@pytest.mark.parametrize("kind", KINDS)
def test_equinox_loop_in_scan_and_cond_logs_per_lane(kind):
    loop = halve(kind)

    def fun(x):
        def step(carry, i):
            y = jax.lax.cond(carry > 4, loop, lambda x: x, carry + i)
            return y + 3, None

        return jax.lax.scan(step, x, jnp.arange(3.0))[0]

    expected = alone(fun, STARTS)
    assert any(expected)
    for way in ("vmap(spool)", "spool(vmap)"):
        found = rows_per_lane(SPOOLED[way](fun, capacity=99)(jnp.array(STARTS))[1])
        assert found == expected


def test_branch_on_merged_lanes_logs_for_lanes_that_would_take_it():
    def fun(x):
        def expensive(x):
            lox.log({"x": x})
            return x + 1

        pred = eqxi.unvmap_any(x > 1)
        return jax.lax.cond(pred, expensive, lambda x: x, x)

    xs = jnp.array([0.0, 2.0, 3.0])
    for fun_ in (jax.jit(fun), jax.checkpoint(fun)):
        logs = lox.spool(jax.vmap(fun_), capacity=9)(xs)[1]
        assert [lane.get("x") for lane in rows_per_lane(logs)] == [None, 2.0, 3.0]
    logs = jax.vmap(lox.spool(fun))(xs)[1]
    assert [lane.get("x") for lane in rows_per_lane(logs)] == [None, 2.0, 3.0]


@pytest.mark.parametrize(
    "through",
    [jax.jit(jnp.sqrt), jax.nn.relu, jax.checkpoint(jnp.tanh)],
    ids=["jit", "custom_jvp", "checkpoint"],
)
def test_merged_lanes_are_followed_through_calls(through):
    @jax.jit
    def merge(x):
        return eqxi.unvmap_any(x > 1)

    @jax.jit
    def fun(x):
        positive = through(merge(x).astype(float)) > 0.5
        jax.lax.cond(positive, lambda: lox.log({"x": x}) and 0, lambda: 0)

    logs = lox.spool(jax.vmap(fun))(jnp.array([0.0, 2.0, 3.0]))[1]
    assert [lane.get("x") for lane in rows_per_lane(logs)] == [None, 2.0, 3.0]


def test_event_in_call_that_returns_merged_lanes_is_logged_once():
    @jax.jit
    def invert(pred, x):
        lox.log({"x": x})
        return ~pred

    @jax.jit
    def fun(x):
        pred = invert(eqxi.unvmap_all(x > 1), x)
        jax.lax.cond(pred, lambda: lox.log({"low": x}) and 0, lambda: 0)

    expected = [{"x": 0.0, "low": 0.0}, {"x": 2.0}]
    xs = jnp.array([0.0, 2.0])
    assert [lox.spool(fun)(x)[1] for x in xs] == expected
    assert rows_per_lane(lox.spool(jax.vmap(fun))(xs)[1]) == expected


def test_checkpointed_scan_of_equinox_logs_every_step_per_lane():
    def fun(x):
        def step(carry, y):
            lox.log({"carry": carry})
            return carry + y, carry * y

        ys = jnp.arange(3.0)
        return eqxi.scan(step, x, ys, kind="checkpointed")[0]

    xs = [0.0, 1.0]
    expected = [{"carry": [x, x, x + 1]} for x in xs]
    assert alone(fun, xs) == expected
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](fun, capacity=9)(jnp.array(xs))[1]
        assert rows_per_lane(logs) == expected
    spooled = lox.spool(fun, capacity=9)
    gradient, logs = jax.grad(spooled, has_aux=True)(jnp.array(1.0))
    assert (float(gradient), rows_per_lane(logs, 0)) == (1.0, expected[1:])


def test_programs_without_events_are_unchanged():
    def fun(x):
        return eqxi.while_loop(lambda x: x > 1, lambda x: x / 2, x, kind="lax")

    assert "lox" not in str(jax.make_jaxpr(jax.vmap(fun))(jnp.array(STARTS)))


# --- diffrax -----------------------------------------------------------------


def solve(solver, **options):
    dfx = pytest.importorskip("diffrax")
    controller = dfx.PIDController(rtol=1e-3, atol=1e-5)

    def fun(rate):
        def field(t, y, args):
            lox.log({"t": t})
            return -rate * y

        return dfx.diffeqsolve(
            dfx.ODETerm(field),
            getattr(dfx, solver)(),
            0.0,
            1.0,
            y0=jnp.array(1.0),
            stepsize_controller=controller,
            max_steps=64,
            **options,
        ).ys[0]

    return fun


RATES = jnp.array([0.5, 3.0, 20.0])


@pytest.mark.parametrize(
    ("solver", "dt0"),
    [("Dopri5", 0.2), *(pytest.param("Tsit5", dt0, marks=long) for dt0 in (1.0, None))],
)
def test_vmapped_adaptive_solves_log_evaluations_per_lane(solver, dt0):
    # with a large first step, some lanes reject it and others do not
    fun = solve(solver, dt0=dt0)
    expected = alone(fun, RATES)
    assert len({len(lane["t"]) for lane in expected}) == 3
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](fun, capacity=300)(RATES)[1]
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-3)


def test_diffrax_solve_logs_every_evaluation_of_the_vector_field():
    dfx = pytest.importorskip("diffrax")
    calls = []

    def fun(rate):
        def field(t, y, args):
            lox.log({"t": t})
            jax.debug.callback(lambda: calls.append(1))
            return -rate * y

        return dfx.diffeqsolve(
            dfx.ODETerm(field), dfx.Dopri5(), 0.0, 1.0, 0.5, y0=jnp.array(1.0)
        ).ys[0]

    logs = lox.spool(fun, capacity=99)(3.0)[1]
    jax.effects_barrier()
    assert len(logs["t"]) == len(calls)


@pytest.mark.parametrize(
    "adjoint", ["DirectAdjoint", pytest.param("ForwardMode", marks=long)]
)
def test_vmapped_solves_with_other_adjoints_log_per_lane(adjoint):
    dfx = pytest.importorskip("diffrax")
    fun = solve("Dopri5", dt0=0.5, adjoint=getattr(dfx, adjoint)())
    expected = alone(fun, RATES)
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](fun, capacity=300)(RATES)[1]
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-3)


@long
def test_vmapped_implicit_solves_log_per_lane():
    fun = solve("Kvaerno3", dt0=0.5)
    rates = jnp.array([0.5, 3.0])
    expected = alone(fun, rates)
    logs = lox.spool(jax.vmap(fun), capacity=300)(rates)[1]
    assert_same_rows(rows_per_lane(logs), expected, rtol=1e-3)


def test_logs_do_not_change_gradient_of_vmapped_solves():
    fun = solve("Bosh3", dt0=0.5)
    expected = jax.jit(jax.vmap(jax.grad(lox.nolog(fun))))(RATES)
    spooled = lox.spool(fun, capacity=300)
    gradients, logs = jax.jit(jax.vmap(jax.grad(spooled, has_aux=True)))(RATES)
    np.testing.assert_allclose(gradients, expected, rtol=1e-5)
    assert_same_rows(rows_per_lane(logs), alone(fun, RATES), rtol=1e-3)


def test_tap_delivers_evaluations_of_vmapped_solves():
    fun = solve("Tsit5", dt0=1.0)
    received = []
    jax.vmap(lox.tap(fun, lambda logs: received.append(float(logs["t"]))))(RATES)
    jax.effects_barrier()
    expected = [t for lane in alone(fun, RATES) for t in lane["t"]]
    np.testing.assert_allclose(sorted(received), sorted(expected), rtol=1e-3)


# --- optimistix --------------------------------------------------------------


def root(solver):
    optx = pytest.importorskip("optimistix")

    def fun(a):
        def residual(x, a):
            lox.log({"x": x})
            return x**2 - a

        if solver == "Bisection":
            options = {"options": {"lower": 0.0, "upper": 60.0}}
        else:
            options = {}
        method = getattr(optx, solver)(1e-4, 1e-4)
        start = jnp.array(1.5)
        return optx.root_find(residual, method, start, args=a, **options).value

    return fun


@pytest.mark.parametrize("solver", ["Newton", "Chord", "Bisection"])
def test_vmapped_root_finds_log_per_lane(solver):
    fun = root(solver)
    targets = jnp.array([2.25, 2.0, 3.0])
    expected = alone(fun, targets)
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](fun, capacity=99)(targets)[1]
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-4)


def minimum(solver, search):
    optx = pytest.importorskip("optimistix")

    def fun(a):
        def loss(x, a):
            lox.log({"sum": jnp.sum(x)})
            residuals = jnp.stack([x[0] - a, x[1] - x[0] ** 2])
            return jnp.sum(residuals**2) if search == "minimise" else residuals

        method = getattr(optx, solver)(rtol=1e-3, atol=1e-3)
        start = jnp.array([0.5, 0.5])
        options = {"args": a, "max_steps": 64, "throw": False}
        return getattr(optx, search)(loss, method, start, **options).value.sum()

    return fun


@pytest.mark.parametrize(
    ("solver", "search"),
    [
        ("BFGS", "minimise"),
        ("LevenbergMarquardt", "least_squares"),
        pytest.param("Dogleg", "least_squares", marks=long),
    ],
)
def test_vmapped_minimizations_log_per_lane(solver, search):
    fun = minimum(solver, search)
    targets = jnp.array([0.5, 1.0, 2.0])
    expected = alone(fun, targets)
    for way in ("vmap(spool)", "spool(vmap)"):
        logs = SPOOLED[way](fun, capacity=300)(targets)[1]
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-2)


@pytest.mark.parametrize("solver", ["Newton", pytest.param("Bisection", marks=long)])
def test_logs_do_not_change_derivatives_of_root_finds(solver):
    fun = root(solver)
    forward = alone(fun, [2.0])[0]
    gradient = 0.5 / 2.0**0.5
    found, logs = jax.grad(lox.spool(fun, capacity=99), has_aux=True)(2.0)
    np.testing.assert_allclose(found, gradient, rtol=1e-4)
    assert_same_rows(rows_per_lane(logs, 0), [forward])
    received = []
    tap = lox.tap(fun, lambda logs: received.append(float(logs["x"])))
    np.testing.assert_allclose(jax.grad(tap)(2.0), gradient, rtol=1e-4)
    assert received[: len(forward["x"])] == forward["x"]
    for quiet in (
        jax.grad(lox.nolog(fun)),
        lox.nolog(jax.grad(fun)),
        jax.jacfwd(lox.nolog(fun)),
    ):
        np.testing.assert_allclose(jax.jit(quiet)(2.0), gradient, rtol=1e-4)
        assert not jax.make_jaxpr(quiet)(2.0).effects
    vmapped = jax.vmap(jax.grad(lox.nolog(fun)))(jnp.array([2.0, 3.0]))
    np.testing.assert_allclose(vmapped, 0.5 / np.sqrt([2.0, 3.0]), rtol=1e-4)


def test_spool_does_not_change_gradient_of_least_squares():
    fun = minimum("LevenbergMarquardt", "least_squares")
    expected = jax.grad(lox.nolog(fun))(1.0)
    found, logs = jax.grad(lox.spool(fun, capacity=99), has_aux=True)(1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert_same_rows(rows_per_lane(logs, 0), alone(fun, [1.0]))


# --- lineax ------------------------------------------------------------------


def linear(solver):
    matrix = jnp.array([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]])

    def fun(y):
        def matvec(v):
            lox.log({"v": v.sum()})
            return jnp.where(y > 2, 1.0, 0.0) * (matrix @ v) + y * v

        structure = jax.ShapeDtypeStruct((3,), jnp.float32)
        tags = lx.positive_semidefinite_tag if solver == "CG" else ()
        operator = lx.FunctionLinearOperator(matvec, structure, tags)
        method = getattr(lx, solver)(rtol=1e-5, atol=1e-5)
        vector = jnp.array([1.0, 2.0, 3.0])
        return lx.linear_solve(operator, vector, method, throw=False).value.sum()

    return fun


@pytest.mark.parametrize(
    "solver",
    ["CG", *(pytest.param(name, marks=long) for name in ("GMRES", "BiCGStab"))],
)
def test_vmapped_linear_solves_log_per_lane(solver):
    fun = linear(solver)
    ys = jnp.array([1.0, 2.0, 3.0])
    expected = alone(fun, ys)
    for way in ("vmap(spool)", "spool(vmap)"):
        values, logs = SPOOLED[way](fun, capacity=99)(ys)
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-3)
        np.testing.assert_allclose(values, [lox.nolog(fun)(y) for y in ys], rtol=1e-5)
    xs = jnp.stack([ys, ys[::-1]])
    logs = lox.spool(jax.vmap(jax.vmap(fun)), capacity=99)(xs)[1]
    assert_same_rows(rows_per_lane(logs, 2), [*expected, *expected[::-1]], rtol=1e-3)


def test_linear_solve_logs_every_application_of_its_operator():
    calls = []

    def fun(y):
        def matvec(v):
            lox.log({"v": v.sum()})
            jax.debug.callback(lambda: calls.append(1))
            return y * v

        structure = jax.ShapeDtypeStruct((2,), jnp.float32)
        tags = lx.positive_semidefinite_tag
        operator = lx.FunctionLinearOperator(matvec, structure, tags)
        return lx.linear_solve(operator, jnp.ones(2), lx.CG(1e-5, 1e-5)).value

    logs = lox.spool(fun, capacity=99)(3.0)[1]
    jax.effects_barrier()
    assert len(logs["v"]) == len(calls)


def test_logs_do_not_change_derivatives_of_linear_solves():
    fun = linear("CG")
    forward = alone(fun, [3.0])
    y = jnp.array(3.0)
    exact = _derivative_of_solve(3.0)
    for quiet in (
        jax.grad(lox.nolog(fun)),
        lox.nolog(jax.grad(fun)),
        jax.jacfwd(lox.nolog(fun)),
        lambda y: jax.vmap(jax.grad(lox.nolog(fun)))(y[None])[0],
        lambda y: jax.grad(lambda y: jax.vmap(lox.nolog(fun))(y[None])[0])(y),
    ):
        np.testing.assert_allclose(jax.jit(quiet)(y), exact, rtol=1e-3)
    spooled = jax.jit(jax.grad(lox.spool(fun, capacity=99), has_aux=True))
    found, logs = spooled(y)
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    assert_same_rows(rows_per_lane(logs, 0), forward, rtol=1e-4)
    received = []
    tap = lox.tap(fun, lambda logs: received.append(float(logs["v"])))
    np.testing.assert_allclose(jax.jit(jax.grad(tap))(y), exact, rtol=1e-3)
    jax.effects_barrier()
    np.testing.assert_allclose(received[:4], forward[0]["v"][:4], rtol=1e-3)
    assert not jax.make_jaxpr(jax.grad(lox.nolog(fun)))(y).effects


def test_logs_do_not_change_derivative_of_general_linear_solve():
    found = jax.jit(jax.grad(lox.nolog(linear("GMRES"))))(jnp.array(3.0))
    np.testing.assert_allclose(found, _derivative_of_solve(3.0), rtol=1e-3)


DERIVATIVES = {
    "grad": jax.grad,
    "jvp": lambda f: lambda y: jax.jvp(f, (y,), (1.0,))[1],
    "jacfwd": jax.jacfwd,
    "vmap(grad)": lambda f: lambda y: jax.vmap(jax.grad(f))(y[None])[0],
    "grad(vmap)": lambda f: jax.grad(lambda y: jax.vmap(f)(y[None])[0]),
    "grad(jit)": lambda f: jax.grad(jax.jit(f)),
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("solver", ["CG", pytest.param("GMRES", marks=long), "Newton"])
def test_solves_for_derivatives_log_nothing(solver, derivative):
    fun = root(solver) if solver == "Newton" else linear(solver)
    y = jnp.array(3.0)
    ((expected,),) = [rows.values() for rows in alone(fun, [y])]
    _, logs = lox.spool(DERIVATIVES[derivative](fun), capacity=99)(y)
    ((found,),) = [rows.values() for rows in rows_per_lane(logs, "vmap" in derivative)]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", ["BiCGStab", pytest.param("GMRES", marks=long)])
def test_derivatives_of_vmapped_linear_solves_log_per_lane(solver):
    fun = linear(solver)
    ys = jnp.array([3.0, 7.0])
    expected = alone(fun, ys)
    gradients = [_derivative_of_solve(y) for y in ys.tolist()]
    for way in (
        jax.vmap(jax.grad(fun)),
        jax.grad(lambda ys: jax.vmap(fun)(ys).sum()),
    ):
        found, logs = lox.spool(way, capacity=99)(ys)
        np.testing.assert_allclose(found, gradients, rtol=1e-3)
        assert_same_rows(rows_per_lane(logs), expected, rtol=1e-2)


def _derivative_of_solve(y):
    matrix = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]])
    inverse = np.linalg.inv(matrix + y * np.eye(3))
    return -(inverse @ inverse @ np.array([1.0, 2.0, 3.0])).sum()


def test_merged_bound_of_a_loop_is_refused():
    @jax.custom_jvp
    def inner(count, x):
        def body(carry):
            lox.log({"x": carry[1]})
            return carry[0] + 1, carry[1] / 2

        return jax.lax.while_loop(lambda carry: carry[0] < count, body, (0, x))[1]

    inner.defjvp(lambda primals, tangents: (inner(*primals), tangents[1]))

    @jax.jit
    def outer(count, x):
        return inner(eqxi.unvmap_max(count), x)

    def mapped(xs):
        return jax.vmap(outer)(jnp.array([1, 3]), xs)

    xs = jnp.array([1.0, 2.0])
    spooled = lox.spool(mapped, capacity=9)
    for fun in (spooled, lambda xs: jax.jvp(spooled, (xs,), (xs,))):
        with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'x'.*merged over"):
            fun(xs)


def test_merged_carries_and_inputs_of_loops_are_refused():
    def log(x):
        return lambda: lox.log({"x": x}) and 0

    def up_to(x):
        count = eqxi.unvmap_max(x.astype(int))
        jax.lax.fori_loop(0, count, lambda i, c: log(i)() or c, 0)

    def down_from(x):
        count = eqxi.unvmap_max(x.astype(int))
        jax.lax.while_loop(lambda c: c > 0, lambda c: log(c)() or c - 1, count)

    def over(x):
        pred = eqxi.unvmap_any(x > 1)
        preds = jnp.stack([pred, ~pred])
        jax.lax.map(lambda pred: jax.lax.cond(pred, log(x), lambda: 0), preds)

    for fun in map(jax.jit, (up_to, down_from, over)):
        with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'x'.*merged over"):
            lox.spool(jax.vmap(fun), capacity=9)(jnp.array([1.0, 3.0]))
