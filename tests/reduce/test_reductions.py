"""Reductions: accuracy, dtypes, custom reductions, and which one applies."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from lox._reduce.named import REDUCTIONS, Named
from tests.streams.programs_with_streams import (
    NAMES,
    average,
    counted,
    reduced,
    scanned,
    tapped,
)

# --- accuracy and dtypes ----------------------------------------------------


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
def test_mean_and_sum_of_a_million_float32_lose_no_digits(kind):
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
def test_reduction_of_every_dtype_matches_numpy(dtype, name):
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
    # a value in between is rounded to the dtype
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


def test_min_and_max_of_large_unsigned_numbers_are_exact():
    xs = jnp.array([4_000_000_000, 5], jnp.uint32)
    assert int(reduced(xs, "max")["x"]) == 4_000_000_000
    assert int(reduced(xs, "min")["x"]) == 5


@pytest.mark.parametrize("name", ["mean", "sum", "min", "max", "std", "var"])
@pytest.mark.parametrize(
    "values",
    [(1, np.inf), (np.inf, 1), (np.nan, 1), (1, np.nan, 2), (np.inf, -np.inf), (1, 2)],
    ids=str,
)
def test_reduction_of_nan_and_infinity_matches_numpy(name, values):
    xs = np.array(values, np.float32)
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name)(xs)
    np.testing.assert_equal(np.asarray(reduced(jnp.asarray(xs), name)["x"]), expected)


def test_variance_of_complex_values_is_real():
    xs = np.array([1 + 1j, 2 - 3j, 0.5j], np.complex64)
    for name in ("mean", "sum", "var", "std"):
        found = reduced(jnp.asarray(xs), name)["x"]
        np.testing.assert_allclose(found, getattr(np, name)(xs), rtol=1e-6)
    assert reduced(jnp.asarray(xs), "var")["x"].dtype == jnp.float32


def test_prng_keys_have_first_and_last_but_no_sum():
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


def test_reduction_supports_trees_and_python_numbers():
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
def test_reduction_in_loop_agrees_with_stacked_rows(name):
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(50, 3)), jnp.float32)
    found, expected = reduced(xs, name), lox.spool(scanned)(xs)[1].reduce(name)
    np.testing.assert_allclose(found["x"], expected["x"], rtol=2e-6, atol=1e-6)
    assert found["x"].dtype == expected["x"].dtype
    assert found.step["x"] == expected.step["x"]


def on_host(logs):
    """Logs of NumPy arrays, as a store returns them."""
    return jax.tree.map(np.asarray, logs)


def logging(xs):
    """A program that logs the first rows of `xs`."""

    def program(length):
        def body(carry, i):
            lox.log({"x": xs[i]}, step=i, when=i < length)
            return carry, None

        return lax.scan(body, 0, jnp.arange(len(xs)))[0]

    return program


@functools.cache
def small_numbers(dtype):
    """Numbers that are exact in a dtype, in rows of the shape (2,)."""
    if dtype == "bool":
        low, high = 0, 1
    elif jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        low, high = max(int(info.min), -5), min(int(info.max), 5)
    else:
        low, high = -5, 5
    return np.random.default_rng(0).integers(low, high + 1, (20, 2))


STACKED_DTYPES = (
    "bool int8 uint8 int32 uint32 int4 uint4 int2 bfloat16 float16 float32 complex64 "
    "float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz"
).split()
X64_DTYPES = "bool uint32 int4 float16 float32 int64 uint64 float64".split()


@pytest.mark.parametrize(
    "dtype, x64",
    [(dtype, False) for dtype in STACKED_DTYPES]
    + [(dtype, True) for dtype in X64_DTYPES],
)
def test_reduction_of_stacked_rows_has_value_and_dtype_of_loop(dtype, x64):
    with jax.enable_x64(x64):
        program = logging(jnp.asarray(small_numbers(dtype)).astype(dtype))
        lengths = jnp.array([20, 13])
        plain = lox.spool(program)(20)[1]
        masked = jax.vmap(lox.spool(program))(lengths)[1]
        assert masked.mask and not plain.mask
        for name in NAMES:
            spool = lox.spool(program, reduce=name)
            expected = spool(20)[1]["x"], jax.vmap(spool)(lengths)[1]["x"]
            for logs, one in zip((plain, masked), expected, strict=True):
                for host, rows in enumerate((logs, on_host(logs))):
                    found = rows.reduce(name)["x"]
                    if host and name == "sum" and one.dtype.kind in "iu":
                        assert found.dtype == np.dtype(f"{one.dtype.kind}8")
                    else:
                        assert found.dtype == one.dtype, name
                    values = np.asarray(found).astype(complex)
                    # the result of a sum in another order may round to a neighbour
                    rounds = one.dtype.itemsize < 4 and name in ("mean", "std", "var")
                    tolerance = float(jnp.finfo(one.dtype).eps) if rounds else 1e-6
                    wanted = np.asarray(one).astype(complex)
                    np.testing.assert_allclose(values, wanted, tolerance, err_msg=name)


@pytest.mark.parametrize(
    "dtype, value, rows",
    [
        ("bfloat16", 0.1, 1000),
        ("bfloat16", 0.1, 300),
        ("float16", 0.1, 3000),
        ("float16", 0.1, 70000),
        ("float16", 100, 1000),
        ("float8_e4m3fn", 0.1, 1000),
        ("float32", 0.1, 1_000_000),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("host", [False, True])
def test_stacked_rows_are_added_up_as_accurately_as_in_loop(
    dtype, value, rows, masked, host
):
    xs = jnp.full((rows, 2), value, dtype)
    logs = lox.logdict({"x": xs}, stacked=True)
    if masked:
        logs = logs._with([("x", logs._key("x").only_if(jnp.bool_(True)))])
    if host:
        logs = on_host(logs)
    exact = np.asarray(xs[0]).astype(np.float64)
    # XLA adds up 1e6 float32 rows to about 2e-7; that of JAX 0.9 only to 1e-6
    accuracy = 5e-7 if host or jax.__version_info__ >= (0, 10) else 2e-6
    precision = max(float(jnp.finfo(dtype).eps), accuracy)
    mean = np.asarray(logs.reduce("mean")["x"]).astype(np.float64)
    np.testing.assert_allclose(mean, exact, rtol=precision)
    std = np.asarray(logs.reduce("std")["x"]).astype(np.float64)
    np.testing.assert_allclose(std, 0, atol=accuracy * value)
    if rows * value < float(jnp.finfo(dtype).max):
        total = np.asarray(logs.reduce("sum")["x"]).astype(np.float64)
        np.testing.assert_allclose(total, rows * exact, rtol=precision)


@pytest.mark.parametrize("host", [False, True])
def test_min_and_max_of_masked_rows_ignore_other_rows(host):
    xs = jnp.array([4_000_000_000, 5, 4_100_000_000, 0], jnp.uint32)
    logs = jax.vmap(lox.spool(logging(xs)))(jnp.array([3, 1]))[1]
    logs = on_host(logs) if host else logs
    assert logs.reduce("min")["x"].tolist() == [5, 4_000_000_000]
    assert logs.reduce("max")["x"].tolist() == [4_100_000_000, 4_000_000_000]


@pytest.mark.parametrize("rows", [[2**40, 1], np.int32([2**30, 2**30])])
def test_numpy_integers_are_added_up_in_64_bits_that_jax_lacks(rows):
    logs = lox.logdict({"x": np.array(rows)}, stacked=True)
    total = logs.reduce("sum")["x"]
    assert total == sum(map(int, rows)) and total.dtype == np.int64


class Product(Named):
    name = "product"

    def init(self, kind):
        return jnp.ones(kind.shape, kind.dtype)

    def update(self, carried, x, number):
        return carried * x

    def over_axis(self, rows, axis, mask):
        return rows.prod(axis=axis)


def test_new_reduction_is_one_table_entry(monkeypatch):
    monkeypatch.setitem(REDUCTIONS, "product", Product())
    xs = jnp.array([2.0, 3.0, 4.0])
    for name in ("product", {"x": "product"}):
        assert reduced(xs, name) == {"x": 24.0}
        assert lox.spool(scanned)(xs)[1].reduce(name) == {"x": 24.0}
    assert reduced(xs, "product", window=2)["x"].tolist() == [6, 4]
    calls = tapped(scanned, xs, reduce="product", window=2)
    assert [float(c["x"]) for c in calls] == [6, 4]
    with pytest.raises(lox.LoxValueError, match=r"unknown.*it must be mean.*product"):
        reduced(xs, "quotient")


# --- how reductions are chosen ---------------------------------------------


def test_reduce_option_applies_to_all_keys_by_key_or_per_call():
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


def test_error_about_key_reduced_in_two_ways_names_both_lines():
    def f(x):
        lox.log({"x": x})
        lox.log({"x": x}, reduce="mean")
        lox.log({"x": x}, reduce="sum")

    with pytest.raises(
        lox.LoxValueError, match=r"'mean'` at .*:\d+ .*'sum'` at .*:\d+"
    ):
        lox.spool(f)(1.0)
    assert lox.spool(f, reduce="max")(1.0)[1] == {"x": 1.0}  # this one applies


# --- custom reductions -----------------------------------------------------


@pytest.mark.parametrize("window", [None, 2])
def test_custom_mean_equals_named_mean(window):
    xs = jnp.arange(10.0).reshape(5, 2)
    wanted = reduced(xs, "mean", window=window)
    assert reduced(xs, average, window=window) == wanted
    mapped = lox.spool(jax.vmap(scanned), reduce=average, window=window)
    batch = jnp.stack([xs, xs + 1])
    for lane, one in zip(mapped(batch)[1].lanes(), batch, strict=True):
        assert lane == reduced(one, "mean", window=window)


def test_custom_reduction_can_start_from_python_number():
    product = lox.Reduction(1, lambda state, x: state * x)
    assert reduced(jnp.array([2.5, 2.0]), product)["x"] == 5
    assert reduced(jnp.array([2.5, 2.0, 3.0]), product, window=2)["x"].tolist() == [
        5,
        3,
    ]
    calls = tapped(scanned, jnp.array([2.5, 2.0, 3.0]), reduce=product, window=2)
    assert [float(c["x"]) for c in calls] == [5, 3]


@pytest.mark.parametrize("window", [None, 2])
def test_custom_reduction_can_close_over_traced_values(window):
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


def test_custom_reduction_can_return_other_structure():
    span = lox.Reduction(
        lambda x: (x + jnp.inf, x - jnp.inf),
        lambda s, x: (jnp.minimum(s[0], x), jnp.maximum(s[1], x)),
        lambda s: {"low": s[0], "high": s[1]},
    )
    logs = reduced(jnp.array([3.0, 1.0, 2.0]), span)
    assert logs["x"] == {"low": 1.0, "high": 3.0}


def test_custom_reduction_applies_to_collected_logs():
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


# --- bad input -------------------------------------------------------------


@pytest.mark.parametrize("reduce", ["median", 3, ("mean",), {"x": "median"}])
def test_unknown_reduction_is_refused(reduce):
    for transform in (lox.spool, lox.tap):
        with pytest.raises(lox.LoxValueError, match="unknown reduction.*it must be"):
            transform(scanned, reduce=reduce)
    with pytest.raises(lox.LoxValueError, match=r"`lox.log` at .*unknown reduction"):
        lox.log({"x": 1}, reduce=reduce)


def test_custom_reduction_that_changes_state_type_is_refused():
    xs = jnp.ones(3)
    grows = lox.Reduction(jnp.zeros(1), lambda s, x: jnp.concatenate([s, x[None]]))
    with pytest.raises(lox.ShapeError, match=r"'x', logged at .*float32\[1\].*\[2\]"):
        reduced(xs, grows)
    splits = lox.Reduction(jnp.zeros(()), lambda s, x: (s, x))
    with pytest.raises(lox.ShapeError, match="`update`.*'x', logged at"):
        reduced(xs, splits)
    empty = lox.Reduction(jnp.zeros(()), lambda s, x: s, lambda s: ())
    with pytest.raises(lox.LoxValueError, match="`finish`.*contains no array"):
        reduced(xs, empty)


def test_custom_reduction_error_names_key():
    with pytest.raises(lox.LoxTypeError, match="`update` of a `lox.Reduction`"):
        lox.Reduction(0, 3)
    with pytest.raises(TypeError) as error:
        reduced(jnp.ones(3), lox.Reduction(0.0, lambda s: s))
    assert re.search(
        "'x', logged at .*programs_with_streams.py", error.value.__notes__[0]
    )


@pytest.mark.parametrize("part", ["init", "update", "finish"])
def test_exception_of_a_custom_reduction_is_raised_unchanged(part):
    def raises(*args):
        raise StopIteration("of the reduction")

    parts = {"init": 0.0, "update": lambda s, x: s + x, "finish": lambda s: s}
    reduction = lox.Reduction(**{**parts, part: raises})
    with pytest.raises(StopIteration, match="of the reduction") as error:
        lox.spool(lambda x: lox.log({"x": x}), reduce=reduction)(1.0)
    assert error.traceback[-1].name == "raises"
    logs = lox.logdict({"x": np.arange(3.0)}, stacked=True)
    with pytest.raises(StopIteration, match="of the reduction") as error:
        logs.reduce(reduction)
    assert error.traceback[-1].name == "raises"
