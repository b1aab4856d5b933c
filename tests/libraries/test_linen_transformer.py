"""Flax Linen: a transformer whose layers are rematerialized and scanned over."""

from typing import Any

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

nn = pytest.importorskip("flax.linen")
optax = pytest.importorskip("optax")

LAYERS, STEPS = 2, scaled(3)


class Block(nn.Module):
    log: Any

    @nn.compact
    def __call__(self, x, train):
        drop = nn.Dropout(0.1, deterministic=not train)
        mask = nn.make_causal_mask(x[..., 0])
        heads = nn.MultiHeadDotProductAttention(num_heads=2)
        x = x + drop(heads(nn.LayerNorm()(x), mask=mask))
        x = x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
        rms = jnp.sqrt(jnp.mean(x**2))
        self.sow("intermediates", "rms", rms)  # returns it by hand
        self.log({"rms": rms})
        self.log({"rate": jnp.float32(0.1)})  # does not depend on the layer
        return x, None


class Transformer(nn.Module):
    log: Any

    @nn.compact
    def __call__(self, tokens, train=True):
        x = nn.Embed(11, 8)(tokens)
        block = nn.remat(Block, prevent_cse=False, static_argnums=(2,))
        layers = nn.scan(
            block,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=LAYERS,
        )
        x, _ = layers(self.log)(x, train)
        logits = nn.Dense(11)(nn.LayerNorm()(x))
        self.log({"logits": jnp.mean(logits)})
        return logits


OPTIMIZER = optax.adam(1e-2)
TOKENS = jax.random.randint(jax.random.key(0), (STEPS, 2, 6), 0, 11)


def forward(log):
    """The loss of one batch, and the values returned by hand."""
    model = Transformer(log)

    def loss_of(params, tokens, key):
        logits, sown = model.apply(
            {"params": params},
            tokens[:, :-1],
            rngs={"dropout": key},
            mutable=["intermediates"],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        loss = losses.mean()
        log({"loss": loss})
        (layers,) = sown["intermediates"].values()
        return loss, (layers["rms"][0], jnp.mean(logits))

    return loss_of


def training(log):
    def step(carry, batch):
        params, state = carry
        tokens, i = batch
        key = jax.random.fold_in(jax.random.key(1), i)
        grad_of = jax.value_and_grad(forward(log), has_aux=True)
        (loss, threaded), grads = grad_of(params, tokens, key)
        updates, state = OPTIMIZER.update(grads, state)
        log({"norm": optax.tree.norm(grads)}, step=i)
        params = optax.apply_updates(params, updates)
        return (params, state), (loss, optax.tree.norm(grads), threaded)

    def train(params):
        start = params, OPTIMIZER.init(params)
        return jax.lax.scan(step, start, (TOKENS, jnp.arange(STEPS)))

    return train


@pytest.fixture(scope="module")
def params():
    init = jax.jit(Transformer(quiet).init)
    keys = {"params": jax.random.key(2), "dropout": jax.random.key(3)}
    return init(keys, TOKENS[0, :, :-1])["params"]


@pytest.fixture(scope="module")
def plain(params):
    """The training without logs."""
    return jax.jit(training(quiet))(params)


def expected(ys):
    """The events of the training, from the values that it returned by hand."""
    loss, norm, (rms, logits) = jax.tree.map(np.asarray, ys)
    assert rms.shape == (STEPS, LAYERS)
    events = []
    for i in range(STEPS):
        for layer in range(LAYERS):
            events += events_of({"rms": rms[i, layer][None]})
            events += events_of({"rate": np.float32([0.1])})
        events += events_of({"logits": logits[i][None]})
        events += events_of({"loss": loss[i][None]})
        events += events_of({"norm": norm[i][None]}, step=np.array([i]))
    return events


def test_scanned_and_rematerialized_layers_log_once_per_layer_and_step(params, plain):
    result, logs = jax.jit(lox.spool(training(lox.log)))(params)
    assert_spooled(logs, expected(plain[1]))
    assert_close(result, plain, rtol=1e-4)


def test_tap_streams_layers_in_order(params, plain):
    calls, buffers = [], []
    tapped = lox.tap(training(lox.log), calls.append, keep_logs=True)
    buffered = lox.tap(tapped, buffers.append, buffer=4, keep_logs=True)
    reduce = {"rms": "mean", "rate": "count", "loss": "last", "norm": "max"}
    reduced = lox.spool(buffered, argnames=list(reduce), reduce=reduce, keep_logs=True)
    _, logs = lox.nolog(reduced)(params)
    events = expected(plain[1])
    assert_tapped(calls, events)
    assert_buffered(buffers, events)
    assert_reduced(logs, events, reduce)


def test_nolog_does_not_change_the_transformer(params, plain):
    assert_bitwise(jax.jit(lox.nolog(training(lox.log)))(params), plain)


def test_grad_of_spool_returns_logs_of_one_batch(params):
    def gradient(fun):
        return jax.jit(jax.value_and_grad(fun, has_aux=True))

    args = params, TOKENS[0], jax.random.key(4)
    (loss, (rms, logits)), wanted = gradient(forward(quiet))(*args)
    spooled = lox.spool(forward(lox.log))

    def loss_of(*args):
        (loss, _), logs = spooled(*args)
        return loss, logs

    (_, logs), grads = gradient(loss_of)(*args)
    events = events_of({"rms": rms})
    events += events_of({"rate": np.full(LAYERS, 0.1, np.float32)})
    events += events_of({"logits": logits[None]}) + events_of({"loss": loss[None]})
    assert_spooled(logs, events)
    assert_close(grads, wanted, rtol=1e-4)


def test_vmapped_ensemble_logs_layers_per_member(params):
    members = jax.tree.map(lambda x: jnp.stack([x, 1.1 * x]), params)
    args = members, TOKENS[0], jax.random.key(4)
    axes = (0, None, None)
    (loss, (rms, logits)) = jax.jit(jax.vmap(forward(quiet), axes))(*args)
    _, logs = jax.jit(lox.spool(jax.vmap(forward(lox.log), axes)))(*args)
    for i, lane in enumerate(logs.filter(["rms", "logits", "loss"]).lanes()):
        events = events_of({"rms": rms[i]}) + events_of({"loss": loss[i][None]})
        assert_spooled(lane, events + events_of({"logits": logits[i][None]}))


def test_init_logs_and_nolog_silences_it():
    # Linen runs the whole module to create its parameters
    model = Transformer(lox.log)
    keys = {"params": jax.random.key(2), "dropout": jax.random.key(3)}
    variables, logs = lox.spool(model.init)(keys, TOKENS[0, :, :-1])
    assert logs["rms"].shape == (LAYERS,)
    wanted = jax.jit(Transformer(quiet).init)(keys, TOKENS[0, :, :-1])
    silent = jax.jit(lox.nolog(model.init))(keys, TOKENS[0, :, :-1])
    assert_bitwise(silent, wanted)
    assert_close(variables, wanted)
