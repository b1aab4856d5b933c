"""Cotangents in Equinox's loops: each lane logs what it logs alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.libraries.equinox_programs import eqxi

from .recording import long

diffrax = pytest.importorskip("diffrax")

LOOPS = {
    "bounded": {"kind": "bounded", "max_steps": 8, "base": 2},
    "flat": {"kind": "bounded", "max_steps": 8, "base": 8},
    "checkpointed": {"kind": "checkpointed", "max_steps": 8, "checkpoints": 2},
    "saved": {"kind": "checkpointed", "max_steps": 8},
    "unbounded": {"kind": "checkpointed", "checkpoints": 3},
}
STARTS = jnp.array([0.5, 0.05, 2.0, 4.0])  # the last one does not run at all
ROWS = 70


def grown(h):
    return jnp.sin(h) * 0.5 + h * 1.2


def run(kind, x, body, limit=3.0, steps=7):
    def cond(carry):
        return (carry[1] < limit) & (carry[0] < steps)

    def next_step(carry):
        return carry[0] + 1, body(*carry)

    return eqxi.while_loop(cond, next_step, (0, x), **LOOPS[kind])[1]


# --- programs: functions of the kind of loop and x, with a scalar result -----


def simple(kind, x):
    return run(kind, x, lambda i, h: grown(lox.log_grad("dh", h, step=i))) ** 2


def conditional(kind, x):
    def body(i, h):
        return grown(lox.log_grad("dh", h, step=i, when=h > 0.7))

    return run(kind, x, body) ** 2


def branches(kind, x):
    def body(i, h):
        return lax.cond(
            h > 1.2,
            lambda h: h * 1.3 * lox.log_grad("a", h, step=i) ** 0.1,
            lambda h: grown(lox.log_grad("b", h, step=i)),
            h,
        )

    return run(kind, x, body) ** 2


def watched(kind, x):
    def body(i, h):
        tree = lox.watch("w", {"h": h}, grad=True, stats=("rms",), step=i)
        return grown(tree["h"])

    return run(kind, x, body) ** 2


def scanned(kind, x):
    def body(i, h):
        def step(c, j):
            return lox.log_grad("dc", c, step=10 * i + j) * 1.05 + 0.01, None

        c = lax.scan(step, h, jnp.arange(2))[0]
        return eqxi.scan(step, c, jnp.arange(2), kind="checkpointed", checkpoints=2)[0]

    return run(kind, x, body) ** 2


@jax.custom_vjp
def sine(h, i):
    del i
    return jnp.sin(h)


def _backward(residuals, ct):
    h, i = residuals
    lox.log({"by hand": ct, "constant": 1.0}, step=i)
    return jnp.cos(h) * ct, None


sine.defvjp(lambda h, i: (jnp.sin(h), (h, i)), _backward)


def by_hand(kind, x):
    return run(kind, x, lambda i, h: 0.5 * sine(h, i) + h * 1.2) ** 2


def buffered(kind, x):
    def body(carry):
        i, h, buffer = carry
        h = lox.log_grad("dh", h, step=i)
        new = grown(h)
        return i + 1, new, buffer.at[i].set(lox.log_grad("db", new * h, step=i))

    _, h, buffer = eqxi.while_loop(
        lambda carry: (carry[1] < 3.0) & (carry[0] < 7),
        body,
        (0, x, jnp.zeros(8)),
        buffers=lambda carry: carry[2],
        **LOOPS[kind],
    )
    return h**2 + jnp.sum(buffer**2)


def rematerialized(kind, x):
    @jax.jit
    def body(i, h):
        inner = jax.checkpoint(lambda h: lox.log_grad("dh", jnp.sin(h), step=i))
        return grown(inner(h)) + h * 0.5

    return run(kind, x, body) ** 2


def consecutive(kind, x):
    h = run(kind, x, lambda i, h: grown(lox.log_grad("first", h, step=i)))
    h = lox.log_grad("between", h) - 2.0
    return run(kind, h, lambda i, h: grown(lox.log_grad("second", h, step=i))) ** 2


def nested(kinds, x):
    outer, inner = kinds

    def body(i, h):
        h = lox.log_grad("outer", h, step=i)

        def inner_body(j, y):
            return grown(lox.log_grad("inner", y, step=10 * i + j))

        y = run(inner, h * 0.5, inner_body, limit=1.2, steps=4)
        return h * 1.1 + 0.1 * y + 0.1

    return run(outer, x, body) ** 2


# --- comparison --------------------------------------------------------------


def lanes_of(logs, depth):
    if depth == 0:
        return [logs.compact()]
    return [one for lane in logs.lanes() for one in lanes_of(lane, depth - 1)]


def assert_same_logs(found, expected):
    assert sorted(found) == sorted(expected)
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-4, atol=1e-5)
        if key in getattr(expected, "step", {}):
            np.testing.assert_array_equal(found.step[key], expected.step[key])


def collected(fun, way, xs):
    """The logs of all lanes, and the number of axes of lanes."""
    spool = functools.partial(lox.spool, capacity=ROWS)
    grad = jax.grad(fun)
    of_all = jax.grad(lambda xs: jnp.sum(jax.vmap(fun)(xs)))
    pairs = xs.reshape(2, -1)
    ways = {
        "spool(vmap(grad))": lambda: (spool(jax.vmap(grad))(xs), 1),
        "vmap(spool(grad))": lambda: (jax.vmap(spool(grad))(xs), 1),
        "spool(grad(vmap))": lambda: (spool(of_all)(xs), 1),
        "jit(vmap(spool(grad(jit))))": lambda: (
            jax.jit(jax.vmap(spool(jax.grad(jax.jit(fun)))))(xs),
            1,
        ),
        "spool(vmap(grad(checkpoint)))": lambda: (
            spool(jax.vmap(jax.grad(jax.checkpoint(fun))))(xs),
            1,
        ),
        "spool(vmap(vmap(grad)))": lambda: (spool(jax.vmap(jax.vmap(grad)))(pairs), 2),
        "vmap(spool(grad(vmap)))": lambda: (jax.vmap(spool(of_all))(pairs), 2),
    }
    (_, logs), depth = ways[way]()
    return logs, depth


def check_lanes(fun, ways, xs=STARTS):
    alone = lox.spool(jax.grad(fun), capacity=ROWS)
    expected = [alone(x)[1] for x in xs]
    assert any(expected)
    for way in ways:
        found = lanes_of(*collected(fun, way, xs))
        for lane, other in zip(found, expected, strict=True):
            assert_same_logs(lane, other)


ALL_WAYS = [
    "spool(vmap(grad))",
    "vmap(spool(grad))",
    "spool(grad(vmap))",
    "jit(vmap(spool(grad(jit))))",
    "spool(vmap(grad(checkpoint)))",
    "spool(vmap(vmap(grad)))",
    "vmap(spool(grad(vmap)))",
]
TWO_WAYS = ["vmap(spool(grad))", "spool(grad(vmap))"]


@pytest.mark.parametrize("kind", ["bounded", "checkpointed"])
def test_ended_lanes_of_an_equinox_loop_log_no_cotangents(kind):
    check_lanes(functools.partial(simple, kind), ALL_WAYS)


@pytest.mark.parametrize("kind", ["flat", "saved", "unbounded"])
def test_cotangents_of_lanes_do_not_depend_on_how_steps_are_saved(kind):
    check_lanes(functools.partial(simple, kind), TWO_WAYS)


@pytest.mark.parametrize("kind", [pytest.param("bounded", marks=long), "checkpointed"])
@pytest.mark.parametrize(
    "program",
    [
        conditional,
        branches,
        watched,
        scanned,
        by_hand,
        buffered,
        rematerialized,
        consecutive,
    ],
)
def test_cotangents_in_the_body_of_an_equinox_loop_are_per_lane(program, kind):
    check_lanes(functools.partial(program, kind), TWO_WAYS)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("saved", "checkpointed"),
        pytest.param("bounded", "bounded", marks=long),
        pytest.param("bounded", "checkpointed", marks=long),
        pytest.param("saved", "bounded", marks=long),
    ],
)
def test_cotangents_in_nested_equinox_loops_are_per_lane(outer, inner):
    check_lanes(functools.partial(nested, (outer, inner)), TWO_WAYS)


@pytest.mark.parametrize("kind", [pytest.param("bounded", marks=long), "checkpointed"])
def test_reductions_and_taps_skip_cotangents_of_ended_lanes(kind):
    fun = functools.partial(simple, kind)
    for options in (
        {"reduce": "mean"},
        {"interval": 2, "capacity": 9},
        {"window": 2, "reduce": "sum", "capacity": 9},
    ):
        alone = lox.spool(jax.grad(fun), **options)
        logs = lox.spool(jax.vmap(jax.grad(fun)), **options)(STARTS)[1]
        for lane, x in zip(lanes_of(logs, 1), STARTS, strict=True):
            assert_same_logs(lane, alone(x)[1])
    received = []
    tapped = lox.tap(jax.vmap(jax.grad(fun)), lambda logs: received.append(logs))
    tapped(STARTS)
    jax.effects_barrier()
    expected = [lox.spool(jax.grad(fun), capacity=9)(x)[1] for x in STARTS]
    values = np.concatenate([np.ravel(logs["dh"]) for logs in expected if logs])
    found = [float(logs["dh"]) for logs in received]
    np.testing.assert_allclose(sorted(found), sorted(values), rtol=1e-4)


# --- diffrax -----------------------------------------------------------------


def decay(y, rate):
    return -rate * lox.log_grad("dy", y)


DIRECT = diffrax.DirectAdjoint()
CHECKPOINTS = diffrax.RecursiveCheckpointAdjoint(checkpoints=4)


def solution(solver, rate, field=decay, adjoint=CHECKPOINTS):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: field(y, rate) + jnp.sin(8 * t) * rate),
        solver,
        0.0,
        1.0,
        0.2,
        jnp.array(1.0),
        stepsize_controller=diffrax.PIDController(rtol=1e-1, atol=1e-1),
        adjoint=adjoint,
        max_steps=32,
    ).ys[0]


RATES = jnp.array([1.0, 20.0])


def test_cotangents_of_a_vector_field_are_per_lane():
    fun = functools.partial(solution, diffrax.Heun())
    check_lanes(fun, TWO_WAYS, RATES)


def test_cotangents_that_depend_on_other_lanes_are_refused():
    grad = jax.grad(functools.partial(solution, diffrax.Tsit5()))
    for fun in (
        jax.vmap(lox.spool(grad, capacity=ROWS)),
        lox.spool(jax.vmap(grad), capacity=ROWS),
    ):
        with pytest.raises(lox.UnsupportedPrimitiveError, match=r"dy.*lax\.map"):
            fun(RATES)
    # neither without lanes, nor without a derivative
    logs = lox.spool(lambda xs: lax.map(grad, xs), capacity=2 * ROWS)(RATES)[1]
    assert len(logs["dy"])
    jax.vmap(lox.spool(functools.partial(solution, diffrax.Tsit5())))(RATES)


def logged_by_hand(y, rate):
    return -rate * sine(y, 0)


def test_events_of_backward_rules_that_depend_on_other_lanes_are_refused():
    solve = functools.partial(solution, diffrax.Tsit5(), field=logged_by_hand)
    grad = jax.grad(solve)
    for fun in (
        jax.vmap(lox.spool(grad, capacity=ROWS)),
        lox.spool(jax.vmap(grad), capacity=ROWS),
        lox.spool(jax.grad(lambda xs: jnp.sum(jax.vmap(solve)(xs))), capacity=ROWS),
        # its loops are scans
        jax.vmap(lox.spool(jax.grad(functools.partial(solve, adjoint=DIRECT)))),
    ):
        with pytest.raises(
            lox.UnsupportedPrimitiveError, match=r"'by hand'.*\.py:\d+.*lax\.map"
        ):
            fun(RATES)
    assert len(lox.spool(grad, capacity=ROWS)(RATES[0])[1]["by hand"])


def test_stages_of_direct_adjoint_log_but_are_refused_under_vmap():
    # the loop over steps is a scan, the loop over stages is a custom function in it
    solver = diffrax.Bosh3(scan_kind="checkpointed")
    for field, key in ((logged_by_hand, "by hand"), (decay, "dy")):
        grad = jax.grad(
            functools.partial(solution, solver, field=field, adjoint=DIRECT)
        )
        assert len(lox.spool(grad, capacity=ROWS)(RATES[0])[1][key])
        with pytest.raises(
            lox.UnsupportedPrimitiveError, match=rf"'{key}'.*\.py:\d+.*lax\.map"
        ):
            jax.vmap(lox.spool(grad, capacity=ROWS))(RATES)


# --- loops whose lanes are not known -----------------------------------------


def lockstep(predicates, x):
    """Three iterations in all lanes, like the backward pass of a loop of Equinox."""

    def cond(carry):
        return eqxi.nonbatchable(carry[0]) > 0

    def body(carry):
        i, running, h = carry
        lox.log({"h": h}, step=i)
        selecting, running = predicates(running, h)
        new = eqxi.select_if_vmap_p.bind(selecting, h * 2.0, h)
        return i - 1, running, new

    return lax.while_loop(cond, body, (jnp.int32(3), x < 4.0, x))[2]


def carried(running, h):
    return running, running & (h < 1.0)


def conjunction(running, h):
    return jnp.bool_(True) & running, running & (h < 1.0)


def in_a_call(running, h):
    return jax.jit(lambda x: x & True)(running), running & (h < 1.0)


def computed(running, h):
    return running | (h < 0.5), running & (h < 1.0)


@pytest.mark.parametrize("predicates", [carried, conjunction])
def test_loops_in_lockstep_log_in_lanes_whose_predicate_is_carried(predicates):
    fun = lox.spool(functools.partial(lockstep, predicates), capacity=3)
    lanes = jax.vmap(fun)(STARTS)[1].lanes()
    found = [np.ravel(lane.compact().get("h", [])).tolist() for lane in lanes]
    expected = [[0.5, 1.0], [0.05, 0.1, 0.2], [2.0], []]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("predicates", [computed, in_a_call])
def test_loops_in_lockstep_with_unknown_lanes_are_refused(predicates):
    fun = functools.partial(lockstep, predicates)
    assert lox.spool(fun, capacity=3)(0.5)[1]["h"].tolist() == [0.5, 1.0, 2.0]
    for transformed in (
        jax.vmap(lox.spool(fun, capacity=3)),
        lox.spool(jax.vmap(fun), capacity=3),
        lox.tap(jax.vmap(fun), print),
    ):
        with pytest.raises(
            lox.UnsupportedPrimitiveError, match=r"'h', logged at .*\.py:\d+.*lax\.map"
        ):
            transformed(STARTS)
    # lanes that do not reach the predicate
    logs = lox.spool(jax.vmap(lambda x: fun(0.5) * x), capacity=3)(STARTS)[1]
    assert logs["h"].shape == (3, 4)


# --- loops that start early because of other lanes ---------------------------


def stages(kind, start, own, h, body):
    """Stages of which each lane needs those from `own` on, like a step of FSAL."""

    def stage(carry):
        i, h = carry
        return i + 1, jnp.where(i < own, h, body(i, h))

    return eqxi.while_loop(lambda c: c[0] < 3, stage, (start, h), **LOOPS[kind])[1]


def early(outer, wrap, kind, body, x):
    """Steps with stages; the first stage is computed if any lane needs it."""

    def step(i, h):
        own = jnp.where(h > 1.5, 0, 1)
        start = jnp.where(eqxi.unvmap_any(h > 1.5), 0, 1)
        return wrap(lambda s, h: stages(kind, s, own, h, body))(start, h) * 1.1

    if outer == "scan":
        return lax.scan(lambda h, i: (step(i, h), None), x, jnp.arange(3))[0]
    return run(outer, x, step, limit=9.0, steps=3)


def forward(i, h):
    lox.log({"h": h}, step=i)
    return 0.5 * jnp.sin(h) + 0.5 * h


def stage_by_hand(i, h):
    return 0.5 * sine(h, i) + 0.5 * h


def stage_cotangent(i, h):
    return 0.5 * jnp.sin(lox.log_grad("dh", h, step=i)) + 0.5 * h


def in_a_branch(fun):
    return lambda s, h: lax.cond(h < 8.0, fun, lambda s, h: h, s, h)


def in_a_scan(fun):
    def scanned(s, h):
        return lax.scan(lambda h, _: (fun(s, h), None), h, None, length=2)[0]

    return scanned


WRAPPERS = {
    "plain": lambda fun: fun,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": in_a_branch,
    "scan": in_a_scan,
}
EARLY = jnp.array([0.5, 1.6, 0.1, 1.2])


@pytest.mark.parametrize(
    ("outer", "wrap", "kind"),
    [
        ("scan", "jit", "saved"),
        ("scan", "cond", "flat"),
        ("checkpointed", "scan", "saved"),
        *(
            pytest.param(outer, wrap, kind, marks=long)
            for outer in ("bounded", "saved")
            for wrap in WRAPPERS
            for kind in ("flat", "checkpointed")
        ),
    ],
)
def test_stages_that_a_lane_does_not_need_log_nothing(outer, wrap, kind):
    fun = functools.partial(early, outer, WRAPPERS[wrap], kind, forward)
    alone = lox.spool(fun, capacity=ROWS)
    expected = [alone(x)[1] for x in EARLY]
    assert len({len(logs["h"]) for logs in expected}) > 1
    for logs in (
        jax.vmap(alone)(EARLY)[1],
        lox.spool(jax.vmap(fun), capacity=ROWS)(EARLY)[1],
    ):
        for lane, other in zip(lanes_of(logs, 1), expected, strict=True):
            assert_same_logs(lane, other)


def test_stages_that_a_lane_does_not_need_log_nothing_when_differentiated():
    fun = functools.partial(early, "scan", WRAPPERS["plain"], "saved", forward)
    check_lanes(fun, ["vmap(spool(grad))"], EARLY)


@pytest.mark.parametrize(
    ("outer", "wrap"),
    [
        *(("scan", wrap) for wrap in WRAPPERS),
        ("checkpointed", "jit"),
        ("flat", "plain"),
        *(
            pytest.param(outer, wrap, marks=long)
            for outer in ("bounded", "saved")
            for wrap in WRAPPERS
        ),
    ],
)
def test_backward_pass_of_stages_that_a_lane_does_not_need_is_refused(outer, wrap):
    for kind, body in (
        ("saved", stage_by_hand),
        ("flat", stage_by_hand),
        ("saved", stage_cotangent),
    ):
        grad = jax.grad(functools.partial(early, outer, WRAPPERS[wrap], kind, body))
        alone = lox.spool(grad, capacity=ROWS)
        jax.eval_shape(alone, EARLY[0])
        for transformed in (
            jax.vmap(alone),
            lox.spool(jax.vmap(grad), capacity=ROWS),
        ):
            with pytest.raises(
                lox.UnsupportedPrimitiveError, match=r"logged at .*\.py:\d+.*lax\.map"
            ):
                jax.eval_shape(transformed, EARLY)


def test_merged_carry_that_decides_inside_a_loop_is_refused():
    def fun(x):
        start = jnp.where(eqxi.unvmap_any(x > 1.5), 0, 1)

        def step(carry, _):
            start, h = carry
            return (1 - start, stages("saved", start, 0, h, forward)), None

        return lax.scan(step, (start, x), None, length=2)[0][1]

    assert len(lox.spool(fun, capacity=ROWS)(EARLY[0])[1]["h"]) == 5
    with pytest.raises(
        lox.UnsupportedPrimitiveError, match=r"'h', logged at .*\.py:\d+.*merged"
    ):
        jax.eval_shape(jax.vmap(lox.spool(fun, capacity=ROWS)), EARLY)


def test_observed_steps_of_bounded_stages_are_refused():
    def carried(leaves):
        return {"h": next(x for x in leaves if x.dtype.kind == "f")}

    def observed(kind):
        plain = functools.partial(early, "scan", WRAPPERS["plain"], kind)
        body = stage_by_hand
        return lox.observe(lambda x: plain(body, x), carry=carried, loops="*/*")

    # each step of its scan is observed, also after the loop has ended
    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'h'.*scan_kind"):
        jax.vmap(lox.spool(observed("flat"), capacity=ROWS))(EARLY)
    fun = observed("saved")
    logs = jax.vmap(lox.spool(fun, capacity=ROWS))(EARLY)[1]
    for lane, x in zip(lanes_of(logs, 1), EARLY, strict=True):
        assert_same_logs(lane, lox.spool(fun, capacity=ROWS)(x)[1])
