"""Streams on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import lox
from tests.streams.programs_with_streams import NAMES, average, tapped


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
def test_stream_is_per_device_of_shard_map(kind, options):
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
def test_buffer_is_per_device_of_shard_map(kind, options):
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


# every reduction, each of the key of its name: one program for all of them
REDUCTIONS = {**{name: name for name in NAMES}, "average": average}


@pytest.mark.parametrize("window", [None, 2])
def test_reduction_keeps_sharding_of_values(window):
    def each(xs):
        def body(carry, x):
            lox.log(dict.fromkeys(REDUCTIONS, x))
            return carry, None

        return lax.scan(body, 0, xs)[0]

    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec(None, "d"))
    xs = jnp.arange(40.0).reshape(5, 8)
    spooled = lox.spool(each, reduce=REDUCTIONS, window=window)
    found, wanted = spooled(jax.device_put(xs, sharding))[1], spooled(xs)[1]
    assert found.keys() == REDUCTIONS.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name])
        if name != "count":
            assert "d" in str(jax.typeof(value).sharding.spec)


def summed(x):
    def step(c, i):
        lox.log({"sum": c.sum(), "i": i, **dict.fromkeys(REDUCTIONS, c.sum())}, step=i)
        return c * 2, None

    return lax.scan(step, x, jnp.arange(5))[0].sum()


def summed_until(x):
    def body(c):
        lox.log({"sum": c.sum(), **dict.fromkeys(REDUCTIONS, c.sum())})
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
        pytest.param({"reduce": REDUCTIONS}, id="reductions"),
        {"reduce": "mean", "window": 2},
        {"reduce": "last", "window": 2},
        {"interval": 2},
        {},
    ],
    ids=str,
)
def test_reduction_works_under_explicit_mesh(explicit_mesh, fun, options):
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
def test_buffer_works_under_explicit_mesh(explicit_mesh, fun, options):
    x = jnp.arange(8.0) + 1
    assert tapped(fun, explicit_mesh(x), **options) == tapped(fun, x, **options)


def moved_in_loop(reshard):
    """Logs a value before and after it is split differently over the mesh."""

    def fun(x):
        def body(carry):
            c, i = carry
            lox.log({"x": jnp.zeros(8)}, step=i)
            lox.log({"x": c}, step=i)
            whole = reshard(c, PartitionSpec())
            lox.log({"x": whole}, step=i)
            return reshard(whole + 3, PartitionSpec("d")), i + 1

        return lax.while_loop(lambda carry: carry[1] < 2, body, (x, 0))[0]

    return fun


def moved_in_branch(reshard):
    def fun(x):
        def split(x):
            lox.log({"x": x}, step=0)
            return x

        def whole(x):
            lox.log({"x": reshard(x, PartitionSpec())}, step=1)
            return split(x)

        return lax.cond(x.sum() > 0, whole, split, x)

    return fun


@pytest.mark.parametrize("make", [moved_in_loop, moved_in_branch])
@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 9},
        {"interval": 2, "capacity": 9},
        {"reduce": "mean"},
        {"reduce": "last"},
        {"reduce": "sum", "window": 2, "capacity": 9},
    ],
    ids=str,
)
def test_spooled_rows_of_a_key_may_be_split_differently(explicit_mesh, make, options):
    x = 3 * jnp.arange(8.0)  # its means are exact
    expected = lox.spool(make(lambda x, _: x), **options)(x)[1]
    fun = lox.spool(make(jax.sharding.reshard), **options)
    for way in (fun, jax.jit(fun)):
        assert way(explicit_mesh(x))[1].compact() == expected


@pytest.mark.parametrize("make", [moved_in_loop, moved_in_branch])
@pytest.mark.parametrize(
    "options", [{"buffer": 2}, {"reduce": "mean"}, {"reduce": "sum", "window": 2}]
)
def test_buffered_rows_of_a_key_may_be_split_differently(explicit_mesh, make, options):
    x = 3 * jnp.arange(8.0)  # its means are exact
    expected = tapped(make(lambda x, _: x), x, **options)
    found = tapped(make(jax.sharding.reshard), explicit_mesh(x), **options)
    assert found == expected


def test_rows_of_a_key_that_are_split_differently_are_joined(explicit_mesh):
    def fun(x):
        lox.log({"x": jnp.zeros(8)})
        lox.log({"x": x})
        lox.log({"x": jax.sharding.reshard(x, PartitionSpec())})

    x = jnp.arange(8.0)
    logs = lox.spool(fun)(explicit_mesh(x))[1]
    np.testing.assert_array_equal(logs["x"], [jnp.zeros(8), x, x])
