"""Scans, a scan in a scan, and a while loop."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from benchmarks.peers.contender import Tools, Workload


def _metrics(carry: Any, x: Any, keys: int) -> dict[str, Any]:
    return {f"metric{i:03}": carry * (x + i) for i in range(keys)}


def _step(carry: Any, x: Any) -> Any:
    return jnp.sin(carry) + x


def scan_workload(
    steps: int, lanes: int = 0, keys: int = 3, name: str | None = None
) -> Workload:
    """A scan that logs scalars at each step."""

    def program(tools: Tools) -> Any:
        def body(carry: Any, x: Any) -> Any:
            tools.log(_metrics(carry, x, keys))
            return _step(carry, x), None

        return lambda xs: tools.scan(body, jnp.float32(0), xs)[0]

    def by_hand(xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            return _step(carry, x), _metrics(carry, x, keys)

        return lax.scan(body, jnp.float32(0), xs)

    def arguments() -> tuple[Any, ...]:
        xs = jnp.linspace(0.0, 1.0, steps)
        if lanes:
            xs = xs * jnp.linspace(0.5, 1.0, lanes)[:, None]
        return (xs,)

    what = f"scan of {steps:,} steps, {keys} {'key' if keys == 1 else 'keys'}"
    if lanes:
        what += f", {lanes:,} {'lane' if lanes == 1 else 'lanes'}"
    return Workload(name or what, program, by_hand, arguments, lanes, events=steps)


SHORT_SCAN = scan_workload(10)
LONG_SCAN = scan_workload(100_000)


# --- a scan in a scan ----------------------------------------------------------------

_OUTER, _INNER = 100, 10


def _nested(tools: Tools) -> Any:
    def inner(carry: Any, x: Any) -> Any:
        tools.log(_metrics(carry, x, 3))
        return _step(carry, x), None

    def outer(carry: Any, x: Any) -> Any:
        carry, _ = tools.scan(inner, carry, x * jnp.arange(_INNER))
        tools.log({"outer": carry})
        return carry, None

    return lambda xs: tools.scan(outer, jnp.float32(0), xs)[0]


def _nested_by_hand(xs: Any) -> Any:
    def inner(carry: Any, x: Any) -> Any:
        return _step(carry, x), _metrics(carry, x, 3)

    def outer(carry: Any, x: Any) -> Any:
        carry, logs = lax.scan(inner, carry, x * jnp.arange(_INNER))
        return carry, (logs, {"outer": carry})

    carry, (logs, outer_logs) = lax.scan(outer, jnp.float32(0), xs)
    return carry, {k: v.reshape(-1) for k, v in logs.items()} | outer_logs


NESTED = Workload(
    f"scan of {_OUTER} steps around a scan of {_INNER} steps",
    _nested,
    _nested_by_hand,
    lambda: (jnp.linspace(0.0, 1.0, _OUTER),),
    events=_OUTER * (_INNER + 1),
)


# --- a while loop --------------------------------------------------------------------

_CAPACITY = 1_000
_TOLERANCE = 1e-4


def _is_far(carry: Any) -> Any:
    return carry[0] > _TOLERANCE


def _while(tools: Tools) -> Any:
    def body(carry: Any) -> Any:
        error, rate = carry
        error = error * rate + 0.01 * _TOLERANCE * jnp.sin(error)
        tools.log({"error": error, "rate": rate})
        return error, rate * 0.9999

    return lambda x: tools.while_loop(_is_far, body, (x, jnp.float32(0.99)))[0]


def _while_by_hand(x: Any) -> Any:
    def body(carry: Any) -> Any:
        error, rate, (count, errors, rates) = carry
        error = error * rate + 0.01 * _TOLERANCE * jnp.sin(error)
        errors = errors.at[count].set(error, mode="drop")
        rates = rates.at[count].set(rate, mode="drop")
        return error, rate * 0.9999, (count + 1, errors, rates)

    buffers = 0, jnp.zeros(_CAPACITY), jnp.zeros(_CAPACITY)
    start = x, jnp.float32(0.99), buffers
    error, _, (count, errors, rates) = lax.while_loop(_is_far, body, start)
    return error, {"error": errors, "rate": rates, "count": count}


WHILE = Workload(
    "while loop of unknown length (341 iterations)",
    _while,
    _while_by_hand,
    lambda: (jnp.float32(1),),
    capacity=_CAPACITY,
    events=341,
)
