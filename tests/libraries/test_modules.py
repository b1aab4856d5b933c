"""State of Linen and Haiku modules is kept, or a transformation is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

X = jnp.ones(2)


def spooled(fun):
    return lambda *args: lox.spool(fun)(*args)[0]


def tapped(fun):
    return lox.tap(fun, lambda logs: None)


ways = pytest.mark.parametrize("way", [spooled, tapped, lox.nolog])


# --- Linen -----------------------------------------------------------------


def linen_models(way):
    """A model with a counter, and one that transforms it inside its own method."""
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.Dense(3)(x)
            count = self.variable("stats", "count", lambda: jnp.zeros(()))
            if self.is_mutable_collection("stats"):
                count.value += 1
            lox.log({"mean": y.mean()})
            return y

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            net = Net()
            return way(lambda x: net(x))(x)

    return Net(), Outer()


@ways
@pytest.mark.parametrize("outside", [lambda f: f, jax.jit])
def test_linen_variables_written_by_transformed_part_are_refused(way, outside):
    net, outer = linen_models(way)
    with pytest.raises(lox.LoxTypeError, match=r"'params/Net_0/.*Linen.*model.apply"):
        outside(outer.init)(jax.random.key(0), X)
    variables = lox.nolog(net.init)(jax.random.key(0), X)
    inside = {kind: {"Net_0": tree} for kind, tree in variables.items()}

    def updated(variables, x):
        return outer.apply(variables, x, mutable=["stats"])

    with pytest.raises(lox.LoxTypeError, match="'stats/Net_0/count' of a Linen module"):
        outside(updated)(inside, X)
    # methods that only read them can be transformed anywhere
    expected = lox.nolog(net.apply)(variables, X)
    np.testing.assert_array_equal(outside(outer.apply)(inside, X), expected)


@ways
def test_linen_state_is_updated_under_transformation_of_whole_model(way):
    net, _ = linen_models(way)
    variables = way(net.init)(jax.random.key(0), X)

    def updated(variables, x):
        return net.apply(variables, x, mutable=["stats"])

    for step in (way(updated), jax.jit(way(updated)), way(jax.jit(updated))):
        y, state = step(variables, X)
        assert state["stats"]["count"] == variables["stats"]["count"] + 1


# --- Haiku -----------------------------------------------------------------


@ways
def test_haiku_state_written_by_transformed_part_is_refused(way):
    hk = pytest.importorskip("haiku")

    def count(x):
        number = hk.get_state("count", (), init=jnp.zeros)
        hk.set_state("count", number + 1)
        lox.log({"count": number})
        return hk.Linear(3)(x)

    def model(fun):
        return hk.without_apply_rng(hk.transform_with_state(fun))

    net, part = model(count), model(lambda x: way(count)(x))
    with pytest.raises(lox.LoxTypeError, match=r"'linear/.*Haiku.*net.apply"):
        part.init(jax.random.key(0), X)
    params, state = way(net.init)(jax.random.key(0), X)
    with pytest.raises(lox.LoxTypeError, match="'~/count/current' of a Haiku module"):
        part.apply(params, state, X)
    _, new = way(net.apply)(params, state, X)
    assert new["~"]["count"] == state["~"]["count"] + 1
