"""Logs in `jit`, loops, branches and maps."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import lox
from tests.interpreter.programs_that_log import logged, rows, spooled, tapped

# --- jit --------------------------------------------------------------------


def test_nested_jits_log_in_program_order():
    inner = jax.jit(lambda x: logged(x) * 2)
    outer = jax.jit(lambda x: inner(logged(x) + 1) + inner(logged(x + 5)))
    assert spooled(outer, 1)["x"].tolist() == [1, 2, 6, 6]


def innermost_jit(jaxpr):
    """Newer versions of JAX do not inline the `jit` that lox adds."""
    (eqn,) = [e for e in jaxpr.eqns if e.primitive.name == "jit"]
    inner = eqn.params["jaxpr"]
    if any(e.primitive.name == "jit" for e in inner.eqns):
        return innermost_jit(inner)
    return eqn


def test_jitted_function_keeps_name_and_donation():
    def named(x):
        return logged(x) + 1

    f = jax.jit(named, donate_argnums=0)
    (before,) = jax.make_jaxpr(f)(jnp.ones(3)).eqns
    eqn = innermost_jit(jax.make_jaxpr(lox.spool(f))(jnp.ones(3)))
    assert eqn.params["name"] == before.params["name"] == "named"
    assert eqn.params["donated_invars"] == before.params["donated_invars"]


def test_jitted_function_keeps_shardings():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, P("i"))
    f = jax.jit(lambda x: logged(x) * 2, in_shardings=split, out_shardings=split)
    y, logs = lox.spool(f)(jnp.arange(8.0))
    assert y.sharding.is_equivalent_to(split, 1)
    assert logs["x"].tolist() == list(range(8))


def test_jitted_function_keeps_static_arguments():
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


def test_jitted_function_called_twice_is_lowered_once():
    f = jax.jit(lambda x: logged(jnp.sin(x)))
    g = lox.spool(lambda x: f(x) + f(x + 1) + f(x + 2))
    text = jax.jit(g).lower(1.0).as_text()
    assert text.count("stablehlo.sine") == 1
    assert g(1.0)[1]["x"].shape == (3,)


# --- loops -----------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("unroll", [1, 2])
def test_scan_stacks_rows(length, unroll):
    def f(n):
        return lax.scan(
            lambda c, i: (logged(c + i), i * 2), n, jnp.arange(length), unroll=unroll
        )

    (carry, ys), logs = lox.spool(f)(1)
    assert logs["x"].tolist() == [1 + i * (i + 1) // 2 for i in range(length)]
    assert logs["x"].shape == (length,)
    assert carry == f(1)[0]


def test_reverse_scan_logs_in_order_of_execution():
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


def test_fori_loop_is_stacked_with_static_bounds_and_tapped_with_dynamic_bounds():
    def f(n, x):
        return lax.fori_loop(0, n, lambda i, x: logged(x + i), x)

    assert spooled(partial(f, 3), 0)["x"].tolist() == [0, 1, 3]
    assert rows(tapped(f, 3, 0), "x") == [0, 1, 3]
    with pytest.raises(lox.UnboundedLoopError, match="'x'.*programs_that_log"):
        lox.spool(f)(3, 0)


def test_while_loop_is_tapped_in_body_and_condition():
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


def test_unbounded_loop_error_names_only_selected_keys():
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


def test_unbounded_loop_without_logs_does_not_prevent_spooling():
    def f(x):
        return lax.while_loop(lambda x: x < 10, lambda x: x * 2, logged(x))

    assert spooled(f, 1)["x"] == 1


# --- branches --------------------------------------------------------------


def test_branches_with_same_keys_need_no_mask():
    def f(x):
        return lax.cond(x > 0, logged, lambda x: logged(x + 1), x)

    assert not jax.jit(lox.spool(f))(3.0)[1].mask
    assert spooled(f, 3.0)["x"] == 3.0
    assert spooled(f, -3.0)["x"] == -2.0


def test_branch_that_is_not_taken_logs_nothing():
    def f(x):
        return lax.cond(x > 0, partial(logged, key="a"), lambda x: x, x)

    assert spooled(f, 3.0) == {"a": 3.0}
    assert spooled(f, -3.0) == {}
    assert tapped(f, -3.0) == []


def test_branches_with_different_numbers_of_rows_are_compacted():
    def f(x):
        def many(x):
            return lax.scan(lambda c, i: (logged(c + i), None), x, jnp.arange(3.0))[0]

        return logged(lax.cond(x > 0, many, logged, x))

    assert spooled(f, 1.0)["x"].tolist() == [1, 2, 4, 4]
    assert spooled(f, -1.0)["x"].tolist() == [-1, -1]
    logs = jax.jit(lox.spool(f))(-1.0)[1]
    assert logs.mask["x"].tolist() == [True, False, False, True]
    assert logs.compact()["x"].tolist() == [-1, -1]


def test_switch_logs_only_the_selected_branch():
    def f(i, x):
        return lax.switch(
            i, [lambda x: logged(x, "a"), lambda x: logged(x, "b"), lambda x: x], x
        )

    assert spooled(f, 0, 1.0) == {"a": 1.0}
    assert spooled(f, 1, 1.0) == {"b": 1.0}
    assert spooled(f, 7, 1.0) == {}


def test_platform_dependent_logs_branch_of_this_platform():
    def f(x):
        return lax.platform_dependent(
            x, cpu=partial(logged, key="cpu"), default=partial(logged, key="other")
        )

    assert spooled(f, 1.0) == {"cpu": 1.0}
    assert spooled(jax.vmap(f), jnp.ones(2))["cpu"].tolist() == [1, 1]
    assert [list(c) for c in tapped(f, 1.0)] == [["cpu"]]


# --- maps ------------------------------------------------------------------


def test_lax_map_logs_each_element():
    f = partial(lax.map, lambda x: logged(x) * 2)
    assert spooled(f, jnp.arange(4))["x"].tolist() == [0, 1, 2, 3]


def test_lax_map_with_remainder_joins_batches_along_time():
    f = partial(lax.map, lambda x: logged(x) * 2, batch_size=3)
    assert spooled(f, jnp.arange(7))["x"].tolist() == list(range(7))
    assert spooled(f, jnp.arange(6))["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_associative_scan_logs_every_combination():
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
