"""Arguments of transformed functions, and how they are cached."""

import collections
import dataclasses
import enum
import functools
import gc
import math

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
import pytest

import logify
import lox
from lox._transforms import compiled

TRANSFORMATIONS = {
    "spool": lambda f: lambda *a, **k: lox.spool(f)(*a, **k)[0],
    "tap": lambda f: lox.tap(f, lambda logs: None),
    "nolog": lox.nolog,
    "logify": lambda f: lambda *a, **k: logify.logify(f)(*a, **k)[0],
}
transformed = pytest.mark.parametrize(
    "transform", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS
)


@transformed
def test_python_bools_are_static_in_eager_call(transform):
    def f(x, flag):
        lox.log({"x": x})
        return (x + 1 if flag else x - 1), flag

    assert transform(f)(1.0, True) == (2.0, True)
    assert transform(f)(1.0, False) == (0.0, False)
    assert transform(f)(1.0, flag=True)[1] is True


@transformed
def test_python_numbers_are_unchanged_inside_jit(transform):
    def f(x, n, scale, flag):
        lox.log({"x": x})
        total = x
        for _ in range(n):
            total = total + (math.floor(scale) if flag else 0)
        return total, n

    def outer(x):
        total, n = transform(f)(x, 3, 2.5, True)
        assert n == 3 and isinstance(n, int)
        return total

    assert jax.jit(outer)(1.0) == 7.0
    assert jax.jit(jax.vmap(outer))(jnp.ones(2)).tolist() == [7.0, 7.0]


@transformed
@pytest.mark.parametrize("around", [jax.grad, jax.vmap, jax.value_and_grad])
def test_python_numbers_are_unchanged_under_eager_transformations(transform, around):
    def f(x, n):
        lox.log({"x": x})
        return sum((x * i for i in range(n)), 0.0 * x)

    x = jnp.ones(2) if around is jax.vmap else 1.0
    expected = around(lambda x: 3 * x)(x)
    got = around(lambda x: transform(f)(x, 3))(x)
    assert jax.tree.map(jnp.array_equal, got, expected) in (True, (True, True))


def test_concrete_arrays_stay_concrete_inside_jit():
    def f(x, table):
        lox.log({"x": x})
        return x * int(table[1])

    def outer(x):
        return lox.spool(f)(x, np.array([1, 5]))[0]

    assert jax.jit(outer)(2.0) == 10.0


def test_logify_keeps_python_numbers_in_eager_call():
    @logify.logify
    def f(a, n):
        for i in range(n):
            logify.log("i", i, reduction="sum")
        return a + n

    result, logs = f(1, 3)
    assert result == 4 and isinstance(result, int)
    assert logs.asdict() == {"i": {"sum": 3}}


def test_static_numbers_are_distinguished_by_type_and_sign():
    @logify.logify
    def sign(x):
        logify.log("x", x)
        return f"{type(x).__name__} {math.copysign(1, x):+.0f}"

    values = [0.0, -0.0, 0, False, np.float32(-0.0), math.nan]
    assert [sign(value)[0] for value in values] == [
        "float +1", "float -1", "int +1", "bool +1", "float32 -1", "float +1"
    ]  # fmt: skip


def test_enum_arguments_are_static():
    class Mode(enum.IntEnum):
        TRAIN = 1
        TEST = 2

    def f(x, mode):
        lox.log({"x": x})
        return x if mode is Mode.TRAIN else -x

    assert lox.spool(f)(1.0, Mode.TEST)[0] == -1.0


class Trainer:
    lr = 2.0

    def step(self, x):
        lox.log({"lr": self.lr})
        return x * self.lr

    @lox.spool
    def spooled(self, x):
        lox.log({"lr": self.lr})
        return x * self.lr

    @functools.partial(lox.spool, static_argnames="self")
    def declared_static(self, x):
        return x * self.lr


@transformed
def test_method_of_changed_object_is_traced_again(transform):
    trainer = Trainer()
    trainer.lr = jnp.float32(2.0)
    assert transform(trainer.step)(1.0) == 2.0
    trainer.lr = 5.0
    assert transform(trainer.step)(1.0) == 5.0
    assert jax.jit(transform(trainer.step))(1.0) == 5.0
    trainer.lr = 6.0
    assert jax.jit(transform(trainer.step))(1.0) == 6.0


