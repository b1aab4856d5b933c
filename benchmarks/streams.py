"""Reductions, intervals and capacity: what is carried instead of rows, and its price.

The programs train a small model, since that is what people log. Beside each stands
the same with next to nothing in the loop, where every carried number shows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .hlo import bytes_of, instructions
from .interleaved import NOISE, best_times

_SHORT, _LONG = 1_000, 1_000_000
_STEPS = 20_000
_ROOM = 20_000


def figures() -> Iterator[Figure]:
    yield from _memory()
    yield from _means()
    yield from _capacity()
    yield from _branches()


def _memory() -> Iterator[Figure]:
    def steps(length: int) -> Any:
        return jax.ShapeDtypeStruct((length,), jnp.float32)

    mean = lox.spool(_bare, reduce="mean")
    yield Figure(
        'bytes of `spool(reduce="mean")`, 1e6 steps / 1e3 steps',
        bytes_of(mean, steps(_LONG)) / bytes_of(mean, steps(_SHORT)),
        1.0,
    )
    every = 100
    kept = _LONG // every * 4
    yield Figure(
        f"bytes of `spool(interval={every})` / bytes of the rows kept",
        bytes_of(lox.spool(_bare, interval=every), steps(_LONG)) / kept,
        1.05,
    )
    window = lox.spool(_bare, reduce="mean", window=every)
    yield Figure(
        f"  the same with `window={every}`", bytes_of(window, steps(_LONG)) / kept, 1.05
    )


# --- a mean ------------------------------------------------------------------


def _gradient(w: Any, x: Any) -> tuple[Any, Any]:
    """A step of a linear regression."""
    error = jnp.tanh(x @ w) - x[:, 0]
    return (error**2).mean(), x.T @ error / len(x)


def _train(seeds: Any) -> Any:
    def body(w: Any, i: Any) -> Any:
        loss, gradient = _gradient(w, _data(i))
        lox.log({"loss": loss}, step=i)
        return w - 0.1 * gradient, None

    return lax.scan(body, jnp.zeros(32), seeds)[0]


def _train_by_hand(seeds: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        w, total, _ = carry
        loss, gradient = _gradient(w, _data(i))
        return (w - 0.1 * gradient, total + loss, i), None

    start = (jnp.zeros(32), 0.0, 0)
    w, total, step = lax.scan(body, start, seeds)[0]
    return w, {"loss": total / len(seeds)}, step


def _data(i: Any) -> Any:
    return jnp.cos(i * jnp.arange(16 * 32.0)).reshape(16, 32)


def _bare(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        carry = carry * 0.5 + x
        lox.log({"x": carry})
        return carry, None

    return lax.scan(body, 0.0, xs)[0]


def _bare_by_hand(xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        value, total = carry
        value = value * 0.5 + x
        return (value, total + value), None

    value, total = lax.scan(body, (0.0, 0.0), xs)[0]
    return value, {"x": total / len(xs)}


def _means() -> Iterator[Figure]:
    seeds, xs = jnp.arange(_STEPS // 10), jnp.arange(10.0 * _STEPS)
    yield Figure(
        'run time of `spool(reduce="mean")` / the mean by hand',
        _ratio(lox.spool(_train, reduce="mean"), _train_by_hand, seeds),
        1.1,
    )
    yield Figure(
        "  in a loop of two operations (by hand, rounding errors add up)",
        _ratio(lox.spool(_bare, reduce="mean"), _bare_by_hand, xs),
    )


def _ratio(first: Callable[..., Any], second: Callable[..., Any], *args: Any) -> float:
    runs = [jax.jit(first), jax.jit(second)]
    time, other = best_times(
        *(lambda run=run: jax.block_until_ready(run(*args)) for run in runs), rounds=15
    )
    return time / other


# --- a buffer in a while loop ------------------------------------------------


def _solve(bound: Any) -> Any:
    def body(carry: Any) -> Any:
        i, w = carry
        loss, gradient = _gradient(w, _data(i))
        lox.log({"loss": loss}, step=i)
        return i + 1, w - 0.1 * gradient

    return lax.while_loop(lambda c: c[0] < bound, body, (0, jnp.zeros(32)))


def _solve_by_hand(bound: Any) -> Any:
    def body(carry: Any) -> Any:
        i, w, losses, steps = carry
        loss, gradient = _gradient(w, _data(i))
        return i + 1, w - 0.1 * gradient, losses.at[i].set(loss), steps.at[i].set(i)

    rows = jnp.zeros(_ROOM), jnp.zeros(_ROOM, jnp.int32)
    return lax.while_loop(lambda c: c[0] < bound, body, (0, jnp.zeros(32), *rows))


def _capacity() -> Iterator[Figure]:
    yield Figure(
        "`spool(capacity=)` of a `while_loop` / a buffer by hand",
        _ratio(lox.spool(_solve, capacity=_ROOM), _solve_by_hand, _STEPS // 10),
        1.1,
    )


# --- branches ----------------------------------------------------------------


def _branch(x: Any) -> Any:
    def left(x: Any) -> Any:
        lox.log({"x": x})
        return jnp.sin(x)

    def right(x: Any) -> Any:
        lox.log({"x": -x})
        return jnp.cos(x)

    return lax.scan(
        lambda c, i: (lax.cond(i % 3 == 0, left, right, c), None), x, jnp.arange(_LONG)
    )[0]


def _branch_by_hand(x: Any) -> Any:
    def step(c: Any, i: Any) -> Any:
        return lax.cond(
            i % 3 == 0, lambda c: (jnp.sin(c), c), lambda c: (jnp.cos(c), -c), c
        )

    result, rows = lax.scan(step, x, jnp.arange(_LONG))
    return result, {"x": rows}


def _branches() -> Iterator[Figure]:
    spooled = lox.spool(_branch)
    yield Figure(
        "`cond` whose branches log the same keys / by hand, instructions",
        len(instructions(spooled, 1.0)) / len(instructions(_branch_by_hand, 1.0)),
        1.0,
    )
    yield Figure("  masks in the program", len(jax.jit(spooled)(1.0)[1].mask), 0.0)
    yield Figure("  run time", _ratio(spooled, _branch_by_hand, 1.0), 1.0 + NOISE)
