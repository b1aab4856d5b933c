"""`lox.watch` of parameters and gradients, and the same statistics by hand.

The model is a transformer of twelve scanned layers. It is narrow, so that statistics
are a larger part of the work than in a realistic model.
"""

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox

from .figure import Figure
from .hlo import bytes_of
from .interleaved import best_times

_LAYERS, _WIDTH, _LENGTH, _BATCH, _STEPS = 12, 64, 64, 8, 3


def figures() -> Iterator[Figure]:
    arguments = _params(), jax.random.normal(_key(1), (_BATCH, _LENGTH, _WIDTH))
    spooled = lox.spool(_watched, reduce="last")
    runs = [jax.jit(fun) for fun in (spooled, _by_hand, lox.nolog(_watched))]
    _check(runs[0](*arguments)[1], runs[1](*arguments)[1])
    watched, by_hand, without = best_times(
        *(lambda run=run: jax.block_until_ready(run(*arguments)) for run in runs),
        rounds=15,
        clock=time.process_time,
    )
    yield Figure(
        "CPU time of `watch(grad=True)`, 12 layers / by hand",
        watched / by_hand,
        1.05,
    )
    yield Figure(
        "  bytes", bytes_of(spooled, *arguments) / bytes_of(_by_hand, *arguments), 1.05
    )
    yield Figure("  CPU time / without statistics", watched / without)
    yield Figure("  compiled programs", _programs_of(spooled, *arguments), 1.0)


def _key(seed: int) -> Any:
    return jax.random.key(seed)


def _params() -> Any:
    shapes = {
        "attention": {"in": (_WIDTH, 3 * _WIDTH), "out": (_WIDTH, _WIDTH)},
        "mlp": {"in": (_WIDTH, 4 * _WIDTH), "out": (4 * _WIDTH, _WIDTH)},
        "scale": (_WIDTH,),
    }
    return jax.tree.map(
        lambda shape: jax.random.normal(_key(0), (_LAYERS, *shape)) / _WIDTH**0.5,
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def _loss(params: Any, x: Any) -> Any:
    def layer(h: Any, layer: Any) -> Any:
        h = h * layer["scale"] / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-6)
        q, k, v = jnp.split(h @ layer["attention"]["in"], 3, -1)
        weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / _WIDTH**0.5)
        h = h + weights @ v @ layer["attention"]["out"]
        return h + jax.nn.gelu(h @ layer["mlp"]["in"]) @ layer["mlp"]["out"], None

    return ((lax.scan(layer, x, params)[0] - x) ** 2).mean()


def _updated(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


def _watched(params: Any, x: Any) -> Any:
    def loss(params: Any, i: Any) -> Any:
        return _loss(lox.watch("params", params, split=0, grad=True, step=i), x)

    def step(params: Any, i: Any) -> Any:
        return _updated(params, jax.grad(loss)(params, i)), None

    return lax.scan(step, params, jnp.arange(_STEPS))[0]


def _by_hand(params: Any, x: Any) -> Any:
    def step(carry: Any, i: Any) -> Any:
        params, _ = carry
        grads = jax.grad(_loss)(params, x)
        logs = {"params": _statistics(params), "grad": _statistics(grads), "step": i}
        return (_updated(params, grads), logs), None

    logs = {"params": _statistics(params), "grad": _statistics(params), "step": 0}
    return lax.scan(step, (params, logs), jnp.arange(_STEPS))[0]


def _statistics(tree: Any) -> Any:
    """The obvious implementation, whose squares may overflow."""

    def of_layer(x: Any) -> Any:
        return {
            "rms": jnp.sqrt((x**2).mean()),
            "max_abs": jnp.abs(x).max(),
            "nonfinite": (~jnp.isfinite(x)).sum(),
        }

    return jax.tree.map(jax.vmap(of_layer), tree)


def _check(logs: Any, by_hand: Any) -> None:
    """Checks that both programs return the same values."""
    for name, start in (("params", "params"), ("grad", "params/grad")):
        found = jax.tree_util.tree_flatten_with_path(by_hand[name])[0]
        for path, values in found:
            key = jax.tree_util.keystr(path, simple=True, separator="/")
            logged = [logs[f"{start}/{i}/{key}"] for i in range(_LAYERS)]
            np.testing.assert_allclose(logged, values, rtol=1e-4)
    by_key = by_hand["params"], by_hand["grad"]
    assert len(logs) == _LAYERS * len(jax.tree.leaves(by_key))


_compiled: list[str] = []


@jax.monitoring.register_event_duration_secs_listener
def _count(event: str, duration: float, **_: Any) -> None:
    del duration
    if event.endswith("backend_compile_duration"):
        _compiled.append(event)


def _programs_of(fun: Any, *args: Any) -> int:
    """The number of programs that a call of a function compiles."""
    jax.clear_caches()
    before = len(_compiled)
    jax.block_until_ready(fun(*args))
    return len(_compiled) - before
