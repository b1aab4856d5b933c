"""Each higher-order primitive gives its logs back exactly, or says why it cannot."""

import contextlib
import gc
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P

import lox


def spooled(fun, *args, **kwargs):
    return lox.spool(fun)(*args, **kwargs)[1]


def tapped(fun, *args):
    calls = []
    lox.tap(fun, calls.append)(*args)
    return calls


def rows(calls, key):
    return [np.asarray(c[key]).tolist() for c in calls if key in c]


def logged(x, key="x"):
    lox.log({key: x})
    return x


# --- jit ---------------------------------------------------------------------


def test_nested_jits_give_their_logs_in_program_order():
    inner = jax.jit(lambda x: logged(x) * 2)
    outer = jax.jit(lambda x: inner(logged(x) + 1) + inner(logged(x + 5)))
    assert spooled(outer, 1)["x"].tolist() == [1, 2, 6, 6]


def innermost_jit(jaxpr):
    """Newer versions of JAX do not inline the jit that lox itself puts around."""
    (eqn,) = [e for e in jaxpr.eqns if e.primitive.name == "jit"]
    inner = eqn.params["jaxpr"]
    if any(e.primitive.name == "jit" for e in inner.eqns):
        return innermost_jit(inner)
    return eqn


def test_a_jitted_function_keeps_its_name_and_its_donation():
    def named(x):
        return logged(x) + 1

    f = jax.jit(named, donate_argnums=0)
    (before,) = jax.make_jaxpr(f)(jnp.ones(3)).eqns
    eqn = innermost_jit(jax.make_jaxpr(lox.spool(f))(jnp.ones(3)))
    assert eqn.params["name"] == before.params["name"] == "named"
    assert eqn.params["donated_invars"] == before.params["donated_invars"]


def test_a_jitted_function_keeps_its_shardings():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, P("i"))
    f = jax.jit(lambda x: logged(x) * 2, in_shardings=split, out_shardings=split)
    y, logs = lox.spool(f)(jnp.arange(8.0))
    assert y.sharding.is_equivalent_to(split, 1)
    assert logs["x"].tolist() == list(range(8))


def test_static_arguments_of_a_jitted_function_stay_static():
    @partial(jax.jit, static_argnums=1, static_argnames="shift")
    def f(x, times, shift=0):
        for _ in range(times):
            lox.log({"x": x})
            x = x + 1 + shift
        return x

    jitted = lox.spool(lambda x: f(x, 3, shift=1))
    assert jitted(1)[1]["x"].tolist() == [1, 3, 5]
    own = lox.spool(f, static_argnums=1, static_argnames="shift")
    assert own(1, 3, shift=1)[1]["x"].tolist() == [1, 3, 5]
    by_name = lox.spool(f.__wrapped__, static_argnames=("times", "shift"))
    assert by_name(1, times=2)[1]["x"].tolist() == [1, 2]
    assert by_name(1, 3)[1]["x"].tolist() == [1, 2, 3]


def test_a_jitted_function_called_twice_is_lowered_once():
    f = jax.jit(lambda x: logged(jnp.sin(x)))
    g = lox.spool(lambda x: f(x) + f(x + 1) + f(x + 2))
    text = jax.jit(g).lower(1.0).as_text()
    assert text.count("stablehlo.sine") == 1
    assert g(1.0)[1]["x"].shape == (3,)


