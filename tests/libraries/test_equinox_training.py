"""Equinox: modules whose leaves are not all arrays, and filtered transformations."""

from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import (
    assert_bitwise,
    assert_close,
    assert_spooled,
    assert_tapped,
    events_of,
    quiet,
    scaled,
)

eqx = pytest.importorskip("equinox")
optax = pytest.importorskip("optax")

STEPS = scaled(3)


class Net(eqx.Module):
    """`Dropout` and `BatchNorm` have a Python bool as a leaf: `inference`."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear
    log: object = eqx.field(static=True)

    def __init__(self, key, log):
        first, last = jax.random.split(key)
        self.first = eqx.nn.Linear(3, 8, key=first)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)
        self.last = eqx.nn.Linear(8, 1, key=last)
        self.log = log

    def __call__(self, x, state, key):
        x, state = self.norm(self.first(x), state)
        x = self.dropout(jax.nn.relu(x), key=key)
        self.log({"active": jnp.mean(x > 0)})
        return self.last(x)[0], state, jnp.mean(x > 0)


OPTIMIZER = optax.adam(0.05)


def program(log):
    """One step of training, and the initial state."""

    def loss_of(model, state, x, key):
        keys = jax.random.split(key, len(x))
        axes = {"axis_name": "batch", "in_axes": (0, None, 0), "out_axes": (0, None, 0)}
        y, state, active = jax.vmap(model, **axes)(x, state, keys)
        loss = jnp.mean((y - x.sum(-1)) ** 2)
        log({"loss": loss})
        return loss, (state, active)

    def step(model, state, moments, x, key):
        grad_of = eqx.filter_value_and_grad(loss_of, has_aux=True)
        (loss, (state, active)), grads = grad_of(model, state, x, key)
        updates, moments = OPTIMIZER.update(grads, moments)
        log({"norm": optax.tree.norm(grads)})
        model = eqx.apply_updates(model, updates)
        return model, state, moments, (loss, active, optax.tree.norm(grads))

    model, state = eqx.nn.make_with_state(Net)(jax.random.key(0), log)
    moments = OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))
    return step, (model, state, moments)


def train(step, start, receive=lambda out: out):
    """The training loop that a user writes."""
    threaded = []
    for i in range(STEPS):
        x = jax.random.normal(jax.random.key(i), (4, 3))
        *start, values = receive(step(*start, x, jax.random.key(100 + i)))
        threaded.append(values)
    loss, active, norm = (np.stack(values) for values in zip(*threaded, strict=True))
    one_step = [
        events_of({"active": active[i : i + 1]})
        + events_of({"loss": loss[i : i + 1]})
        + events_of({"norm": norm[i : i + 1]})
        for i in range(STEPS)
    ]
    return eqx.filter(start, eqx.is_array), one_step


def arrays(tree):
    return jax.tree.leaves(tree)


def test_logs_do_not_change_training_in_any_order_of_transformations():
    step, start = program(quiet)
    wanted, events = train(eqx.filter_jit(step), start)
    step, start = program(lox.log)

    for quietly in (lox.nolog(eqx.filter_jit(step)), eqx.filter_jit(lox.nolog(step))):
        found, _ = train(quietly, start)
        assert_bitwise(arrays(found), arrays(wanted))

    for spooled in (
        lox.spool(step),
        lox.spool(eqx.filter_jit(step)),
        eqx.filter_jit(lox.spool(step)),
    ):
        logs = []

        def receive(out, logs=logs):
            logs.append(out[1])
            return out[0]

        found, _ = train(spooled, start, receive)
        assert_close(arrays(found), arrays(wanted))
        for of_step, wanted_events in zip(logs, events, strict=True):
            assert_lanes_of_batch(of_step, wanted_events)

    calls = []
    found, _ = train(lox.tap(eqx.filter_jit(step), calls.append, batched=True), start)
    assert_close(arrays(found), arrays(wanted))
    assert_tapped(calls, list(chain(*events)))


def assert_lanes_of_batch(logs, events):
    """Rows of the `vmap` over the batch have its axis."""
    [(active, _), (loss, _), (norm, _)] = events
    assert_close(logs["active"], active["active"])
    assert_spooled(logs.filter(["loss", "norm"]), [(loss, {}), (norm, {})])


def test_modules_log_in_filter_scan_filter_vmap_and_filter_checkpoint():
    depth, lanes = 3, 2

    def make(log):
        def apply(layers, x):
            arrays, static = eqx.partition(layers, eqx.is_array)

            @eqx.filter_checkpoint
            def body(x, layer):
                x = jnp.tanh(eqx.combine(layer, static)(x))
                log({"rms": jnp.sqrt(jnp.mean(x**2))})
                return x, jnp.sqrt(jnp.mean(x**2))

            x, rms = jax.lax.scan(body, x, arrays)
            return jnp.sum(x**2), rms

        return apply

    @eqx.filter_vmap
    def stack(key):
        return eqx.nn.Linear(4, 4, key=key)

    layers = stack(jax.random.split(jax.random.key(0), depth))
    xs = jax.random.normal(jax.random.key(1), (lanes, 4))

    def gradient(apply):
        return eqx.filter_vmap(
            eqx.filter_value_and_grad(apply, has_aux=True), in_axes=(None, 0)
        )

    wanted = eqx.filter_jit(gradient(make(quiet)))(layers, xs)
    threaded = wanted[0][1]
    logged = make(lox.log)
    result, logs = eqx.filter_jit(lox.spool(gradient(logged)))(layers, xs)
    assert_close(arrays(result), arrays(wanted))
    for i, lane in enumerate(logs.lanes()):
        assert_spooled(lane, events_of({"rms": threaded[i]}))
    result = eqx.filter_jit(lox.nolog(gradient(logged)))(layers, xs)
    assert_bitwise(arrays(result), arrays(wanted))
