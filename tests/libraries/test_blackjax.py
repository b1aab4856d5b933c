"""BlackJAX: NUTS with window adaptation, chain by chain and vmapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import (
    assert_bitwise,
    assert_buffered,
    assert_close,
    assert_recorded,
    assert_reduced,
    assert_spooled,
    assert_tapped,
    by_key,
    events_of,
    quiet,
    record,
    record_lanes,
    scaled,
)

blackjax = pytest.importorskip("blackjax")

WARMUP, SAMPLES = scaled(30), scaled(5)
CAPACITY = 40 * (WARMUP + SAMPLES)


def density_of(log, chain):
    def log_density(x):
        value = -0.5 * jnp.sum(x**2 / jnp.array([1.0, 4.0]))
        log({"density": value}, lane=chain)
        return value

    return log_density


def sampling(log):
    """Samples of one chain; every evaluation of the density is logged as well."""

    def chain(number):
        log_density = density_of(log, number)
        adapt, sample = jax.random.split(jax.random.key(number))
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), _ = warmup.run(adapt, jnp.ones(2), num_steps=WARMUP)
        log({"step_size": parameters["step_size"]}, lane=number)
        kernel = blackjax.nuts(log_density, **parameters).step

        def step(state, i):
            state, info = kernel(jax.random.fold_in(sample, i), state)
            values = {
                "position": state.position,
                "acceptance": info.acceptance_rate,
                "leaps": info.num_integration_steps,
            }
            log(values, step=i, lane=number)
            return state, values

        state, threaded = jax.lax.scan(step, state, jnp.arange(SAMPLES))
        return state, parameters, threaded

    return chain


CHAINS = (jnp.arange(2),)
MODES = {"density": "mean", "position": "mean", "leaps": "sum"}


@pytest.fixture(scope="module")
def recorded():
    """The events of each chain, run alone."""
    return record_lanes(sampling, *CHAINS)


def samples_of(threaded, chain):
    """Events of the values that a chain returned by hand."""
    steps = np.arange(SAMPLES)
    return events_of(threaded, step=steps, lane=np.full(SAMPLES, chain))


def test_nuts_logs_every_sample_and_density_evaluation():
    (_, _, threaded), events = record(sampling, 0)
    assert_recorded(events, samples_of(threaded, 0))
    rows = by_key(events)
    leaps = np.sum(threaded["leaps"])
    assert len(rows["density"]) > WARMUP + leaps  # one per leap, and the warm-up's

    calls, buffers = [], []
    tapped = lox.tap(sampling(lox.log), calls.append, keep_logs=True)
    buffered = lox.tap(tapped, buffers.append, buffer=50, keep_logs=True)
    reduced = lox.spool(buffered, list(MODES), reduce=MODES, keep_logs=True)
    spooled = lox.spool(reduced, capacity=CAPACITY)
    ((_, _, threaded), means), logs = jax.jit(spooled)(0)
    jax.effects_barrier()
    assert_spooled(logs, events)
    assert_recorded(events, samples_of(threaded, 0))
    assert_reduced(means, events, MODES)
    assert_tapped(calls, events)
    assert_buffered(buffers, events)


def test_vmapped_chains_log_the_samples_that_scan_returns():
    run = jax.vmap(sampling(lox.log))
    (_, _, threaded), logs = lox.spool(run, argnames=["position", "leaps"])(*CHAINS)
    for i, lane in enumerate(logs.lanes()):
        own = jax.tree.map(lambda x, i=i: x[i], threaded)
        del own["acceptance"]
        assert_spooled(lane, samples_of(own, i))


def test_vmapped_chains_log_their_own_trees(recorded):
    assert len({len(events) for events in recorded}) > 1
    spooled = lox.spool(sampling(lox.log), capacity=CAPACITY)
    _, logs = jax.jit(jax.vmap(spooled))(*CHAINS)
    for lane, events in zip(logs.lanes(), recorded, strict=True):
        assert_spooled(lane, events, rtol=1e-3)  # other roundings, hundreds of leaps


def test_nolog_does_not_change_samples():
    wanted = jax.jit(jax.vmap(sampling(quiet)))(*CHAINS)
    found = jax.jit(jax.vmap(lox.nolog(sampling(lox.log))))(*CHAINS)
    assert_bitwise(found, wanted)


def test_tap_does_not_change_samples(recorded):
    calls = []
    tapped = lox.tap(jax.vmap(sampling(lox.log)), calls.append, argnames="density")
    _, _, threaded = tapped(*CHAINS)
    for i, events in enumerate(recorded):
        own = [call for call in calls if call.lane["density"] == i]
        wanted = [event for event in events if "density" in event[0]]
        assert_tapped(own, wanted, rtol=1e-3)
        assert_close(
            threaded["position"][i],
            np.stack([row for row, _ in by_key(events)["position"]]),
            rtol=1e-3,
        )