# --- loops -------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("unroll", [1, 2])
def test_scan_stacks_its_rows(length, unroll):
    def f(n):
        return lax.scan(
            lambda c, i: (logged(c + i), i * 2), n, jnp.arange(length), unroll=unroll
        )

    (carry, ys), logs = lox.spool(f)(1)
    assert logs["x"].tolist() == [1 + i * (i + 1) // 2 for i in range(length)]
    assert logs["x"].shape == (length,)
    assert carry == f(1)[0]


def test_a_reverse_scan_logs_in_the_order_of_execution():
    def f(xs):
        return lax.scan(lambda c, x: (c + logged(x), x), 0, xs, reverse=True)[1]

    ys, logs = lox.spool(f)(jnp.arange(3))
    assert logs["x"].tolist() == [2, 1, 0]
    assert ys.tolist() == [0, 1, 2]
    assert rows(tapped(f, jnp.arange(3)), "x") == [2, 1, 0]


def test_nested_scans_have_one_time_axis():
    def inner(x):
        return lax.scan(lambda c, i: (logged(c + i), None), x, jnp.arange(3))[0]

    def f(x):
        return lax.scan(lambda c, i: (inner(c), None), x, None, length=2)[0]

    assert spooled(f, 0)["x"].tolist() == [0, 1, 3, 3, 4, 6]


def test_fori_loop_with_static_bounds_is_stacked_and_with_dynamic_ones_tapped():
    def f(n, x):
        return lax.fori_loop(0, n, lambda i, x: logged(x + i), x)

    assert spooled(partial(f, 3), 0)["x"].tolist() == [0, 1, 3]
    assert rows(tapped(f, 3, 0), "x") == [0, 1, 3]
    with pytest.raises(lox.UnboundedLoopError, match="'x'.*test_primitives"):
        lox.spool(f)(3, 0)


def test_while_loop_is_tapped_in_its_body_and_its_condition():
    def f(n):
        def cond(i):
            lox.log({"cond": i})
            return i < n

        return lax.while_loop(cond, lambda i: logged(i, "body") + 1, 0)

    calls = tapped(f, 2)
    assert [dict(c) for c in calls] == [
        {"cond": 0},
        {"body": 0},
        {"cond": 1},
        {"body": 1},
        {"cond": 2},
    ]
    assert lox.nolog(f)(2) == 2


def test_only_keys_that_were_asked_for_can_fail_to_be_stacked():
    def f(n):
        def body(i):
            lox.log({"a": i})
            lox.log({"b": i})
            return i + 1

        lox.log({"c": n})
        return lax.while_loop(lambda i: i < n, body, 0)

    assert lox.spool(f, argnames="c")(2) == (2, {"c": 2})
    with pytest.raises(lox.UnboundedLoopError, match="stack 'b' ") as caught:
        lox.spool(f, argnames="b")(2)
    assert "'a'" not in str(caught.value)


def test_logs_beside_an_unbounded_loop_that_does_not_log_are_spooled():
    def f(x):
        return lax.while_loop(lambda x: x < 10, lambda x: x * 2, logged(x))

    assert spooled(f, 1)["x"] == 1


# --- branches ----------------------------------------------------------------


def test_branches_with_the_same_keys_need_no_mask():
    def f(x):
        return lax.cond(x > 0, logged, lambda x: logged(x + 1), x)

    assert not jax.jit(lox.spool(f))(3.0)[1].mask
    assert spooled(f, 3.0)["x"] == 3.0
    assert spooled(f, -3.0)["x"] == -2.0


def test_a_branch_not_taken_logs_nothing():
    def f(x):
        return lax.cond(x > 0, partial(logged, key="a"), lambda x: x, x)

    assert spooled(f, 3.0) == {"a": 3.0}
    assert spooled(f, -3.0) == {}
    assert tapped(f, -3.0) == []


def test_branches_that_log_a_different_number_of_rows_are_compacted():
    def f(x):
        def many(x):
            return lax.scan(lambda c, i: (logged(c + i), None), x, jnp.arange(3.0))[0]

        return logged(lax.cond(x > 0, many, logged, x))

    assert spooled(f, 1.0)["x"].tolist() == [1, 2, 4, 4]
    assert spooled(f, -1.0)["x"].tolist() == [-1, -1]
    logs = jax.jit(lox.spool(f))(-1.0)[1]
    assert logs.mask["x"].tolist() == [True, False, False, True]
    assert logs.compact()["x"].tolist() == [-1, -1]


def test_switch_takes_one_branch():
    def f(i, x):
        return lax.switch(
            i, [lambda x: logged(x, "a"), lambda x: logged(x, "b"), lambda x: x], x
        )

    assert spooled(f, 0, 1.0) == {"a": 1.0}
    assert spooled(f, 1, 1.0) == {"b": 1.0}
    assert spooled(f, 7, 1.0) == {}


def test_platform_dependent_logs_what_this_platform_runs():
    def f(x):
        return lax.platform_dependent(
            x, cpu=partial(logged, key="cpu"), default=partial(logged, key="other")
        )

    assert spooled(f, 1.0) == {"cpu": 1.0}
    assert spooled(jax.vmap(f), jnp.ones(2))["cpu"].tolist() == [1, 1]
    assert [list(c) for c in tapped(f, 1.0)] == [["cpu"]]


# --- maps --------------------------------------------------------------------


def test_lax_map_logs_each_element():
    f = partial(lax.map, lambda x: logged(x) * 2)
    assert spooled(f, jnp.arange(4))["x"].tolist() == [0, 1, 2, 3]


def test_lax_map_with_batches_that_do_not_divide_joins_them_along_time():
    f = partial(lax.map, lambda x: logged(x) * 2, batch_size=3)
    assert spooled(f, jnp.arange(7))["x"].tolist() == list(range(7))
    assert spooled(f, jnp.arange(6))["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_associative_scan_logs_its_combinations():
    def combine(a, b):
        lox.log({"n": a.shape[0]})
        return a + b

    def f(x):
        return lax.associative_scan(combine, x)

    eager = []
    lox.set_default(lambda logs: eager.append(int(logs["n"])))
    with jax.disable_jit():
        f(jnp.arange(8))
    y, logs = lox.spool(f)(jnp.arange(8))
    assert logs["n"].tolist() == eager
    assert y.tolist() == f(jnp.arange(8)).tolist()


# --- checkpoint --------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [None, jax.checkpoint_policies.dots_saveable], ids=["none", "dots"]
)
def test_recomputation_under_checkpoint_is_no_second_event(policy):
    @partial(jax.checkpoint, policy=policy)
    def block(x):
        return jnp.sin(logged(x))

    def f(x):
        return lax.scan(lambda c, _: (block(c), None), x, None, length=3)[0]

    expected = rows(tapped(f, 0.5), "x")
    assert len(expected) == 3
    assert rows(tapped(jax.grad(f), 0.5), "x") == expected
    assert spooled(jax.grad(f), 0.5)["x"].tolist() == expected
    grad, logs = jax.grad(lox.spool(f), has_aux=True)(0.5)
    assert logs["x"].tolist() == expected
    assert grad == jax.grad(lox.nolog(f))(0.5)


def offloading(*names):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


@pytest.mark.parametrize("outside", [False, True], ids=["block", "loop"])
def test_residuals_may_be_offloaded(outside):
    remat = partial(jax.checkpoint, policy=offloading("h"))

    def block(c):
        h = checkpoint_name(jnp.sin(c), "h")
        lox.log({"h": h, "lr": 0.1})
        return jnp.cos(h)

    def loop(x):
        body = block if outside else remat(block)
        return lax.scan(lambda c, _: (body(c), None), x, None, length=3)[0]

    f = remat(loop) if outside else loop
    expected = spooled(f, 0.5)
    gradient = jax.grad(lox.nolog(f))(0.5)
    assert spooled(jax.grad(f), 0.5) == expected
    for derivative in (jax.grad(f), jax.jit(jax.grad(f))):
        calls = []
        assert lox.tap(derivative, calls.append)(0.5) == gradient
        assert jax.jit(lox.tap(derivative, calls.append))(0.5) == gradient
        jax.effects_barrier()
        for key, values in expected.items():
            assert rows(calls, key) == values.tolist() * 2
    calls = []
    assert jax.grad(lox.tap(f, calls.append))(0.5) == gradient
    assert rows(calls, "h") == expected["h"].tolist()
    (batch, rest) = lox.tap(jax.grad(f), calls.append, buffer=2)(0.5), calls[3:]
    assert batch == gradient
    assert [logs["h"].tolist() for logs in rest] == [
        expected["h"].tolist()[:2],
        expected["h"].tolist()[2:],
    ]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_checkpoint_whose_result_is_unused_logs_constants(wrap, capsys):
    @jax.checkpoint
    def block(x):
        lox.log({"lr": 0.1})
        return x * 2

    @wrap
    def f(x):
        block(x)
        return x * 3

    assert spooled(f, 1.5) == {"lr": np.float32(0.1)}
    assert spooled(jax.grad(f), 1.5) == {"lr": np.float32(0.1)}
    for g in (f, jax.jit(f), jax.grad(f)):
        assert rows(tapped(g, 1.5), "lr") == [np.float32(0.1)]
    assert jax.grad(lox.spool(f), has_aux=True)(1.5)[1] == {"lr": np.float32(0.1)}
    assert capsys.readouterr().out == ""
    jax.jit(f)(1.5)
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'lr': 0.1}\n"


