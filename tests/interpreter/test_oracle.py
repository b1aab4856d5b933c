"""Random programs log what a plain Python run logs, under all transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests import oracle

X = 0.7
LANES = (0.3, 0.7, 1.9)
SEEDS = range(oracle.PROGRAMS)


def check(
    seed: int, program: oracle.Program | None = None, comparisons: int = 3
) -> None:
    program = program or oracle.generate(seed)
    function = oracle.function(program)
    events = oracle.expected(program, X)
    modes = [
        check_jit_spool,
        check_tap,
        check_vmap,
        check_tap_vmap,
        check_spool_grad,
        check_tap_grad,
        check_grad_spool,
        check_nolog,
    ]
    # three modes per program limit the time; every pair occurs often
    chosen = (
        modes[seed % len(modes)],
        modes[(seed // 8 + 3 * seed) % len(modes)],
        check_spool,
    )
    if comparisons == 1:
        chosen = ((*modes, check_spool)[seed // 7 % (len(modes) + 1)],)
    for mode in chosen:
        mode(program, function, events)


def check_spool(program, function, events):
    result, logs = lox.spool(function)(X)
    oracle.assert_spooled(logs, events)
    np.testing.assert_allclose(result, oracle.result(program, X), rtol=2e-5)


def check_jit_spool(program, function, events):
    oracle.assert_spooled(jax.jit(lox.spool(function))(X)[1].compact(), events)


def check_tap(program, function, events):
    calls = []
    lox.tap(function, calls.append)(X)
    oracle.assert_tapped(calls, events)


def check_vmap(program, function, events):
    _, logs = jax.vmap(lox.spool(function))(jnp.array(LANES))
    for x, lane in zip(LANES, logs.lanes() if logs else (), strict=bool(logs)):
        oracle.assert_spooled(lane, oracle.expected(program, x))
    _, logs = lox.spool(jax.vmap(function))(jnp.array(LANES))
    if logs:
        for x, lane in zip(LANES, logs.lanes(), strict=True):
            oracle.assert_spooled(lane, oracle.expected(program, x))


def check_tap_vmap(program, function, events):
    for transform in (
        lambda tap: tap(jax.vmap(function)),
        lambda tap: jax.vmap(tap(function)),
    ):
        calls = []
        transform(lambda f: lox.tap(f, calls.append))(jnp.array(LANES))  # noqa: B023
        jax.effects_barrier()
        for x in LANES:
            mine = [c for c in calls if np.allclose(c.who[next(iter(c))], x)]
            oracle.assert_tapped(mine, oracle.expected(program, x))


def check_spool_grad(program, function, events):
    gradient, logs = lox.spool(jax.grad(function))(X)
    oracle.assert_spooled(logs, events)
    plain = oracle.gradient(function, X)
    np.testing.assert_allclose(gradient, plain, rtol=1e-4, atol=1e-6)


def check_tap_grad(program, function, events):
    calls = []
    lox.tap(jax.grad(function), calls.append)(X)
    oracle.assert_tapped(calls, events)


def check_grad_spool(program, function, events):
    gradient, logs = jax.grad(lox.spool(function), has_aux=True)(X)
    oracle.assert_spooled(logs.compact(), events)
    plain = oracle.gradient(function, X)
    np.testing.assert_allclose(gradient, plain, rtol=1e-4, atol=1e-6)


def check_nolog(program, function, events):
    seen = []
    lox.set_default(seen.append)
    result = lox.nolog(function)(X)
    jax.effects_barrier()
    assert not seen
    np.testing.assert_allclose(result, oracle.result(program, X), rtol=2e-5)
    untransformed = function if len(events) % 2 else jax.jit(function)
    np.testing.assert_allclose(result, untransformed(X), rtol=2e-5)
    jax.effects_barrier()
    assert len(seen) == len(events)


def check_unbounded(seed: int, program: oracle.Program | None = None) -> None:
    """Loops without a static length can be tapped."""
    program = program or oracle.generate(seed, unbounded=True)
    function = oracle.function(program)
    check_tap(program, function, oracle.expected(program, X))
    if seed % 2:
        check_tap_vmap(program, function, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_program_logs_what_plain_python_logs(seed):
    check(seed)


@pytest.mark.parametrize("seed", [10_000 + s for s in SEEDS[::3]])
def test_random_program_with_unbounded_loops_taps_what_plain_python_logs(seed):
    check_unbounded(seed)
