"""`over`: devices of a `shard_map` that log together, against a simulation of each.

A program is written once. JAX runs it in a `shard_map`; the oracle runs it as plain
Python on the shard of each device, one after the other, and combines what they log.
"""

import collections
import itertools
import operator
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import logify
import lox
from tests.loggers.backends import MemoryLogger

SIZES = {"i": 4, "j": 2}


def mesh_of(*axes, kind=AxisType.Auto, size=8):
    shape = tuple(size if len(axes) == 1 else SIZES[axis] for axis in axes)
    types = (kind,) * len(axes)
    return jax.make_mesh(shape, axes, types, devices=jax.devices()[:size])


def on_devices(fun, mesh, check_vma=True, **options):
    """`fun`, whose argument and result are split over all axes of a mesh."""
    spec = P(mesh.axis_names)
    return jax.shard_map(
        fun, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma, **options
    )


def tapped(fun, *args, **options):
    calls = []
    jax.block_until_ready(lox.tap(fun, calls.append, **options)(*args))
    return calls


# --- the oracle --------------------------------------------------------------

KINDS = {"mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max}


def program(x, device, log, scan):
    """Logs in a loop; some events happen on some devices, or on none."""

    def body(x, t):
        total = x.sum()
        log(dict.fromkeys(KINDS, total), reduce={kind: kind for kind in KINDS}, step=t)
        log({"some": total}, when=total > 10 * t, step=device + t)
        log({"never": total}, when=total < -100)
        log({"element": x}, when=x > 4 * t + 1, step=t)
        return x * 2 - t

    return scan(body, x, 3)


def scan_in_jax(body, x, count):
    return lax.scan(lambda x, t: (body(x, t), None), x, jnp.arange(count))[0]


def scan_in_python(body, x, count):
    for t in range(count):
        x = body(x, np.int32(t))
    return x


class Device:
    """What one device logs: per event and key, the value, the step and `when`."""

    def __init__(self, number, shard):
        self.events = []
        program(shard, np.int32(number), self.log, scan_in_python)

    def log(self, data, reduce=None, when=None, step=-1):
        for key, value in data.items():
            happens = np.asarray(True if when is None else when)
            steps = np.broadcast_to(step, happens.shape)
            for place in np.ndindex(happens.shape):
                event = key, value[place], int(steps[place]), bool(happens[place])
                self.events.append(event)


def combined(devices):
    """The rows of devices that log together: per key, values and steps."""
    rows = {}
    for events in zip(*(device.events for device in devices), strict=True):
        happened = [event for event in events if event[3]]
        if happened:
            key, _, step, _ = happened[0]
            value = KINDS.get(key, np.mean)([event[1] for event in happened])
            rows.setdefault(key, []).append((float(np.float32(value)), step))
    return rows


def expected_rows(x, axes, over):
    """The rows of each group of devices, in the order of the other axes."""
    sizes = [8] if len(axes) == 1 else [SIZES[axis] for axis in axes]
    shards = np.split(np.asarray(x), 8)
    groups = {}
    for number, place in enumerate(itertools.product(*map(range, sizes))):
        others = tuple(
            p for p, axis in zip(place, axes, strict=True) if axis not in over
        )
        groups.setdefault(others, []).append(Device(number, shards[number]))
    return [combined(groups[others]) for others in sorted(groups)]


def rows_of(logs):
    """The rows of logs per key: values and steps."""
    return {
        key: list(
            zip(
                np.ravel(value).tolist(),
                np.ravel(logs.steps["step"].get(key, [-1] * value.size)).tolist(),
                strict=True,
            )
        )
        for key, value in logs.items()
    }


def logging(over):
    """The program in JAX."""

    def log(data, reduce=None, when=None, **steps):
        lox.log(data, reduce=reduce, when=when, over=over, **steps)

    def fun(x):
        axes = jax.sharding.get_abstract_mesh().axis_names
        return program(x, lax.axis_index(axes), log, scan_in_jax)

    return fun


X = jnp.array(np.random.default_rng(0).integers(-9, 9, 24).astype(np.float32))
# axes of the mesh, `over` and `check_vma`
GROUPS = [
    (("i",), "i", True),
    (("i",), "i", False),
    (("i", "j"), "i", True),
    (("i", "j"), "j", False),
    (("i", "j"), ("j", "i"), True),
]


@pytest.mark.parametrize(("axes", "over", "check_vma"), GROUPS, ids=str)
def test_spool_returns_what_devices_log_together(axes, over, check_vma):
    fun = on_devices(logging(over), mesh_of(*axes), check_vma)
    expected = expected_rows(X, axes, over)
    # every row; without it, the reductions that the call requests act over time
    y, logs = lox.spool(fun, reduce=dict.fromkeys(KINDS, "append"))(X)
    assert y.tolist() == jax.jit(lox.nolog(fun))(X).tolist()
    lanes = logs.lanes() if len(expected) > 1 else [logs]
    assert [rows_of(lane) for lane in lanes] == expected


@pytest.mark.parametrize(("axes", "over", "check_vma"), GROUPS, ids=str)
def test_tap_calls_once_per_event_that_devices_log_together(axes, over, check_vma):
    fun = on_devices(logging(over), mesh_of(*axes), check_vma)
    expected = expected_rows(X, axes, over)
    calls = tapped(fun, X)
    by_lane = {lane: {} for lane in range(len(expected))}
    for call in calls:
        lanes = call.steps.get("lane", {})
        assert bool(lanes) == (len(expected) > 1)
        for key, rows in rows_of(call).items():
            lane = int(lanes.get(key, 0))
            by_lane[lane].setdefault(key, []).extend(rows)
    assert list(by_lane.values()) == expected


# --- other transformations ---------------------------------------------------


def squared(x):
    """Logs the total in the forward pass, and its cotangent in the backward pass."""

    def body(h, t):
        lox.log({"h": h.sum()}, over="i", step=t)
        h = lox.log_grad("dh", h, over="i", reduce="max", step=t)
        return h * x, None

    return (lax.scan(body, x, jnp.arange(2))[0] ** 2).sum()


@pytest.mark.parametrize(("outside", "check_vma"), [(True, False), (False, True)])
def test_derivatives_log_together_and_are_unchanged(outside, check_vma):
    """Of the mean of h = x and x ** 2 on all devices, and of the cotangents."""
    mesh = mesh_of("i")
    if outside:
        mapped = on_devices(lambda x: squared(x)[None], mesh, check_vma)
        gradient = jax.grad(lambda x: jax.checkpoint(mapped)(x).sum())
    else:
        gradient = on_devices(jax.grad(squared), mesh, check_vma)
    x = jnp.arange(8.0)
    y, logs = lox.spool(gradient, reduce={"dh": "append"})(x)
    np.testing.assert_allclose(y, 6 * x**5, rtol=1e-6)
    assert y.tolist() == jax.jit(lox.nolog(gradient))(x).tolist()
    assert logs["h"].tolist() == [x.mean(), (x**2).mean()]
    # the cotangents of x * x * x, where every device has one element
    np.testing.assert_allclose(logs["dh"], [[2 * 7.0**4], [2 * 7.0**5]], rtol=1e-6)
    assert logs.step["dh"].tolist() == [1, 0]
    assert len(tapped(gradient, x)) == 4


@pytest.mark.parametrize("check_vma", [True, False])
def test_vmap_inside_and_outside_keeps_lanes(check_vma):
    def log(x):
        lox.log({"x": x.sum()}, over="i", step=1)
        return x

    mesh = mesh_of("i")
    xs = jnp.arange(48.0).reshape(2, 24)
    outside = jax.vmap(on_devices(log, mesh, check_vma))
    assert lox.spool(outside)(xs)[1]["x"].tolist() == xs.mean(1).dot(3).tolist()
    calls = tapped(outside, xs)
    assert [float(call["x"]) for call in calls] == (xs.mean(1) * 3).tolist()
    assert [int(call.lane["x"]) for call in calls] == [0, 1]
    inside = on_devices(jax.vmap(log), mesh, check_vma)
    expected = xs.reshape(8, 6).mean(0).tolist()
    assert lox.spool(inside)(xs.ravel())[1]["x"].tolist() == expected
    calls = tapped(inside, xs.ravel())
    assert [float(call["x"]) for call in calls] == expected
    assert [int(call.lane["x"]) for call in calls] == list(range(6))


def until_large(x):
    def body(x):
        lox.log({"x": x.sum()}, over="i", step=x.astype(int).sum())
        return 2 * x

    return lax.while_loop(lambda x: lax.pmax(x.sum(), "i") < 50, body, x)


@pytest.mark.parametrize(
    ("options", "check_vma", "expected"),
    [
        ({"capacity": 5}, True, [3.5, 7.0, 14.0]),
        ({"capacity": 2}, False, [3.5, 7.0]),
        ({"reduce": "sum"}, True, [24.5]),
        ({"reduce": "max", "window": 2, "capacity": 5}, True, [7.0, 14.0]),
        ({"interval": 2, "capacity": 5}, False, [3.5, 14.0]),
    ],
    ids=str,
)
def test_streams_hold_what_devices_log_together(options, check_vma, expected):
    fun = on_devices(until_large, mesh_of("i"), check_vma)
    if options == {"capacity": 2}:
        with pytest.warns(lox.LoxWarning, match="dropped"):
            logs = lox.spool(fun, **options)(jnp.arange(8.0))[1]
    else:
        logs = lox.spool(fun, **options)(jnp.arange(8.0))[1]
    assert np.ravel(logs["x"]).tolist() == expected


@pytest.mark.parametrize(
    ("options", "check_vma", "expected"),
    [
        ({"buffer": 2}, True, [[3.5, 7.0], [14.0]]),
        ({"reduce": "sum"}, True, [[24.5]]),
        ({"reduce": "max", "window": 2}, True, [[7.0], [14.0]]),
        ({"interval": 2}, False, [[3.5], [14.0]]),
    ],
    ids=str,
)
def test_tapped_streams_are_delivered_once(options, check_vma, expected):
    fun = on_devices(until_large, mesh_of("i"), check_vma)
    calls = tapped(fun, jnp.arange(8.0), **options)
    assert [np.ravel(call["x"]).tolist() for call in calls] == expected
    inside = on_devices(
        lox.tap(until_large, calls.append, **options), mesh_of("i"), check_vma
    )
    calls.clear()
    jax.jit(inside)(jnp.arange(8.0))
    jax.effects_barrier()
    assert [np.ravel(call["x"]).tolist() for call in calls] == expected


def test_partly_manual_mesh_logs_once_for_all_devices():
    def log(x):
        lox.log({"x": x.sum()}, over="i", when=x.sum() > 6)
        return x

    def log_in_loop(x):
        return lax.fori_loop(0, 1, lambda _, x: log(x), x)

    x = jnp.arange(16.0)
    # of the axes, only the first is manual
    for axes, fun in ((("i", "j"), log_in_loop), (("i", "j", "k"), log)):
        kinds = (AxisType.Auto,) * len(axes)
        mapped = jax.jit(
            jax.shard_map(
                fun,
                mesh=jax.make_mesh((2,) * len(axes), axes, axis_types=kinds),
                in_specs=P("i"),
                out_specs=P("i"),
                axis_names={"i"},
            )
        )
        assert np.ravel(lox.spool(mapped)(x)[1]["x"]).tolist() == [60.0]
        assert [float(call["x"]) for call in tapped(mapped, x)] == [60.0]


def test_nested_shard_maps_reduce_over_axes_of_both():
    def log(x):
        lox.log({"both": x.sum()}, over=("i", "j"))
        lox.log({"outer": x.sum()}, over="i")
        lox.log({"inner": x.sum()}, over="j")
        return x

    def outer(x):
        spec = P("j")
        inner = jax.shard_map(log, in_specs=spec, out_specs=spec, axis_names={"j"})
        return inner(x)

    mesh = mesh_of("i", "j")
    fun = jax.jit(
        jax.shard_map(
            outer, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"}
        )
    )
    x = jnp.arange(16.0)
    by_device = x.reshape(4, 2, 2).sum(2)
    for options in ({}, {"reduce": "mean"}):
        logs = lox.spool(fun, **options)(x)[1]
        assert logs["both"] == by_device.mean()
        assert logs["outer"].tolist() == by_device.mean(0).tolist()
        assert logs["inner"].tolist() == by_device.mean(1).tolist()
    if jax.__version_info__ >= (0, 10):  # before, JAX refuses callbacks there
        keys = collections.Counter(key for call in tapped(fun, x) for key in call)
        assert keys == {"both": 1, "outer": 2, "inner": 4}


def test_ordered_delivery_from_nested_shard_maps_is_refused():
    logger = MemoryLogger()
    state = logger.init(jax.random.key(0))
    calls = []

    def logged(x):
        lox.log({"x": x.sum()})
        return x

    def nested(inner):
        def outer(x):
            spec = P("j")
            options = {"in_specs": spec, "out_specs": spec, "axis_names": {"j"}}
            return jax.shard_map(inner, **options)(x)

        options = {"in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
        return jax.jit(jax.shard_map(outer, mesh=mesh_of("i", "j"), **options))

    def write(x):
        logger.log(state, {"x": x.sum()})
        return x

    x = jnp.arange(16.0)
    for inner in (write, lox.tap(logged, calls.append)):
        with pytest.raises(
            lox.UnsupportedPrimitiveError, match=rf"'x', logged at {__file__}:\d+.*tap"
        ):
            nested(inner)(x)
    if jax.__version_info__ >= (0, 10):  # before, JAX refuses callbacks there
        nested(lox.tap(logged, calls.append, ordered=False))(x)
        jax.effects_barrier()
        expected = x.reshape(8, 2).sum(1).tolist()
        assert sorted(float(call["x"]) for call in calls) == expected


def test_capacity_keeps_rows_that_happened_on_any_device():
    fun = on_devices(logging("i"), mesh_of("i", "j"))
    names = ["some", "never", "element"]
    _, logs = lox.spool(fun, names, capacity=9)(X)
    for lane, rows in zip(logs.lanes(), expected_rows(X, ("i", "j"), "i"), strict=True):
        assert rows_of(lane) == {key: rows[key] for key in ("some", "element")}


def test_explicit_mesh_reduces_across_devices():
    mesh = mesh_of("i", "j", kind=AxisType.Explicit)
    fun = on_devices(logging("j"), mesh)
    expected = expected_rows(X, ("i", "j"), "j")
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P(("i", "j")))
        _, logs = lox.spool(fun, reduce=dict.fromkeys(KINDS, "append"))(x)
        assert [rows_of(lane) for lane in logs.lanes()] == expected


def test_untransformed_event_is_printed_once(capfd):
    fun = on_devices(lambda x: lox.log({"x": x.sum()}, over="i") and x, mesh_of("i"))
    for way in (fun, jax.jit(fun)):
        way(jnp.arange(8.0))
        jax.effects_barrier()
        assert capfd.readouterr().out == "{'x': 3.5}\n"


def test_call_returns_reduced_values():
    def log(x):
        logs = lox.log({"x": x.sum(), "one": 1}, over="i", when=x.sum() > 3, step=2)
        return logs["x"][None] + logs["one"] + logs.step["x"]

    fun = lox.nolog(on_devices(log, mesh_of("i")))
    assert fun(jnp.arange(8.0)).tolist() == [5.5 + 1 + 2] * 8


# --- values ------------------------------------------------------------------


def test_dtypes_are_those_of_reductions_over_time():
    dtypes = ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64"]

    def log(x):
        for dtype in dtypes:
            kinds = ["mean", "sum"] if dtype == "complex64" else KINDS
            data = {f"{dtype}/{kind}": x.sum().astype(dtype) for kind in kinds}
            lox.log(data, over="i", reduce={key: key.split("/")[1] for key in data})
        return x

    x = jnp.arange(8.0) * 9
    logs = lox.spool(on_devices(log, mesh_of("i")))(x)[1]
    for key, value in logs.items():
        dtype, kind = key.split("/")
        stacked = lox.logdict({key: x.astype(dtype)}, stacked=True)
        expected = stacked.reduce(kind)[key]
        assert (value.dtype, value.item()) == (expected.dtype, expected.item()), key


@pytest.mark.parametrize("kind", KINDS)
def test_nan_of_one_device_is_not_lost(kind):
    def log(x):
        lox.log({"x": x.sum()}, over="i", reduce=kind)
        lox.log({"other": x.sum()}, over="i", reduce=kind, when=x.sum() < 7)
        return x

    x = jnp.arange(8.0).at[7].set(jnp.nan)
    logs = lox.spool(on_devices(log, mesh_of("i")))(x)[1]
    assert np.isnan(logs["x"]).all() and np.isfinite(logs["other"]).all()


def test_value_that_is_the_same_on_all_devices_is_exact():
    def log(x, y):
        lox.log({"y": y, "number": 0.1, "count": 3}, over="i", reduce={"count": "sum"})
        return x

    mesh = mesh_of("i")
    fun = jax.shard_map(log, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"))
    logs = lox.spool(fun)(jnp.arange(8.0), jnp.float32(0.1))[1]
    assert logs["y"] == jnp.float32(0.1) and logs["number"] == jnp.float32(0.1)
    assert logs["count"] == 24
    compiled = jax.jit(lambda *args: lox.spool(fun, "y")(*args)).lower(
        jnp.arange(8.0), 0.1
    )
    assert len(collectives_of(compiled)) == 1


def results_of_branches_and_loops(x):
    """Two values that vary over devices, though (as of JAX 0.12) their types do not."""
    y = jax.lax.cond(x > 1.5, lambda: 1.0, lambda: 3.0)
    carry = jax.lax.while_loop(
        lambda carry: carry[0] < x,
        lambda carry: (carry[0] + 1, carry[1] + 1),
        (0 * x, 0),
    )
    return y, carry[1]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_branches_and_loops_with_differing_predicates_are_reduced(
    kind, size
):
    def log(x):
        y, count = results_of_branches_and_loops(x.sum())
        lox.log({"y": y, "count": count}, over="i", reduce=kind)
        lox.log({"some": count}, over="i", reduce=kind, when=x.sum() > 0.5)
        return x

    x = jnp.arange(float(size))
    logs = lox.spool(on_devices(log, mesh_of("i", size=size)))(x)[1]
    rows = {"y": np.where(x > 1.5, 1.0, 3.0), "count": np.asarray(x), "some": x[1:]}
    for key, values in rows.items():
        np.testing.assert_allclose(logs[key], KINDS[kind](values), rtol=1e-6)


def test_condition_whose_type_does_not_vary_but_whose_value_does_is_refused():
    def log(x):
        _, count = results_of_branches_and_loops(x.sum())
        lox.log({"x": x.sum()}, over="i", when=count > 2)
        return x

    fun = on_devices(log, mesh_of("i", size=4))
    for way in (lox.spool(fun), lox.tap(fun, print), jax.jit(fun)):
        with pytest.raises(
            lox.LoxError, match="may differ between the devices.*when = .*pcast"
        ):
            way(jnp.arange(4.0))

    def log_varying(x):
        _, count = results_of_branches_and_loops(x.sum())
        when = jax.lax.pcast(count > 1, "i", to="varying")
        lox.log({"x": x.sum()}, over="i", when=when)
        return x

    logs = lox.spool(on_devices(log_varying, mesh_of("i", size=4)))(jnp.arange(4.0))[1]
    assert logs["x"] == 2.5


def inside_shard_map(transform, fun, size, **options):
    """A `shard_map` of a transformed function, which returns its result and logs."""
    spec = P("i")

    def one(block):
        return jax.tree.map(lambda leaf: leaf[None], transform(fun)(block[0]))

    mesh = mesh_of("i", size=size)
    return jax.jit(
        jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, **options)
    )


def log_with_wrong_condition(x):
    _, count = results_of_branches_and_loops(x)
    lox.log({"x": x}, over="i", when=count > 1)
    return x


def log_with_wrong_step(x):
    _, count = results_of_branches_and_loops(x)
    lox.log({"x": x}, over="i", when=x > 1, step=count)
    return x


def log_in_differing_branch(x):
    lax.cond(x > 1, lambda x: lox.log({"x": x}, over="i") and None, lambda x: None, x)
    return x


@pytest.mark.parametrize("transform", [lox.spool, lambda f: lox.tap(f, print)])
@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (log_with_wrong_condition, "condition may differ.*when = jax.lax.pcast"),
        (log_with_wrong_step, "step may differ.*step = jax.lax.pcast"),
        (log_in_differing_branch, "wait forever"),
    ],
)
def test_devices_that_differ_are_refused_inside_shard_map(transform, fun, message):
    with pytest.raises(lox.LoxError, match=message):
        inside_shard_map(transform, fun, 4)(jnp.arange(4.0))


