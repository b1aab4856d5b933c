"""Programs with Equinox's loops, and what they log."""

import collections

import jax
import numpy as np
import pytest

import lox

eqx = pytest.importorskip("equinox")
eqxi = pytest.importorskip("equinox.internal")
lx = pytest.importorskip("lineax")
KINDS = ["lax", "bounded", "checkpointed"]


def halve(kind, *, base=2, max_steps=16, log_condition=False):
    """Halves a number until it is at most 1, and logs every number before."""

    def fun(x):
        def cond(x):
            if log_condition:
                lox.log({"cond": x})
            return x > 1

        def body(x):
            lox.log({"x": x})
            return x / 2

        options = {} if kind == "lax" else {"max_steps": max_steps}
        if kind == "bounded":
            options["base"] = base
        return eqxi.while_loop(cond, body, x, kind=kind, **options)

    return fun


def halvings(x):
    rows = []
    while x > 1:
        rows.append(x)
        x /= 2
    return rows


STARTS = [3.0, 20.0, 0.5, 7.0]


def rows(logs):
    return {key: np.asarray(value).tolist() for key, value in logs.items()}


def rows_per_lane(logs, depth=1):
    if depth == 0:
        return [rows(logs.compact())]
    return [row for lane in logs.lanes() for row in rows_per_lane(lane, depth - 1)]


def alone(fun, xs, **options):
    """What each lane logs when it runs alone."""
    spooled = lox.spool(fun, **(options or {"capacity": 300}))
    return [rows(spooled(x)[1]) for x in xs]


def assert_same_rows(found, expected, rtol=0.0):
    assert len(found) == len(expected)
    for lane, other in zip(found, expected, strict=True):
        assert list(lane) == list(other)
        for key in lane:
            np.testing.assert_allclose(lane[key], other[key], rtol=rtol, atol=rtol)


def tapped(transform, fun, *args):
    """The result, and what a callback gets as a multiset."""
    received = collections.Counter()

    def callback(logs):
        received.update((key, float(value)) for key, value in logs.items())

    result = transform(fun, callback)(*args)
    jax.effects_barrier()
    return result, received


def counted(per_lane):
    return collections.Counter(
        (key, value)
        for lane in per_lane
        for key, values in lane.items()
        for value in np.ravel(values)
    )


SPOOLED = {
    "vmap(spool)": lambda f, **o: jax.vmap(lox.spool(f, **o)),
    "spool(vmap)": lambda f, **o: lox.spool(jax.vmap(f), **o),
    "jit(vmap(spool))": lambda f, **o: jax.jit(jax.vmap(lox.spool(f, **o))),
    "spool(jit(vmap(jit)))": lambda f, **o: lox.spool(
        jax.jit(jax.vmap(jax.jit(f))), **o
    ),
    "vmap(spool(spool))": lambda f, **o: (
        lambda xs: jax.vmap(lox.spool(lox.spool(f, keep_logs=True, **o), **o))(xs)
    ),
}

TAPPED = {
    "tap(vmap)": lambda f, c: lox.tap(jax.vmap(f), c),
    "vmap(tap)": lambda f, c: jax.vmap(lox.tap(f, c)),
    "jit(vmap(tap))": lambda f, c: jax.jit(jax.vmap(lox.tap(f, c))),
    "tap(jit(vmap))": lambda f, c: lox.tap(jax.jit(jax.vmap(f)), c),
}
