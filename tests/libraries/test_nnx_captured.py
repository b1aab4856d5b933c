"""Flax NNX: objects that a function captures, or that belong to an outer trace."""

import dataclasses
import functools
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

nnx = pytest.importorskip("flax.nnx")


class Scale(nnx.Module):
    def __init__(self, value=2.0):
        self.w = nnx.Param(jnp.float32(value))

    def __call__(self, x):
        lox.log({"x": x})
        return self.w[...] * x


class Counter(nnx.Module):
    def __init__(self):
        self.count = nnx.Variable(jnp.float32(0))


model = Scale()


@pytest.fixture(autouse=True)
def weights():
    model.w[...] = jnp.float32(2)
    yield
    assert isinstance(model.w[...], jax.Array) and not isinstance(
        model.w[...], jax.core.Tracer
    )


# --- ways to reach a module --------------------------------------------------


def by_global(x):
    return model(x)


def by_closure():
    own = model
    return lambda x: own(x)


def by_nested_function(x):
    return jax.vmap(lambda y: model(y))(x[None])[0]


def third(x):
    return model(x)


def second(x):
    return third(x)


def first(x):
    return second(x)


def by_helpers(x):
    return first(x)


def by_default(x, net=model):
    return net(x)


NETS = {"policy": model}


def by_dict(x):
    return NETS["policy"](x)


SPACE = types.SimpleNamespace(net=[model])


def by_namespace(x):
    return SPACE.net[0](x)


class Trainer:
    def __init__(self):
        self.net = model

    def evaluate(self, x):
        return self.net(x)


class Slotted:
    __slots__ = ("net",)

    def __init__(self):
        self.net = model

    def __call__(self, x):
        return self.net(x)


FUNCTIONS = {
    "global": by_global,
    "closure": by_closure(),
    "nested function": by_nested_function,
    "helpers": by_helpers,
    "default": by_default,
    "dict": by_dict,
    "namespace": by_namespace,
    "partial": functools.partial(lambda net, x: net(x), model),
    "partial of a list": functools.partial(lambda nets, x: nets[0](x), [model]),
    "attribute": Trainer().evaluate,
    "slot": Slotted(),
    "module": model,
    "method": model.__call__,
}
AROUND = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.tree.map(lambda y: y[0], jax.vmap(f)(x[None])),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[0],
    "checkpoint": jax.checkpoint,
    "scan": lambda f: (
        lambda x: jax.tree.map(
            lambda y: y[0], jax.lax.scan(lambda c, y: (c, f(y)), 0, x[None])[1]
        )
    ),
    "nnx.jit": lambda f: lambda x: nnx.jit(lambda _, y: f(y))(Counter(), x),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("way", FUNCTIONS)
def test_captured_module_has_its_current_weights(way, around):
    fun = FUNCTIONS[way]
    x = jnp.float32(3)
    for weight in (2.0, 5.0):  # updated between the calls
        model.w[...] = jnp.float32(weight)
        # a function of its own per call: `jax.jit` keeps the weights as constants
        result, logs = AROUND[around](lambda x: lox.spool(fun)(x))(x)
        assert (result, logs["x"].item()) == (3 * weight, 3)
        rows = []
        tapped = AROUND[around](lambda x, rows=rows: lox.tap(fun, rows.append)(x))(x)
        jax.effects_barrier()
        assert tapped == 3 * weight and rows == [{"x": 3}]
        assert AROUND[around](lambda x: lox.nolog(fun)(x))(x) == 3 * weight


@pytest.mark.parametrize("around", AROUND)
def test_module_argument_of_outer_trace_can_be_read(around):
    def loss(net, x):
        return net(x)

    result, logs = AROUND[around](lambda x: lox.spool(loss)(model, x))(jnp.float32(3))
    assert (result, logs) == (6, {"x": 3})


def test_target_network_of_outer_trace_can_be_read_in_a_loss():
    net, target = Scale(2.0), Scale(3.0)

    @nnx.jit
    def step(net, target, x):
        def loss(net):
            (wanted, logs) = lox.spool(lambda target, x: target(x))(target, x)
            return (net(x) - wanted) ** 2, logs

        return nnx.value_and_grad(loss, has_aux=True)(net)

    lox.set_default("silent")
    (value, logs), grads = step(net, target, jnp.float32(2))
    assert (value, logs) == (4, {"x": 2}) and grads["w"][...] == -8


def test_updating_a_module_of_outer_trace_is_an_error_that_leaves_it_intact():
    def update(x):
        model.w[...] = x
        return x

    with pytest.raises(Exception, match="trace level") as caught:
        jax.vmap(lox.spool(update))(jnp.arange(2.0))
    assert "as arguments" in caught.value.__notes__[0]
    del caught
    assert model.w[...] == 2


def test_module_with_the_name_of_an_attribute_is_not_captured():
    class State(NamedTuple):
        model: jax.Array

    def f(state):
        lox.log({"model": state.model})
        return state.model * 2

    state = State(jnp.float32(1))
    assert jax.jit(lambda s: lox.spool(f)(s))(state) == (2, {"model": 1})


def test_recursive_function_uses_one_module():
    def chain(x, n=5):
        y = model(x)
        return chain(y, n - 1) if n > 1 else y

    spooled = lox.spool(chain)
    spooled(1.0)
    model.w[...] = jnp.float32(2)
    result, logs = spooled(1.0)
    assert result == 32
    np.testing.assert_array_equal(logs["x"], [1, 2, 4, 8, 16])