def test_checkpoints_that_log_nothing_have_second_derivatives():
    def f(x):
        loop = lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=3)
        return logged(x) + loop[0]

    def g(x):
        return jax.checkpoint(lox.nolog(f))(x)

    expected = jax.hessian(lox.nolog(f))(0.5)
    for hessian in (jax.hessian(g), jax.jit(jax.hessian(g)), jax.jacfwd(jax.grad(g))):
        np.testing.assert_allclose(hessian(0.5), expected, rtol=1e-6)
    y, logs = lox.spool(jax.hessian(jax.checkpoint(f)))(0.5)
    assert logs == {"x": 0.5}
    np.testing.assert_allclose(y, expected, rtol=1e-6)


# --- custom derivatives ------------------------------------------------------


@jax.custom_jvp
def custom_jvp(x):
    return logged(x, "primal") * 2


@custom_jvp.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    lox.log({"rule": x})
    return custom_jvp(x), t * 5


def test_custom_jvp_logs_in_the_function_and_in_its_rule():
    assert spooled(custom_jvp, 1.0) == {"primal": 1.0}
    grad, logs = lox.spool(jax.grad(custom_jvp))(1.0)
    assert grad == 5 and logs == {"rule": 1.0, "primal": 1.0}
    assert [dict(c) for c in tapped(jax.grad(custom_jvp), 1.0)] == [
        {"rule": 1.0},
        {"primal": 1.0},
    ]


