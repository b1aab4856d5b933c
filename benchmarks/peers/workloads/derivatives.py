"""Programs that are differentiated: values of the forward and of the backward pass."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.peers.contender import Tools, Workload

# --- a scan, with a value that stays the same ----------------------------------------

_STEPS = 1_000


def _derivative(tools: Tools) -> Any:
    def fun(xs: Any, rate: Any) -> Any:
        def loss(xs: Any) -> Any:
            def body(carry: Any, x: Any) -> Any:
                tools.log({"carry": carry})
                tools.log({"rate": rate})
                return jnp.sin(carry) + rate * x, None

            return tools.scan(body, jnp.float32(0), xs)[0]

        return tools.value_and_grad(loss)(xs)

    return fun


def _derivative_by_hand(xs: Any, rate: Any) -> Any:
    def loss(xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            return jnp.sin(carry) + rate * x, {"carry": carry, "rate": rate}

        return lax.scan(body, jnp.float32(0), xs)

    (value, logs), grads = jax.value_and_grad(loss, has_aux=True)(xs)
    return (value, grads), logs


DERIVATIVE = Workload(
    f"gradient of a scan of {_STEPS:,} steps, with a constant rate",
    _derivative,
    _derivative_by_hand,
    lambda: (jnp.linspace(0.0, 1.0, _STEPS), jnp.float32(0.1)),
    events=2 * _STEPS,
)


# --- a transformer step, with statistics per layer -----------------------------------

_LAYERS, _WIDTH, _LENGTH, _BATCH = 12, 64, 64, 8


def _params() -> Any:
    shapes = {
        "attention": (_WIDTH, 3 * _WIDTH),
        "attention_out": (_WIDTH, _WIDTH),
        "mlp": (_WIDTH, 4 * _WIDTH),
        "mlp_out": (4 * _WIDTH, _WIDTH),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {
        name: jax.random.normal(key, (_LAYERS, *shape)) / _WIDTH**0.5 / 4
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _layer(h: Any, layer: Any) -> Any:
    h = h / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-6)
    q, k, v = jnp.split(h @ layer["attention"], 3, -1)
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / _WIDTH**0.5)
    h = h + weights @ v @ layer["attention_out"]
    entropy = -(weights * jnp.log(weights + 1e-9)).sum(-1).mean()
    return h + jax.nn.gelu(h @ layer["mlp"]) @ layer["mlp_out"], entropy


def _rms(x: Any) -> Any:
    return jnp.sqrt((x**2).mean())


def _statistics(params: Any, grads: Any) -> dict[str, Any]:
    """Of each layer, as an array over the layers."""
    logs = {}
    for kind, tree in (("params", params), ("grads", grads)):
        for name, leaf in tree.items():
            logs[f"{kind}_{name}_rms"] = jax.vmap(_rms)(leaf)
    return logs


def _updated(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


def _transformer(tools: Tools, checkpointed: bool = False) -> Any:
    def body(h: Any, layer: Any) -> Any:
        h, entropy = _layer(h, layer)
        tools.log({"rms": _rms(h), "entropy": entropy})
        return h, None

    if checkpointed:
        body = tools.checkpoint(body)

    def loss(params: Any, x: Any) -> Any:
        return ((tools.scan(body, x, params)[0] - x) ** 2).mean()

    def step(params: Any, x: Any) -> Any:
        value, grads = tools.value_and_grad(loss)(params, x)
        tools.log(_statistics(params, grads))
        return value, _updated(params, grads)

    return step


def _transformer_by_hand(params: Any, x: Any, checkpointed: bool = False) -> Any:
    def body(h: Any, layer: Any) -> Any:
        h, entropy = _layer(h, layer)
        return h, {"rms": _rms(h), "entropy": entropy}

    if checkpointed:
        body = jax.checkpoint(body)

    def loss(params: Any, x: Any) -> Any:
        h, logs = lax.scan(body, x, params)
        return ((h - x) ** 2).mean(), logs

    (value, logs), grads = jax.value_and_grad(loss, has_aux=True)(params, x)
    logs: Mapping[str, Any] = logs | _statistics(params, grads)
    return (value, _updated(params, grads)), logs


def _transformer_arguments() -> tuple[Any, ...]:
    x = jax.random.normal(jax.random.key(1), (_BATCH, _LENGTH, _WIDTH))
    return _params(), x


TRANSFORMER = Workload(
    f"step of a transformer, statistics of {_LAYERS} layers",
    _transformer,
    _transformer_by_hand,
    _transformer_arguments,
    events=_LAYERS + 1,
)
CHECKPOINTED = Workload(
    "the same with `jax.checkpoint` of each layer",
    lambda tools: _transformer(tools, checkpointed=True),
    lambda params, x: _transformer_by_hand(params, x, checkpointed=True),
    _transformer_arguments,
    events=_LAYERS + 1,
)


# --- cotangents ----------------------------------------------------------------------


def _cotangents(tools: Tools) -> Any:
    def loss(w: Any, xs: Any) -> Any:
        def body(h: Any, x: Any) -> Any:
            return tools.log_grad("dh", jnp.tanh(w * h + x)), None

        return tools.scan(body, jnp.float32(0.5), xs)[0]

    return tools.value_and_grad(loss)


def _cotangents_by_hand(w: Any, xs: Any) -> Any:
    def loss(w: Any, zeros: Any) -> Any:
        def body(h: Any, x: Any) -> Any:
            x, zero = x
            return jnp.tanh(w * h + x) + zero, None

        return lax.scan(body, jnp.float32(0.5), (xs, zeros))[0]

    zeros = jnp.zeros_like(xs)
    value, (grads, dh) = jax.value_and_grad(loss, argnums=(0, 1))(w, zeros)
    return (value, grads), {"dh": dh}


COTANGENTS = Workload(
    f"cotangents of a scan of {_STEPS:,} steps",
    _cotangents,
    _cotangents_by_hand,
    lambda: (jnp.float32(1.1), 0.3 * jnp.sin(jnp.arange(1.0 * _STEPS))),
    events=_STEPS,
    ordered=False,  # a backward pass begins at the last step
)
