"""evosax with Haiku: a recurrent policy, evolved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import (
    assert_bitwise,
    assert_buffered,
    assert_close,
    assert_reduced,
    assert_spooled,
    assert_tapped,
    events_of,
    quiet,
    scaled,
)

algorithms = pytest.importorskip("evosax.algorithms")
hk = pytest.importorskip("haiku")
optax = pytest.importorskip("optax")

GENERATIONS, POPULATION, LENGTH = scaled(3), 4, 3


def network(log):
    """A recurrent network that logs in every step of its unrolled core."""

    class Core(hk.LSTM):
        def __call__(self, x, state):
            out, state = super().__call__(x, state)
            log({"hidden": jnp.mean(state.hidden)})
            return out, state

    def forward(xs):
        core = Core(3)
        outs, _ = hk.dynamic_unroll(core, xs, core.initial_state(None))
        hidden = jnp.mean(outs, -1)
        return hk.Linear(1)(outs)[-1, 0], hidden

    return hk.without_apply_rng(hk.transform(forward))


def evolving(log):
    xs = jnp.linspace(-1, 1, LENGTH)[:, None]
    net = network(log)

    def metrics(key, population, fitness, state, params):
        log({"best": jnp.min(fitness)})  # inside the algorithm's own `jit`
        return {"best": jnp.min(fitness)}

    def fitness_of(params):
        y, hidden = net.apply(params, xs)
        fitness = (y - 0.5) ** 2
        log({"fitness": fitness})
        return fitness, hidden

    def evolve(seed, rate):
        first, later = jax.random.split(jax.random.key(seed))
        params = network(quiet).init(first, xs)
        strategy = algorithms.Open_ES(
            POPULATION, params, optimizer=optax.sgd(0.1), metrics_fn=metrics
        )
        options = strategy.default_params
        state = strategy.init(first, params, options)

        def generation(state, i):
            key = jax.random.fold_in(later, i)
            population, state = strategy.ask(key, state, options)
            fitness, hidden = jax.vmap(fitness_of)(population)
            state, found = strategy.tell(
                key, population, rate * fitness, state, options
            )
            log({"mean": jnp.mean(fitness)}, step=i)
            return state, (fitness, hidden, found["best"], jnp.mean(fitness))

        return jax.lax.scan(generation, state, jnp.arange(GENERATIONS))

    return evolve


def expected(ys):
    """The events of all members, and of each one, from values returned by hand."""
    fitness, hidden, best, mean = jax.tree.map(np.asarray, ys)
    assert hidden.shape == (GENERATIONS, POPULATION, LENGTH)
    members = [
        events_of({"hidden": hidden[:, i].ravel()})
        + events_of({"fitness": fitness[:, i]})
        for i in range(POPULATION)
    ]
    steps = np.arange(GENERATIONS)
    return events_of({"best": best}) + events_of({"mean": mean}, step=steps), members


def test_generation_logs_members_and_metrics():
    plain = jax.jit(evolving(quiet))(0, 1.0)
    whole, members = expected(plain[1])
    assert len(whole) == 2 * GENERATIONS

    (state, ys), logs = jax.jit(lox.spool(evolving(lox.log)))(0, 1.0)
    assert_spooled(logs.filter(["best", "mean"]), whole)
    own = logs.filter(["hidden", "fitness"])
    assert own["hidden"].shape == (GENERATIONS * LENGTH, POPULATION)
    for lane, events in zip(own.lanes(), members, strict=True):
        assert_spooled(lane, events)
    assert_close(jax.tree.leaves((state, ys)), jax.tree.leaves(plain))

    found = jax.jit(lox.nolog(evolving(lox.log)))(0, 1.0)
    assert_bitwise(jax.tree.leaves(found), jax.tree.leaves(plain))


def test_tap_streams_and_reduces_generations():
    calls, buffers, means = [], [], []
    names = ["best", "mean"]
    tapped = lox.tap(evolving(lox.log), calls.append, argnames=names, keep_logs=True)
    buffered = lox.tap(tapped, buffers.append, argnames=names, buffer=2, keep_logs=True)
    reduce = {"best": "min", "mean": "last"}
    reduced = lox.tap(buffered, means.append, argnames=names, reduce=reduce)
    _, ys = lox.nolog(reduced)(0, 1.0)
    whole, _ = expected(ys)
    assert_buffered(calls, whole)
    assert [set(call) for call in calls] == [{"best"}, {"mean"}] * GENERATIONS
    assert_buffered(buffers, whole)
    for key, mode in reduce.items():
        (logs,) = [logs for logs in means if key in logs]
        assert_reduced(logs, whole, {key: mode})


def test_vmapped_evolution_logs_generations_per_seed():
    args = jnp.arange(2), jnp.array([1.0, 2.0])
    _, ys = jax.jit(jax.vmap(evolving(quiet)))(*args)
    _, logs = jax.jit(jax.vmap(lox.spool(evolving(lox.log))))(*args)
    for i, lane in enumerate(logs.lanes()):
        whole, members = expected(jax.tree.map(lambda x, i=i: x[i], ys))
        assert_spooled(lane.filter(["best", "mean"]), whole)
        inner = lane.filter(["hidden", "fitness"]).lanes()
        for member, events in zip(inner, members, strict=True):
            assert_spooled(member, events)


def test_policy_gradient_through_haiku_logs_forward_pass():
    xs = jnp.linspace(-1, 1, LENGTH)[:, None]
    params = network(quiet).init(jax.random.key(0), xs)

    def make(log):
        return lambda params: network(log).apply(params, xs)

    def gradient(fun):
        return jax.value_and_grad(fun, has_aux=True)

    (y, hidden), wanted = jax.jit(gradient(make(quiet)))(params)
    _, logs = lox.spool(gradient(make(lox.log)))(params)
    assert_spooled(logs, events_of({"hidden": hidden}))
    calls = []
    _, grads = lox.tap(gradient(make(lox.log)), calls.append)(params)
    assert_tapped(calls, events_of({"hidden": hidden}))
    assert_close(grads, wanted)
