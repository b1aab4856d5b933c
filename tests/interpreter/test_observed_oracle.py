"""Observed loops of random programs log the values of loops in a plain Python run."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests import oracle

X = 0.7
LANES = (0.3, 0.7, 1.9)
PROGRAMS = oracle.PROGRAMS // 4
LOOPS = ("scan", "reverse_scan", "fori", "fori_dynamic", "while")


def loops_in(program):
    """The number of loops that may have an iteration."""
    inside = sum(loops_in(block) for s in program for block in s.blocks)
    return inside + sum(s.kind in LOOPS and s.number > 0 for s in program)


def seeds(unbounded=False, count=PROGRAMS):
    """The first seeds of programs with several loops."""
    found = (
        s for s in itertools.count() if loops_in(oracle.generate(s, unbounded)) > 1
    )
    return list(itertools.islice(found, count))


def changed(body):
    """A body that always changes its carry, which JAX would leave out otherwise."""
    return lambda x, *rest: body(x, *rest) + 0.125


class Jax(oracle.Jax):
    def scan(self, body, x, length, reverse=False):
        return super().scan(changed(body), x, length, reverse)

    def fori(self, body, x, length):
        return super().fori(changed(body), x, length)

    def fori_dynamic(self, body, x, length):
        return super().fori_dynamic(changed(body), x, length)


class Plain(oracle.Plain):
    def scan(self, body, x, length, reverse=False):
        body = changed(body)
        for n, i in enumerate(reversed(range(length)) if reverse else range(length)):
            x = body(x, i)
            self.log({"observed": x}, iteration=n)
        return x

    fori = fori_dynamic = scan

    def while_loop(self, cond, body, x):
        n = 0
        while cond(x):
            x = body(x)
            self.log({"observed": x[0]}, iteration=n)
            n += 1
        return x


def value(leaves):
    """The carry, which is the one number that is not a counter."""
    found = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
    return {"observed": found[0]} if found else {}


def observed(program):
    return lox.observe(lambda x: oracle.run(program, x, Jax()), carry=value)


def expected(program, x):
    plain = Plain()
    oracle.run(program, np.float32(x), plain)
    return plain.events


def tapped(fun, x):
    calls = []
    lox.tap(fun, calls.append)(x)
    return calls


@pytest.mark.parametrize("seed", seeds())
def test_observed_random_program_logs_its_iterations_once(seed):
    program = oracle.generate(seed)
    events = expected(program, X)
    fun = observed(program)
    oracle.assert_tapped(tapped(fun, X), events)
    gradient, logs = lox.spool(jax.grad(fun))(X)
    oracle.assert_spooled(logs, events)
    plain = oracle.gradient(lambda x: oracle.run(program, x, Jax()), X)
    np.testing.assert_allclose(gradient, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", seeds()[::2])
def test_observed_random_program_logs_in_every_lane(seed):
    program = oracle.generate(seed)
    _, logs = jax.vmap(lox.spool(observed(program)))(jnp.array(LANES))
    for x, lane in zip(LANES, logs.lanes() if logs else (), strict=bool(logs)):
        oracle.assert_spooled(lane.compact(), expected(program, x))


@pytest.mark.parametrize("seed", seeds(unbounded=True)[::2])
def test_observed_random_program_with_unbounded_loops_is_tapped(seed):
    program = oracle.generate(seed, unbounded=True)
    oracle.assert_tapped(tapped(observed(program), X), expected(program, X))
    _, logs = lox.spool(jax.vmap(observed(program)), capacity=200)(jnp.array(LANES))
    if "observed" in logs:
        lanes = logs.lanes()
        for x, lane in zip(LANES, lanes, strict=True):
            own = [e for e in expected(program, x) if "observed" in e[0]]
            rows = oracle.by_key(own).get("observed", [])
            lane = lane.compact()
            found = lane.get("observed", [])
            np.testing.assert_allclose(found, rows, rtol=2e-5, atol=1e-6)
