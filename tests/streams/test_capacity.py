"""Rows of loops without a static length."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.streams.programs_with_streams import counted, tapped


def test_capacity_keeps_the_rows_that_happened():
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


def test_capacity_reports_rows_beyond_it():
    with pytest.warns(lox.LoxWarning, match=r"dropped: 4 rows of 'i'.*Add 4") as seen:
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
        with pytest.warns(lox.LoxWarning, match="dropped: . rows of 'i'"):
            use()
    logs = jax.vmap(lox.spool(counted, capacity=3))(jnp.array([2, 7, 5]))[1]
    assert logs.dropped["i"].tolist() == [0, 4, 2]
    with pytest.warns(lox.LoxWarning, match=r"6 rows of 'i'.*in 2 lanes.*Add 4"):
        assert logs.compact()["i"].shape == (3, 3)


def test_capacity_reports_rows_of_all_keys_and_lanes_in_one_warning():
    def body(i):
        lox.log({"a": i, "b": -i})
        return i + 1

    def counted(n):
        return lax.while_loop(lambda i: i < n, body, 0)

    logs = jax.vmap(lox.spool(counted, capacity=3))(jnp.array([2, 7, 5]))[1]
    with pytest.warns(lox.LoxWarning, match="6 rows of 'b' in 2 lanes. Add 4") as seen:
        lanes = logs.lanes()
    assert len(seen) == 1
    assert [lane["a"].tolist() for lane in lanes] == [[0, 1], [0, 1, 2], [0, 1, 2]]


def test_capacity_does_not_apply_to_loops_of_static_length():
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


def test_capacity_leaves_a_condition_outside_loops_without_a_time_axis():
    def f(x):
        lox.log({"x": x}, when=x > 0)
        return x

    assert lox.spool(f, capacity=5)(1.0)[1]["x"].shape == ()
    assert lox.spool(f, capacity=5)(-1.0)[1] == {}
    _, logs = jax.vmap(lox.spool(f, capacity=5))(jnp.array([1.0, -1.0]))
    assert [dict(lane) for lane in logs.lanes()] == [{"x": 1.0}, {}]


@pytest.mark.parametrize(
    "options",
    [{"capacity": 8}, {"reduce": "last"}, {"reduce": "last", "window": 2}],
    ids=str,
)
def test_steps_keep_their_order(options):
    def f(n):
        def body(i):
            lox.log({"x": i}, frame=i, epoch=i // 2)  # not in alphabetical order
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    if "window" in options:
        options = {**options, "capacity": 8}
    for fun in (lox.spool(f, **options), jax.jit(lox.spool(f, **options))):
        assert list(fun(4)[1].steps) == ["frame", "epoch"]


def test_capacity_applies_to_conditions_and_nested_loops():
    logs = lox.spool(both_parts, capacity=9)(3)[1]
    assert logs["c"].tolist() == [0, 1, 2, 3]
    assert logs["b"].tolist() == [0, 1, 2]
    assert logs["j"].tolist() == [10, 20, 21]
    logs = lox.spool(both_parts, reduce="sum")(3)[1]
    assert logs == {"c": 6, "b": 3, "j": 51}
    logs = lox.spool(both_parts, reduce="last", window=2, capacity=9)(3)[1]
    assert logs["c"].tolist() == [1, 3] and logs["j"].tolist() == [20, 21]


@pytest.mark.parametrize("around", [True, False], ids=["vmap(spool)", "spool(vmap)"])
def test_capacity_keeps_ragged_lanes(around):
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


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)])
@pytest.mark.parametrize("axes", [((None, 0), (0, None)), ((0, None), (None, 0))])
def test_capacity_counts_per_lane_under_two_vmaps(sizes, axes):
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
def test_capacity_counts_per_lane_under_three_vmaps(inner):
    f = jax.vmap(repeated, (None, 0))
    f = jax.vmap(jax.vmap(f, (0, None)), (None, 0))
    ns, vs = jnp.array([1, 3]), jnp.zeros((2, inner))
    logs = lox.spool(f, reduce="count")(ns, vs)[1]
    assert logs["v"].tolist() == [[[1] * inner, [3] * inner]] * 2
    assert len(tapped(f, ns, vs)) == 2 * inner * 4


@pytest.mark.parametrize("inner", [2, 3])
def test_capacity_puts_lanes_of_inner_vmap_last(inner):
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


def test_capacity_of_loop_that_is_never_reached_returns_no_rows():
    def f(xs):
        return lax.scan(lambda c, x: (c, counted(3)), 0, xs)

    for options in ({"capacity": 5}, {"reduce": "mean"}):
        assert lox.spool(f, **options)(jnp.zeros(0))[1] == {}


def test_unbounded_loop_error_names_three_remedies():
    for options in ({}, {"reduce": "append"}, {"interval": 2}):
        with pytest.raises(lox.UnboundedLoopError) as error:
            lox.spool(counted, **options)(3)
        text = str(error.value)
        assert re.search(r"'i' \(logged at .*programs_with_streams.py:\d+\)", text)
        assert all(way in text for way in ("capacity=", "reduce=", "lox.tap"))


def pairs(n):
    def body(i):
        lox.log({"i": i, "double": 2 * i}, step=i)
        lox.log({"other": i})
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


def test_capacity_returns_one_number_of_rows_for_keys_of_one_event():
    _, logs = jax.jit(lox.spool(pairs, capacity=3))(5)
    values, steps, numbers = 3, 2, 2
    assert len(jax.tree.leaves(logs)) == values + steps + numbers
    for copied in (logs, jax.tree.map(jnp.array, logs), lox.logdict(logs)):
        assert {key: int(x) for key, x in copied.dropped.items()} == dict.fromkeys(
            ("i", "double", "other"), 2
        )
        assert list(copied.mask) == ["i", "double", "other"]
    del logs["i"]
    copied = jax.tree.map(lambda x: x, logs)
    assert list(copied.mask) == list(copied.dropped) == ["double", "other"]
    dropped = "2 rows of 'double', 2 rows of 'other'"
    with pytest.warns(lox.LoxWarning, match=dropped):
        assert copied.compact()["double"].tolist() == [0, 2, 4]


def test_capacity_inside_scan_keeps_the_rows_of_each_iteration():
    def f(ns):
        return lax.scan(lambda c, n: (c, lox.spool(pairs, capacity=3)(n)[1]), 0, ns)[1]

    logs = jax.jit(f)(jnp.array([1, 4, 0]))
    assert logs.dropped["i"].tolist() == [0, 1, 0]
    with pytest.warns(lox.LoxWarning):
        lanes = [lane.data for lane in logs.lanes()]
    wanted = [{"i": [0]}, {"i": [0, 1, 2]}, {}]
    assert [{k: v.tolist() for k, v in x.items() if k == "i"} for x in lanes] == wanted


VALUES = {
    "float32": lambda i: i + 0.5,
    "bfloat16": lambda i: i.astype(jnp.bfloat16),
    "bool": lambda i: i % 2 == 0,
    "int8": lambda i: i.astype(jnp.int8),
    "int4": lambda i: i.astype(jnp.int4),
    "complex64": lambda i: i + 1j,
    "matrix": lambda i: jnp.full((2, 3), i),
    "empty": lambda i: jnp.zeros((0, 2)),
    "key": lambda i: jax.random.key(i),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_capacity_keeps_values_of_every_type(value):
    def f(n):
        def body(i):
            lox.log({"x": value(i)})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    def equal(rows, wanted):
        assert rows.dtype == wanted.dtype and rows.shape == wanted.shape
        if jnp.issubdtype(rows.dtype, jax.dtypes.prng_key):
            rows, wanted = map(jax.random.key_data, (rows, wanted))
        assert (np.asarray(rows) == np.asarray(wanted)).all()

    wanted = jnp.stack([value(jnp.int32(i)) for i in range(2)])
    logs = lox.spool(f, capacity=4)(2)[1]
    equal(logs["x"], wanted)
    assert not logs["x"].committed
    assert logs["x"].sharding == jax.device_put(np.zeros(2)).sharding
    with pytest.warns(lox.LoxWarning, match="1 row of 'x'"):
        equal(lox.spool(f, capacity=2)(3)[1]["x"], wanted)
