"""Sharded programs: logged values keep their sharding, and are logged as documented.

Each program exists twice: one logs values, the other one returns the same values by
hand. Both must have the same collectives and the same shardings.
"""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import lox
import lox.loggers
from tests.faults import large_operands
from tests.loggers.backends import MemoryLogger

_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast"
    r"|reduce-scatter)(?:-start)?\("
)


def compiled(fun, *args):
    """The compiled program, and how many collectives of each kind it has."""
    program = jax.jit(fun).lower(*args).compile()
    return program, collections.Counter(_COLLECTIVE.findall(program.as_text()))


def make_mesh(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


# --- programs: a step returns its state and its metrics ----------------------


def global_step(w, x):
    """A step of data parallel training on global arrays."""

    def loss(w):
        error = x @ w - 1
        return jnp.mean(error**2), error

    (value, error), grad = jax.value_and_grad(loss, has_aux=True)(w)
    return w - 0.1 * grad, {"loss": value, "error": error, "w": w}


def device_step(w, x):
    """The same on the shard of a device, with collectives."""
    w, metrics = global_step(w, x)
    shifted = lax.ppermute(
        metrics["loss"], "data", [(i, (i + 1) % 4) for i in range(4)]
    )
    everywhere = lax.all_gather(metrics["loss"], "data")
    w = w + 0 * (shifted + everywhere.sum())
    return lax.pmean(w, "data"), {
        **metrics,
        "shifted": shifted,
        "sum": everywhere.sum(),
    }


def logging(step):
    def train(w, x):
        def body(w, i):
            w, metrics = step(w, x)
            lox.log(metrics, step=i)
            return w, None

        return lax.scan(body, w, jnp.arange(3))[0]

    return train


def by_hand(step):
    def train(w, x):
        return lax.scan(lambda w, _: step(w, x), w, None, length=3)

    return train


def on_devices(step, manual):
    """The two programs in a `shard_map` that splits the axes `manual`."""
    specs = {
        "mesh": make_mesh(),
        "in_specs": (P(), P("data")),
        "axis_names": set(manual),
        "check_vma": False,
    }
    logged = jax.shard_map(logging(step), out_specs=P(), **specs)

    def with_device_axis(w, x):
        w, metrics = by_hand(step)(w, x)
        return w, {key: jnp.expand_dims(value, 1) for key, value in metrics.items()}

    returned = jax.shard_map(
        with_device_axis, out_specs=(P(), P(None, manual)), **specs
    )
    return logged, returned


def arguments(kind=AxisType.Auto):
    mesh = make_mesh(kind)
    w = jnp.arange(4.0) / 10
    x = jnp.cos(jnp.arange(32.0)).reshape(8, 4)
    return (
        jax.device_put(w, NamedSharding(mesh, P())),
        jax.device_put(x, NamedSharding(mesh, P("data"))),
    )


PROGRAMS = {
    "automatic": (logging(global_step), by_hand(global_step)),
    "explicit": (logging(global_step), by_hand(global_step)),
    "manual": on_devices(device_step, ("data", "model")),
    "partly manual": on_devices(device_step, ("data",)),
}
KINDS = {"explicit": AxisType.Explicit}


def differentiated(logged, returned, lanes):
    del lanes

    def total(w, x):
        return jax.checkpoint(logged)(w, x).sum()

    def total_by_hand(w, x):
        w, metrics = jax.checkpoint(returned)(w, x)
        return w.sum(), metrics

    return jax.grad(total), jax.grad(total_by_hand, has_aux=True)


def vmapped(logged, returned, lanes):
    axes = 0, None
    return jax.vmap(logged, axes), jax.vmap(returned, axes, (0, lanes))


WAYS = {"as it is": lambda *pair: pair[:2], "grad": differentiated, "vmap": vmapped}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_spool_adds_no_collective_and_keeps_shardings(name, way):
    # devices come before the lanes of a `vmap`
    lanes = 2 if "manual" in name else 1
    logged, returned = WAYS[way](*PROGRAMS[name], lanes)
    kind = KINDS.get(name, AxisType.Auto)
    w, x = arguments(kind)
    if way == "vmap":
        w = jnp.stack([w, w + 1])
    with jax.set_mesh(make_mesh(kind)):
        spooled, added = compiled(lox.spool(logged), w, x)
        by_hand, expected = compiled(returned, w, x)
        assert added == expected
        if way != "grad":  # where a forward pass computes values only for logging
            without = compiled(lox.nolog(logged), w, x)[1]
            assert added["all-gather"] == without["all-gather"]
        result, logs = spooled(w, x)
        expected, metrics = by_hand(w, x)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert logs.keys() == metrics.keys()
    for key, value in metrics.items():
        np.testing.assert_allclose(logs[key], value, rtol=1e-6)
        assert logs[key].sharding.is_equivalent_to(value.sharding, value.ndim), key


# --- the host ----------------------------------------------------------------


def rows_by_lane(calls, key):
    """The values of a key per lane, in the order of their arrival, with their steps."""
    rows = {}
    for call in calls:
        for row in call.filter(key).rows():
            lane = int(row.steps.get("lane", {}).get(key, -1))
            rows.setdefault(lane, []).append((float(row[key]), int(row.step[key])))
    return rows


@pytest.mark.parametrize("name", PROGRAMS)
def test_tap_delivers_once_or_once_per_device_in_order(name, tmp_path):
    logged, returned = PROGRAMS[name]
    kind = KINDS.get(name, AxisType.Auto)
    calls, logger = [], MemoryLogger()
    save, text = (
        lox.loggers.SaveLogger(tmp_path / "store"),
        lox.loggers.JSONLinesLogger(tmp_path),
    )
    loggers = lox.loggers.MultiLogger(logger, save, text)
    with jax.set_mesh(make_mesh(kind)):
        w, x = arguments(kind)
        state = loggers.init(0)
        jax.block_until_ready(jax.jit(lox.tap(logged, calls.append, "loss"))(w, x))
        jax.block_until_ready(jax.jit(loggers.tap(logged, state, "loss"))(w, x))
        jax.effects_barrier()
        loggers.finish(state)
        losses = np.asarray(jax.jit(returned)(w, x)[1]["loss"])
    by_lane = {-1: losses} if losses.ndim == 1 else dict(enumerate(losses.T))
    expected = {
        lane: [(pytest.approx(float(value)), i) for i, value in enumerate(values)]
        for lane, values in by_lane.items()
    }
    (written,) = logger.runs.values()
    (file,) = tmp_path.glob("*.jsonl")
    assert file.read_text().count("loss") == 3 * len(expected)
    for found in (calls, written, [lox.load(tmp_path / "store")]):
        rows = rows_by_lane(found, "loss")
        if name == "partly manual":  # JAX cannot order these
            rows = {
                lane: sorted(one, key=lambda row: row[1]) for lane, one in rows.items()
            }
        assert rows == expected


@pytest.mark.parametrize("kind", large_operands.KINDS)
def test_large_values_of_many_devices_do_not_block_them(kind):
    """`make faults` runs more steps."""
    large_operands.check(kind, 5)
