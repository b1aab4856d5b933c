"""Random programs in random orders of transformations.

An order is a tuple of names, from the inside to the outside, one of which collects the
events: `("vmap", "spool", "grad", "jit")` is `jit(grad(spool(vmap(f)), has_aux=True))`.
"""

import random
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import lox
from tests import oracle
from tests.fuzz.evaluation import is_evaluating
from tests.interpreter.test_mixed_oracle import CAPACITY, Program

X = 0.7
SIZES = (3, 2)  # of the inner and the outer axis
AXES = ("vmap", "map", "shard_map")  # each element of an axis is a run of its own


def choose(seed: int, program: Program) -> tuple[str, ...]:
    rng = random.Random(f"order {seed}")
    kinds = ["jit", "checkpoint", "vmap", "map", "vmap", "map"]
    if not program.unbounded:
        kinds += ["grad", "grad"]
    if program.has_forward_mode:
        kinds.append("jvp")
    order: list[str] = []
    for kind in rng.sample(kinds, rng.randint(1, min(5, len(kinds)))):
        axes = sum(one in AXES for one in order)
        if kind in AXES and axes == len(SIZES):
            continue
        # the cotangents of a tangent are not those that the oracle knows
        if kind == "grad" and {"grad", "jvp"} & set(order):
            continue
        order.append(kind)
    order.insert(rng.randint(0, len(order)), rng.choice(("spool", "tap")))
    if "vmap" in order and rng.random() < 0.5:  # lanes become devices
        places = [i for i, kind in enumerate(order) if kind == "vmap"]
        order[rng.choice(places)] = "shard_map"
    return tuple(order)


