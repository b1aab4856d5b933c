"""Random programs on eight devices: `shard_map`, and sharded arrays."""

import random
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import lox
from tests import oracle
from tests.fuzz import orders
from tests.interpreter.test_mixed_oracle import CAPACITY, Program

DEVICES = 4
VALUES = [0.3 + 0.4 * i for i in range(2 * DEVICES)]


def check(seed: int, statements: oracle.Program | None = None) -> None:
    program = Program(seed, statements)
    rng = random.Random(f"devices {seed}")
    differentiated = not program.unbounded and rng.random() < 0.5
    fun = jax.grad(program.function) if differentiated else program.function
    events = program.events if differentiated else program.forward
    mesh = jax.make_mesh(
        (DEVICES,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES]
    )
    xs = jax.device_put(jnp.array(VALUES), NamedSharding(mesh, P("d")))
    wanted: Any = [events(x) for x in VALUES]
    if rng.random() < 0.6:
        lanes = partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        wanted = [wanted[i : i + 2] for i in range(0, len(wanted), 2)]
    else:
        lanes = jax.jit
    try:
        compare(lanes(jax.vmap(fun)), xs, wanted, tapped=rng.random() < 0.5)
    except ValueError as error:
        plain = lanes(jax.vmap(program.without_lox))
        if not orders.fails_alike(jax.jit(plain), xs, error):
            raise


def compare(lanes: Any, xs: Any, wanted: Any, tapped: bool) -> None:
    if tapped:
        calls: list[Any] = []
        jax.jit(lox.tap(lanes, calls.append))(xs)
        jax.effects_barrier()
        orders.assert_tapped(calls, wanted)
    else:
        logs = jax.jit(lox.spool(lanes, capacity=CAPACITY))(xs)[1]
        orders.assert_spooled(logs, wanted)
