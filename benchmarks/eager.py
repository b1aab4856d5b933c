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
