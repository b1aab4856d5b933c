"""Flax NNX: updates of modules, optimizers and `Rngs` are kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logify
import lox
import lox.loggers

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

X = jnp.linspace(0.0, 1.0, 8)[:, None]


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.calls = nnx.Variable(jnp.array(0))
        self.linear = nnx.Linear(1, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        self.calls[...] += 1
        return self.head(self.dropout(self.norm(self.linear(x))))


def make():
    model = Net(rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def step(model, optimizer, x):
    def loss_fn(model):
        loss = jnp.mean((model(x) - x**2) ** 2)
        lox.log({"loss": loss})
        logify.log("loss", loss)
        return loss

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def train(way, steps=3):
    """The parameters and all other state after some steps, and the losses."""
    model, optimizer = make()
    losses = [float(way(model, optimizer, X)) for _ in range(steps)]
    leaves = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
    return [np.asarray(_data(x)) for x in leaves], losses


def _data(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


@functools.cache
def expected():
    lox.set_default("silent")
    return train(nnx.jit(step))


def ways(seen):
    class Memory(lox.loggers.Logger):
        def open(self, run):
            return seen

        def write(self, run, logs):
            run.append(logs)

    logger = Memory()
    state = logger.init(0)

    def spooled(fun):
        def call(*args):
            result, logs = fun(*args)
            seen.append(logs)
            return result

        return call

    def logified(fun):
        def call(*args):
            result, logs = fun(*args)
            seen.append({"loss": logs.asdict()["loss"]["replace"]})
            return result

        return call

    return {
        "spool": spooled(lox.spool(step)),
        "spool(nnx.jit)": spooled(lox.spool(nnx.jit(step))),
        "nnx.jit(spool)": spooled(nnx.jit(lox.spool(step))),
        "spool(reduce)": spooled(lox.spool(step, reduce="mean")),
        "tap": lox.tap(step, seen.append),
        "tap(nnx.jit)": lox.tap(nnx.jit(step), seen.append),
        "nnx.jit(tap)": nnx.jit(lox.tap(step, seen.append)),
        "logify": logified(logify.logify(step)),
        "nnx.jit(logify)": logified(nnx.jit(logify.logify(step))),
        "logger.tap": logger.tap(step, state),
        "logger.tap(nnx.jit)": logger.tap(nnx.jit(step), state),
        "logger.spool": logger.spool(step, state),
        "nolog": lox.nolog(step),
        "nolog(nnx.jit)": lox.nolog(nnx.jit(step)),
        "nnx.jit(nolog)": nnx.jit(lox.nolog(step)),
        "a closure": lambda m, o, x: spooled(lox.spool(lambda x: step(m, o, x)))(x),
        "a partial": lambda m, o, x: spooled(lox.spool(functools.partial(step, m, o)))(
            x
        ),
    }


@pytest.mark.parametrize("name", ways([]))
def test_transformations_do_not_change_training(name):
    seen = []
    lox.set_default("silent")
    arrays, losses = train(ways(seen)[name])
    jax.effects_barrier()
    for got, want in zip(arrays, expected()[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(losses, expected()[1], rtol=2e-5)
    if "nolog" not in name:
        logged = [float(logs["loss"]) for logs in seen]
        np.testing.assert_allclose(logged, losses, rtol=1e-6)


def test_shared_references_stay_shared():
    class Shared(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.Linear(2, 2, rngs=rngs)
            self.b = self.a

    def grow(first, second):
        first.a.kernel[...] += 1.0
        lox.log({"k": second.b.kernel[...].sum()})
        return second

    model = Shared(nnx.Rngs(0))
    before = np.asarray(model.a.kernel[...])
    result, logs = lox.spool(grow)(model, model)
    assert result is model and model.a is model.b
    np.testing.assert_allclose(model.b.kernel[...], before + 1.0)
    np.testing.assert_allclose(logs["k"], (before + 1.0).sum(), rtol=1e-6)


def test_new_attributes_and_returned_modules_are_kept():
    def build(model, x):
        model.extra = nnx.Variable(x * 2)
        lox.log({"x": x})
        return nnx.Linear(2, 3, rngs=nnx.Rngs(1)), {"model": model}

    model, _ = make()
    (linear, result), logs = lox.spool(build)(model, 3.0)
    assert isinstance(linear, nnx.Linear) and result["model"] is model
    assert model.extra[...] == 6.0 and logs == {"x": 3.0}


def test_rngs_advance_like_without_lox():
    def draw(rngs, n):
        x = jax.random.normal(rngs.params(), (n,))
        lox.log({"x": x})
        return x

    plain, logged = nnx.Rngs(0), nnx.Rngs(0)
    lox.set_default("silent")
    for _ in range(3):
        want = draw(plain, 2)
        got, logs = lox.spool(draw, static_argnames="n")(logged, n=2)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(logs["x"], want)


@pytest.mark.parametrize("fun", ["module", "method"])
def test_module_itself_can_be_transformed(fun):
    model, _ = make()
    target = model if fun == "module" else model.__call__
    for _ in range(2):
        lox.spool(target)(X)
    assert model.calls[...] == 2


def test_closures_are_never_stale():
    model, _ = make()
    model.eval()

    def apply(x):
        y = model(x)
        lox.log({"y": y.sum()})
        return y

    spooled = lox.spool(apply)
    first_y = spooled(X)[0]
    model.head.bias[...] += 1.0
    np.testing.assert_allclose(spooled(X)[0], first_y + 1.0, rtol=1e-5)


def test_function_without_nnx_objects_is_known_to_have_none():
    from lox._libraries.nnx import captures_none

    model, optimizer = make()

    def plain(x):
        return jnp.sum(x) * scale

    def outer(x):
        return plain(x) + scale

    scale = 2.0
    assert captures_none(plain) and captures_none(outer)
    for node in (model, optimizer, model.calls, functools.partial(step, model)):
        scale = node
        assert not captures_none(plain) and not captures_none(outer)
    assert not captures_none(model) and not captures_none(model.__call__)


def test_nnx_transformations_keep_each_event():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 3, rngs=rngs)
            self.norm = nnx.BatchNorm(3, rngs=rngs)

        def __call__(self, x):
            x = self.norm(self.linear(x))
            lox.log({"x": (x**2).mean()})
            return x

    @nnx.vmap(in_axes=0, out_axes=0)
    def make_blocks(key):
        return Block(nnx.Rngs(key))

    keys = jax.random.split(jax.random.key(0), 4)
    x = jnp.arange(6.0).reshape(2, 3)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def forward(x, block):
        y = nnx.remat(Block.__call__)(block, x)
        return y, (y**2).mean()

    def loss(blocks, x):
        y, sums = forward(x, blocks)
        return (y**2).mean(), sums

    def run(blocks):
        return nnx.value_and_grad(loss, has_aux=True)(blocks, x)

    lox.set_default("silent")
    plain, logged, tapped = (make_blocks(keys) for _ in range(3))
    (_, sums), grads = nnx.jit(run)(plain)
    ((_, got_sums), got_grads), logs = lox.spool(nnx.jit(run))(logged)
    seen = []
    lox.tap(run, seen.append)(tapped)
    np.testing.assert_allclose(got_sums, sums, rtol=1e-5)
    np.testing.assert_allclose(logs["x"], sums, rtol=1e-5)
    np.testing.assert_allclose([row["x"] for row in seen], sums, rtol=1e-5)
    for module in (logged, tapped):
        for got, want in zip(
            jax.tree.leaves(nnx.state(module)),
            jax.tree.leaves(nnx.state(plain)),
            strict=True,
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for got, want in zip(
        jax.tree.leaves(got_grads), jax.tree.leaves(grads), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_nnx_grad_and_vmap_of_spooled_loss_return_logs():
    model, _ = make()
    model.eval()

    def loss(model, x):
        value = (model(x) ** 2).mean()
        lox.log({"value": value})
        return value

    (value, logs), grads = nnx.value_and_grad(lox.spool(loss), has_aux=True)(model, X)
    want, want_grads = nnx.value_and_grad(lox.nolog(loss))(model, X)
    assert logs == {"value": value} and value == want
    for got, want in zip(
        jax.tree.leaves(grads), jax.tree.leaves(want_grads), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    xs = jnp.stack([X, X + 1])
    values, logs = nnx.vmap(lox.spool(loss), in_axes=(None, 0))(model, xs)
    np.testing.assert_allclose(logs["value"], values)
    assert logs["value"].shape == (2,)


def test_variable_is_logged_as_an_array():
    def f(linear):
        lox.log({"kernel": linear.kernel, "all": nnx.state(linear)})

    linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    _, logs = lox.spool(f)(linear)
    assert isinstance(logs["kernel"], jax.Array)
    np.testing.assert_array_equal(logs["kernel"], linear.kernel[...])
    assert jax.tree.map(jnp.shape, logs["all"]) == {"bias": (2,), "kernel": (2, 2)}


def test_updating_captured_module_in_nested_transformation_raises_error_with_remedy():
    model, _ = make()

    @nnx.jit
    def f(x):
        return model(x)

    with pytest.raises(Exception, match="trace level") as caught:
        lox.spool(f)(X)
    del caught
