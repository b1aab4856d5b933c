"""Streams of random programs return what NumPy computes from a plain Python run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests import oracle, streams_oracle
from tests.interpreter.test_oracle import LANES, X

SEEDS = range(oracle.PROGRAMS)
CAPACITY = 200  # more rows than any program logs per key


def check(
    seed: int, program: oracle.Program | None = None, comparisons: int = 2
) -> None:
    unbounded = seed % 4 > 1
    program = program or oracle.generate(seed, unbounded=unbounded)
    function = oracle.function(program)
    options = streams_oracle.options(seed)
    modes = [
        check_spool,
        check_jit_spool,
        check_vmap_spool,
        check_spool_vmap,
        check_tap,
        check_buffered_tap,
        check_tap_vmap,
        check_vmap_tap,
    ]
    if not unbounded:
        modes += [check_spool_grad, check_grad_spool, check_tap_grad]
    first = seed // 4
    for number in {first, first * 3 + 1} if comparisons == 2 else {seed // 7}:
        modes[number % len(modes)](program, function, options)


def spooled(function, options):
    return lox.spool(function, capacity=CAPACITY, **options.given())


def check_spool(program, function, options):
    result, logs = spooled(function, options)(X)
    streams_oracle.assert_spooled(logs, oracle.expected(program, X), options)
    np.testing.assert_allclose(result, oracle.result(program, X), rtol=2e-5)


def check_jit_spool(program, function, options):
    logs = jax.jit(spooled(function, options))(X)[1].compact()
    streams_oracle.assert_spooled(logs, oracle.expected(program, X), options)


def check_vmap_spool(program, function, options):
    _, logs = jax.vmap(spooled(function, options))(jnp.array(LANES))
    assert_lanes(logs, program, options)


def check_spool_vmap(program, function, options):
    _, logs = spooled(jax.vmap(function), options)(jnp.array(LANES))
    assert_lanes(logs, program, options)


def assert_lanes(logs, program, options):
    for x, lane in zip(LANES, logs.lanes() if logs else (), strict=bool(logs)):
        streams_oracle.assert_spooled(lane, oracle.expected(program, x), options)


def check_spool_grad(program, function, options):
    gradient, logs = spooled(jax.grad(function), options)(X)
    streams_oracle.assert_spooled(logs, oracle.expected(program, X), options)
    plain = oracle.gradient(function, X)
    np.testing.assert_allclose(gradient, plain, rtol=1e-4, atol=1e-6)


def check_grad_spool(program, function, options):
    gradient, logs = jax.grad(spooled(function, options), has_aux=True)(X)
    streams_oracle.assert_spooled(logs.compact(), oracle.expected(program, X), options)
    plain = oracle.gradient(function, X)
    np.testing.assert_allclose(gradient, plain, rtol=1e-4, atol=1e-6)


def check_tap(program, function, options, buffer=None):
    calls = []
    lox.tap(function, calls.append, buffer=buffer, **options.given())(X)
    room = None if options.reduce and not options.window else buffer
    streams_oracle.assert_tapped(calls, oracle.expected(program, X), options, room)


def check_buffered_tap(program, function, options):
    check_tap(program, function, options, buffer=3)


def check_tap_grad(program, function, options):
    calls = []
    lox.tap(jax.grad(function), calls.append, buffer=2, **options.given())(X)
    room = None if options.reduce and not options.window else 2
    streams_oracle.assert_tapped(calls, oracle.expected(program, X), options, room)


def check_tap_vmap(program, function, options):
    calls = []
    tapped = lox.tap(jax.vmap(function), calls.append, buffer=2, **options.given())
    tapped(jnp.array(LANES))
    assert_tapped_lanes(calls, program, options)


def check_vmap_tap(program, function, options):
    calls = []
    tapped = lox.tap(function, calls.append, buffer=2, **options.given())
    jax.vmap(tapped)(jnp.array(LANES))
    jax.effects_barrier()
    assert_tapped_lanes(calls, program, options)


def assert_tapped_lanes(calls, program, options):
    room = None if options.reduce and not options.window else 2
    for x in LANES:
        mine = [c for c in calls if np.allclose(np.ravel(c.who[next(iter(c))])[0], x)]
        events = oracle.expected(program, x)
        streams_oracle.assert_tapped(mine, events, options, room)


@pytest.mark.parametrize("seed", [20_000 + s for s in SEEDS[::2]])
def test_random_program_streams_what_numpy_computes_from_plain_python(seed):
    check(seed)
