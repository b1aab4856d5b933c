"""Flax NNX: a variational autoencoder, whose training changes its arguments.

The layers are scanned over, and have their own BatchNorm, Dropout and random numbers. A
step must update the model, the optimizer and the random numbers as it does without lox.
"""

from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logify
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

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

LAYERS, STEPS = 2, scaled(3)
DATA = jax.random.normal(jax.random.key(0), (STEPS, 8, 4))


def rms(x):
    return jnp.sqrt(jnp.mean(x**2))


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(6, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x, log):
        x = x + self.dropout(nnx.relu(self.norm(self.linear(x))))
        log({"rms": rms(x)})
        return x


class VAE(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs):
            return Layer(rngs)

        self.enter = nnx.Linear(4, 6, rngs=rngs)
        self.layers = stack(rngs)
        self.code = nnx.Linear(6, 4, rngs=rngs)
        self.decoder = nnx.Linear(2, 4, rngs=rngs)
        self.rngs = rngs
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x, log):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        def encode(x, layer):
            x = layer(x, log)
            return x, rms(x)

        self.calls[...] += 1
        x, threaded = encode(self.enter(x), self.layers)
        mean, log_std = jnp.split(self.code(x), 2, axis=-1)
        noise = jax.random.normal(self.rngs.noise(), mean.shape)
        kl = 0.5 * jnp.mean(mean**2 + jnp.exp(2 * log_std) - 1 - 2 * log_std)
        return self.decoder(mean + jnp.exp(log_std) * noise), kl, threaded


def training(log):
    """One step of training, as in Flax's own examples."""

    def step(model, optimizer, x):
        def loss_of(model):
            y, kl, rms = model(x, log)
            error = jnp.mean((y - x) ** 2)
            log({"error": error, "kl": kl})
            return error + 0.1 * kl, {"error": error, "kl": kl, "rms": rms}

        grad_of = nnx.value_and_grad(loss_of, has_aux=True)
        (loss, threaded), grads = grad_of(model)
        optimizer.update(model, grads)
        log({"norm": optax.tree.norm(grads)}, step=optimizer.step[...])
        return loss, {**threaded, "norm": optax.tree.norm(grads)}

    return step


def run(step, receive=lambda out: out):
    """Trains; returns the final state, and what every step returned."""
    model = VAE(nnx.Rngs(0, noise=1))
    model.train()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    outs = [receive(step(model, optimizer, x)) for x in DATA]
    jax.effects_barrier()
    state = nnx.state((model, optimizer))
    return jax.tree.leaves(nnx.to_pure_dict(state)), outs


@pytest.fixture(scope="module")
def plain():
    """The training without logs."""
    state, outs = run(nnx.jit(training(quiet)))
    before, _ = run(lambda *args: None)
    moved = sum(np.any(a != b) for a, b in zip(before, state, strict=True))
    assert moved > len(state) // 2  # parameters, moments, statistics, counters
    return state, outs


def expected(outs):
    """The events of every step, from the values that it returned by hand."""
    steps = []
    for i, (_, threaded) in enumerate(jax.tree.map(np.asarray, outs)):
        threaded = {key: np.atleast_1d(value) for key, value in threaded.items()}
        norm, layers = threaded.pop("norm"), threaded.pop("rms")
        assert layers.shape == (LAYERS,)
        events = events_of({"rms": layers}) + events_of(threaded)
        steps.append(events + events_of({"norm": norm}, step=np.array([i + 1])))
    return steps


def assert_trained(found, plain):
    """Asserts that training is the same: the final state, and the losses."""
    assert_bitwise(found[0], plain[0])
    assert_bitwise(found[1], plain[1])


SPOOLS = {
    "spool(step)": lambda step: lox.spool(step),
    "spool(nnx.jit(step))": lambda step: lox.spool(nnx.jit(step)),
    "nnx.jit(spool(step))": lambda step: nnx.jit(lox.spool(step)),
}


@pytest.mark.parametrize("way", SPOOLS)
def test_spooled_step_trains_the_model(plain, way):
    logs = []

    def receive(out):
        result, of_step = out
        logs.append(of_step)
        return result

    found = run(SPOOLS[way](training(lox.log)), receive)
    assert_trained(found, plain)
    for of_step, events in zip(logs, expected(plain[1]), strict=True):
        assert_spooled(of_step, events)