def test_grad_of_spool_gives_the_functions_own_logs_and_prints_nothing():
    printed = []
    lox.set_default(printed.append)
    with pytest.warns(lox.LoxWarning, match="'rule'.*derivative rule alone"):
        (y, logs), grad = jax.value_and_grad(lox.spool(custom_jvp), has_aux=True)(1.0)
    assert (y, grad) == (2, 5) and logs == {"primal": 1.0}
    with pytest.warns(lox.LoxWarning, match="'(fwd|bwd)'.*derivative rule alone"):
        (y, logs), grad = jax.value_and_grad(lox.spool(custom_vjp), has_aux=True)(1.0)
    assert (y, grad) == (2, 7) and logs == {"primal": 1.0}
    assert jax.grad(lox.nolog(custom_vjp))(1.0) == 7
    assert jax.grad(lox.nolog(hidden))(1.0) == 7
    with pytest.warns(lox.LoxWarning, match="'(fwd|bwd)'.*derivative rule alone"):
        assert jax.grad(lambda x: lox.spool(hidden)(x)[0])(1.0) == 7
    jax.effects_barrier()
    assert not printed


@jax.custom_vjp
def custom_vjp(x):
    return logged(x, "primal") * 2


custom_vjp.defvjp(
    lambda x: (logged(x, "fwd") * 2, x),
    lambda x, ct: (logged(ct, "bwd") * 7,),
)


@jax.custom_vjp
def hidden(x):
    return x * 2


hidden.defvjp(
    lambda x: (logged(x, "fwd") * 2, x), lambda x, ct: (logged(ct, "bwd") * 7,)
)


def test_custom_vjp_logs_in_the_function_or_in_its_two_rules():
    assert spooled(custom_vjp, 1.0) == {"primal": 1.0}
    for f in (custom_vjp, hidden):
        grad, logs = lox.spool(jax.grad(f))(3.0)
        assert grad == 7 and logs == {"fwd": 3.0, "bwd": 1.0}
        assert [dict(c) for c in tapped(jax.grad(f), 3.0)] == [
            {"fwd": 3.0},
            {"bwd": 1.0},
        ]


def test_custom_vjp_in_a_scan_logs_its_backward_rule_in_reverse():
    def f(x):
        return lax.scan(lambda c, i: (custom_vjp(c) * i, None), x, jnp.arange(1.0, 4))[
            0
        ]

    grad, logs = lox.spool(jax.grad(f))(1.0)
    assert logs["fwd"].tolist() == [1, 2, 8]
    # the cotangents come in the order of the backward pass
    assert logs["bwd"].tolist() == [3, 42, 294]
    assert grad == jax.grad(lox.nolog(f))(1.0)