@pytest.mark.parametrize("check_vma", [True, False])
def test_conditions_of_lanes_are_combined_over_devices(check_vma):
    def log(x):
        lox.log({"x": x}, over="i", when=x > 0.5)
        return x

    calls = []
    tap = inside_shard_map(
        lambda f: jax.vmap(lox.tap(f, calls.append)), log, 2, check_vma=check_vma
    )
    tap(jnp.arange(4.0).reshape(2, 2))
    jax.effects_barrier()
    assert sorted(float(logs["x"]) for logs in calls) == [2.0, 2.0]


def test_predicate_whose_type_does_not_vary_but_whose_value_does_is_refused():
    def log(x):
        _, count = results_of_branches_and_loops(x.sum())
        lax.cond(
            count > 2, lambda: lox.log({"x": x.sum()}, over="i") and None, lambda: None
        )
        return x

    with pytest.raises(lox.LoxError, match="wait forever"):
        lox.spool(on_devices(log, mesh_of("i", size=4)))(jnp.arange(4.0))


# --- compiled programs -------------------------------------------------------

_COLLECTIVE = re.compile(
    r"(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def collectives_of(lowered):
    return sorted(_COLLECTIVE.findall(lowered.compile().as_text()))


@pytest.mark.parametrize("check_vma", [True, False])
def test_compiled_program_has_collectives_of_hand_written_one(check_vma):
    """And without events, it has none."""

    def body(x, t, metrics):
        metrics({"x": x.sum(), "y": x.max()})
        return 2 * x

    def logging(x):
        def step(x, t):
            return body(x, t, lambda data: lox.log(data, over="i")), None

        return lax.scan(step, x, jnp.arange(5))[0]

    def by_hand(x):
        def step(x, t):
            means = []
            x = body(x, t, lambda data: means.append(lax.pmean(data, "i")))
            return x, means[0]

        return lax.scan(step, x, jnp.arange(5))

    mesh = mesh_of("i")
    mapped = on_devices(logging, mesh, check_vma)
    specs = {"mesh": mesh, "in_specs": P("i"), "check_vma": check_vma}
    hand = jax.shard_map(by_hand, out_specs=(P("i"), P()), **specs)
    x = jnp.arange(8.0)
    expected = collectives_of(jax.jit(hand).lower(x))
    assert expected and set(expected) == {"all-reduce"}
    assert collectives_of(jax.jit(lox.spool(mapped)).lower(x)) == expected
    assert collectives_of(jax.jit(lox.nolog(mapped)).lower(x)) == []
    y, logs = lox.spool(mapped)(x)
    expected, metrics = hand(x)
    assert y.tolist() == expected.tolist()
    assert {key: value.tolist() for key, value in logs.items()} == {
        key: value.tolist() for key, value in metrics.items()
    }
    assert logs["x"].sharding.is_fully_replicated


# --- loggers and logify ------------------------------------------------------


@pytest.mark.parametrize("method", ["tap", "spool"])
def test_logger_gets_event_once(method):
    logger = MemoryLogger()
    state = logger.init(0)
    fun = on_devices(logging("i"), mesh_of("i"))
    getattr(logger, method)(fun, state, "some")(X)
    logger.finish(state)
    ((calls,),) = (logger.runs.values(),)
    rows = [row for call in calls for row in rows_of(call)["some"]]
    assert rows == expected_rows(X, ("i",), "i")[0]["some"]


@pytest.mark.parametrize("check_vma", [True, False])
def test_logger_log_reduces_across_devices(check_vma):
    logger = MemoryLogger()
    state = logger.init(0)

    def log(x):
        logger.log(state, {"all": x.sum()}, over=("i", "j"), step=1)
        logger.log(state, {"some": x.sum()}, over="i", when=x.sum() > 3)
        logger.log(state, {"none": x.sum()}, over="i", when=x.sum() > 9)
        return x

    jax.jit(on_devices(log, mesh_of("i", "j"), check_vma))(jnp.arange(8.0))
    logger.finish(state)
    ((calls,),) = (logger.runs.values(),)
    calls = sorted(calls, key=lambda call: float(*call.values()))
    assert [dict(call) for call in calls] == [
        {"all": 3.5},
        {"some": 5.0},
        {"some": 6.0},
    ]
    assert calls[0].steps == {"step": {"all": 1}}
    assert [int(call.lane["some"]) for call in calls[1:]] == [0, 1]


def test_logify_reduces_across_devices():
    def log(x):
        for t in range(2):
            for kind in ("replace", "append", "sum"):
                logify.log("x", x.sum() + t, kind, over="i")
        logify.log("some", x.sum(), "max", when=x.sum() < 5, over="i")
        return x

    logs = logify.logify(on_devices(log, mesh_of("i")))(jnp.arange(8.0))[1].asdict()
    assert logs["x"]["replace"] == 4.5 and logs["x"]["append"].tolist() == [3.5, 4.5]
    assert logs["x"]["sum"] == 28 + 36 and logs["some"]["max"] == 4


# --- bad input ---------------------------------------------------------------


def mapped(fun):
    return on_devices(fun, mesh_of("i"))(jnp.arange(8.0))


def log_over(over, **options):
    return lambda x: lox.log({"x": x.sum()}, over=over, **options) and x


@pytest.mark.parametrize(
    ("over", "options", "error", "message"),
    [
        ("data", {}, ValueError, "'data' is not an axis of the mesh.*splits 'i'"),
        (3, {}, TypeError, 'must be the name of a mesh axis.*not 3.*`over="data"`'),
        (("i", 3), {}, TypeError, "must be the name of a mesh axis"),
        ((), {}, ValueError, "names no axis"),
        (("i", "i"), {}, ValueError, "names an axis twice"),
        ("i", {"reduce": "last"}, ValueError, "mean, sum, min or max"),
        ("i", {"reduce": {"x": "var"}}, ValueError, "'x' has `reduce='var'`"),
        ("i", {"reduce": lox.Reduction(0.0, operator.add)}, ValueError, "mean, sum"),
    ],
)
def test_bad_over_is_refused(over, options, error, message):
    with pytest.raises(error, match=message) as raised:
        mapped(log_over(over, **options))
    assert isinstance(raised.value, lox.LoxError)
    assert __file__ in str(raised.value)


def test_values_without_reduction_across_devices_are_refused():
    def log_key(x):
        lox.log({"key": jax.random.key(0)}, over="i")
        return x

    def log_complex(x):
        lox.log({"z": x.sum() * 1j}, over="i", reduce="max")
        return x

    with pytest.raises(lox.LoxTypeError, match=f"'key', logged at {__file__}.*no mean"):
        mapped(log_key)
    with pytest.raises(lox.LoxTypeError, match=f"'z', logged at {__file__}.*imaginary"):
        mapped(log_complex)


def test_over_outside_shard_map_is_refused():
    ways = (
        log_over("i"),
        jax.jit(log_over("i")),
        jax.vmap(log_over("i"), axis_name="i"),
    )
    for way in ways:
        with pytest.raises(lox.LoxValueError, match="not inside one. Leave `over` out"):
            way(jnp.arange(8.0))
    logger = MemoryLogger()
    for other in (
        lambda x: lox.log_grad("x", x, over="i"),
        lambda x: logify.log("x", x, over="i"),
        lambda x: logger.log(logger.init(0), {"x": x}, over="i"),
    ):
        with pytest.raises(lox.LoxValueError, match=f"{__file__}:.*not inside one"):
            other(1.0)


def test_over_automatic_axis_is_refused():
    fun = jax.shard_map(
        log_over(("i", "j")),
        mesh=mesh_of("i", "j"),
        in_specs=P("i"),
        out_specs=P("i"),
        axis_names={"i"},
    )
    with pytest.raises(lox.LoxValueError, match="'j' is not one of the axes that"):
        jax.jit(fun)(jnp.arange(8.0))


def test_watch_names_what_to_write_instead_of_over():
    with pytest.raises(lox.LoxTypeError, match=r"`lox.log\(lox.stats\(tree\), over="):
        mapped(lambda x: lox.watch("x", x, over="i"))

    def instead(x):
        lox.log(lox.stats({"x": lax.pmean(x, "i")}, "max"), over="i")
        return x

    assert lox.spool(on_devices(instead, mesh_of("i")))(jnp.arange(8.0))[1] == {
        "x/max": 3.5
    }


def branch(x, predicate):
    return lax.cond(predicate(x), log_over("i"), lambda x: x, x)


def loop(x, predicate):
    return lax.while_loop(predicate, lambda x: log_over("i")(x) + 1, x)


def nested(x, predicate):
    """In a branch in a loop in a jitted function; the predicate is carried."""

    def body(carry, _):
        x, happens = carry
        return (lax.cond(happens, log_over("i"), lambda x: x, x), predicate(x)), None

    start = x, jnp.all(predicate(x) | True)
    return jax.jit(lambda: lax.scan(body, start, None, length=2)[0][0])()


DIFFERING = {
    "value": lambda x: x.sum() < 5,
    "device": lambda x: lax.axis_index("i") < 4,
    "permuted": lambda x: lax.ppermute(x.sum(), "i", [(0, 1)]) < 5,
}
SAME = {
    "pmin": lambda x: lax.pmin(x.sum(), "i") < 2,
    "all_gather": lambda x: lax.all_gather(x, "i")[0].sum() < 2,
}


@pytest.mark.parametrize("control", [branch, loop, nested])
@pytest.mark.parametrize("name", DIFFERING)
def test_event_that_only_some_devices_reach_is_refused(control, name):
    def differing(x):
        return control(x, DIFFERING[name])

    for check_vma in (True, False):
        fun = on_devices(differing, mesh_of("i"), check_vma)
        for way in (jax.jit(fun), lox.spool(fun, capacity=9)):
            with pytest.raises((lox.LoxValueError, TypeError)) as raised:
                way(jnp.arange(8.0))
            if control is nested and check_vma:
                continue  # JAX refuses a carry whose type changes
            assert isinstance(raised.value, lox.LoxError)
            assert f"{__file__}:" in str(raised.value)
            assert "with `when=`" in str(raised.value)


@pytest.mark.parametrize("control", [branch, loop, nested])
@pytest.mark.parametrize("check_vma", [True, False])
def test_event_that_all_devices_reach_is_logged(control, check_vma):
    rows = {branch: [3.5], loop: [3.5, 4.5], nested: [3.5, 3.5]}[control]
    for name, predicate in SAME.items():
        if name == "all_gather" and check_vma:
            continue  # whose result JAX takes to differ

        def same(x, predicate=predicate):
            return control(x, predicate)

        fun = on_devices(same, mesh_of("i"), check_vma)
        assert [float(call["x"]) for call in tapped(fun, jnp.arange(8.0))] == rows


@pytest.mark.parametrize("control", [branch, loop])
def test_predicate_per_lane_must_be_the_same_on_all_devices(control):
    def differing(x):
        return control(x, DIFFERING["value"])

    for check_vma in (True, False):
        lanes = on_devices(jax.vmap(differing), mesh_of("i"), check_vma)
        for way in (lox.spool(lanes, capacity=9), jax.jit(lanes), lox.tap(lanes)):
            with pytest.raises(
                lox.LoxValueError, match=r"'x'.*may differ between the devices"
            ):
                way(jnp.arange(8.0))
        # what is not logged is not an error
        silent = on_devices(jax.vmap(lox.nolog(differing)), mesh_of("i"), check_vma)
        for way in (lox.nolog(lanes), jax.jit(lox.nolog(lanes))):
            np.testing.assert_array_equal(way(jnp.arange(8.0)), silent(jnp.arange(8.0)))
    outside = jax.vmap(on_devices(lambda x: control(x, SAME["pmin"]), mesh_of("i")))
    calls = tapped(outside, jnp.stack([jnp.arange(8.0), jnp.arange(8.0) + 50]))
    found = [(float(call["x"]), int(call.lane["x"])) for call in calls]
    assert found == ([(3.5, 0)] if control is branch else [(3.5, 0), (4.5, 0)])


def test_error_of_a_logger_names_the_key():
    logger = MemoryLogger()
    state = logger.init(jax.random.key(0))

    def log(x):
        def write(x):
            logger.log(state, {"loss": x.sum(), "acc": x.sum()}, over="i")
            return x

        return lax.cond(x.sum() < 3, write, lambda x: x, x)

    for lanes in (log, jax.vmap(log)):
        fun = on_devices(lanes, mesh_of("i"))
        with pytest.raises(lox.LoxValueError, match=rf"'loss', 'acc', .*{__file__}:"):
            jax.jit(fun)(jnp.arange(8.0).reshape(8, 1))


def test_key_with_and_without_over_is_refused():
    def log(x):
        lox.log({"x": x.sum()})
        lox.log({"x": x.sum()}, over="i")
        return x

    fun = on_devices(log, mesh_of("i"))
    for options in ({}, {"reduce": "mean"}):
        with pytest.raises(
            lox.LoxValueError, match="without `over` at.*with `over='i'`"
        ):
            lox.spool(fun, **options)(jnp.arange(8.0))
    assert len(tapped(fun, jnp.arange(8.0))) == 9

    def inside_and_outside(x):
        lox.log({"x": x.sum()})
        return on_devices(log_over("i"), mesh_of("i"))(x)

    # outside `shard_map`, both are one row
    logs = lox.spool(inside_and_outside)(jnp.arange(8.0))[1]
    assert logs["x"].tolist() == [28.0, 3.5]
