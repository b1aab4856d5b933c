"""`lox.log_grad`: lanes, what is differentiated, derivative rules and options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import lox

from .cotangents import (
    STEPS,
    X,
    assert_close,
    check_rows,
    cotangents,
    logged,
    scanned,
)

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


def test_batches_of_a_map_are_joined_remainder_first():
    def fun(xs):
        def one(x):
            return jnp.sin(lox.log_grad("d", x, index=x.astype(int)))

        return jnp.sum(lax.map(one, xs, batch_size=2))

    xs = jnp.arange(5.0)
    _, logs = lox.spool(jax.grad(fun))(xs)
    assert logs.index["d"].tolist() == [4, 2, 3, 0, 1]
    assert_close(logs.sort("index")["d"], jnp.cos(xs))


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


def test_reduction_interval_and_window_apply_to_log_grad():
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


def test_when_of_log_grad_decides_per_lane():
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
        (lambda: lox.log_grad("dh", X, 3), "Pass steps and options by keyword"),
        (lambda: lox.log_grad("dh", "h"), "logs the cotangents of arrays"),
        (lambda: lox.log_grad("dh", jnp.sin), "logs the cotangents of arrays"),
        (lambda: lox.log_grad("dh", {}), "contains no array"),
        (lambda: lox.log_grad("dh", None), "contains no array"),
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
