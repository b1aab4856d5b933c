"""Programs that log, each with a hand-written version that returns the values."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

Log = Callable[[dict[str, Any]], Any]


def no_log(metrics: dict[str, Any]) -> None:
    """A replacement of `lox.log` for the program without logs."""
    del metrics


def _metrics(carry: Any, x: Any) -> dict[str, Any]:
    return {"loss": carry * x, "norm": abs(carry), "rate": x + 1.0}


def _step(carry: Any, x: Any) -> Any:
    return jnp.sin(carry) + x


# --- a scan with three keys ----------------------------------------------------------


def scan(xs: Any, log: Log = lox.log) -> Any:
    def body(carry: Any, x: Any) -> Any:
        log(_metrics(carry, x))
        return _step(carry, x), None

    return lax.scan(body, jnp.float32(0), xs)[0]


def scan_by_hand(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        metrics = _metrics(carry, x)
        return _step(carry, x), metrics

    return lax.scan(body, jnp.float32(0), xs)


# --- a scan in a scan ----------------------------------------------------------------

_INNER = 4


def nested(xs: Any, log: Log = lox.log) -> Any:
    def inner(carry: Any, x: Any) -> Any:
        log(_metrics(carry, x))
        return _step(carry, x), None

    def outer(carry: Any, x: Any) -> Any:
        carry, _ = lax.scan(inner, carry, x * jnp.arange(_INNER))
        log({"outer": carry})
        return carry, None

    return lax.scan(outer, jnp.float32(0), xs)[0]


def nested_by_hand(xs: Any) -> Any:
    def inner(carry: Any, x: Any) -> Any:
        metrics = _metrics(carry, x)
        return _step(carry, x), metrics

    def outer(carry: Any, x: Any) -> Any:
        carry, logs = lax.scan(inner, carry, x * jnp.arange(_INNER))
        return carry, (logs, {"outer": carry})

    carry, (logs, outer_logs) = lax.scan(outer, jnp.float32(0), xs)
    return carry, {k: v.reshape(-1) for k, v in logs.items()} | outer_logs


# --- branches with the same keys -----------------------------------------------------


def branches(xs: Any, log: Log = lox.log) -> Any:
    def grow(carry: Any, x: Any) -> Any:
        log({"loss": carry, "norm": x})
        return carry + x

    def shrink(carry: Any, x: Any) -> Any:
        log({"loss": -carry, "norm": x * x})
        return jnp.sin(carry) - x

    def body(carry: Any, x: Any) -> Any:
        return lax.cond(carry > 1, shrink, grow, carry, x), None

    return lax.scan(body, jnp.float32(0), xs)[0]


def branches_by_hand(xs: Any) -> Any:
    def grow(carry: Any, x: Any) -> Any:
        return carry + x, {"loss": carry, "norm": x}

    def shrink(carry: Any, x: Any) -> Any:
        return jnp.sin(carry) - x, {"loss": -carry, "norm": x * x}

    def body(carry: Any, x: Any) -> Any:
        return lax.cond(carry > 1, shrink, grow, carry, x)

    return lax.scan(body, jnp.float32(0), xs)


# --- lanes ---------------------------------------------------------------------------


def lanes(xs: Any, log: Log = lox.log) -> Any:
    return jax.vmap(lambda x: scan(x, log))(xs)


def lanes_by_hand(xs: Any) -> Any:
    # the time axis first, as in `spool(vmap(f))`
    return jax.vmap(scan_by_hand, out_axes=(0, 1))(xs)


# --- a derivative --------------------------------------------------------------------


def derivative(xs: Any, log: Log = lox.log) -> Any:
    return jax.grad(lambda xs: scan(xs, log))(xs)


def derivative_by_hand(xs: Any) -> Any:
    return jax.grad(scan_by_hand, has_aux=True)(xs)


# --- many equations ------------------------------------------------------------------

_EQUATIONS_PER_LOG = 100


def long(equations: int) -> Any:
    """A new function of that many equations, which logs every hundredth value."""

    def fun(x: Any) -> Any:
        for i in range(equations):
            x = lax.mul(x, x) if i % 2 else lax.sin(x)
            if i % _EQUATIONS_PER_LOG == 0:
                lox.log({f"x{i}": x})
        return x

    return fun


def long_by_hand(equations: int) -> Any:
    def fun(x: Any) -> Any:
        logs = {}
        for i in range(equations):
            x = lax.mul(x, x) if i % 2 else lax.sin(x)
            if i % _EQUATIONS_PER_LOG == 0:
                logs[f"x{i}"] = x
        return x, logs

    return fun


# -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pair:
    """A program that logs, its hand-written version, and an argument for both."""

    name: str
    logged: Any
    by_hand: Any
    argument: Any


_STEPS = jnp.linspace(0.0, 1.0, 40_000)
PAIRS = [
    Pair("scan, 3 keys", scan, scan_by_hand, _STEPS),
    Pair("nested scan", nested, nested_by_hand, _STEPS),
    Pair("cond with the same keys", branches, branches_by_hand, _STEPS),
    Pair("vmap of scan", lanes, lanes_by_hand, jnp.tile(_STEPS, (8, 1))),
    Pair("grad of scan", derivative, derivative_by_hand, _STEPS),
]