def test_custom_linear_solve_logs_what_its_solver_logs():
    def f(b):
        def solve(matvec, b):
            return logged(b, "b") / logged(matvec(jnp.ones_like(b)), "a")

        return lax.custom_linear_solve(
            lambda x: logged(x, "x") * 4, b, solve, symmetric=True
        ).sum()

    y, logs = lox.spool(f)(jnp.array([8.0]))
    assert y == 2 and logs["b"].tolist() == [8] and logs["a"].tolist() == [4]
    (y, logs), grad = jax.value_and_grad(lox.spool(f), has_aux=True)(jnp.array([8.0]))
    assert grad.tolist() == [0.25] and logs["b"].tolist() == [8]
    assert jax.grad(lox.nolog(f))(jnp.array([8.0])).tolist() == [0.25]
    assert [list(c) for c in tapped(f, jnp.array([8.0]))] == [["x"], ["a"], ["b"]] or [
        list(c) for c in tapped(f, jnp.array([8.0]))
    ] == [["b"], ["x"], ["a"]]


def test_custom_root_logs_what_its_solver_logs():
    def f(a):
        def solve(g, x):
            return x - logged(g(x), "residual") / 2.0

        return lax.custom_root(lambda x: 2 * x - a, 0.0, solve, lambda g, y: y / g(1.0))

    y, logs = lox.spool(f)(4.0)
    assert y == 2 and logs == {"residual": -4.0}
    assert rows(tapped(f, 4.0), "residual") == [-4]
    (y, logs), grad = jax.value_and_grad(lox.spool(f), has_aux=True)(4.0)
    assert (y, grad) == (2, 0.5) and logs == {"residual": -4.0}
    assert jax.grad(lox.nolog(f))(4.0) == 0.5


def test_custom_vmap_logs_unless_its_own_rule_replaces_it():
    from jax.custom_batching import custom_vmap

    @custom_vmap
    def f(x):
        return logged(x) * 2

    @f.def_vmap
    def _(axis_size, in_batched, x):
        return logged(x, "batch") * 2, in_batched[0]

    assert spooled(f, 1.0) == {"x": 1.0}
    assert spooled(jax.vmap(f), jnp.arange(2.0))["batch"].tolist() == [0, 1]
    with pytest.raises(lox.UnsupportedPrimitiveError, match="after `jax.vmap`, not"):
        jax.vmap(lox.spool(f))(jnp.arange(2.0))
    calls = []
    assert jax.vmap(lox.tap(f, calls.append))(jnp.arange(2.0)).tolist() == [0, 2]
    jax.effects_barrier()
    assert rows(calls, "batch") == [[0, 1]]


# --- derivatives -------------------------------------------------------------


def model(w):
    def step(c, i):
        lox.log({"lr": 0.1}, step=i)
        lox.log({"c": c, "w": w}, step=i)
        return jnp.tanh(c * w), None

    return lax.scan(step, 1.0, jnp.arange(4))[0]