def test_decorated_method_sees_changed_attributes():
    trainer = Trainer()
    assert trainer.spooled(1.0) == (2.0, {"lr": 2.0})
    trainer.lr = 5.0
    assert trainer.spooled(1.0) == (5.0, {"lr": 5.0})


class WithSlots:
    __slots__ = ("queue", "scale", "tags")

    def __init__(self):
        self.scale = 1
        self.tags = set()
        self.queue = collections.deque([1])

    @lox.spool
    def step(self, x):
        return x * self.scale + len(self.tags) + sum(self.queue)


def test_slots_sets_and_deques_that_changed_are_traced_again():
    one = WithSlots()
    assert one.step(1.0)[0] == 2
    one.scale = 2
    assert one.step(1.0)[0] == 3
    one.tags.add("a")
    assert one.step(1.0)[0] == 4
    one.queue.append(10)
    assert one.step(1.0)[0] == 14


def test_object_argument_that_changed_is_traced_again():
    traces = []

    class Inner:
        values = None

    class Config:
        def __init__(self):
            self.inner = Inner()
            self.inner.values = [1, 2]
            self.options = {"scale": 2.0}

    @lox.spool
    def f(config, x):
        traces.append(1)
        return x * config.options["scale"] + sum(config.inner.values)

    config = Config()
    assert f(config, 1.0)[0] == f(config, 1.0)[0] == 5.0
    assert len(traces) == 1
    config.options["scale"] = 3.0
    assert f(config, 1.0)[0] == 6.0
    config.inner.values.append(10)
    assert f(config, 1.0)[0] == 16.0
    config.inner = Inner()
    config.inner.values = (1,)
    assert f(config, 1.0)[0] == 4.0
    assert len(traces) == 4


def test_writing_traced_value_to_object_raises():
    class Model:
        def loss(self, x):
            self.last = x * 2
            lox.log({"x": x})
            return x

    model = Model()
    for call in (
        lambda: lox.spool(model.loss)(1.0),
        lambda: lox.tap(Model.loss, lambda logs: None)(model, 1.0),
        lambda: lox.nolog(lambda m, x: m.loss(x))(model, 1.0),
    ):
        with pytest.raises(lox.LoxTypeError, match="attribute 'last' of .* Model"):
            call()


@pytest.mark.parametrize("kind", ["argument", "closure"])
@transformed
def test_mutable_array_arguments_are_updated(transform, kind):
    def f(ref, x):
        def step(c, _):
            ref[...] += c
            lox.log({"c": c})
            return c + 1, None

        return jax.lax.scan(step, x, None, length=3)[0]

    for around in (lambda f: f, jax.jit):
        ref = jax.new_ref(jnp.float32(1.0))
        if kind == "argument":
            around(transform(f))(ref, 1.0)
        else:
            around(transform(lambda x: f(ref, x)))(1.0)  # noqa: B023
        assert ref[...] == 7.0


def test_transformed_jit_has_lower_trace_and_eval_shape():
    @functools.partial(jax.jit, static_argnames="n")
    def f(x, n=2):
        lox.log({"x": x})
        return x * n

    spooled = lox.spool(f, static_argnames="n")
    assert spooled.lower(1.0, n=3).compile()(1.0) == (3.0, {"x": 1.0})
    assert spooled.eval_shape(1.0)[1].keys() == {"x"}
    assert spooled.trace(1.0).lower().compile()(1.0) == (2.0, {"x": 1.0})
    seen = []
    tapped = lox.tap(f, seen.append).lower(1.0).compile()
    assert lox.nolog(f).lower(1.0).compile()(1.0) == 2.0
    jax.effects_barrier()
    assert seen == []
    tapped(1.0)
    jax.effects_barrier()
    assert seen == [{"x": 1.0}]
    with pytest.raises(AttributeError, match="lower"):
        lox.spool(lambda x: x).lower(1.0)


@transformed
def test_generator_function_raises(transform):
    def generate(x):
        lox.log({"x": x})
        yield x

    async def later(x):
        return x

    with pytest.raises(lox.LoxTypeError, match="generate returns a generator"):
        transform(generate)(1.0)
    with pytest.raises(lox.LoxTypeError, match="Return a list"):
        jax.jit(transform(lambda x: {"rows": generate(x)}))(1.0)
    with pytest.raises(lox.LoxTypeError, match="coroutine"), pytest.warns():
        transform(later)(1.0)


