"""`tap` with a buffer, a window or a reduction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.streams.programs_with_streams import (
    average,
    counted,
    reduced,
    scanned,
    tapped,
)


def test_buffer_delivers_rows_in_order_and_the_rest_at_the_end():
    calls = tapped(scanned, jnp.arange(7.0), buffer=3)
    assert [c["x"].tolist() for c in calls] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [c.step["x"].tolist() for c in calls] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(isinstance(c["x"], np.ndarray) for c in calls)
    assert sum(calls[1:], calls[0]) == lox.spool(scanned)(jnp.arange(7.0))[1]


def test_buffer_of_loop_that_ends_early_is_flushed():
    assert [c["i"].tolist() for c in tapped(counted, 4, buffer=3)] == [[0, 1, 2], [3]]
    assert tapped(counted, 0, buffer=3) == []
    calls = tapped(counted, 5, reduce="sum", window=2)
    assert [int(c["i"]) for c in calls] == [1, 5, 4]
    assert [int(c.step["i"]) for c in calls] == [10, 30, 40]


def test_reduced_tap_calls_back_once_at_the_end():
    assert tapped(scanned, jnp.arange(5.0), reduce="mean") == [{"x": 2.0}]
    assert tapped(counted, 0, reduce="mean") == []


@pytest.mark.parametrize("size", [3, 100_000])
def test_tapped_and_spooled_windows_agree(size):
    """Small windows are reduced when they are complete, large ones row by row."""
    xs = jnp.arange(7.0)[:, None] * jnp.ones(size)
    for name in ("mean", "first", "var", average):
        calls = tapped(scanned, xs, reduce=name, window=3)
        wanted = reduced(xs, name, window=3)
        np.testing.assert_allclose([c["x"][0] for c in calls], wanted["x"][:, 0])
        steps = [int(c.step["x"]) for c in calls]
        assert steps == wanted.step["x"].tolist()
        (whole,) = tapped(scanned, xs, reduce=name, window=3, buffer=5)
        np.testing.assert_allclose(whole["x"], wanted["x"])


def test_reduction_of_log_call_applies_to_tap_with_window():
    def f(xs):
        return lax.map(lambda x: lox.log({"x": x}, reduce="max") and x, xs)

    xs = jnp.arange(4.0)
    assert [float(c["x"]) for c in tapped(f, xs)] == [0, 1, 2, 3]
    assert [float(c["x"]) for c in tapped(f, xs, window=3)] == [2, 3]


def test_keys_logged_together_are_delivered_together():
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
def test_buffer_is_per_lane(around, options):
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
        assert [one for c in mine for one in c.lanes()] == tapped(f, n, **options)
        lane = ns.tolist().index(n)
        assert all((c.lane["i"] == lane).all() for c in mine)


def test_buffers_of_lanes_that_log_together_share_a_count():
    xs = jnp.arange(6.0).reshape(2, 3)
    calls = tapped(jax.vmap(scanned), xs, reduce="mean", window=2)
    assert [float(c["x"]) for c in calls] == [0.5, 3.5, 2, 5]
    calls = tapped(jax.vmap(scanned), xs, buffer=2, batched=True)
    assert [c["x"].tolist() for c in calls] == [[[0, 3], [1, 4]], [[2, 5]]]
    logs = lox.spool(jax.vmap(scanned), reduce="mean", window=2)(xs)[1]
    assert logs["x"].tolist() == [[0.5, 3.5], [2, 5]] and not logs.mask


def test_batched_buffer_has_all_lanes():
    calls = tapped(jax.vmap(counted), jnp.array([1, 3]), buffer=2, batched=True)
    rows = sorted(
        (int(lane["i"][0]), len(lane["i"]))
        for c in calls
        for lane in c.lanes()
        if "i" in lane
    )
    assert rows == [(0, 1), (0, 2), (2, 1)]


def test_callback_that_raises_gets_no_more_buffered_rows():
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


def test_buffered_tap_does_not_change_result_or_gradient():
    xs = jnp.arange(5.0)
    for options in ({"buffer": 2}, {"reduce": "var", "window": 2}, {"interval": 2}):
        tap = lox.tap(lambda a: scanned(a * xs) ** 2, lambda logs: None, **options)
        assert tap(2.0) == 400 and jax.grad(tap)(2.0) == 400
        assert jax.jit(jax.grad(tap))(2.0) == 400
    jax.effects_barrier()


def test_buffer_is_flushed_under_jit():
    calls = []
    jax.jit(lox.tap(scanned, calls.append, buffer=2))(jnp.arange(3.0))
    jax.effects_barrier()
    assert [c["x"].tolist() for c in calls] == [[0, 1], [2]]


def test_buffer_of_tap_in_loop_is_flushed_per_call():
    calls = []

    def step(c, x):
        return c, lox.tap(scanned, calls.append, buffer=3)(x + jnp.arange(4.0))

    jax.jit(lambda: lax.scan(step, 0, jnp.array([0.0, 10.0])))()
    jax.effects_barrier()
    assert [c["x"].tolist() for c in calls] == [[0, 1, 2], [3], [10, 11, 12], [13]]