@pytest.mark.parametrize(
    "derivative",
    [
        jax.grad,
        jax.value_and_grad,
        jax.jacfwd,
        jax.jacrev,
        lambda f: jax.grad(jax.grad(f)),
        lambda f: jax.jacfwd(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: lambda w: jax.jvp(f, (w,), (1.0,)),
        lambda f: lambda w: jax.linearize(f, w)[1](1.0),
        lambda f: lambda w: jax.vjp(f, w)[1](1.0),
    ],
    ids=str.split(
        "grad value_grad jacfwd jacrev grad_grad hessian jit remat jvp linearize vjp"
    ),
)
def test_a_derivative_logs_what_the_function_logs_constants_included(derivative):
    plain = spooled(model, 0.5)
    assert plain["lr"].shape == (4,)
    for logs in (
        spooled(derivative(model), 0.5),
        jax.jit(lox.spool(derivative(model)))(0.5)[1],
    ):
        for lane in logs.lanes():
            for key in plain:
                np.testing.assert_allclose(lane[key], plain[key], rtol=1e-6)
                assert lane.step[key].tolist() == [0, 1, 2, 3]
    result = jax.tree.leaves(derivative(lox.nolog(model))(0.5))
    assert jax.tree.leaves(lox.spool(derivative(model))(0.5)[0]) == result


def test_a_constant_logged_in_a_jitted_call_in_a_nested_scan_is_not_hoisted():
    log_lr = jax.jit(lambda lr: lox.log({"lr": lr})["lr"])

    def f(w):
        def inner(c, _):
            log_lr(0.5)
            return c, None

        def outer(c, _):
            lax.scan(inner, 0, None, length=2)
            return c * w, None

        return lax.scan(outer, 1.0, None, length=3)[0]

    assert spooled(jax.grad(f), 2.0)["lr"].shape == (6,)
    assert len(tapped(jax.grad(f), 2.0)) == 6


def test_a_differentiated_scan_with_nothing_that_changes_logs_every_iteration():
    def f(w):
        def body(_, __):
            lox.log({"lr": 0.5})
            return None, w * 2

        return lax.scan(body, None, None, length=3)[1].sum()

    assert spooled(f, 1.0)["lr"].shape == (3,)
    gradient, logs = lox.spool(jax.grad(f))(1.0)
    assert gradient == 6.0 and logs["lr"].tolist() == [0.5] * 3


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_differentiated_scan_may_leave_its_carry_unchanged(around, reverse, length):
    def f(x):
        def body(c, _):
            lox.log({"c": c})
            return c, c * 2

        c, ys = lax.scan(body, x, None, length=length, reverse=reverse)
        return c + ys.sum()

    differentiated = jax.grad(around(f))
    gradient, logs = lox.spool(differentiated)(1.5)
    assert gradient == 1 + 2 * length
    assert logs["c"].tolist() == [1.5] * length
    seen = []
    lox.tap(jax.vmap(differentiated), seen.append)(jnp.array([1.5, 2.5]))
    assert [logs["c"] for logs in seen] == [1.5, 2.5] * length
    _, tangent = jax.jvp(lox.nolog(f), (1.5,), (1.0,))
    assert tangent == gradient


# --- vmap --------------------------------------------------------------------


def test_lanes_come_after_time_inside_and_before_it_outside():
    def f(x):
        lax.scan(lambda c, i: (logged(x + i), None), x, jnp.arange(3))
        return x

    xs = jnp.arange(2) * 10
    assert spooled(jax.vmap(f), xs)["x"].tolist() == [[0, 10], [1, 11], [2, 12]]
    _, logs = jax.vmap(lox.spool(f))(xs)
    assert logs["x"].tolist() == [[0, 1, 2], [10, 11, 12]]
    nested = spooled(jax.vmap(jax.vmap(f)), jnp.arange(6).reshape(2, 3))
    assert nested["x"].shape == (3, 2, 3)


def test_in_axes_out_axes_and_unmapped_values():
    def f(x, y):
        lox.log({"x": x, "y": y, "one": 1.0})
        return x

    xs = jnp.arange(6.0).reshape(2, 3)
    vf = jax.vmap(f, in_axes=(1, None), out_axes=1)
    y, logs = lox.spool(vf)(xs, 5.0)
    assert y.tolist() == xs.tolist()
    assert logs["x"].tolist() == xs.T.tolist()
    assert logs["y"].tolist() == [5, 5, 5] and logs["one"].tolist() == [1, 1, 1]


def test_a_function_of_constants_logs_in_every_lane():
    def f(x):
        lox.log({"one": 1})
        return x

    assert len(tapped(jax.vmap(f), jnp.zeros(3))) == 3


def test_named_axes_and_spmd_axes():
    def f(x):
        return logged(lax.psum(x, "i"))

    assert spooled(jax.vmap(f, axis_name="i"), jnp.arange(3.0))["x"].tolist() == [3] * 3
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        g = jax.vmap(logged, spmd_axis_name="d")
        assert spooled(g, jnp.arange(8.0))["x"].tolist() == list(range(8))


def branchy(x):
    def positive(x):
        lox.log({"pos": x})
        return lax.fori_loop(0, 2, lambda i, x: logged(x + i, "loop"), x)

    return lax.cond(x > 0, positive, partial(logged, key="neg"), x)


def test_lanes_that_take_different_branches_log_their_own():
    xs = jnp.array([1.0, -1.0, 2.0])
    alone = [spooled(branchy, x) for x in xs]
    assert spooled(jax.vmap(branchy), xs).lanes() == alone
    assert jax.vmap(lox.spool(branchy))(xs)[1].lanes() == alone
    assert jax.jit(lox.spool(jax.vmap(branchy)))(xs)[1].lanes() == alone
    for calls in (tapped(jax.vmap(branchy), xs),):
        assert sorted(rows(calls, "pos")) == [1, 2] and rows(calls, "neg") == [-1]
        assert rows(calls, "loop") == [1, 2, 2, 3]


def test_lanes_that_leave_a_while_loop_at_different_times_stop_logging():
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


def test_printing_under_a_vmapped_cond_shows_only_what_happened():
    seen = []
    lox.set_default(lambda logs: seen.append(dict(logs)))
    jax.vmap(branchy)(jnp.array([-1.0, 2.0]))
    jax.effects_barrier()
    assert seen == [{"neg": -1.0}, {"pos": 2.0}, {"loop": 2.0}, {"loop": 3.0}]


def test_a_backward_rule_under_a_vmapped_cond_logs_only_where_it_ran():
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


# --- devices -----------------------------------------------------------------


def mesh_of(*names, kind=jax.sharding.AxisType.Auto):
    shape = {1: (8,), 2: (4, 2)}[len(names)]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def test_shard_map_adds_a_device_axis():
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


def test_shard_map_over_two_axes_and_over_one_of_two():
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


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_sharded_values_are_spooled_with_their_sharding(kind):
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
def test_callbacks_work_where_a_program_is_split_over_devices(kind):
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


# --- other ways to run -------------------------------------------------------


def test_a_spooled_function_can_be_exported():
    from jax import export

    exported = export.export(jax.jit(lambda x: dict(lox.spool(model)(x)[1])))(0.5)
    again = export.deserialize(exported.serialize())
    assert again.call(0.5)["lr"].shape == (4,)


def test_ahead_of_time_compilation():
    compiled = jax.jit(lox.spool(model)).lower(0.5).compile()
    assert compiled(0.5)[1] == lox.spool(model)(0.5)[1]
    assert jax.jit(lox.spool(model)).trace(0.5).jaxpr.effects == set()


def test_disable_jit_logs_the_same():
    expected = spooled(model, 0.5)
    with jax.disable_jit():
        logs = spooled(model, 0.5)
        calls = tapped(model, 0.5)
    assert logs.keys() == expected.keys()
    for key in logs:
        np.testing.assert_allclose(logs[key], expected[key], rtol=1e-6)
    assert rows(calls, "lr") == pytest.approx([0.1] * 4)


@contextlib.contextmanager
def checking_leaks():
    """As JAX's, which asks of all objects who refers to a trace: here, of new ones."""
    gc.freeze()
    try:
        with jax.checking_leaks():
            yield
    finally:
        gc.unfreeze()


def test_no_tracer_leaks():
    with checking_leaks():
        spooled(branchy, 1.0)
        lox.spool(jax.grad(custom_jvp))(0.5)
        jax.vmap(lox.spool(branchy))(jnp.ones(2))
        tapped(jax.vmap(branchy), jnp.ones(2))
        with warnings.catch_warnings(action="ignore", category=lox.LoxWarning):
            jax.grad(lox.spool(custom_vjp), has_aux=True)(1.0)


def looped(body, x):
    return lax.scan(lambda c, i: (body(c, i), None), x, jnp.arange(3))[0]


def logging_loop(x):
    def body(c, i):
        lox.log({"c": c, "lr": 0.1}, step=i)
        return jnp.sin(c) * x

    return looped(body, x)


@pytest.mark.parametrize(
    "fun",
    [
        logging_loop,
        jax.jit(logging_loop),
        jax.checkpoint(logging_loop),
        lambda x: looped(jax.checkpoint(lambda c, i: jnp.sin(logged(c))), x),
        lambda x: looped(lambda c, i: custom_vjp(c) * x, x),
        lambda x: looped(lambda c, i: custom_jvp(c) * x, x),
    ],
    ids=["scan", "jit", "remat", "remat inside", "vjp", "jvp"],
)
@pytest.mark.filterwarnings("ignore::lox.LoxWarning")  # of events of rules alone
def test_no_tracer_leaks_from_a_differentiated_loop(fun):
    def ways(fun, calls):
        yield lox.spool(jax.grad(fun))
        yield jax.grad(lox.spool(fun), has_aux=True)
        yield lox.nolog(jax.grad(fun))
        yield jax.grad(lox.tap(fun, calls.append))
        yield jax.jit(lox.tap(jax.value_and_grad(fun), calls.append, buffer=2))

    lox.set_default("silent")
    found, checked = [], []
    expected = [way(0.5) for way in ways(fun, found)]
    with checking_leaks():
        results = [way(0.5) for way in ways(fun, checked)]
    jax.effects_barrier()
    jax.tree.map(np.testing.assert_array_equal, results, expected)
    assert checked == found


def test_leaks_of_the_users_are_still_found():
    leaked = []

    def f(x):
        def body(c, i):
            leaked.append(logged(c))
            return jnp.sin(c)

        return looped(body, x)

    with checking_leaks(), pytest.raises(Exception, match="Leaked trace"):
        lox.spool(jax.grad(f))(0.5)


# --- checkify ----------------------------------------------------------------


def test_checkify_logs_a_while_condition_once():
    def f(x, check=checkify.check):
        def cond(c):
            return logged(c, "p") < 4

        def body(c):
            check(c > -100, "too small")
            return logged(c, "c") + 1

        return lax.while_loop(cond, body, x)

    def twice(f, x):
        return lax.scan(lambda c, _: (f(c) - 2, None), x, None, length=2)[0]

    def unchecked(x):
        return f(x, check=lambda *_: None)

    for fun, plain in (
        (f, unchecked),
        (jax.jit(f), unchecked),
        (partial(twice, f), partial(twice, unchecked)),
    ):
        expected = tapped(plain, 1.5)
        assert rows(expected, "p")[:4] == [1.5, 2.5, 3.5, 4.5]
        for checked in (checkify.checkify(fun), jax.jit(checkify.checkify(fun))):
            assert tapped(checked, 1.5) == expected
            (error, y), logs = lox.spool(checked, capacity=20)(1.5)
            error.throw()
            assert y == lox.nolog(plain)(1.5)
            assert logs == lox.spool(plain, capacity=20)(1.5)[1]
    error, _ = lox.nolog(checkify.checkify(f))(-200.0)
    with pytest.raises(checkify.JaxRuntimeError, match="too small"):
        error.throw()


def test_a_primitive_that_cannot_give_values_back_says_so():
    def f(x):
        def add(a, b):
            lox.log({"a": a})
            return a + b

        return lax.reduce(x, 0.0, add, (0,))

    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'a'.*`reduce`.*nolog"):
        lox.spool(f)(jnp.ones(3))
    assert lox.nolog(f)(jnp.ones(3)) == 3


# --- jet and pmap ------------------------------------------------------------


def test_jet_of_a_function_that_logs_gives_the_events_of_the_function(capsys):
    from jax.experimental import jet

    def f(x):
        lox.log({"x": x, "constant": 1.0}, step=2)
        return jnp.sin(x)

    def g(fun):
        return lambda x: jet.jet(fun, (x,), ((1.0, 0.0),))

    wanted = g(jnp.sin)(0.5)
    assert jax.tree.all(jax.tree.map(np.allclose, g(f)(0.5), wanted))
    assert capsys.readouterr().out == "{'x': 0.5, 'constant': 1.0}\n"
    for fun in (f, jax.jit(f)):
        out, logs = lox.spool(g(fun))(0.5)
        assert jax.tree.all(jax.tree.map(np.allclose, out, wanted))
        assert logs == {"x": 0.5, "constant": 1.0} and logs.step["x"] == 2
    calls = []
    jax.jit(g(lox.tap(f, calls.append)))(0.5)
    jax.effects_barrier()
    assert [float(call["x"]) for call in calls] == [0.5]
    assert jax.tree.all(jax.tree.map(np.allclose, g(lox.nolog(f))(0.5), wanted))
    assert capsys.readouterr().out == ""


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
    for _ in range(2):  # the second call finds what the first one compiled
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


def test_inner_programs_with_solvers_that_log_nothing_are_kept():
    # from JAX 0.12 on, `custom_root` must be noticed in whatever calls it
    @jax.jit
    def root(x):
        def solve(f, y):
            return lax.fori_loop(0, 8, lambda _, y: y - f(y) / (2 * y), y)

        return lax.custom_root(lambda y: y**2 - x, x, solve, lambda g, y: y / g(1.0))

    def step(x, i):
        lox.log({"x": x}, step=i)
        return root(x), None

    def loop(x):
        return lax.scan(step, x, jnp.arange(2))[0]

    result, logs = lox.spool(loop)(16.0)
    assert result == 2 and logs["x"].tolist() == [16, 4]
    assert lox.nolog(loop)(16.0) == 2
    received = []
    assert jax.jit(lox.tap(loop, received.append))(16.0) == 2
    jax.effects_barrier()
    assert [float(logs["x"]) for logs in received] == [16, 4]
