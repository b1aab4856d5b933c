"""`lox.log_grad` under JAX's transformations."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._events import missed
from tests import oracle

from .cotangents import (
    PROGRAMS,
    STEPS,
    X,
    assert_close,
    check_rows,
    checkpointed_loops,
    cotangents,
    custom_jvp,
    custom_vjp,
    gradient,
    logged,
    nested,
    scanned,
    taken_branch,
    used_twice,
    without_marks,
)

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
# one program of each kind, for transformations that treat the kinds differently
KINDS = [
    scanned,
    nested,
    checkpointed_loops,
    taken_branch,
    custom_vjp,
    custom_jvp,
    used_twice,
]
each_kind = pytest.mark.parametrize("program", KINDS, ids=lambda p: p.__name__)
# JAX has no forward mode for functions with a `custom_vjp`
each_with_forward_mode = pytest.mark.parametrize(
    "program",
    [program for program in KINDS if program is not custom_vjp],
    ids=lambda p: p.__name__,
)


@each_program
def test_spool_of_grad_returns_the_cotangents(program):
    fun = functools.partial(program, logged)
    grad, logs = lox.spool(jax.grad(fun))(X)
    assert_close(grad, gradient(program))
    check_rows(logs, cotangents(program, X))
    grad, logs = jax.jit(lox.spool(jax.grad(jax.jit(fun))))(X)
    assert_close(grad, gradient(program))
    check_rows(logs.compact(), cotangents(program, X))


@each_program
def test_vmap_inside_and_outside_grad_logs_each_lane(program):
    xs = jnp.stack([X, X + 0.5])
    fun = functools.partial(program, logged)
    expected = jnp.stack([cotangents(program, x) for x in xs], axis=1)
    grads, logs = lox.spool(jax.vmap(jax.grad(fun)))(xs)
    check_rows(lanes_first(logs), expected)
    whole = jax.grad(lambda xs: jnp.sum(jax.vmap(fun)(xs)))
    grads_of_sum, logs = lox.spool(whole)(xs)
    check_rows(lanes_first(logs), expected)
    assert_close(grads, grads_of_sum)
    per_lane = jax.vmap(lox.spool(jax.grad(fun)))(xs)[1].compact()
    for lane, cts in zip(per_lane.lanes(), jnp.moveaxis(expected, 1, 0), strict=True):
        check_rows(lane, cts)


def lanes_first(logs):
    """The steps of one lane, which all lanes share."""
    steps = np.asarray(logs.step["dh"])
    assert (steps == steps[:, :1]).all()
    return lox.logdict(
        {"dh": logs["dh"]}, {"step": {"dh": jnp.asarray(steps[:, 0])}}, stacked=True
    )


@each_kind
def test_tap_of_grad_delivers_each_cotangent_once(program):
    rows = []
    tapped = lox.tap(jax.grad(functools.partial(program, logged)), rows.append)
    tapped(X)
    assert [int(row.step["dh"]) for row in rows] == list(range(STEPS))[::-1]
    expected = cotangents(program, X)[::-1]
    for row, ct in zip(rows, expected, strict=True):
        assert_close(row["dh"], ct)


@each_with_forward_mode
def test_forward_mode_passes_through_and_logs_nothing(program):
    fun = functools.partial(program, logged)
    plain = without_marks(program)
    tangent = jnp.ones_like(X)
    (outs, logs) = lox.spool(lambda x: jax.jvp(fun, (x,), (tangent,)))(X)
    assert not logs
    assert_close(outs, jax.jit(lambda x: jax.jvp(plain, (x,), (tangent,)))(X))
    assert not lox.spool(jax.jit(fun))(X)[1]
    jacobian, logs = lox.spool(jax.jacfwd(fun))(X)
    assert not logs
    assert_close(jacobian, gradient(program))


@each_kind
def test_linearize_and_vjp_log_when_they_are_transposed(program):
    fun = functools.partial(program, logged)
    expected = cotangents(program, X)

    def pulled_back(x):
        _, pullback = jax.vjp(fun, x)
        return pullback(2.0)

    check_rows(lox.spool(pulled_back)(X)[1], 2 * expected)
    value_and_grad = lox.spool(jax.value_and_grad(fun))
    check_rows(value_and_grad(X)[1], expected)

    def transposed(x):
        _, pushforward = jax.linearize(fun, x)
        return jax.linear_transpose(pushforward, x)(1.0)

    check_rows(lox.spool(transposed)(X)[1], expected)


@each_with_forward_mode
def test_hessian_logs_the_cotangents_of_its_backward_pass(program):
    fun = functools.partial(program, logged)
    hessian, logs = lox.spool(jax.hessian(fun))(X)
    assert_close(hessian, jax.jit(jax.hessian(without_marks(program)))(X))
    # `jacrev` has one lane for each result, of which there is one
    one = lox.logdict(
        {"dh": logs["dh"][:, 0]}, {"step": {"dh": logs.step["dh"][:, 0]}}, stacked=True
    )
    check_rows(one, cotangents(program, X))


@each_kind
def test_grad_of_grad_logs_the_inner_cotangents(program):
    fun = functools.partial(program, logged)
    plain = without_marks(program)
    outer = jax.grad(lambda x: jnp.sum(jax.grad(fun)(x) ** 2))
    grad, logs = lox.spool(outer)(X)
    check_rows(logs, cotangents(program, X))
    reference = jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(plain)(x) ** 2)))
    assert_close(grad, reference(X))


@each_kind
def test_nolog_removes_log_grad(program):
    fun = functools.partial(program, logged)
    silent = jax.grad(lox.nolog(fun))
    assert "log_grad" not in str(jax.make_jaxpr(lox.nolog(fun))(X))
    assert not lox.spool(silent)(X)[1]
    outside = lox.nolog(jax.grad(fun))
    assert not lox.spool(outside)(X)[1]
    assert_close(outside(X), jax.jit(silent)(X))


@each_kind
def test_grad_of_spool_leaves_cotangents_to_a_transformation_outside(program, capsys):
    fun = functools.partial(program, logged)
    inner = jax.grad(lambda x: lox.spool(fun)(x)[0])
    with pytest.warns(lox.LoxWarning, match="'dh'.*only by a derivative, and not"):
        gradient = inner(X)
    assert_close(gradient, jax.grad(fun)(X))
    jax.effects_barrier()
    printed = capsys.readouterr().out
    assert printed.count("dh") == STEPS  # of `jax.grad(fun)` alone
    # there is no warning of what is collected or removed
    check_rows(lox.spool(inner)(X)[1], cotangents(program, X))
    kept = lox.spool(inner, keep_logs=True)
    check_rows(jax.jit(kept)(X)[1], cotangents(program, X))
    rows = []
    lox.tap(inner, rows.append)(X)
    assert len(rows) == STEPS
    lox.nolog(inner)(X)
    jax.grad(lambda x: lox.spool(fun, keep_logs=True)(x)[0])(X)
    assert not lox.spool(fun)(X)[1]


def both(h, step):
    """Logs a value and its cotangent."""
    lox.log({"h": h}, step=step)
    return logged(h, step)


def values(program, x):
    """The values that a program marks, in the order of the forward pass."""
    found = []

    def mark(h, i):
        jax.debug.callback(lambda h, i: found.append((int(i), h)), h, i, ordered=True)
        return h

    program(mark, x)
    jax.effects_barrier()
    return np.stack([h for _, h in found])


@each_kind
def test_values_and_cotangents_are_logged_together(program):
    fun = functools.partial(program, both)
    expected = values(program, X), cotangents(program, X)
    _, logs = lox.spool(jax.grad(fun))(X)
    check_rows(logs.filter("dh"), expected[1])
    assert logs.step["h"].tolist() == list(range(STEPS))
    assert_close(logs["h"], expected[0])
    rows = []
    lox.tap(jax.grad(fun), rows.append)(X)
    order = [(key, int(row.step[key])) for row in rows for key in row]
    backward = [("dh", i) for i in reversed(range(STEPS))]
    assert order == [*(("h", i) for i in range(STEPS)), *backward]
    with pytest.warns(lox.LoxWarning, match="only by a derivative"):
        (_, forward), _ = jax.value_and_grad(lox.spool(fun), has_aux=True)(X)
    assert list(forward) == ["h"]
    jax.grad(lambda x: lox.spool(fun, argnames="h")(x)[0])(X)  # "dh" is not asked for
    assert_close(forward["h"], expected[0])


# --- cotangents that are not collected ---------------------------------------


def watching(x):
    tree = lox.watch("p", {"a": x}, stats=("rms", "max"), grad=True)
    return jnp.sum(jnp.sin(tree["a"]))


def warnings_of(run):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        missed._warned.clear()
        run()
        jax.effects_barrier()
    texts = [str(one.message) for one in found]
    return [text for text in texts if "only by a derivative" in text]


def grad_of_spool(fun, **options):
    return jax.grad(lambda x: lox.spool(fun, **options)(x)[0])


def test_warning_names_the_selected_statistics_of_cotangents():
    (text,) = warnings_of(lambda: grad_of_spool(watching)(X))
    assert text.startswith("'p/grad/a/rms', 'p/grad/a/max', logged at")
    assert "are logged only by a derivative" in text
    (text,) = warnings_of(lambda: grad_of_spool(watching, argnames="*/rms")(X))
    assert text.startswith("'p/grad/a/rms', logged at")
    assert not warnings_of(lambda: grad_of_spool(watching, argnames="p/a/*")(X))


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_warning_is_the_same_inside_a_transformation_that_selects_others(around):
    def outer(x):
        lox.log({"o": x})
        return grad_of_spool(watching)(x)

    (text,) = warnings_of(lambda: around(lox.spool(outer, argnames="o"))(X))
    assert "'p/grad/a/rms', 'p/grad/a/max'" in text
    selected = ["o", "p/grad/*/rms"]
    (text,) = warnings_of(lambda: around(lox.spool(outer, argnames=selected))(X))
    assert text.startswith("'p/grad/a/max', logged at")
    assert not warnings_of(lambda: around(lox.spool(outer))(X))


def test_cotangents_that_custom_rules_never_log_cause_no_warning():
    f = jax.custom_vjp(watching)
    f.defvjp(lambda x: (watching(x), None), lambda _, ct: (ct * X,))
    assert not warnings_of(lambda: grad_of_spool(f)(X))
    g = jax.custom_jvp(watching)
    g.defjvp(lambda p, t: (watching(*p), t[0].sum()))
    assert not warnings_of(lambda: grad_of_spool(g)(X))


def test_names_of_cotangents_in_argnames_say_where_they_are_logged():
    with pytest.warns(lox.LoxWarning, match=r"logged by the derivative: `lox.spool\("):
        assert not lox.spool(lambda x: lox.log_grad("dh", x), argnames="dh")(X)[1]


# --- random programs ---------------------------------------------------------

LANES = (0.3, 0.7, 1.9)


def check_spool(program, function):
    _, logs = lox.spool(jax.grad(function))(LANES[0])
    oracle.assert_spooled(logs, events_of(program, LANES[0]))


def check_tap(program, function):
    calls = []
    lox.tap(jax.grad(function), calls.append)(LANES[1])
    oracle.assert_tapped(calls, events_of(program, LANES[1]))


def check_checkpoint(program, function):
    _, logs = jax.jit(lox.spool(jax.grad(jax.checkpoint(function))))(LANES[1])
    oracle.assert_spooled(logs.compact(), events_of(program, LANES[1]))


def check_vmap_of_grad(program, function):
    _, logs = lox.spool(jax.vmap(jax.grad(function)))(jnp.array(LANES))
    check_lanes(program, logs)


def check_grad_of_vmap(program, function):
    total = jax.grad(lambda xs: jnp.sum(jax.vmap(function)(xs)))
    check_lanes(program, lox.spool(total)(jnp.array(LANES))[1])


def check_lanes(program, logs):
    for x, lane in zip(LANES, logs.lanes() if logs else (), strict=bool(logs)):
        oracle.assert_spooled(lane.compact(), events_of(program, x))


def events_of(program, x):
    forward = oracle.expected(program, x)
    return [*forward, *oracle.expected_cotangents(program, x)]


CHECKS = [
    check_spool,
    check_tap,
    check_checkpoint,
    check_vmap_of_grad,
    check_grad_of_vmap,
]


@pytest.mark.parametrize("seed", range(oracle.PROGRAMS // 4))
def test_random_program_logs_the_cotangents_of_plain_python(seed):
    program = oracle.generate(seed, straight=oracle.COTANGENTS)
    CHECKS[seed % len(CHECKS)](program, oracle.function(program))
