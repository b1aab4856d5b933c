"""Flax Linen's lifted transformations log what plain Python loops would log."""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests import programs

nn = pytest.importorskip("flax.linen")

STEPS = 3
X = jnp.array([0.5, -1.0])


# --- the oracle ------------------------------------------------------------


def plain(logs):
    return {key: np.asarray(value).item() for key, value in logs.items()}


def eager_events(fun, *args):
    """What a plain run of `fun` logs."""
    events = []
    lox.set_default(lambda logs: events.append(plain(logs)))
    fun(*args)
    jax.effects_barrier()
    lox.set_default("silent")
    return events


def tapped_events(fun, *args):
    events = []
    lox.tap(fun, lambda logs: events.append(plain(logs)))(*args)
    return events


def spooled_rows(fun, *args):
    logs = lox.spool(fun, capacity=50)(*args)[1]
    return {key: np.ravel(value).tolist() for key, value in logs.items()}


def rows_of(events):
    rows = {}
    for event in events:
        for key, value in event.items():
            rows.setdefault(key, []).append(value)
    return rows


def assert_rows(got, want):
    assert got.keys() == want.keys()
    for key, row in want.items():
        np.testing.assert_allclose(got[key], row, rtol=1e-5)


def assert_same_rows(got, want):
    """The same for events that have no order."""
    assert_rows(*({key: sorted(row) for key, row in r.items()} for r in (got, want)))


def loss(apply):
    return lambda *args: jnp.sum(apply(*args) ** 2)


def check(apply, variables, oracle):
    """Compares the events of every way to call a model with those of the oracle."""
    lox.set_default("silent")
    want = rows_of(eager_events(oracle, variables, X))
    expected = oracle(variables, X)
    np.testing.assert_allclose(apply(variables, X), expected, rtol=1e-5)
    grad = jax.jit(jax.grad(loss(apply)))
    for fun in (apply, jax.jit(apply), grad):
        assert_rows(spooled_rows(fun, variables, X), want)
        assert_rows(rows_of(tapped_events(fun, variables, X)), want)
        assert_same_rows(rows_of(eager_events(fun, variables, X)), want)
    silent = jax.grad(loss(lox.nolog(apply)))(variables, X)
    for one, other in zip(
        jax.tree.leaves(silent), jax.tree.leaves(grad(variables, X)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)


# --- the layer, and the same by hand ---------------------------------------


def log_layer(y):
    lox.log({"mean": y.mean()})
    lox.log({"rate": 0.25})
    jax.jit(lambda: lox.log({"jitted": 0.5}) and None)()


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
        w = self.param("w", nn.initializers.normal(), x.shape)
        y = jnp.sin(x + w)
        log_layer(y)
        return y


def layer(w, x):
    y = jnp.sin(x + w)
    log_layer(y)
    return y


class Step(nn.Module):
    """A layer in the form of a scan's body."""

    @nn.compact
    def __call__(self, x, _):
        return Layer()(x), None


class Stacked(nn.Module):
    """One layer after another, each with its own parameters."""

    reverse: bool = False
    remat: bool = False

    @nn.compact
    def __call__(self, x):
        scan = nn.scan(
            nn.remat(Step) if self.remat else Step,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=STEPS,
            reverse=self.reverse,
        )
        return scan(name="scan")(x, None)[0]


def stacked_weights(variables):
    (name,) = variables["params"]["scan"]
    return variables["params"]["scan"][name]["w"]


class Shared(nn.Module):
    """The same layer, applied repeatedly."""

    @nn.compact
    def __call__(self, x):
        scan = nn.scan(
            Step,
            variable_broadcast="params",
            split_rngs={"params": False},
            length=STEPS,
        )
        return scan(name="scan")(x, None)[0]


# --- nn.scan ---------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("remat", [False, True])
def test_scan_over_layers_logs_once_per_layer(reverse, remat):
    model = Stacked(reverse, remat)
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        weights = stacked_weights(variables)
        for w in weights[::-1] if reverse else weights:
            x = layer(w, x)
        return x

    check(model.apply, variables, oracle)


def test_scan_with_shared_parameters_logs_once_per_step():
    model = Shared()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        for _ in range(STEPS):
            x = layer(stacked_weights(variables), x)
        return x

    check(model.apply, variables, oracle)


def test_scan_in_a_scan_logs_once_per_inner_step():
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return Shared(name="inner")(x), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            scan = nn.scan(
                Outer, variable_broadcast="params", split_rngs={"params": False}
            )
            return scan(name="scan")(x, jnp.zeros(2))[0]

    model = Model()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        w = stacked_weights({"params": variables["params"]["scan"]["inner"]})
        for _ in range(2 * STEPS):
            x = layer(w, x)
        return x

    check(model.apply, variables, oracle)


def test_scan_logs_equally_often_during_init():
    for model in (Stacked(), Shared()):
        events = eager_events(model.init, jax.random.key(0), X)
        assert [len(row) for row in rows_of(events).values()] == [STEPS] * 3
        rows = spooled_rows(model.init, jax.random.key(0), X)
        assert [len(row) for row in rows.values()] == [STEPS] * 3


def test_scan_keeps_broadcasted_outputs_and_updated_variables():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, scale):
            count = self.variable("state", "count", jnp.zeros, ())
            count.value = count.value + 1
            lox.log({"count": count.value}, step=jnp.int32(count.value))
            lox.log({"scale": scale})
            return x * scale, (x, scale + 1)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, scale):
            scan = nn.scan(
                Body,
                variable_carry="state",
                in_axes=nn.broadcast,
                out_axes=(0, nn.broadcast),
                length=STEPS,
            )
            return scan()(x, scale)

    def run(x, scale):
        variables = {"state": {"ScanBody_0": {"count": jnp.zeros(())}}}
        return Model().apply(variables, x, scale, mutable="state")

    lox.set_default("silent")
    ((x, (xs, more)), updated), logs = lox.spool(run)(X, 2.0)
    np.testing.assert_allclose(x, X * 8)
    assert xs.shape == (STEPS, 2) and more == 3.0
    assert jax.tree.leaves(updated)[0] == STEPS
    assert logs["count"].tolist() == logs.step["count"].tolist() == [1, 2, 3]
    assert logs["scale"].tolist() == [2.0, 2.0, 2.0]