class Owner:
    def __init__(self, counter):
        self.counter = counter

    def add(self, x):
        self.counter.count[...] += 1
        lox.log({"n": self.counter.count[...]})
        return x

    @lox.spool
    def spooled(self, x):
        return self.add(x)


@dataclasses.dataclass(frozen=True)
class Frozen:
    counter: Counter
    __call__ = Owner.add


@pytest.mark.parametrize(
    "make",
    [
        lambda counter: lox.spool(Owner(counter).add),
        lambda counter: lox.spool(Frozen(counter)),
        lambda counter: Owner(counter).spooled,
        lambda counter: lox.spool(functools.partial(Owner.add, Owner(counter))),
        lambda counter: lambda x: lox.spool(Owner.add)(Owner(counter), x),
    ],
    ids=["method", "frozen", "decorated method", "partial", "argument"],
)
def test_modules_in_attributes_are_updated(make):
    counter = Counter()
    add = make(counter)
    for total in (1, 2, 3):
        assert add(0.0)[1] == {"n": total}
        assert counter.count[...] == total


def test_optimizer_of_a_trainer_is_updated_without_tracing_again():
    optax = pytest.importorskip("optax")
    traces = []

    class Training:
        def __init__(self):
            self.net = Scale()
            self.nets = {"same": [self.net]}
            self.optimizer = nnx.Optimizer(self.net, optax.sgd(0.1), wrt=nnx.Param)

        def step(self, x):
            traces.append(x)
            loss, grads = nnx.value_and_grad(lambda net: net(x) ** 2)(self.net)
            self.optimizer.update(self.nets["same"][0], grads)
            lox.log({"loss": loss})
            return loss

        decorated = lox.spool(step)

    lox.set_default("silent")
    plain, spooled, decorated = Training(), Training(), Training()
    step = lox.spool(spooled.step)
    for _ in range(3):
        loss = plain.step(jnp.float32(1))
        for result, logs in (step(jnp.float32(1)), decorated.decorated(jnp.float32(1))):
            np.testing.assert_allclose([result, logs["loss"]], loss, rtol=1e-6)
    assert len(traces) == 3 + 2
    for one in (spooled, decorated):
        np.testing.assert_allclose(one.net.w[...], plain.net.w[...], rtol=1e-6)
        assert one.nets["same"][0] is one.net


def test_module_that_is_also_in_a_dict_is_updated_everywhere():
    counter = Counter()
    counters = {"one": counter}

    def f(x):
        counter.count[...] += 1
        lox.log({"n": counters["one"].count[...]})
        return x + counters["one"].count[...]

    for total in (1, 2):
        assert lox.spool(f)(0.0) == (total, {"n": total})
    assert counters["one"] is counter and counter.count[...] == 2


def test_module_that_is_also_in_a_tuple_is_not_updated_in_part():
    counter = Counter()
    counters = (counter,)

    def f(x):
        counter.count[...] += 1
        lox.log({"n": counters[0].count[...]})
        return x

    with pytest.raises(Exception, match="trace level") as caught:
        lox.spool(f)(0.0)
    assert "as arguments" in caught.value.__notes__[0]
    del caught
    assert counter.count[...] == 0


def test_captured_aliases_are_told_apart():
    a, b = Scale(1.0), Scale(10.0)
    p, q, r = a, a, b

    def f(x):
        return p.w[...] + 2 * q.w[...] + 3 * r.w[...] + x

    spooled = lox.spool(f)
    assert spooled(0.0)[0] == 33
    q = b
    assert spooled(0.0)[0] == 51


def test_method_that_is_spooled_in_its_class_has_the_current_weights():
    class Owner:
        def __init__(self):
            self.net = model

        @lox.spool
        def evaluate(self, x):
            return self.net(x)

    owner = Owner()
    assert owner.evaluate(3.0)[0] == 6
    model.w[...] = jnp.float32(7)
    assert owner.evaluate(3.0)[0] == 21
    assert jax.jit(owner.evaluate)(3.0)[0] == 21


def test_captured_counter_is_updated_through_helpers_and_nested_functions():
    counter = Counter()

    def add(x):
        counter.count[...] += x

    def f(x):
        def inner():
            add(x)

        inner()
        add(x)
        lox.log({"n": counter.count[...]})

    for total in (2, 4):
        assert lox.spool(f)(1.0)[1]["n"] == total
        assert counter.count[...] == total


def test_attributes_that_the_function_sets_are_kept():
    class Training:
        def __init__(self):
            self.net, self.other = Scale(2.0), Scale(3.0)

        def swap(self, x):
            self.net, self.other = self.other, self.net
            swap.calls = getattr(swap, "calls", 0) + 1
            return self.net(x)

    training = Training()
    swap = training.swap.__func__
    first, second = training.net, training.other
    assert lox.spool(training.swap)(1.0)[0] == 3
    assert swap.calls == 1
    assert (training.net, training.other) == (second, first)
    assert first.w[...] == 2 and second.w[...] == 3


def test_function_attributes_are_shared_with_its_copy():
    def f(x):
        f.calls += 1
        return model(x)

    f.calls = 0
    assert lox.spool(f)(1.0)[0] == 2
    assert f.calls == 1
