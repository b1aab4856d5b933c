"""Repeated eager calls of `lox.spool(f)`, which are not traced again."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .interleaved import best_times
from .programs import scan, scan_by_hand


def figures() -> Iterator[Figure]:
    xs = jnp.linspace(0.0, 1.0, 10)
    spooled = lox.spool(scan)
    jitted = jax.jit(scan_by_hand)
    what = "eager `spool(f)(x)` / hand-written `jit(f)(x)`"
    for wait, name in (
        (lambda out: out[0].block_until_ready(), what),
        (jax.block_until_ready, "  waiting for result and logs"),
    ):
        reused, recreated, by_hand = best_times(
            lambda wait=wait: wait(spooled(xs)),
            lambda wait=wait: wait(lox.spool(scan)(xs)),
            lambda wait=wait: wait(jitted(xs)),
            calls=20,
            rounds=6,
            repeats=200,
        )
        yield Figure(name, reused / by_hand, 1.15)
        yield Figure("  with a new `spool(f)` at each call", recreated / by_hand, 1.2)
    yield from _pytrees(xs)
    yield from _rows_that_may_not_happen()


def _ratio(first: Callable[[], Any], second: Callable[[], Any]) -> float:
    time, other = best_times(
        lambda: jax.block_until_ready(first()),
        lambda: jax.block_until_ready(second()),
        calls=20,
        rounds=6,
        repeats=100,
    )
    return time / other


# --- pytrees -----------------------------------------------------------------


def _model(params: Any, xs: Any) -> tuple[Any, Any]:
    start, layer = params["start"], params["layer"]
    return scan_by_hand(layer["scale"] * xs + layer["shift"] + start)


def _train(params: Any, xs: Any) -> Any:
    result, metrics = _model(params, xs)
    lox.log(metrics)
    return result


def _train_with_step(params: Any, xs: Any) -> Any:
    result, metrics = _model(params, xs)
    lox.log(metrics, step=params["start"])
    return result


def _with_step_by_hand(params: Any, xs: Any) -> Any:
    result, metrics = _model(params, xs)
    return result, metrics, dict.fromkeys(metrics, params["start"])


def _pytrees(xs: Any) -> Iterator[Figure]:
    one = jnp.ones(())
    params = {"start": one, "layer": {"scale": one, "shift": one}}
    spooled, jitted = lox.spool(_train), jax.jit(_model)
    yield Figure(
        "  with a nested dict of three arrays, and an array",
        _ratio(lambda: spooled(params, xs), lambda: jitted(params, xs)),
        1.3,
    )
    yield Figure(
        "    the array by name",
        _ratio(lambda: spooled(params, xs=xs), lambda: jitted(params, xs=xs)),
        1.3,
    )
    with_step, by_hand = lox.spool(_train_with_step), jax.jit(_with_step_by_hand)
    yield Figure(
        "    logs with a step",
        _ratio(lambda: with_step(params, xs), lambda: by_hand(params, xs)),
        1.3,
    )


# --- rows that may not happen ------------------------------------------------

_CAPACITY = 1_000


def _shrinks(x: Any) -> Any:
    def body(x: Any) -> Any:
        lox.log({"x": x, "square": x * x})
        return x * 0.97

    return lax.while_loop(lambda x: x > 1e-4, body, x)


def _shrinks_by_hand(x: Any) -> Any:
    def body(carry: Any) -> Any:
        x, count, xs, squares = carry
        xs = xs.at[count].set(x, mode="drop")
        squares = squares.at[count].set(x * x, mode="drop")
        return x * 0.97, count + 1, xs, squares

    rows = jnp.zeros(_CAPACITY)
    x, count, xs, squares = lax.while_loop(
        lambda carry: carry[0] > 1e-4, body, (x, 0, rows, rows)
    )
    return x, {"x": xs, "square": squares}, count


def _rows_that_may_not_happen() -> Iterator[Figure]:
    x = jnp.float32(1)
    spooled = lox.spool(_shrinks, capacity=_CAPACITY)
    jitted, by_hand = jax.jit(spooled), jax.jit(_shrinks_by_hand)
    yield Figure(
        "`jit(spool(f, capacity=))(x)` of a `while_loop` / hand-written buffer",
        _ratio(lambda: jitted(x), lambda: by_hand(x)),
        1.2,
    )
    yield Figure(
        "  eager (removes rows that did not happen; by hand, they are kept)",
        _ratio(lambda: spooled(x), lambda: by_hand(x)),
    )
