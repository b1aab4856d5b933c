"""Reductions, windows, intervals, capacity and buffers: what is carried in loops."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import lox
from lox._reduce.named import REDUCTIONS, Named

NAMES = ("mean", "sum", "min", "max", "first", "last", "count", "std", "var")


def scanned(xs):
    """Logs every row of `xs`, and returns the sum of them."""

    def body(carry, x):
        i, total = carry
        lox.log({"x": x}, step=i)
        return (i + 1, jax.tree.map(jnp.add, total, x)), None

    zeros = jax.tree.map(lambda x: jnp.zeros_like(x[0]), xs)
    return lax.scan(body, (0, zeros), xs)[0][1]


def counted(n):
    """Logs 0 to n - 1 in a loop without a static length."""

    def body(i):
        lox.log({"i": i}, step=10 * i)
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


def reduced(xs, name, **options):
    return lox.spool(scanned, reduce=name, **options)(xs)[1]


def tapped(fun, *args, **options):
    calls = []
    lox.tap(fun, calls.append, **options)(*args)
    return calls


# --- accuracy and dtypes -----------------------------------------------------


def series(kind):
    rng = np.random.default_rng(0)
    steps = np.arange(1e6)
    return {
        "around zero": rng.normal(size=10**6),
        "far from zero": 1e6 + rng.random(10**6),
        "a loss that falls": 10 * np.exp(-steps / 1e3) + 0.1 + 0.01 * rng.random(10**6),
        "an outlier first": np.where(steps == 0, 1e6, rng.random(10**6)),
    }[kind].astype(np.float32)


@pytest.mark.parametrize(
    "kind", ["around zero", "far from zero", "a loss that falls", "an outlier first"]
)
def test_a_million_float32_steps_lose_no_digits(kind):
    xs = series(kind)
    exact = xs.astype(np.float64)
    for name, tolerance in (("mean", 1e-6), ("sum", 1e-6), ("var", 1e-4)):
        found = float(reduced(jnp.asarray(xs), name)["x"])
        np.testing.assert_allclose(found, getattr(np, name)(exact), rtol=tolerance)


DTYPES = (
    "bool int8 uint8 int32 uint32 float16 bfloat16 float32 complex64 float8_e4m3fn int4"
)


@pytest.mark.parametrize("dtype", DTYPES.split())
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_is_reduced_as_numpy_reduces_it(dtype, name):
    values = np.array([1, 0, 1, 1, 0, 1, 0])
    if dtype not in ("bool", "int4"):
        values = values * 3
    xs = jnp.asarray(values).astype(dtype)
    found = reduced(xs, name)["x"]
    if name in ("first", "last"):
        expected = values[0 if name == "first" else -1]
    elif name == "count":
        expected = len(values)
    else:
        expected = getattr(np, name)(values)
    # a value in between has the nearest number that the dtype has
    tolerance = {"float8_e4m3fn": 0.07, "bfloat16": 4e-3, "float16": 1e-3}
    np.testing.assert_allclose(
        np.asarray(found, complex), expected, rtol=tolerance.get(dtype, 1e-6)
    )
    whole = not jnp.issubdtype(xs.dtype, jnp.inexact)
    if name in ("min", "max", "first", "last"):
        assert found.dtype == xs.dtype
    elif name in ("mean", "std", "var") and whole:
        assert found.dtype == jnp.float32
    elif name == "sum" and dtype != "int4":
        assert found.dtype == jnp.sum(xs).dtype


def test_large_unsigned_numbers_keep_their_order():
    xs = jnp.array([4_000_000_000, 5], jnp.uint32)
    assert int(reduced(xs, "max")["x"]) == 4_000_000_000
    assert int(reduced(xs, "min")["x"]) == 5


@pytest.mark.parametrize("name", ["mean", "sum", "min", "max", "std", "var"])
@pytest.mark.parametrize(
    "values",
    [(1, np.inf), (np.inf, 1), (np.nan, 1), (1, np.nan, 2), (np.inf, -np.inf), (1, 2)],
    ids=str,
)
def test_nan_and_infinity_pass_as_in_numpy(name, values):
    xs = np.array(values, np.float32)
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name)(xs)
    np.testing.assert_equal(np.asarray(reduced(jnp.asarray(xs), name)["x"]), expected)


def test_complex_values_have_a_real_variance():
    xs = np.array([1 + 1j, 2 - 3j, 0.5j], np.complex64)
    for name in ("mean", "sum", "var", "std"):
        found = reduced(jnp.asarray(xs), name)["x"]
        np.testing.assert_allclose(found, getattr(np, name)(xs), rtol=1e-6)
    assert reduced(jnp.asarray(xs), "var")["x"].dtype == jnp.float32


def test_prng_keys_can_be_kept_but_not_added():
    keys = jax.random.split(jax.random.key(0), 3)

    def f(keys):
        return lax.map(lambda k: (lox.log({"k": k}), 0)[1], keys)

    for name, i in (("first", 0), ("last", -1)):
        logs = lox.spool(f, reduce=name)(keys)[1]
        assert (jax.random.key_data(logs["k"]) == jax.random.key_data(keys[i])).all()
    logs = lox.spool(f, interval=2)(keys)[1]
    assert (jax.random.key_data(logs["k"]) == jax.random.key_data(keys[::2])).all()
    with pytest.raises(lox.LoxTypeError, match=r"'k', logged at .*no mean.*\"last\""):
        lox.spool(f, reduce="mean")(keys)
    with pytest.raises(lox.LoxTypeError, match=r"'k' is of .*no mean.*\"last\""):
        lox.spool(f)(keys)[1].reduce("mean")


def test_values_may_be_trees_and_python_numbers():
    xs = {"a": jnp.arange(4.0), "b": (jnp.ones((4, 2)),)}
    logs = reduced(xs, "sum")
    assert logs["x"]["a"] == 6 and logs["x"]["b"][0].tolist() == [4, 4]
    assert reduced(xs, "count")["x"] == 4

    def f(xs):
        lox.log({"x": 1})
        return lax.map(lambda x: lox.log({"x": x}) and x, xs)

    logs = lox.spool(f, reduce="mean")(jnp.array([2.0, 3.0], jnp.float16))[1]
    assert logs["x"] == 2 and logs["x"].dtype == jnp.float16


@pytest.mark.parametrize("name", NAMES)
def test_spooled_and_stacked_reductions_agree(name):
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(50, 3)), jnp.float32)
    found, expected = reduced(xs, name), lox.spool(scanned)(xs)[1].reduce(name)
    np.testing.assert_allclose(found["x"], expected["x"], rtol=2e-6, atol=1e-6)
    assert found["x"].dtype == expected["x"].dtype
    assert found.step["x"] == expected.step["x"]


class Product(Named):
    name = "product"

    def init(self, kind):
        return jnp.ones(kind.shape, kind.dtype)

    def update(self, carried, x, number):
        return carried * x

    def over_axis(self, rows, axis, mask):
        return rows.prod(axis=axis)


def test_a_reduction_is_one_entry_in_a_table(monkeypatch):
    monkeypatch.setitem(REDUCTIONS, "product", Product())
    xs = jnp.array([2.0, 3.0, 4.0])
    for name in ("product", {"x": "product"}):
        assert reduced(xs, name) == {"x": 24.0}
        assert lox.spool(scanned)(xs)[1].reduce(name) == {"x": 24.0}
    assert reduced(xs, "product", window=2)["x"].tolist() == [6, 4]
    calls = tapped(scanned, xs, reduce="product", window=2)
    assert [float(c["x"]) for c in calls] == [6, 4]
    with pytest.raises(lox.LoxValueError, match=r"unknown.*there are mean.*product"):
        reduced(xs, "quotient")


# --- how reductions are chosen -----------------------------------------------


def test_reductions_for_all_keys_by_key_and_at_the_call():
    def f(xs):
        def body(c, x):
            lox.log({"a": x, "b": x})
            lox.log({"c": x}, reduce="max")
            return c, None

        return lax.scan(body, 0, xs)[0]

    xs = jnp.arange(4.0)
    assert lox.spool(f)(xs)[1] == {"a": xs, "b": xs, "c": 3.0}
    assert lox.spool(f, reduce="mean")(xs)[1] == {"a": 1.5, "b": 1.5, "c": 1.5}
    assert lox.spool(f, reduce={"a": "sum", "[bc]": "first"})(xs)[1] == {
        "a": 6.0,
        "b": 0.0,
        "c": 0.0,
    }
    assert lox.spool(f, reduce={"c": "append"})(xs)[1]["c"].tolist() == [0, 1, 2, 3]
    assert lox.spool(f, reduce="replace")(xs)[1] == lox.spool(f, reduce="last")(xs)[1]


def test_one_key_reduced_in_two_ways_names_both_lines():
    def f(x):
        lox.log({"x": x})
        lox.log({"x": x}, reduce="mean")
        lox.log({"x": x}, reduce="sum")

    with pytest.raises(
        lox.LoxValueError, match=r"'mean'` at .*:\d+ .*'sum'` at .*:\d+"
    ):
        lox.spool(f)(1.0)
    assert lox.spool(f, reduce="max")(1.0)[1] == {"x": 1.0}  # this one wins


# --- reductions of one's own -------------------------------------------------


average = lox.Reduction(
    lambda x: (jnp.zeros_like(x), 0),
    lambda state, x: (state[0] + x, state[1] + 1),
    lambda state: state[0] / state[1],
)


@pytest.mark.parametrize("window", [None, 2])
def test_a_reduction_of_ones_own_does_what_the_named_one_does(window):
    xs = jnp.arange(10.0).reshape(5, 2)
    wanted = reduced(xs, "mean", window=window)
    assert reduced(xs, average, window=window) == wanted
    mapped = lox.spool(jax.vmap(scanned), reduce=average, window=window)
    batch = jnp.stack([xs, xs + 1])
    for lane, one in zip(mapped(batch)[1].lanes(), batch, strict=True):
        assert lane == reduced(one, "mean", window=window)


def test_a_reduction_may_start_from_a_python_number():
    product = lox.Reduction(1, lambda state, x: state * x)
    assert reduced(jnp.array([2.5, 2.0]), product)["x"] == 5
    assert reduced(jnp.array([2.5, 2.0, 3.0]), product, window=2)["x"].tolist() == [
        5,
        3,
    ]
    calls = tapped(scanned, jnp.array([2.5, 2.0, 3.0]), reduce=product, window=2)
    assert [float(c["x"]) for c in calls] == [5, 3]


@pytest.mark.parametrize("window", [None, 2])
def test_a_reduction_may_close_over_what_is_traced(window):
    @jax.jit
    def f(decay, xs):
        smooth = lox.Reduction(decay, lambda s, x: decay * s + x, lambda s: s - decay)
        return lox.spool(scanned, reduce=smooth, window=window)(xs)[1]

    xs = jnp.array([1.0, 2.0])
    assert jnp.ravel(f(0.5, xs)["x"]) == 0.5 * (0.5 * 0.5 + 1) + 2 - 0.5
    calls = []

    @jax.jit
    def g(decay, xs):
        smooth = lox.Reduction(decay, lambda s, x: decay * s + x)
        return lox.tap(scanned, calls.append, reduce=smooth, window=window)(xs)

    g(0.5, xs)
    jax.effects_barrier()
    assert [float(c["x"]) for c in calls] == [0.5 * (0.5 * 0.5 + 1) + 2]


def test_a_reduction_may_give_another_structure():
    span = lox.Reduction(
        lambda x: (x + jnp.inf, x - jnp.inf),
        lambda s, x: (jnp.minimum(s[0], x), jnp.maximum(s[1], x)),
        lambda s: {"low": s[0], "high": s[1]},
    )
    logs = reduced(jnp.array([3.0, 1.0, 2.0]), span)
    assert logs["x"] == {"low": 1.0, "high": 3.0}


def test_logs_can_be_reduced_by_it_later():
    xs = jnp.arange(10.0).reshape(5, 2)
    logs = lox.spool(scanned)(xs)[1]
    assert logs.reduce(average) == reduced(xs, "mean")
    on_host = jax.tree.map(np.asarray, logs).reduce({"x": average})
    assert isinstance(on_host["x"], np.ndarray) and on_host == reduced(xs, "mean")
    ns = jnp.array([2, 1, 4])
    for spooled in (
        jax.vmap(lox.spool(counted, capacity=5)),
        lox.spool(jax.vmap(counted), capacity=5),
    ):
        lanes = spooled(ns)[1].reduce(average).lanes()
        assert [float(lane["i"]) for lane in lanes] == [0.5, 0, 1.5]
        assert [int(lane.step["i"]) for lane in lanes] == [10, 0, 30]


# --- windows and intervals ---------------------------------------------------


def nested():
    lox.log({"i": -1}, step=-1)

    def outer(c, i):
        def inner(c, j):
            lox.log({"i": 10 * i + j}, step=c)
            return c + 1, None

        c, _ = lax.scan(inner, c, jnp.arange(3))
        lox.log({"i": 10 * i + 9}, step=c)
        return c, None

    return lax.scan(outer, 0, jnp.arange(2))[0]


NESTED = [-1, 0, 1, 2, 9, 10, 11, 12, 19]


@pytest.mark.parametrize("k", [1, 2, 3, 8, 9, 20])
def test_windows_and_intervals_go_across_loops_and_sites(k):
    logs = lox.spool(nested, interval=k)()[1]
    assert logs["i"].tolist() == NESTED[::k]
    logs = lox.spool(nested, reduce="sum", window=k)()[1]
    parts = [NESTED[i : i + k] for i in range(0, len(NESTED), k)]
    assert logs["i"].tolist() == [sum(part) for part in parts]
    logs = lox.spool(nested, reduce="first", window=2, interval=k)()[1]
    assert logs["i"].tolist() == NESTED[::k][::2]


def test_the_step_of_a_window_is_that_of_its_last_event_or_first():
    xs = jnp.arange(5.0)
    assert reduced(xs, "mean", window=2).step["x"].tolist() == [1, 3, 4]
    assert reduced(xs, "first", window=2).step["x"].tolist() == [0, 2, 4]
    assert reduced(xs, "first").step["x"] == 0 and reduced(xs, "max").step["x"] == 4


def bytes_of(fun, *args):
    analysis = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def test_what_is_thrown_away_is_never_allocated():
    long = jax.ShapeDtypeStruct((100_000, 64), jnp.float32)
    short = jax.ShapeDtypeStruct((100, 64), jnp.float32)
    row = 64 * 4
    for name in (*NAMES, average):
        fun = lox.spool(scanned, reduce=name)
        assert bytes_of(fun, long) == bytes_of(fun, short)
    for options in ({"interval": 1000}, {"reduce": "mean", "window": 1000}):
        # a hundred rows, and what the loop itself needs
        assert bytes_of(lox.spool(scanned, **options), long) < 100 * row + 40 * row


# --- while loops -------------------------------------------------------------


def test_capacity_gives_the_rows_that_happened():
    spooled = lox.spool(counted, capacity=5)
    for n in (0, 1, 5):
        logs = spooled(n)[1]
        assert logs == ({"i": jnp.arange(n)} if n else {})
        if n:
            assert logs.step["i"].tolist() == list(range(0, 10 * n, 10))
    logs = jax.jit(spooled)(3)[1]
    assert (
        logs["i"].shape == (5,) and logs.mask["i"].tolist() == [True] * 3 + [False] * 2
    )
    assert logs.compact()["i"].tolist() == [0, 1, 2]


def test_rows_beyond_the_capacity_are_reported():
    with pytest.warns(
        lox.LoxWarning, match=r"4 rows of 'i' were dropped.*Add 4"
    ) as seen:
        logs = lox.spool(counted, capacity=3)(7)[1]
    assert logs["i"].tolist() == [0, 1, 2]
    assert seen[0].filename == __file__
    logs = jax.jit(lox.spool(counted, capacity=3))(7)[1]
    assert logs.dropped["i"] == 4
    for use in (
        lambda: logs.compact(),
        lambda: logs.slice[-1],
        lambda: list(logs.rows()),
        lambda: logs.reduce("last").compact(),
        lambda: (logs + logs).compact(),
    ):
        with pytest.warns(lox.LoxWarning, match="rows of 'i' were dropped"):
            use()
    logs = jax.vmap(lox.spool(counted, capacity=3))(jnp.array([2, 7, 5]))[1]
    assert logs.dropped["i"].tolist() == [0, 4, 2]
    with pytest.warns(lox.LoxWarning, match=r"6 rows of 'i'.*in 2 lanes.*Add 4"):
        assert logs.compact()["i"].shape == (3, 3)


def test_a_capacity_is_for_loops_without_a_length_only():
    def f(n):
        lox.log({"once": n})
        lax.scan(lambda c, i: (lox.log({"scan": i}), (c, None))[1], 0, jnp.arange(5))
        return counted(n)

    logs = lox.spool(f, capacity=4)(2)[1]
    assert logs["once"] == 2 and logs["scan"].shape == (5,)
    assert logs["i"].tolist() == [0, 1]


def both_parts(n):
    def cond(i):
        lox.log({"c": i})
        return i < n

    def body(i):
        lox.log({"b": i}, step=i)
        lax.fori_loop(0, i, lambda j, x: lox.log({"j": 10 * i + j})["j"], 0)
        return i + 1

    return lax.while_loop(cond, body, 0)


def test_conditions_several_keys_and_nested_loops_have_rows():
    logs = lox.spool(both_parts, capacity=9)(3)[1]
    assert logs["c"].tolist() == [0, 1, 2, 3]
    assert logs["b"].tolist() == [0, 1, 2]
    assert logs["j"].tolist() == [10, 20, 21]
    logs = lox.spool(both_parts, reduce="sum")(3)[1]
    assert logs == {"c": 6, "b": 3, "j": 51}
    logs = lox.spool(both_parts, reduce="last", window=2, capacity=9)(3)[1]
    assert logs["c"].tolist() == [1, 3] and logs["j"].tolist() == [20, 21]


@pytest.mark.parametrize("around", [True, False], ids=["vmap(spool)", "spool(vmap)"])
def test_lanes_that_stop_at_different_times(around):
    ns = jnp.array([2, 0, 4])

    def lanes(**options):
        if around:
            return jax.vmap(lox.spool(both_parts, **options))(ns)[1].lanes()
        return lox.spool(jax.vmap(both_parts), **options)(ns)[1].lanes()

    for n, lane in zip(ns.tolist(), lanes(capacity=9), strict=True):
        assert lane == lox.spool(both_parts, capacity=9)(n)[1]
    for n, lane in zip(ns.tolist(), lanes(reduce="mean"), strict=True):
        assert lane == lox.spool(both_parts, reduce="mean")(n)[1]


def grown(x, n):
    def body(c):
        lox.log({"x": c[1]}, step=c[0])
        return c[0] + 1, c[1] * 2

    return lax.while_loop(lambda c: c[0] < n, body, (0, x))[1]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("axes", [((None, 0), (0, None)), ((0, None), (None, 0))])
def test_loops_whose_end_depends_on_one_of_two_vmaps(sizes, axes):
    xs = jnp.array([1.0, 10.0, 100.0])[: sizes[0]]
    ns = jnp.array([1, 3, 2])[: sizes[1]]

    def mapped(f):
        return jax.vmap(jax.vmap(f, axes[0]), axes[1])

    for options in ({"reduce": "sum"}, {"capacity": 4}, {"reduce": "max", "window": 2}):
        options.setdefault("capacity", 4)
        inside = lox.spool(mapped(grown), **options)(xs, ns)[1]
        outside = mapped(lox.spool(grown, **options))(xs, ns)[1]
        for row, other in zip(inside.lanes(), outside.lanes(), strict=True):
            assert row.lanes() == other.lanes()
    calls = tapped(mapped(grown), xs, ns, buffer=2)
    rows = sorted(float(x) for call in calls for x in call["x"])
    assert rows == sorted(
        float(x) * 2**i for x in xs for n in ns for i in range(int(n))
    )


def repeated(n, v):
    def body(i):
        lox.log({"v": v})
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


@pytest.mark.parametrize("inner", [2, 3])
def test_three_vmaps_around_a_loop_count_each_lane_by_itself(inner):
    f = jax.vmap(repeated, (None, 0))
    f = jax.vmap(jax.vmap(f, (0, None)), (None, 0))
    ns, vs = jnp.array([1, 3]), jnp.zeros((2, inner))
    logs = lox.spool(f, reduce="count")(ns, vs)[1]
    assert logs["v"].tolist() == [[[1] * inner, [3] * inner]] * 2
    assert len(tapped(f, ns, vs)) == 2 * inner * 4


@pytest.mark.parametrize("inner", [2, 3])
def test_a_vmap_in_the_body_of_a_loop_has_its_lanes_after_those_of_the_loop(inner):
    def f(n):
        def body(i):
            jax.vmap(lambda v: lox.log({"v": v}))(jnp.zeros(inner))
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    mapped = jax.vmap(jax.vmap(f))
    ns = jnp.array([[1, 3], [2, 0]])
    logs = lox.spool(mapped, reduce="count")(ns)[1]
    wanted = np.broadcast_to(np.asarray(ns)[..., None], (2, 2, inner))
    mask = np.asarray(logs.mask["v"])
    assert (mask == (wanted > 0)).all()
    assert (np.asarray(logs["v"])[mask] == wanted[mask]).all()
    assert len(tapped(mapped, ns)) == 6 * inner


def test_a_loop_that_is_never_reached_gives_nothing():
    def f(xs):
        return lax.scan(lambda c, x: (c, counted(3)), 0, xs)

    for options in ({"capacity": 5}, {"reduce": "mean"}):
        assert lox.spool(f, **options)(jnp.zeros(0))[1] == {}


def test_without_capacity_the_error_names_three_ways_out():
    for options in ({}, {"reduce": "append"}, {"interval": 2}):
        with pytest.raises(lox.UnboundedLoopError) as error:
            lox.spool(counted, **options)(3)
        text = str(error.value)
        assert re.search(r"'i' \(logged at .*test_streams.py:\d+\)", text)
        assert all(way in text for way in ("capacity=", "reduce=", "lox.tap"))


# --- derivatives -------------------------------------------------------------


@pytest.mark.parametrize("name", ["mean", "sum", "min", "max", "last", "var", "std"])
def test_reduced_logs_are_differentiable(name):
    xs = jnp.array([1.0, 1.0, 4.0, 3.5])
    found = jax.grad(lambda xs: reduced(xs, name)["x"])(xs)
    functions = {"last": lambda xs: xs[-1]}
    function = functions.get(name, getattr(jnp, name, None))
    if name == "min":  # ties are shared out differently
        np.testing.assert_allclose(found.sum(), 1.0)
    else:
        np.testing.assert_allclose(found, jax.grad(function)(xs), rtol=1e-5)
    windowed = jax.grad(lambda xs: reduced(xs, name, window=4)["x"].sum())(xs)
    np.testing.assert_allclose(windowed, found, rtol=1e-5)


@jax.custom_jvp
def with_jvp(x):
    lox.log({"x": x})
    return x


with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0]))


@jax.custom_vjp
def with_vjp(x):
    lox.log({"x": x})
    return x


with_vjp.defvjp(lambda x: (with_vjp(x), None), lambda _, g: (g,))


@pytest.mark.parametrize("custom", [with_jvp, with_vjp])
@pytest.mark.parametrize("options", [{"reduce": "sum"}, {"interval": 1}])
def test_a_custom_function_that_logs_keeps_the_derivative_of_what_came_before(
    custom, options
):
    def f(xs):
        def body(s, x):
            lox.log({"x": x * 2})
            return s + custom(x), None

        return lax.scan(body, 0.0, xs)[0]

    xs = jnp.arange(3.0)
    logs = lox.spool(f, **options)(xs)[1]
    assert logs["x"].sum() == 9
    for of in (options, {}):
        gradient = jax.grad(lambda x, of=of: lox.spool(f, **of)(x)[1]["x"].sum())(xs)
        assert gradient.tolist() == [2, 2, 2]


def test_events_that_are_not_selected_do_not_touch_a_stream():
    def f(x):
        lox.log({"a": x.sum()}, tags="m")

        def one(x):
            return lax.while_loop(
                lambda c: c < 3, lambda c: (lox.log({"a": c}), c + 1)[1], x
            )

        return jax.vmap(one)(x)

    assert lox.spool(f, tags="m", reduce="sum")(jnp.arange(3.0))[1] == {"a": 3.0}
    assert tapped(f, jnp.arange(3.0), tags="m", buffer=2) == [{"a": jnp.array([3.0])}]


def logs_nothing(x):
    return x, None


def logs_another_value(x):
    lox.log({"a": x * 7})
    return x, None


def logs_another_shape(x):
    lox.log({"a": jnp.ones(3)})
    return x, None


@pytest.mark.parametrize("rule", [logs_nothing, logs_another_value, logs_another_shape])
@pytest.mark.parametrize("options", [{}, {"reduce": "mean"}, {"buffer": 2}])
def test_a_rule_that_logs_otherwise_does_not_count(rule, options):
    @jax.custom_vjp
    def f(x):
        lox.log({"a": x * 10})
        return x

    f.defvjp(rule, lambda r, g: (g,))
    calls = []
    assert jax.grad(lox.tap(f, calls.append, **options))(1.0) == 1
    jax.effects_barrier()
    assert [float(jnp.sum(c["a"])) for c in calls] == [10]
    if "buffer" not in options:
        gradient, logs = jax.grad(lox.spool(f, **options), has_aux=True)(1.0)
        assert gradient == 1 and logs == {"a": 10.0}


def test_a_key_in_an_unbounded_loop_does_not_take_the_derivative_of_another():
    @jax.custom_jvp
    def c(x):
        lox.log({"a": x})
        counted(2)
        return jnp.sin(x)

    c.defjvp(lambda p, t: (c(p[0]), jnp.cos(p[0]) * t[0]))

    def f(x):
        lox.log({"a": x**2})
        y = c(x)
        lox.log({"a": y})
        return y

    for options in ({}, {"argnames": "a"}):
        spooled = lox.spool(f, reduce="sum", **options)
        gradient = jax.grad(lambda x, g=spooled: g(x)[1]["a"])(0.7)
        np.testing.assert_allclose(gradient, 1.4 + np.cos(0.7), rtol=1e-6)
    assert lox.spool(f, reduce="sum")(0.7)[1]["i"] == 1


def test_logs_of_custom_functions_stay_constant_in_second_derivatives():
    def f(x):
        def body(c, i):
            lox.log({"x": c * 2})
            return with_jvp(jnp.sin(c)), None

        return lax.scan(body, x, jnp.arange(2))[0]

    def loss(x):
        return lox.spool(f, reduce="var")(x)[1]["x"]

    second = [
        outer(inner(loss))(0.7)
        for outer in (jax.grad, jax.jacfwd)
        for inner in (jax.grad, jax.jacfwd)
    ]
    np.testing.assert_allclose(second, second[-1], rtol=1e-4)


# --- tap ---------------------------------------------------------------------


def test_a_buffer_hands_over_rows_in_order_and_the_rest_at_the_end():
    calls = tapped(scanned, jnp.arange(7.0), buffer=3)
    assert [c["x"].tolist() for c in calls] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [c.step["x"].tolist() for c in calls] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(isinstance(c["x"], np.ndarray) for c in calls)
    assert sum(calls[1:], calls[0]) == lox.spool(scanned)(jnp.arange(7.0))[1]


def test_a_loop_that_ends_early_is_flushed():
    assert [c["i"].tolist() for c in tapped(counted, 4, buffer=3)] == [[0, 1, 2], [3]]
    assert tapped(counted, 0, buffer=3) == []
    calls = tapped(counted, 5, reduce="sum", window=2)
    assert [int(c["i"]) for c in calls] == [1, 5, 4]
    assert [int(c.step["i"]) for c in calls] == [10, 30, 40]


def test_a_reduced_tap_calls_once_when_the_function_has_ended():
    assert tapped(scanned, jnp.arange(5.0), reduce="mean") == [{"x": 2.0}]
    assert tapped(counted, 0, reduce="mean") == []


@pytest.mark.parametrize("size", [3, 100_000])
def test_windows_of_any_size_are_the_same(size):
    """Small ones are folded when they are complete, large ones as they go."""
    xs = jnp.arange(7.0)[:, None] * jnp.ones(size)
    for name in ("mean", "first", "var", average):
        calls = tapped(scanned, xs, reduce=name, window=3)
        wanted = reduced(xs, name, window=3)
        np.testing.assert_allclose([c["x"][0] for c in calls], wanted["x"][:, 0])
        steps = [int(c.step["x"]) for c in calls]
        assert steps == wanted.step["x"].tolist()
        (whole,) = tapped(scanned, xs, reduce=name, window=3, buffer=5)
        np.testing.assert_allclose(whole["x"], wanted["x"])


def test_the_reduction_of_a_call_counts_in_a_tap_with_a_window():
    def f(xs):
        return lax.map(lambda x: lox.log({"x": x}, reduce="max") and x, xs)

    xs = jnp.arange(4.0)
    assert [float(c["x"]) for c in tapped(f, xs)] == [0, 1, 2, 3]
    assert [float(c["x"]) for c in tapped(f, xs, window=3)] == [2, 3]


def test_keys_that_are_logged_together_come_together():
    def f(xs):
        def body(c, x):
            lox.log({"a": x, "b": -x}, step=x)
            lox.log({"c": x})
            return c, None

        lox.log({"d": 0})
        return lax.scan(body, 0, xs)[0]

    calls = tapped(f, jnp.arange(3.0), buffer=2)
    assert [list(c) for c in calls] == [["a", "b"], ["c"], ["d"], ["a", "b"], ["c"]]
    calls = tapped(f, jnp.arange(3.0), reduce={"[abc]": "mean"}, window=2)
    keys = [list(c) for c in calls]
    assert keys == [["d"], ["a", "b"], ["c"], ["a", "b"], ["c"]]


@pytest.mark.parametrize("around", [True, False], ids=["vmap(tap)", "tap(vmap)"])
@pytest.mark.parametrize(
    "options",
    [
        {"buffer": 2},
        {"reduce": "sum", "window": 2},
        {"reduce": "sum"},
        {"interval": 2},
        {"interval": 2, "buffer": 2},
    ],
    ids=str,
)
def test_lanes_have_buffers_of_their_own(around, options):
    ns = jnp.array([2, 0, 5])

    def f(n):
        def body(i):
            lox.log({"i": i}, n=n)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    calls = []

    def tap(f):
        return lox.tap(f, calls.append, **options)

    (jax.vmap(tap(f)) if around else tap(jax.vmap(f)))(ns)
    jax.effects_barrier()
    for n in ns.tolist():
        mine = [c for c in calls if np.ravel(c.n["i"])[0] == n]
        assert mine == tapped(f, n, **options)


def test_lanes_that_stay_together_share_a_count():
    xs = jnp.arange(6.0).reshape(2, 3)
    calls = tapped(jax.vmap(scanned), xs, reduce="mean", window=2)
    assert [float(c["x"]) for c in calls] == [0.5, 3.5, 2, 5]
    calls = tapped(jax.vmap(scanned), xs, buffer=2, batched=True)
    assert [c["x"].tolist() for c in calls] == [[[0, 3], [1, 4]], [[2, 5]]]
    logs = lox.spool(jax.vmap(scanned), reduce="mean", window=2)(xs)[1]
    assert logs["x"].tolist() == [[0.5, 3.5], [2, 5]] and not logs.mask


def test_batched_buffers_have_all_lanes():
    calls = tapped(jax.vmap(counted), jnp.array([1, 3]), buffer=2, batched=True)
    rows = sorted(
        (int(lane["i"][0]), len(lane["i"]))
        for c in calls
        for lane in c.lanes()
        if "i" in lane
    )
    assert rows == [(0, 1), (0, 2), (2, 1)]


def test_a_callback_that_raises_gets_no_more_rows_and_loses_none_before():
    calls = []

    def callback(logs):
        calls.append(logs["x"].tolist())
        if len(calls) == 2:
            raise ValueError("enough")

    for _ in range(2):
        calls.clear()
        with pytest.raises(ValueError, match="enough"):
            lox.tap(scanned, callback, buffer=2)(jnp.arange(7.0))
        assert calls == [[0, 1], [2, 3]]
    assert len(tapped(scanned, jnp.arange(7.0), buffer=2)) == 4


def test_taps_with_streams_do_not_change_results_or_gradients():
    xs = jnp.arange(5.0)
    for options in ({"buffer": 2}, {"reduce": "var", "window": 2}, {"interval": 2}):
        tap = lox.tap(lambda a: scanned(a * xs) ** 2, lambda logs: None, **options)
        assert tap(2.0) == 400 and jax.grad(tap)(2.0) == 400
        assert jax.jit(jax.grad(tap))(2.0) == 400
    jax.effects_barrier()


def test_jitted_taps_flush_too():
    calls = []
    jax.jit(lox.tap(scanned, calls.append, buffer=2))(jnp.arange(3.0))
    jax.effects_barrier()
    assert [c["x"].tolist() for c in calls] == [[0, 1], [2]]


def test_a_tap_in_a_loop_flushes_at_the_end_of_each_call():
    calls = []

    def step(c, x):
        return c, lox.tap(scanned, calls.append, buffer=3)(x + jnp.arange(4.0))

    jax.jit(lambda: lax.scan(step, 0, jnp.array([0.0, 10.0])))()
    jax.effects_barrier()
    assert [c["x"].tolist() for c in calls] == [[0, 1, 2], [3], [10, 11, 12], [13]]


# --- lanes and devices -------------------------------------------------------


def on_devices(fun, kind):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    spec = PartitionSpec("d")
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return mapped, lambda x: jax.device_put(x, sharding)


def grown_to_three(x):
    def body(c):
        lox.log({"x": c.sum()}, step=c.sum().astype(int))
        return c + 1

    return lax.while_loop(lambda c: c.sum() < 3, body, x)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"reduce": "mean"},
        {"capacity": 4},
        {"reduce": "var", "window": 2, "capacity": 4},
        {"interval": 2, "capacity": 4},
    ],
    ids=str,
)
def test_each_device_of_a_mesh_has_its_own_stream(kind, options):
    mapped, put = on_devices(grown_to_three, kind)
    logs = lox.spool(mapped, **options)(put(jnp.arange(4.0)))[1]
    for start, lane in enumerate(logs.lanes()):
        assert lane == lox.spool(grown_to_three, **options)(jnp.array([1.0 * start]))[1]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize(
    "options",
    [{"buffer": 2}, {"reduce": "sum", "window": 2}, {"reduce": "sum"}, {"interval": 2}],
    ids=str,
)
def test_each_device_of_a_mesh_has_its_own_buffer(kind, options):
    mapped, put = on_devices(grown_to_three, kind)
    calls = tapped(mapped, put(jnp.arange(4.0)), **options)
    alone = [
        call
        for start in range(4)
        for call in tapped(grown_to_three, jnp.array([1.0 * start]), **options)
    ]

    def by_rows(calls):
        return sorted(str(c) for c in calls)

    assert by_rows(calls) == by_rows(alone)


@pytest.mark.parametrize("name", [*NAMES, average])
@pytest.mark.parametrize("window", [None, 2])
def test_split_values_are_reduced_where_they_are(name, window):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec(None, "d"))
    xs = jnp.arange(40.0).reshape(5, 8)
    found = reduced(jax.device_put(xs, sharding), name, window=window)["x"]
    np.testing.assert_allclose(found, reduced(xs, name, window=window)["x"])
    if name != "count":
        assert "d" in str(jax.typeof(found).sharding.spec)


def summed(x):
    def step(c, i):
        lox.log({"sum": c.sum(), "i": i}, step=i)
        return c * 2, None

    return lax.scan(step, x, jnp.arange(5))[0].sum()


def summed_until(x):
    def body(c):
        lox.log({"sum": c.sum()})
        return c * 2

    return lax.while_loop(lambda c: c.sum() < 500, body, x).sum()


@pytest.fixture
def explicit_mesh():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        yield lambda x: jax.device_put(x, PartitionSpec("d"))


@pytest.mark.parametrize("fun", [summed, summed_until])
@pytest.mark.parametrize(
    "options",
    [
        *({"reduce": name} for name in NAMES),
        pytest.param({"reduce": average}, id="user-defined"),
        {"reduce": "mean", "window": 2},
        {"reduce": "last", "window": 2},
        {"interval": 2},
        {},
    ],
    ids=str,
)
def test_whole_values_under_an_explicit_mesh_are_reduced(explicit_mesh, fun, options):
    options = {"capacity": 9, **options}
    x = jnp.arange(8.0) + 1
    y, expected = lox.spool(fun, **options)(x)
    for way in (lox.spool(fun, **options), jax.jit(lox.spool(fun, **options))):
        found, logs = way(explicit_mesh(x))
        assert found == y
        assert logs.compact() == expected


@pytest.mark.parametrize("fun", [summed, summed_until])
@pytest.mark.parametrize(
    "options",
    [
        {"buffer": 2},
        {"interval": 2},
        {"reduce": "mean"},
        {"reduce": "mean", "window": 2},
        {"interval": 2, "buffer": 2},
    ],
    ids=str,
)
def test_whole_values_under_an_explicit_mesh_are_buffered(explicit_mesh, fun, options):
    x = jnp.arange(8.0) + 1
    assert tapped(fun, explicit_mesh(x), **options) == tapped(fun, x, **options)


# --- bad input ---------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, True])
@pytest.mark.parametrize(
    "transform, option",
    [
        (lox.spool, "interval"),
        (lox.spool, "window"),
        (lox.spool, "capacity"),
        (lox.tap, "interval"),
        (lox.tap, "window"),
        (lox.tap, "buffer"),
    ],
)
def test_numbers_below_one_are_refused(transform, option, value):
    name = transform.__name__
    with pytest.raises(
        lox.LoxValueError, match=f"`{option}` of `lox.{name}`.*at least 1"
    ):
        transform(scanned, **{option: value})
    with pytest.raises(
        lox.LoxTypeError, match=f"`{option}` of `lox.{name}`.*whole number"
    ):
        transform(scanned, **{option: 1.5})


@pytest.mark.parametrize("reduce", [None, "append"])
@pytest.mark.parametrize("transform", [lox.spool, lox.tap])
def test_a_window_needs_a_reduction(transform, reduce):
    with pytest.raises(
        lox.LoxValueError, match=r"`window`.*'x' \(at .*test_streams.*interval=3"
    ):
        transform(scanned, reduce=reduce, window=3)(jnp.arange(3.0))


@pytest.mark.parametrize("reduce", ["median", 3, ("mean",), {"x": "median"}])
def test_unknown_reductions_are_refused(reduce):
    for transform in (lox.spool, lox.tap):
        with pytest.raises(lox.LoxValueError, match="unknown reduction.*there are"):
            transform(scanned, reduce=reduce)
    with pytest.raises(lox.LoxValueError, match=r"`lox.log` at .*unknown reduction"):
        lox.log({"x": 1}, reduce=reduce)


def test_a_reduction_that_changes_its_state_is_refused():
    xs = jnp.ones(3)
    grows = lox.Reduction(jnp.zeros(1), lambda s, x: jnp.concatenate([s, x[None]]))
    with pytest.raises(lox.ShapeError, match=r"'x', logged at .*float32\[1\].*\[2\]"):
        reduced(xs, grows)
    splits = lox.Reduction(jnp.zeros(()), lambda s, x: (s, x))
    with pytest.raises(lox.ShapeError, match="`update`.*'x', logged at"):
        reduced(xs, splits)
    empty = lox.Reduction(jnp.zeros(()), lambda s, x: s, lambda s: ())
    with pytest.raises(lox.LoxValueError, match="`finish`.*holds no array"):
        reduced(xs, empty)


def test_mistakes_in_a_reduction_name_the_key():
    with pytest.raises(lox.LoxTypeError, match="`update` of a `lox.Reduction`"):
        lox.Reduction(0, 3)
    with pytest.raises(TypeError) as error:
        reduced(jnp.ones(3), lox.Reduction(0.0, lambda s: s))
    assert re.search("'x', logged at .*test_streams.py", error.value.__notes__[0])