def test_scan_still_refuses_a_broadcasted_output_that_depends_on_the_loop():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            lox.log({"x": x.mean()})
            return x * 2, x

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            scan = nn.scan(Body, out_axes=nn.broadcast, length=STEPS)
            return scan()(x, None)

    with pytest.raises(ValueError, match="data dependency"):
        lox.spool(Model().apply)({}, X)


def single_weight(variables):
    (leaf,) = jax.tree.leaves(variables)
    return leaf


@pytest.mark.parametrize("lift", [nn.remat, nn.jit], ids=["remat", "jit"])
def test_remat_and_jit_log_once_per_call(lift):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = lift(Layer)(name="layer")
            return shared(shared(x))

    model = Model()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        w = single_weight(variables)
        return layer(w, layer(w, x))

    check(model.apply, variables, oracle)


def test_vmap_logs_once_per_lane():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            lanes = nn.vmap(
                Layer, variable_axes={"params": None}, split_rngs={"params": False}
            )
            return lanes(name="layer")(jnp.stack([x, x + 1]))

    model = Model()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        w = single_weight(variables)
        return jnp.stack([layer(w, x), layer(w, x + 1)])

    check(model.apply, variables, oracle)


def test_remat_scan_logs_once_per_layer():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat_scan(Layer, lengths=(2, 2))(name="layers")(x)

    model = Model()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        for w in single_weight(variables).reshape(4, 2):
            x = layer(w, x)
        return x

    check(model.apply, variables, oracle)


@pytest.mark.parametrize("index", [0, 1])
def test_cond_and_switch_log_the_branch_that_is_taken(index):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            one = Layer(name="one")
            if self.is_initializing():
                return one(x)

            def first(mdl, x):
                return one(x)

            def second(mdl, x):
                lox.log({"second": x.sum()})
                return one(x) * 2

            x = nn.switch(jnp.int32(index), [first, second], self, x)
            return nn.cond(index == 1, second, first, self, x)

    model = Model()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        w = single_weight(variables)
        for _ in range(2):
            if index:
                lox.log({"second": x.sum()})
            x = layer(w, x) * (2 if index else 1)
        return x

    check(model.apply, variables, oracle)


def test_while_loop_logs_in_its_body_and_its_condition():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            def cond(mdl, c):
                lox.log({"i": c[0]})
                return c[0] < STEPS

            def body(mdl, c):
                return c[0] + 1, mdl(c[1])

            one = Layer(name="one")
            if self.is_initializing():
                return one(x)
            loop = nn.while_loop(
                cond, body, one, (0, jax.lax.stop_gradient(x)), carry_variables=()
            )
            return x + loop[1]

    model = Model()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)

    def oracle(variables, x):
        y = x
        for i in range(STEPS):
            lox.log({"i": i})
            y = layer(single_weight(variables), y)
        lox.log({"i": STEPS})
        return x + y

    want = rows_of(eager_events(oracle, variables, X))
    for apply in (model.apply, jax.jit(model.apply)):
        assert_rows(spooled_rows(apply, variables, X), want)
        assert_rows(rows_of(tapped_events(apply, variables, X)), want)
        assert_same_rows(rows_of(eager_events(apply, variables, X)), want)


def test_custom_vjp_logs_the_forward_pass_once():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            def f(mdl, x):
                return mdl(x)

            def forward(mdl, x):
                return nn.vjp(f, mdl, x)

            def backward(vjp, tangent):
                params, x = vjp(tangent)
                return params, x * 2

            return nn.custom_vjp(f, forward, backward)(Layer(name="one"), x)

    model = Model()
    lox.set_default("silent")
    variables = model.init(jax.random.key(0), X)
    check(model.apply, variables, lambda v, x: layer(single_weight(v), x))


# --- the order of the imports ----------------------------------------------


@pytest.mark.parametrize("first", ["lox", "flax.linen as nn"])
def test_scan_logs_exactly_in_either_order_of_imports(first):
    program = """
        import {first}
        import flax.linen as nn, jax, jax.numpy as jnp
        import lox

        class Step(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                lox.log({{"x": x}})
                lox.log({{"rate": 0.5}})
                return x * 2, None

        scan = nn.scan(Step, length=3)
        jax.block_until_ready(scan().apply({{}}, jnp.float32(1), None))
        jax.effects_barrier()
    """
    run = programs.run(textwrap.dedent(program).format(first=first), fresh=True)
    assert run.returncode == 0, run.stderr
    printed = run.stdout
    assert sorted(printed.split("\n")) == sorted(
        ["", "{'x': 1.0}", "{'x': 2.0}", "{'x': 4.0}", *["{'rate': 0.5}"] * 3]
    )
