"""Repeated eager calls of `lox.spool(f)`, which are not traced again."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

import lox

from .figure import Figure
from .interleaved import best_times
from .programs import scan, scan_by_hand


def figures() -> Iterator[Figure]:
    xs = jnp.linspace(0.0, 1.0, 10)
    spooled = lox.spool(scan)
    jitted = jax.jit(scan_by_hand)
    reused, recreated, by_hand = best_times(
        lambda: spooled(xs)[0].block_until_ready(),
        lambda: lox.spool(scan)(xs)[0].block_until_ready(),
        lambda: jitted(xs)[0].block_until_ready(),
        calls=500,
        rounds=25,
    )
    yield Figure(
        "eager `spool(f)(x)` / hand-written `jit(f)(x)`", reused / by_hand, 1.3
    )
    yield Figure("  with a new `spool(f)` at each call", recreated / by_hand, 1.3)
