"""Many devices: `shard_map` with `lox.spool`, and `lox.tap` of sharded values.

The devices are CPU devices of one process, which share its cores. They must be
requested before JAX starts, so this topic runs in a separate process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import lox

from .figure import Figure
from .hlo import instructions
from .interleaved import best_times

_DEVICES = 8
_GOAL = 1.05
_STEPS = 200


def figures() -> Iterator[Figure]:
    flags = os.environ.get("XLA_FLAGS", "")
    flags += f" --xla_force_host_platform_device_count={_DEVICES}"
    command = [sys.executable, "-m", "benchmarks.devices"]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield Figure(*json.loads(line))
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")


def _figures() -> Iterator[Figure]:
    yield from _spooled("a value per device", None)
    yield from _spooled('`over="data"`', "data")
    yield from _tapped()


# --- shard_map ---------------------------------------------------------------


def _spooled(name: str, over: str | None) -> Iterator[Figure]:
    mesh = jax.sharding.Mesh(jax.devices(), "data")
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=64), jnp.float32)
    x = jnp.asarray(rng.normal(size=(_DEVICES * 128, 64)), jnp.float32)
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    specs: dict[str, Any] = {"mesh": mesh, "in_specs": (P(), P("data"))}

    def logged(w: Any, x: Any) -> Any:
        def body(w: Any, i: Any) -> Any:
            w, metrics = _step(w, x)
            lox.log(metrics, over=over)
            return w, None

        return lax.scan(body, w, jnp.arange(_STEPS))[0]

    def by_hand(w: Any, x: Any) -> Any:
        def body(w: Any, i: Any) -> Any:
            w, metrics = _step(w, x)
            return w, metrics if over is None else lax.pmean(metrics, over)

        w, metrics = lax.scan(body, w, jnp.arange(_STEPS))
        if over is None:
            metrics = {key: value[:, None] for key, value in metrics.items()}
        return w, metrics

    rows = P() if over else P(None, "data")
    spooled = lox.spool(jax.shard_map(logged, out_specs=P(), **specs))
    returned = jax.shard_map(by_hand, out_specs=(P(), rows), **specs)
    programs = jax.jit(spooled), jax.jit(returned)
    _check(*(program(w, x) for program in programs))
    counts = [len(instructions(program, w, x)) for program in (spooled, returned)]
    what = f"shard_map, spooled / by hand, instructions: {name}"
    yield Figure(what, counts[0] / counts[1], _GOAL)
    time, time_by_hand = best_times(
        *(lambda run=run: jax.block_until_ready(run(w, x)) for run in programs),
        rounds=100,
    )
    yield Figure("  run time", time / time_by_hand, _GOAL)


def _step(w: Any, x: Any) -> Any:
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(
        lax.pcast(w, "data", to="varying")
    )
    norm = jnp.sqrt(jnp.sum(grad**2))
    return w - 0.1 * lax.pmean(grad, "data"), {"loss": loss, "norm": norm}


def _check(spooled: Any, returned: Any) -> None:
    np.testing.assert_allclose(spooled[0], returned[0], rtol=1e-6)
    for key, value in returned[1].items():
        np.testing.assert_allclose(spooled[1][key], value, rtol=1e-6)
        assert spooled[1][key].sharding == value.sharding


# --- automatic sharding ------------------------------------------------------


def _tapped() -> Iterator[Figure]:
    """The run time of a program that streams a value at every step.

    The callback runs on the first device, with the whole value, so a sharded value
    takes a collective per event: all devices wait for each other. The mean of a sharded
    array takes one anyway, even if it is only returned, which shows the cost of the
    collective.
    """
    mesh = jax.sharding.Mesh(jax.devices(), "data")
    x = jnp.zeros(2**14)
    split = jax.device_put(x, NamedSharding(mesh, P("data")))
    what = f"`tap` under automatic sharding, {_DEVICES} devices / one: the mean"
    for name, run in (
        (what, lox.tap(_doubles, _ignore, "mean")),
        ("  only the collective (spooled)", jax.jit(lox.spool(_doubles, "mean"))),
        ("  the split array, gathered for each event", lox.tap(_doubles, _ignore, "x")),
    ):
        one, several = best_times(
            lambda run=run: jax.block_until_ready(run(x)),
            lambda run=run: jax.block_until_ready(run(split)),
            rounds=15,
        )
        yield Figure(name, several / one)


def _doubles(x: Any) -> Any:
    def body(x: Any, i: Any) -> Any:
        lox.log({"mean": x.mean(), "x": x})
        return x * 2 + i, None

    return lax.scan(body, x, jnp.arange(_STEPS))[0]


def _ignore(logs: Any) -> None:
    del logs


if __name__ == "__main__":
    for figure in _figures():
        print(json.dumps(figure), flush=True)
