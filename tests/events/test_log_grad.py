"""`lox.log_grad`: the cotangents of a backward pass.

The oracle adds a perturbation of zero to every value whose cotangent is logged, and
differentiates with respect to it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import lox

STEPS = 4
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def logged(h, step):
    return lox.log_grad("dh", h, step=step)


def cotangents(program, *args, steps=STEPS):
    """The cotangent of every value, in the order of the forward pass.

    Args:
        program: a function of `mark` and the arguments, which calls `mark(h, i)` for
            every i below `steps`.
        args: the arguments.
        steps: the number of values.
    """
    shape = []

    def find(h, i):
        shape.append(jnp.shape(h))
        return h

    jax.eval_shape(functools.partial(program, find), *args)

    def perturbed(eps):
        return program(lambda h, i: h + eps[i], *args)

    return jax.grad(perturbed)(jnp.zeros((steps, *shape[0])))


# --- programs: functions of `mark` and x, with a scalar result ---------------


def unrolled(mark, x):
    for i in range(STEPS):
        x = jnp.sin(mark(x, i)) * 1.5
    return jnp.sum(x**2)


def scanned(mark, x):
    def body(h, i):
        return jnp.sin(mark(h, i)) * 1.5 + 0.1 * h, None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0] ** 2)


def scanned_outputs(mark, x):
    def body(h, i):
        return h * 1.1, jnp.sin(mark(x * h, i))

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[1])


def scanned_constant(mark, x):
    def body(h, i):
        return h + mark(x, i) * h, None

    return jnp.sum(lax.scan(body, jnp.ones_like(x), jnp.arange(STEPS))[0])


def nested(mark, x):
    def outer(h, i):
        def inner(h, j):
            return jnp.cos(mark(h, 2 * i + j)) + h, None

        return lax.scan(inner, h, jnp.arange(2))[0], None

    return jnp.sum(lax.scan(outer, x, jnp.arange(STEPS // 2))[0])


def loop(mark, x):
    return jnp.sum(
        lax.fori_loop(0, STEPS, lambda i, h: jnp.sin(mark(h, i)) + 0.5 * h, x)
    )


def jitted(mark, x):
    @jax.jit
    def layer(h, i):
        return jnp.tanh(mark(h, i)) * 2

    for i in range(STEPS):
        x = layer(x, i)
    return jnp.sum(x)


def checkpointed(mark, x):
    @jax.checkpoint
    def layer(h, i):
        return jnp.sin(jnp.sin(mark(h, i)) * 2), None

    return jnp.sum(lax.scan(layer, x, jnp.arange(STEPS))[0])


def checkpointed_loops(mark, x):
    @jax.checkpoint
    def outer(h, i):
        def inner(h, j):
            return jnp.sin(jnp.sin(mark(h, 2 * i + j)) * 2), None

        return jax.jit(lambda h: lax.scan(inner, h, jnp.arange(2))[0])(h), None

    return jnp.sum(lax.scan(outer, x, jnp.arange(STEPS // 2))[0])


def nested_checkpoints(mark, x):
    @jax.checkpoint
    def layer(h, i):
        return jnp.sin(jax.checkpoint(lambda h: jnp.sin(mark(h, i) * 2))(h) * 2)

    for i in range(STEPS):
        x = layer(x, i)
    return jnp.sum(x)


def checkpointed_with_policy(mark, x):
    policy = jax.checkpoint_policies.everything_saveable

    @functools.partial(jax.checkpoint, policy=policy)
    def layer(h, i):
        return jnp.sin(jnp.sin(mark(h, i)) * 2)

    for i in range(STEPS):
        x = layer(x, i)
    return jnp.sum(x)


def around_checkpoint(mark, x):
    return jax.checkpoint(functools.partial(nested, mark))(x)


def taken_branch(mark, x):
    def body(h, i):
        return lax.cond(i >= 0, lambda h: jnp.sin(mark(h, i)), lambda h: h, h), None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0])


def switched(mark, x):
    def body(h, i):
        branches = [lambda h: jnp.sin(mark(h, i)), lambda h: 2 * mark(h, i)]
        return lax.switch(i % 2, branches, h), None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0])


def custom_vjp(mark, x):
    """The values are marked on both sides of a function with its own rules."""

    @jax.custom_vjp
    def double(h):
        return 2 * h

    double.defvjp(lambda h: (2 * h, None), lambda _, ct: (3 * ct,))

    def body(h, i):
        return double(jnp.sin(mark(double(h), i))), None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0])


def custom_jvp(mark, x):
    @jax.custom_jvp
    def double(h):
        return 2 * h

    double.defjvps(lambda t, out, h: 3 * t)

    for i in range(STEPS):
        x = double(mark(jnp.sin(x), i))
    return jnp.sum(x)


def used_twice(mark, x):
    for i in range(STEPS):
        h = mark(x, i)
        x = jnp.sin(h) * h + x
    return jnp.sum(x)


PROGRAMS = [
    unrolled,
    scanned,
    scanned_outputs,
    scanned_constant,
    nested,
    loop,
    jitted,
    checkpointed,
    checkpointed_loops,
    nested_checkpoints,
    checkpointed_with_policy,
    around_checkpoint,
    taken_branch,
    switched,
    custom_vjp,
    custom_jvp,
    used_twice,
]
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
# JAX has no forward mode for functions with a `custom_vjp`
each_with_forward_mode = pytest.mark.parametrize(
    "program",
    [program for program in PROGRAMS if program is not custom_vjp],
    ids=lambda p: p.__name__,
)
X = jnp.array([0.3, -0.7, 1.1])


def check_rows(logs, expected, steps=STEPS):
    """Compares rows in the order of the backward pass with cotangents."""
    assert list(logs) == ["dh"]
    np.testing.assert_array_equal(logs.step["dh"], np.arange(steps)[::-1])
    assert_close(logs["dh"], expected[::-1])
    ordered = logs.sort("step")
    np.testing.assert_array_equal(ordered.step["dh"], np.arange(steps))
    assert_close(ordered["dh"], expected)


@each_program
def test_spool_of_grad_returns_the_cotangents(program):
    fun = functools.partial(program, logged)
    plain = functools.partial(program, lambda h, i: h)
    grad, logs = lox.spool(jax.grad(fun))(X)
    assert_close(grad, jax.grad(plain)(X))
    check_rows(logs, cotangents(program, X))
    grad, logs = jax.jit(lox.spool(jax.grad(jax.jit(fun))))(X)
    assert_close(grad, jax.grad(plain)(X))
    check_rows(logs.compact(), cotangents(program, X))


@each_program
def test_vmap_inside_and_outside_of_grad_logs_each_lane(program):
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


@each_program
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
    plain = functools.partial(program, lambda h, i: h)
    tangent = jnp.ones_like(X)
    (outs, logs) = lox.spool(lambda x: jax.jvp(fun, (x,), (tangent,)))(X)
    assert not logs
    assert_close(outs, jax.jvp(plain, (X,), (tangent,)))
    assert not lox.spool(jax.jit(fun))(X)[1]
    jacobian, logs = lox.spool(jax.jacfwd(fun))(X)
    assert not logs
    assert_close(jacobian, jax.grad(plain)(X))


@each_program
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
    plain = functools.partial(program, lambda h, i: h)
    hessian, logs = lox.spool(jax.hessian(fun))(X)
    assert_close(hessian, jax.hessian(plain)(X))
    # `jacrev` has one lane for each result, of which there is one
    one = lox.logdict(
        {"dh": logs["dh"][:, 0]}, {"step": {"dh": logs.step["dh"][:, 0]}}, stacked=True
    )
    check_rows(one, cotangents(program, X))


@each_program
def test_grad_of_grad_logs_the_inner_cotangents(program):
    fun = functools.partial(program, logged)
    plain = functools.partial(program, lambda h, i: h)
    outer = jax.grad(lambda x: jnp.sum(jax.grad(fun)(x) ** 2))
    grad, logs = lox.spool(outer)(X)
    check_rows(logs, cotangents(program, X))
    reference = jax.grad(lambda x: jnp.sum(jax.grad(plain)(x) ** 2))(X)
    assert_close(grad, reference)


@each_program
def test_nolog_removes_it(program):
    fun = functools.partial(program, logged)
    silent = jax.grad(lox.nolog(fun))
    assert "log_grad" not in str(jax.make_jaxpr(lox.nolog(fun))(X))
    assert not lox.spool(silent)(X)[1]
    outside = lox.nolog(jax.grad(fun))
    assert not lox.spool(outside)(X)[1]
    assert_close(outside(X), silent(X))


@each_program
def test_grad_of_spool_leaves_cotangents_to_a_transformation_outside(program, capsys):
    fun = functools.partial(program, logged)
    inner = jax.grad(lambda x: lox.spool(fun)(x)[0])
    assert_close(inner(X), jax.grad(fun)(X))
    jax.effects_barrier()
    printed = capsys.readouterr().out
    assert printed.count("dh") == STEPS  # of `jax.grad(fun)` alone
    check_rows(lox.spool(inner)(X)[1], cotangents(program, X))
    assert not lox.spool(fun)(X)[1]


# --- lanes that differ -------------------------------------------------------


def branches(mark, x, threshold):
    """Lanes take different branches, and mark different values there."""
    taken = lax.cond(
        x > threshold,
        lambda x: jnp.sin(mark(x * 2.0, 0)),
        lambda x: mark(mark(x * 3.0, 1) ** 2, 2),
        x,
    )
    return taken * x


@pytest.mark.parametrize("order", ["vmap(grad)", "grad(vmap)", "checkpoint", "scan"])
def test_lanes_of_a_cond_log_what_their_branch_logs(order):
    xs, threshold = jnp.array([0.3, 0.9, 1.5]), 0.5
    fun = functools.partial(branches, logged)
    if order == "vmap(grad)":
        whole = jax.vmap(jax.grad(fun), (0, None))
    elif order == "scan":

        def scanned_fun(x, threshold):
            return lax.scan(lambda c, _: (c + fun(x, threshold), None), 0.0, None, 1)[0]

        whole = jax.grad(lambda xs, t: jnp.sum(jax.vmap(scanned_fun, (0, None))(xs, t)))
    else:
        if order == "checkpoint":
            fun = jax.checkpoint(fun)
        whole = jax.grad(lambda xs, t: jnp.sum(jax.vmap(fun, (0, None))(xs, t)))
    _, logs = lox.spool(whole)(xs, threshold)
    for lane, x in zip(logs.lanes(), xs, strict=True):
        lane = lane.compact()
        expected = cotangents(branches, x, threshold, steps=3)
        steps = [0] if x > threshold else [2, 1]
        assert np.atleast_1d(lane.step["dh"]).tolist() == steps
        assert_close(np.atleast_1d(lane["dh"]), expected[np.array(steps)])
    rows = []
    lox.tap(whole, rows.append)(xs, threshold)
    assert sorted(int(row.step["dh"]) for row in rows) == [0, 0, 1, 2]


def test_value_without_lanes_logs_the_cotangent_of_each_lane():
    def loss(w, x):
        w = lox.log_grad("dw", w)
        return (w * x) ** 2

    xs = jnp.array([1.0, 2.0, 3.0])
    total = jax.grad(lambda w, xs: jnp.sum(jax.vmap(loss, (None, 0))(w, xs)))
    grad, logs = lox.spool(total)(0.5, xs)
    assert_close(logs["dw"], 2 * 0.5 * xs**2)
    assert_close(grad, jnp.sum(logs["dw"]))


def test_jacrev_has_one_lane_per_result():
    def fun(x):
        return lox.log_grad("dh", x * 2.0) ** 2

    jacobian, logs = lox.spool(jax.jacrev(fun))(X)
    assert_close(logs["dh"], jnp.diag(4 * X))
    assert_close(jacobian, jnp.diag(8 * X))


# --- what is differentiated --------------------------------------------------


def test_pytree_is_one_key_with_a_tree_of_cotangents():
    def loss(params):
        params = lox.log_grad("grads", params, prefix="model/")
        return jnp.sum(params["w"] @ params["b"]["x"])

    params = {"w": jnp.ones((2, 3)), "b": {"x": jnp.arange(3.0)}}
    grads, logs = lox.spool(jax.grad(loss))(params)
    assert list(logs) == ["model/grads"]
    jax.tree.map(assert_close, logs["model/grads"], grads)


def test_leaves_without_a_cotangent_are_none():
    def loss(x, y):
        tree = {"x": x, "y": y, "count": jnp.arange(3), "unused": x, "number": 2.0}
        tree = lox.log_grad("d", tree)
        return jnp.sum(tree["x"] * tree["y"] * tree["count"] * tree["number"])

    grad, logs = lox.spool(jax.grad(loss))(X, X + 1)
    given = logs["d"]
    assert given["y"] is given["count"] is given["number"] is None
    assert_close(given["x"], grad)
    assert_close(given["unused"], 0 * X)
    assert not lox.spool(loss)(X, X)[1]


def test_values_that_are_not_differentiated_log_nothing():
    def loss(x, y):
        lox.log_grad("dx", x)  # whose result is not used
        y = lox.log_grad("dy", y)
        stopped = lax.stop_gradient(lox.log_grad("stopped", x))
        constant = lox.log_grad("constant", jnp.ones(3))
        number = lox.log_grad("number", 2.0)
        return jnp.sum(x * y * constant * stopped * number)

    grad, logs = lox.spool(jax.grad(loss))(X, X)
    assert not logs
    assert_close(grad, X * X * 2)


def test_integers_in_a_loop_pass_through():
    def loss(x):
        def body(carry, _):
            count, h = lox.log_grad("d", carry)
            return (count + 1, h * count), None

        return lax.scan(body, (1, x), None, 3)[0][1]

    grad, logs = lox.spool(jax.grad(loss))(2.0)
    assert_close(grad, 6.0)
    count, dh = logs["d"]
    assert count is None
    assert_close(dh, [3.0, 6.0, 6.0])


def test_result_has_the_type_of_the_value():
    for x in (2.0, 3, np.arange(3), np.ones(2), jnp.float16(2), jnp.arange(2.0)):
        tree = (x, jnp.ones(1))
        out, _ = lox.log_grad("d", tree)
        assert type(out) is type(x)
        assert jnp.result_type(out) == jnp.result_type(x)


def test_low_precision_cotangents_keep_their_dtype():
    def loss(x):
        return jnp.sum(lox.log_grad("d", x.astype(jnp.bfloat16)) ** 2)

    assert lox.spool(jax.grad(loss))(X)[1]["d"].dtype == jnp.bfloat16


def test_complex_cotangents_are_those_of_jax():
    def fun(x):
        return lox.log_grad("d", jnp.exp(1j * x))

    def loss(x):
        return jnp.abs(jnp.sum(fun(x)) - 1) ** 2

    grad, logs = lox.spool(jax.grad(loss))(X)
    zero = jnp.zeros(3, complex)
    perturbed = jax.grad(lambda e: jnp.abs(jnp.sum(jnp.exp(1j * X) + e) - 1) ** 2)
    assert_close(logs["d"], perturbed(zero))
    assert_close(grad, jax.grad(loss)(X))


def test_while_loop_works_in_forward_mode_only():
    def fun(x):
        def body(carry):
            i, h = carry
            return i + 1, lox.log_grad("d", h * 2.0, step=i)

        return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

    outs, logs = lox.spool(lambda x: jax.jvp(fun, (x,), (1.0,)))(1.0)
    assert_close(outs, (8.0, 8.0))
    assert not logs
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(fun)(1.0)


def mesh_of_four(kind):
    return jax.make_mesh((4,), ("data",), axis_types=(kind,))


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_has_a_lane_per_device(check_vma):
    mesh = mesh_of_four(jax.sharding.AxisType.Auto)

    def fun(x, w):
        def body(h, i):
            h = logged(h, i)
            return jnp.sin(h * lox.log_grad("dw", w)), None

        return lax.scan(body, x, jnp.arange(STEPS))[0]

    def program(mark, x):
        for i in range(STEPS):
            x = jnp.sin(mark(x, i) * 1.5)
        return jnp.sum(x)

    sharded = jax.shard_map(
        fun,
        mesh=mesh,
        in_specs=(P("data"), P()),
        out_specs=P("data"),
        check_vma=check_vma,
    )
    xs = jnp.arange(8.0) / 7
    grads, logs = lox.spool(jax.grad(lambda x, w: jnp.sum(sharded(x, w)), (0, 1)))(
        xs, 1.5
    )
    expected = cotangents(program, xs)[::-1].reshape(STEPS, 4, 2)
    assert_close(logs["dh"], expected)
    plain = jax.grad(lambda x: program(lambda h, i: h, x))
    assert_close(grads[0], plain(xs))
    total = jnp.sum(logs["dw"][:, 0] if check_vma else logs["dw"])
    assert_close(total, grads[1])


def test_explicit_mesh_keeps_the_sharding():
    mesh = mesh_of_four(jax.sharding.AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(
            jnp.arange(8.0) / 7, jax.sharding.NamedSharding(mesh, P("data"))
        )
        fun = functools.partial(scanned, logged)
        grad, logs = lox.spool(jax.grad(fun))(x)
        assert grad.sharding.spec == P("data")
        lanes = lox.spool(jax.grad(lambda x: jnp.sum(jax.vmap(fun)(x))))(x)[1]
    check_rows(jax.device_get(logs), cotangents(scanned, np.asarray(x)))
    assert_close(lanes["dh"], logs["dh"])


# --- derivative rules --------------------------------------------------------


def test_backward_rule_that_transposes_logs_once():
    def inner(x):
        return jnp.sum(lox.log_grad("dh", x * 2.0) ** 2)

    @jax.custom_vjp
    def fun(x):
        return inner(x)

    fun.defvjp(lambda x: jax.vjp(inner, x), lambda pullback, ct: pullback(ct))
    grad, logs = lox.spool(jax.grad(fun))(X)
    assert_close(logs["dh"], 4 * X)
    assert_close(grad, 8 * X)


def test_function_of_a_custom_vjp_is_not_differentiated_itself():
    @jax.custom_vjp
    def fun(x):
        return jnp.sum(lox.log_grad("dh", x))

    fun.defvjp(lambda x: (fun(x), x), lambda x, ct: (ct * jnp.ones_like(x),))
    grad, logs = lox.spool(jax.grad(fun))(X)
    assert not logs
    assert_close(grad, jnp.ones(3))


def test_linear_transpose_logs_its_argument():
    def fun(x):
        return 3.0 * lox.log_grad("d", x * 2.0)

    out, logs = lox.spool(lambda ct: jax.linear_transpose(fun, X)(ct))(jnp.ones(3))
    assert_close(logs["d"], 3 * jnp.ones(3))
    assert_close(out[0], 6 * jnp.ones(3))


def test_reverse_over_forward_logs_the_cotangent_of_the_tangent():
    def fun(x):
        return jnp.sum(jnp.sin(lox.log_grad("d", x * 2.0)))

    _, logs = lox.spool(jax.grad(lambda x: jax.jvp(fun, (x,), (x,))[1]))(X)
    assert_close(logs["d"], jnp.cos(2 * X))


def test_jet_passes_through():
    jet = pytest.importorskip("jax.experimental.jet").jet

    def fun(x):
        return jnp.sin(lox.log_grad("d", x, step=1)) * 2.0

    def plain(x):
        return jnp.sin(x) * 2.0

    series = ([1.0, 0.5],)
    for ours, other in zip(
        jet(fun, (0.3,), series), jet(plain, (0.3,), series), strict=True
    ):
        assert_close(ours, other)


# --- options -----------------------------------------------------------------


def test_reduction_of_the_call_and_of_the_transformation():
    def fun(x, **options):
        def body(h, i):
            return 2.0 * lox.log_grad("dh", h, step=i, **options), None

        return lax.scan(body, x, jnp.arange(3))[0]

    grad = jax.grad(functools.partial(fun, reduce="sum"))
    _, logs = lox.spool(grad)(1.0)
    assert_close(logs["dh"], 14.0)
    assert int(logs.step["dh"]) == 0
    assert_close(lox.spool(grad, reduce="max")(1.0)[1]["dh"], 8.0)
    _, logs = lox.spool(jax.grad(fun), interval=2)(1.0)
    assert logs["dh"].tolist() == [2.0, 8.0]
    rows = []
    lox.tap(jax.grad(fun), rows.append, window=2, reduce="mean")(1.0)
    assert [float(row["dh"]) for row in rows] == [3.0, 8.0]


def test_tags_prefix_and_explicit_select():
    def fun(x):
        x = lox.log_grad("a", x, tags="metric", prefix="grads/")
        return 2.0 * lox.log_grad("b", x, explicit=True)

    grad = jax.grad(fun)
    assert lox.spool(grad)(1.0)[1] == {"grads/a": 2.0}
    assert lox.spool(grad, tags="metric")(1.0)[1] == {"grads/a": 2.0}
    assert lox.spool(grad, argnames="b")(1.0)[1] == {"b": 2.0}


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_when_of_the_forward_pass_selects_cotangents(shape):
    def fun(x):
        def body(h, i):
            when = jnp.broadcast_to(i % 2 == 0, shape)
            if shape:
                when &= jnp.arange(6).reshape(shape) > 3
            h = jnp.sin(lox.log_grad("dh", h, when=when, step=i))
            return h, None

        return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0])

    def program(mark, x):
        for i in range(STEPS):
            x = jnp.sin(mark(x, i))
        return jnp.sum(x)

    x = jnp.arange(6.0).reshape(shape or (6,)) / 5
    expected = cotangents(program, x)
    rows = [2, 0]
    chosen = expected[jnp.array(rows)].reshape(2, 6)
    if shape:
        chosen, rows = chosen[:, 4:].ravel(), [2, 2, 0, 0]
    grad, logs = lox.spool(jax.grad(fun))(x)
    assert_close(grad, jax.grad(lambda x: program(lambda h, i: h, x))(x))
    assert logs.step["dh"].tolist() == rows
    assert_close(logs["dh"], chosen)
    xs = jnp.stack([x, x])
    _, logs = lox.spool(jax.grad(lambda xs: jnp.sum(jax.vmap(fun)(xs))))(xs)
    for lane in logs.lanes():
        lane = lane.compact()
        assert lane.step["dh"].tolist() == rows
        assert_close(lane["dh"], chosen)


def test_when_that_differs_between_lanes():
    def fun(x):
        return jnp.sin(lox.log_grad("dh", 2.0 * x, when=x > 0))

    xs = jnp.array([-1.0, 0.5, 2.0])
    rows = []
    lox.tap(jax.grad(lambda xs: jnp.sum(jax.vmap(fun)(xs))), rows.append)(xs)
    assert_close([row["dh"] for row in rows], jnp.cos(2 * xs[1:]))


def test_untransformed_cotangents_are_printed(capsys):
    jax.jit(jax.grad(lambda x: 2.0 * lox.log_grad("dh", x)))(1.0).block_until_ready()
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'dh': 2.0}\n"


def test_logger_gets_cotangents(tmp_path):
    def fun(x):
        def body(h, i):
            return 2.0 * lox.log_grad("dh", h, step=i), None

        return lax.scan(body, x, jnp.arange(3))[0]

    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(jax.random.key(0))
    logger.spool(jax.grad(fun), state)(1.0)
    logger.finish(state)
    logs = lox.load(tmp_path)
    assert logs.sort("step")["dh"].tolist() == [8.0, 4.0, 2.0]


def test_nested_transformations_see_cotangents_once():
    def fun(x):
        lox.log({"x": x})
        return 2.0 * lox.log_grad("dh", x)

    inner = lox.spool(jax.value_and_grad(lox.spool(fun), has_aux=True))
    ((_, forward), grad), backward = inner(1.0)
    assert forward == {"x": 1.0}
    assert backward == {"dh": 2.0}
    _, logs = lox.spool(jax.grad(lox.nolog(fun)))(1.0)
    assert not logs


# --- bad input ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lox.log_grad(), "got nothing; it takes the name"),
        (lambda: lox.log_grad(X), "takes the name of the cotangent"),
        (lambda: lox.log_grad("dh"), "takes the name of the cotangent"),
        (lambda: lox.log_grad(X, "dh"), "takes the name of the cotangent"),
        (lambda: lox.log_grad("dh", X, 3), "Steps and options go by their names"),
        (lambda: lox.log_grad("dh", "h"), "logs the cotangents of arrays"),
        (lambda: lox.log_grad("dh", jnp.sin), "logs the cotangents of arrays"),
        (lambda: lox.log_grad("dh", {}), "holds no array"),
        (lambda: lox.log_grad("dh", None), "holds no array"),
        (lambda: lox.log_grad("dh", jnp.arange(3)), "int32.*no derivative"),
        (lambda: lox.log_grad("dh", True), "bool.*no derivative"),
        (lambda: lox.log_grad("dh", X, prefix=3), "`prefix` must be a string"),
        (lambda: lox.log_grad("dh", X, tags=3), "`tags` must be strings"),
        (lambda: lox.log_grad("dh", X, when=X), "`when` must be a boolean"),
        (lambda: lox.log_grad("dh", X, when=X[:2] > 0), "prefix of the shape"),
        (lambda: lox.log_grad("dh", X, step=X), "must be a scalar"),
        (lambda: lox.log_grad("dh", X, sort=1), "a step cannot be called 'sort'"),
        (lambda: lox.log_grad("dh", X, reduce="no"), "no"),
    ],
)
def test_bad_input_names_the_line(call, message):
    with pytest.raises(lox.LoxError, match=message) as error:
        call()
    line = call.__code__.co_firstlineno
    assert f"`lox.log_grad` at {__file__}:{line}" in str(error.value)