def without_collector(order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(kind for kind in order if kind not in ("spool", "tap"))


def transformed(function: Any, order: tuple[str, ...], calls: list[Any]) -> Any:
    """A function, transformed; its result is None or the logs."""

    def without_logs(x: Any) -> Any:
        return function(x), None

    fun = without_logs
    for kind in order:
        fun = _apply(kind, fun, calls)
    return lambda x: fun(x)[1]


def _apply(kind: str, fun: Any, calls: list[Any]) -> Any:
    """A transformation of a function that returns a value and logs."""
    if kind == "jit":
        return jax.jit(fun)
    if kind == "checkpoint":
        return jax.checkpoint(fun)
    if kind == "vmap":
        return jax.vmap(fun)
    if kind == "map":
        return lambda xs: lax.map(fun, xs)
    if kind == "shard_map":
        return lambda xs: _on_devices(fun, xs)
    if kind == "grad":

        def total(x: Any) -> Any:
            y, logs = fun(x)
            return jnp.sum(y), logs

        return jax.grad(total, has_aux=True)
    if kind == "jvp":

        def derivative(x: Any) -> Any:
            _, tangent, logs = jax.jvp(fun, (x,), (jnp.ones_like(x),), has_aux=True)
            return tangent, logs

        return derivative
    if kind == "tap":
        return lox.tap(fun, calls.append)

    def spooled(x: Any) -> Any:
        (y, _), logs = lox.spool(fun, capacity=CAPACITY)(x)
        return y, logs

    return spooled


def _on_devices(fun: Any, xs: Any) -> Any:
    """Maps a function over devices, each of which has one element."""
    mesh = jax.make_mesh(
        (len(xs),),
        ("d",),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[: len(xs)],
    )

    def one(block: Any) -> Any:
        # in results of `grad`, constants may be Python numbers
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], fun(block[0]))

    on_devices = jax.shard_map(one, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    # outside `jit`, JAX evaluates the operations one by one, and keeps values of which
    # each device has its own in arrays that pretend otherwise
    return (jax.jit(on_devices) if is_evaluating() else on_devices)(xs)


# --- what must be logged -----------------------------------------------------


def expected(program: Program, order: tuple[str, ...], x: Any) -> Any:
    """The events, in a list for each `vmap`, and for each axis outside `spool`."""
    events = _expected(program, order, x)
    return _each(lambda pair: pair[0], events)


def _expected(program: Program, order: tuple[str, ...], x: Any) -> Any:
    """The same, each as a pair: what was logged, and what a backward pass will log."""
    if not order:
        backward = () if program.unbounded else program.events(x)
        forward = program.forward(x)
        return forward, list(backward[len(forward) :])
    *inner, kind = order
    if kind not in AXES:
        events = _expected(program, tuple(inner), x)
        if kind == "grad":
            return _each(lambda pair: (pair[0] + pair[1], []), events)
        if kind in ("spool", "tap"):  # do not see a backward pass outside them
            return _each(lambda pair: (pair[0], []), events)
        return events
    items = [_expected(program, tuple(inner), one) for one in x]
    collected = {"spool", "tap"} & set(inner)
    if kind == "vmap" and "shard_map" in inner and not collected:
        # JAX moves the `vmap` into the `shard_map`: the axis of devices comes first
        return [list(own) for own in zip(*items, strict=True)]
    if kind == "shard_map" and "tap" in inner and "vmap" in inner[inner.index("tap") :]:
        # lanes of a `vmap` around `tap` come first
        return [list(own) for own in zip(*items, strict=True)]
    if kind != "map" or "spool" in inner:
        return items
    return _one_after_another(items)


def _each(function: Any, events: Any) -> Any:
    if isinstance(events, list):
        return [_each(function, one) for one in events]
    return function(events)


def _one_after_another(items: list[Any]) -> Any:
    if isinstance(items[0], list):
        return [_one_after_another(list(lane)) for lane in zip(*items, strict=True)]
    forward = [event for one, _ in items for event in one]
    backward = [event for _, one in reversed(items) for event in one]
    return forward, backward


# --- comparing ---------------------------------------------------------------


def is_events(events: Any) -> bool:
    return not events or isinstance(events[0], tuple)


def flat(events: Any) -> list[Any]:
    """The events of every lane."""
    return [events] if is_events(events) else [x for one in events for x in flat(one)]


def assert_spooled(logs: Any, events: Any) -> None:
    if not logs:
        assert not any(flat(events))
    elif is_events(events):
        oracle.assert_spooled(logs.compact(), events)
    else:
        for lane, own in zip(logs.lanes(), events, strict=True):
            assert_spooled(lane, own)


def assert_tapped(calls: list[Any], events: Any) -> None:
    if is_events(events):
        oracle.assert_tapped(calls, events)
        return
    for lane, own in enumerate(flat(events)):
        mine = [c for c in calls if int(c.lane[next(iter(c))]) == lane]
        oracle.assert_tapped(mine, own)


def values(order: tuple[str, ...]) -> Any:
    """The input: one value for each lane."""
    axes = sum(kind in AXES for kind in order)
    shape = SIZES[:axes][::-1]
    count = max(1, len(jnp.zeros(shape).ravel()))
    return (X + 0.4 * jnp.arange(count)).reshape(shape) if axes else jnp.float32(X)


def fails_alike(function: Any, x: Any, error: Exception) -> bool:
    """Whether a function without lox raises the same error of JAX."""
    try:
        function(x)
    except Exception as own:
        return type(own) is type(error) and str(own)[:60] == str(error)[:60]
    return False


def check(seed: int, statements: oracle.Program | None = None) -> None:
    program = Program(seed, statements)
    order = choose(seed, program)
    calls: list[Any] = []
    x = values(order)
    events = expected(program, order, x)
    try:
        logs = transformed(program.function, order, calls)(x)
        jax.effects_barrier()
    except (ValueError, NotImplementedError) as error:
        error.add_note(f"order, from the inside to the outside: {', '.join(order)}")
        plain = transformed(program.without_lox, without_collector(order), [])
        if "shard_map" not in order or not fails_alike(plain, x, error):
            raise
        return
    try:
        if "spool" in order:
            assert_spooled(logs, events)
        else:
            assert_tapped(calls, events)
    except AssertionError as error:
        error.add_note(f"order, from the inside to the outside: {', '.join(order)}")
        raise
