"""Windows and intervals."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox
from tests.streams.programs_with_streams import NAMES, average, reduced, scanned

# --- windows and intervals --------------------------------------------------


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
def test_window_and_interval_span_loops_and_calls(k):
    logs = lox.spool(nested, interval=k)()[1]
    assert logs["i"].tolist() == NESTED[::k]
    logs = lox.spool(nested, reduce="sum", window=k)()[1]
    parts = [NESTED[i : i + k] for i in range(0, len(NESTED), k)]
    assert logs["i"].tolist() == [sum(part) for part in parts]
    logs = lox.spool(nested, reduce="first", window=2, interval=k)()[1]
    assert logs["i"].tolist() == NESTED[::k][::2]


def test_window_has_step_of_its_last_or_first_event():
    xs = jnp.arange(5.0)
    assert reduced(xs, "mean", window=2).step["x"].tolist() == [1, 3, 4]
    assert reduced(xs, "first", window=2).step["x"].tolist() == [0, 2, 4]
    assert reduced(xs, "first").step["x"] == 0 and reduced(xs, "max").step["x"] == 4


def bytes_of(fun, *args):
    analysis = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def test_reduced_rows_are_never_allocated():
    long = jax.ShapeDtypeStruct((100_000, 64), jnp.float32)
    short = jax.ShapeDtypeStruct((100, 64), jnp.float32)
    row = 64 * 4
    for name in (*NAMES, average):
        fun = lox.spool(scanned, reduce=name)
        assert bytes_of(fun, long) == bytes_of(fun, short)
    for options in ({"interval": 1000}, {"reduce": "mean", "window": 1000}):
        # a hundred rows, and what the loop itself needs
        assert bytes_of(lox.spool(scanned, **options), long) < 100 * row + 40 * row


# --- bad input -------------------------------------------------------------


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
def test_stream_option_below_one_is_refused(transform, option, value):
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
def test_window_without_reduction_is_refused(transform, reduce):
    with pytest.raises(
        lox.LoxValueError,
        match=r"`window`.*'x' \(at .*programs_with_streams.*interval=3",
    ):
        transform(scanned, reduce=reduce, window=3)(jnp.arange(3.0))
