"""Transformed functions are traced and compiled once."""

import copy
import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox


class Counter:
    """A function that counts how often it is traced."""

    def __init__(self):
        self.traces = 0

        def f(x):
            self.traces += 1
            lox.log({"x": x})
            return x * 2

        self.f = f


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: lox.spool(f)(x),
        lambda f, x: lox.tap(f, lambda logs: None)(x),
        lambda f, x: lox.tap(f, print)(x),
        lambda f, x: lox.nolog(f)(x),
        lambda f, x: jax.vmap(lox.spool(f))(jnp.ones(2) * x),
        lambda f, x: jax.vmap(lox.tap(f, print))(jnp.ones(2) * x),
    ],
)
def test_second_call_neither_traces_nor_compiles(call):
    counter = Counter()
    call(counter.f, 1.0)
    with jax.log_compiles(False), count_compilations() as compiled:
        for i in range(5):
            call(counter.f, float(i))
    assert counter.traces == 1
    assert not compiled


class count_compilations:
    def __enter__(self):
        self.names = []
        jax.monitoring.register_event_duration_secs_listener(self.listen)
        self.on = True
        return self.names

    def listen(self, name, seconds, **kwargs):
        if self.on and "backend_compile" in name:
            self.names.append(name)

    def __exit__(self, *exc):
        self.on = False


def test_methods_partials_and_callable_objects_are_cached():
    class Model:
        traces = 0

        def step(self, x):
            self.traces += 1
            lox.log({"x": x})
            return x

        __call__ = step

    model = Model()
    step = model.step
    for _ in range(3):
        assert lox.spool(step)(1.0)[1] == {"x": 1.0}
    assert model.traces == 1
    for _ in range(3):
        assert lox.spool(model)(1.0)[1] == {"x": 1.0}
    assert model.traces == 2
    part = functools.partial(Model.step, model)
    for _ in range(3):
        lox.spool(part)(1.0)
    assert model.traces == 3


def test_cache_does_not_keep_functions_alive():
    counter = Counter()
    lox.spool(counter.f)(1.0)
    lox.tap(counter.f, lambda logs: None)(1.0)
    gone = weakref.ref(counter.f)
    del counter
    jax.clear_caches()
    gc.collect()
    assert gone() is None


def test_jit_cache_of_user_is_kept():
    lox.set_default(lambda logs: printed.append(dict(logs)))
    printed = []
    traces = []

    @jax.jit
    def f(x):
        traces.append(x)
        lox.log({"x": x})
        return x * 2

    def plain():
        printed.clear()
        assert f(3.0) == 6
        jax.effects_barrier()
        assert printed == [{"x": 3.0}]

    plain()
    assert lox.spool(f)(3.0) == (6, {"x": 3.0})
    plain()
    calls = []
    assert lox.tap(f, calls.append)(3.0) == 6 and calls == [{"x": 3.0}]
    plain()
    assert lox.nolog(f)(3.0) == 6
    plain()
    assert jax.grad(f)(3.0) == 2
    plain()
    assert len(traces) == 1


def test_new_shape_is_traced_again_and_new_float_is_not():
    counter = Counter()
    spooled = lox.spool(counter.f)
    spooled(1.0), spooled(2.0), spooled(3)
    assert counter.traces == 2
    spooled(jnp.ones(3))
    assert counter.traces == 3


def test_threads_can_share_transformed_function():
    from concurrent.futures import ThreadPoolExecutor

    def f(x):
        return lax.scan(
            lambda c, i: (lox.log({"c": c})["c"] + 1, None), x, jnp.arange(4.0)
        )[0]

    def work(i):
        calls = []
        lox.tap(f, calls.append)(float(i))
        assert lox.spool(f)(float(i))[1]["c"].tolist() == [i, i + 1, i + 2, i + 3]
        return [float(c["c"]) for c in calls]

    with ThreadPoolExecutor(8) as pool:
        for i, found in enumerate(pool.map(work, range(24))):
            assert found == [i, i + 1, i + 2, i + 3]


@pytest.mark.parametrize(
    "transform",
    [
        lox.spool,
        lambda f: lox.tap(f, lambda logs: None),
        lox.nolog,
        lambda f: lox.observe(f, outputs={"add": True}),
    ],
    ids=["spool", "tap", "nolog", "observe"],
)
def test_method_and_copy_of_a_transformed_function_keep_the_function(transform):
    method = transform(lambda x, _: x + _).__call__
    gc.collect()
    assert jax.tree.leaves(method(1.0, _=2.0))[0] == 3.0
    copied = copy.copy(transform(lambda x: x + 1.0))
    gc.collect()
    assert jax.tree.leaves(copied(1.0))[0] == 2.0


@dataclasses.dataclass(frozen=True)
class EqualCallback:
    """All of these are equal, but each keeps its own rows."""

    rows: list = dataclasses.field(default_factory=list, compare=False)

    def __call__(self, logs):
        self.rows.append(float(logs["x"]))


@pytest.mark.parametrize("around", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_equal_callbacks_of_tap_get_their_own_events(around):
    def f(x):
        lox.log({"x": x})
        return x + 1

    first, second, third = EqualCallback(), EqualCallback(), EqualCallback()
    x = jnp.zeros(1) if around is jax.vmap else 0.0
    around(lambda x: lox.tap(f, second)(lox.tap(f, first)(x)))(x)
    around(lox.tap(f, third))(x + 5)
    jax.effects_barrier()
    assert (first.rows, second.rows, third.rows) == ([0.0], [1.0], [5.0])


def test_bound_method_as_callback_is_compiled_once():
    traced = []

    class Rows:
        def add(self, logs):
            pass

    def f(x):
        traced.append(x)
        lox.log({"x": x})
        return x

    rows = Rows()
    for _ in range(3):
        jax.vmap(lox.tap(f, rows.add))(jnp.arange(2.0))
    assert len(traced) == 1


@pytest.mark.parametrize("values", [(2, 2.0), (1, True), (0.0, -0.0)], ids=str)
def test_static_arguments_of_different_types_are_told_apart(values):
    def power(x, k, name):
        assert name == "n"
        lox.log({"k": repr(k) == repr(values[0])})
        return x * k

    spooled = lox.spool(power, static_argnums=1)
    first, second = (spooled(jnp.arange(3), k, "n") for k in values)
    assert bool(first[1]["k"]) and not bool(second[1]["k"])
    for (result, _), k in zip((first, second), values, strict=True):
        assert (
            result.dtype
            == jax.jit(power, static_argnums=(1, 2))(jnp.arange(3), k, "n").dtype
        )