def test_python_bools_in_pytree_are_static():
    def f(leaves, x):
        inference, rate = leaves
        lox.log({"x": x})
        return x if inference else x * rate

    assert lox.spool(f)((True, 0.5), 2.0)[0] == 2.0
    assert lox.spool(f)((False, 0.5), 2.0)[0] == 1.0
    assert jax.jit(lambda x: lox.nolog(f)((False, 0.5), x))(2.0) == 1.0


class Mode(enum.IntEnum):
    TRAIN = 1
    TEST = 2


LEAVES = {
    "bool": True,
    "enum": Mode.TEST,
    "string": "name",
    "function": abs,
    "none": None,
    "float": 0.5,
    "numpy": np.float32(0.5),
    "array": np.ones(2, np.float32),
}


@pytest.mark.parametrize("way", ["position", "name"])
def test_leaves_of_pytrees_are_traced_or_static_in_any_order(way):
    def f(tree, x):
        leaf = tree["inner"][0]
        lox.log({"x": x})
        seen.append(type(leaf))
        return x

    def call(leaf):
        seen.clear()
        tree = {"inner": (leaf, jnp.ones(3)), "w": jnp.ones(())}
        spooled = lox.spool(f)
        return spooled(tree, 1.0) if way == "position" else spooled(tree=tree, x=1.0)

    seen = []
    traced = ("float", "numpy", "array")
    # types that are known from earlier calls take a shorter path
    for name in [*LEAVES, *reversed(LEAVES)]:
        jax.clear_caches()
        assert call(LEAVES[name])[1] == {"x": 1}
        (kind,) = set(seen)
        assert issubclass(kind, jax.core.Tracer) == (name in traced)
        if name not in traced:
            assert kind is type(LEAVES[name])


def test_eager_call_with_pytrees_searches_them_once(monkeypatch):
    def f(params, x):
        y = params["w"] * x + params["layer"]["b"]
        lox.log({"y": y}, step=3)
        return y

    params = {"layer": {"b": jnp.ones(())}, "w": jnp.ones(())}
    spooled = lox.spool(f)
    spooled(params, jnp.ones(()))
    monkeypatch.setattr(compiled.Compiled, "call", None)
    # other tests may have imported Flax NNX, with which each call searches more
    monkeypatch.setattr("lox._transforms.spool._modules", {})
    assert spooled(params, jnp.ones(()))[1].step == {"y": 3}
    assert spooled(params, x=jnp.ones(()))[1] == {"y": 2}
    assert spooled(x=jnp.ones(()), params=params)[1] == {"y": 2}


# --- caches ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Model:
    k: int

    def __call__(self, x):
        lox.log({"x": x * self.k})
        return x

    def apply(self, x):
        return self(x)


def test_equal_callables_are_not_confused():
    a, b = Model(2), Model(2)
    first, second = lox.spool(a), lox.spool(b)
    bound = lox.spool(b.apply)
    first(1.0)
    del a, first
    gc.collect()
    assert second(1.0)[1] == {"x": 2.0} and bound(1.0)[1] == {"x": 2.0}


def test_static_argument_that_is_not_hashable_raises():
    def f(x, names):
        lox.log({"x": x + len(names)})
        return x

    assert lox.spool(f)(1.0, frozenset({1}))[1] == {"x": 2.0}
    with pytest.raises(lox.LoxTypeError, match="set.*hashable"):
        lox.spool(f)(1.0, {1})


def test_numpy_and_python_results_are_returned_unchanged():
    def f(x):
        return np.float32(2), 3, "text", x

    out, _ = lox.spool(f)(1.0)
    assert out == (2, 3, "text", 1)


def test_error_about_traced_argument_names_the_remedy():
    def train(x, steps):
        return jax.lax.scan(lambda x, _: (x * 2, None), x, jnp.arange(steps))[0]

    for transformed in (lox.spool(train), lox.tap(train, print), lox.nolog(train)):
        with pytest.raises(jax.errors.ConcretizationTypeError) as error:
            transformed(1.0, steps=3)
        notes = "\n".join(error.value.__notes__)
        assert "arguments of `train`" in notes and '`static_argnames="steps"`' in notes
    assert lox.nolog(train, static_argnames="steps")(1.0, steps=3) == 8.0


def test_dtypes_and_types_of_arrays_are_returned_unchanged():
    def f(x):
        lox.log({"x": x})
        return x, jnp.float32, jax.ShapeDtypeStruct((2,), jnp.int32)

    _, dtype, kind = lox.spool(f)(1.0)[0]
    assert dtype is jnp.float32 and kind.shape == (2,)