TAPS = {
    "tap(step)": lambda step, call: lox.tap(step, call),
    "tap(nnx.jit(step))": lambda step, call: lox.tap(nnx.jit(step), call),
    "nnx.jit(tap(step))": lambda step, call: nnx.jit(lox.tap(step, call)),
}


@pytest.mark.parametrize("way", TAPS)
def test_tapped_step_trains_the_model(plain, way):
    calls = []
    found = run(TAPS[way](training(lox.log), calls.append))
    assert_trained(found, plain)
    assert_tapped(calls, list(chain(*expected(plain[1]))))


NOLOGS = {
    "nolog(step)": lambda step: lox.nolog(step),
    "nolog(nnx.jit(step))": lambda step: lox.nolog(nnx.jit(step)),
    "nnx.jit(nolog(step))": lambda step: nnx.jit(lox.nolog(step)),
}


@pytest.mark.parametrize("way", NOLOGS)
def test_nolog_step_trains_the_model(plain, way):
    assert_trained(run(NOLOGS[way](training(lox.log))), plain)


def test_buffered_tap_and_reduction_train_the_model(plain):
    calls, reduced = [], []
    reduce = {"rms": "mean", "error": "last"}
    step = lox.spool(training(lox.log), list(reduce), reduce=reduce, keep_logs=True)
    tapped = lox.tap(nnx.jit(step), calls.append, buffer=2)

    def receive(out):
        result, logs = out
        reduced.append(logs)
        return result

    assert_trained(run(tapped, receive), plain)
    steps = expected(plain[1])
    assert_buffered(calls, list(chain(*steps)))
    for logs, events in zip(reduced, steps, strict=True):
        assert_reduced(logs, events, reduce)


def test_logified_step_trains_the_model(plain):
    def log(data, **steps):
        for name, value in data.items():
            logify.log(name, value, reduction="append")

    logs = []

    def receive(out):
        result, of_step = out
        logs.append(of_step.asdict())
        return result

    assert_trained(run(logify.logify(nnx.jit(training(log))), receive), plain)
    for of_step, (_, threaded) in zip(logs, plain[1], strict=True):
        assert set(of_step) == set(threaded)
        for key, value in threaded.items():
            assert_close(jnp.ravel(of_step[key]["append"]), jnp.atleast_1d(value))


@pytest.mark.parametrize("way", ("tap", "spool"))
def test_logger_gets_logs_of_step_that_trains_the_model(plain, way, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    step = getattr(logger, way)(nnx.jit(training(lox.log)), state)
    assert_trained(run(step), plain)
    logger.finish(state)
    assert_spooled(lox.load(tmp_path), list(chain(*expected(plain[1]))))


def test_evaluation_mode_reaches_the_scanned_layers():
    def evaluate(model, x, log):
        return model(x, log)[1]

    def prepared():
        model = VAE(nnx.Rngs(0, noise=1))
        model.eval()
        return model

    plain, logged = prepared(), prepared()
    wanted = nnx.jit(lambda model, x: evaluate(model, x, quiet))(plain, DATA[0])
    found, logs = lox.spool(lambda model, x: evaluate(model, x, lox.log))(
        logged, DATA[0]
    )
    assert_bitwise(found, wanted)
    assert logs["rms"].shape == (LAYERS,)
    states = [jax.tree.leaves(nnx.to_pure_dict(nnx.state(m))) for m in (logged, plain)]
    assert_bitwise(*states)


def test_nnx_vmap_trains_and_logs_every_member():
    members = 2

    def make(log):
        @nnx.vmap(in_axes=(0, 0, None))
        def step(model, optimizer, x):
            return training(log)(model, optimizer, x)

        return step

    def prepared():
        @nnx.vmap
        def create(key):
            model = VAE(nnx.Rngs(key, noise=jax.random.fold_in(key, 1)))
            return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

        return create(jax.random.split(jax.random.key(0), members))

    plain, logged = prepared(), prepared()
    wanted = nnx.jit(make(quiet))(*plain, DATA[0])
    found, logs = lox.spool(nnx.jit(make(lox.log)))(*logged, DATA[0])
    assert_bitwise(found, wanted)
    assert_bitwise(
        *(jax.tree.leaves(nnx.to_pure_dict(nnx.state(all))) for all in (logged, plain))
    )
    for i, lane in enumerate(logs.lanes()):
        _, threaded = jax.tree.map(lambda x, i=i: x[i], wanted)
        assert_spooled(lane.filter("rms"), events_of({"rms": threaded["rms"]}))
        assert_close(lane["kl"], threaded["kl"])
