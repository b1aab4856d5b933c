"""`lox.stats`, compared with NumPy in float64."""

import operator

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox

ALL = (
    "rms",
    "norm",
    "mean",
    "std",
    "min",
    "max",
    "max_abs",
    "mean_abs",
    "zero_fraction",
    "nonfinite",
    "histogram",
)
COMPLEX = tuple(name for name in ALL if name not in ("min", "max", "histogram"))


def expected(x):
    """The statistics in float64 or complex128; of integers, in Python's integers."""
    x = np.asarray(x)
    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    with np.errstate(all="ignore"):
        found = {
            "rms": np.sqrt(np.mean(np.abs(wide) ** 2)),
            "norm": np.sqrt(np.sum(np.abs(wide) ** 2)),
            "mean": wide.mean(),
            "std": wide.std(),
            "max_abs": np.abs(wide).max(),
            "mean_abs": np.abs(wide).mean(),
            "zero_fraction": np.mean(wide == 0),
            "nonfinite": np.sum(~np.isfinite(wide)),
        }
        if not np.iscomplexobj(x):
            found |= {"min": wide.min(), "max": wide.max()}
    return found


def assert_statistics(found, x, rtol=1e-5):
    wanted = expected(x)
    scale = wanted["max_abs"] if np.isfinite(wanted["max_abs"]) else 1
    for name, value in wanted.items():
        # what rounding leaves of a mean of both signs depends on the size of values
        atol = 1e-6 * scale if name in ("mean", "std") else 0
        with np.errstate(over="ignore"):  # the norm of large numbers
            value = value.astype(found[name].dtype)
        np.testing.assert_allclose(
            found[name],
            value,
            rtol=rtol,
            atol=atol,
            err_msg=name,
        )
    if "histogram" in found:
        assert_histogram(found["histogram"], x)


def assert_histogram(histogram, x):
    finite = np.asarray(x).astype(np.float32).astype(np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    counts, edges = histogram["counts"], np.asarray(histogram["edges"], np.float64)
    assert counts.shape == (32,) and edges.shape == (33,)
    assert (np.diff(edges) >= 0).all()
    assert counts.sum() == finite.size
    if finite.size and finite.min() < finite.max():
        assert (edges[0], edges[-1]) == (finite.min(), finite.max())
        below = [(finite < edge).sum() for edge in edges[:-1]]
        assert np.cumsum(counts).tolist() == [*below[1:], finite.size]
        even = np.linspace(finite.min(), finite.max(), 33)
        width = max(np.abs(even).max() * 1e-6, np.finfo(np.float32).tiny)
        np.testing.assert_allclose(edges, even, rtol=1e-5, atol=width)


rng = np.random.default_rng(0)
LEAVES = {
    "normal": rng.normal(size=(7, 5)).astype(np.float32),
    "scalar": np.float32(-3.5),
    "zeros": np.zeros((3, 2), np.float32),
    "sparse": np.where(rng.random(50) < 0.7, 0, rng.normal(size=50)).astype("f4"),
    "constant": np.full((4,), 2.5, np.float32),
    "large": np.array([3e38, -3.4e38, 3.2e38, 1.0], np.float32),
    "largest": np.full((5,), np.finfo(np.float32).max),
    "small": np.array([1e-30, -3e-31, 2e-30], np.float32),
    "smallest normal": np.array([1.2e-38, -2e-38, 5e-38], np.float32),
    "wide": np.array([1e-30, 1e30, -1e10], np.float32),
    "float16": np.array([6.5e4, -6.5e4, 6.0e4, 1e-7], np.float16),
    "bfloat16": np.array([3.3e38, -3e38, 3e38, 3e38], ml_dtypes.bfloat16),
    "float8": np.array([448.0, -3, 2, 0], ml_dtypes.float8_e4m3fn),
    "offset": (1e4 + rng.normal(size=1000)).astype(np.float32),
    "nan": np.array([1.0, np.nan, 2.0], np.float32),
    "inf": np.array([1.0, np.inf, 3e38], np.float32),
    "minus inf": np.array([3e38, 3e38, -np.inf], np.float32),
    "both": np.array([np.inf, -np.inf, np.nan, 1], np.float32),
    "int32": rng.integers(-100, 100, (3, 4)).astype(np.int32),
    "uint8": np.array([0, 255, 3], np.uint8),
    "int8": np.array([-128, 127, 0], np.int8),
    "int4": np.array([-8, 7, 0], ml_dtypes.int4),
    "bool": np.array([True, False, False]),
    "complex": (rng.normal(size=6) + 1j * rng.normal(size=6)).astype(np.complex64),
    "large complex": np.array([3e38, -2e38j, 2e38 + 2e38j], np.complex64),
}


@pytest.mark.parametrize("name", LEAVES)
def test_statistics_equal_those_of_numpy_in_float64(name):
    x = LEAVES[name]
    found = lox.stats(jnp.asarray(x), ALL)
    assert list(found) == list(COMPLEX if np.iscomplexobj(x) else ALL)
    assert_statistics(found, x)


@pytest.mark.parametrize("name", ["normal", "large", "bfloat16", "complex", "int32"])
def test_statistics_are_the_same_under_jit_and_vmap(name):
    x = np.stack([LEAVES[name], LEAVES[name] * 0])
    function = jax.jit(lambda x: lox.stats(x, ALL))
    assert_statistics(function(x[0]), x[0])
    lanes = jax.vmap(lambda x: lox.stats(x, ALL))(x)
    for i in range(2):
        assert_statistics(jax.tree.map(operator.itemgetter(i), lanes), x[i])


def test_dtypes_are_float32_or_wider():
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.int32, jnp.int8, bool):
        found = lox.stats(jnp.ones(3, dtype), ("rms", "mean", "std", "zero_fraction"))
        assert {value.dtype for value in found.values()} == {jnp.dtype("float32")}
    found = lox.stats(jnp.ones(3, jnp.bfloat16), ("min", "max", "max_abs"))
    assert {value.dtype for value in found.values()} == {jnp.dtype("float32")}


def test_float64_is_kept():
    with jax.enable_x64(True):
        x = np.array([1e300, -1e300, 1e-300])
        found = lox.stats({"x": x}, ALL)
        assert found["x/rms"].dtype == np.float64
        np.testing.assert_allclose(found["x/rms"], 1e300 * np.sqrt(2 / 3), rtol=1e-14)
        found = lox.stats(np.array([2**60, 2**60 + 1]), ("mean", "std", "max"))
        assert found["max"] == 2**60 + 1 and found["std"] == 0.5


def test_integers_are_exact():
    x = np.array([2**24, 2**24 + 1, 2**24 + 2], np.int32)
    found = lox.stats(x, ("min", "max", "max_abs", "mean", "std"))
    assert [int(found[name]) for name in ("min", "max", "max_abs")] == [
        2**24,
        2**24 + 2,
        2**24 + 2,
    ]
    np.testing.assert_allclose(found["std"], np.std([0, 1, 2]), rtol=1e-6)
    extreme = np.array([-(2**31), 2**31 - 1], np.int32)
    found = lox.stats(extreme, ("min", "max", "max_abs", "std", "nonfinite"))
    assert int(found["max_abs"]) == 2**31
    assert (int(found["min"]), int(found["max"])) == (-(2**31), 2**31 - 1)
    np.testing.assert_allclose(found["std"], 2.0**31, rtol=1e-6)
    assert int(found["nonfinite"]) == 0


def test_empty_arrays_have_a_norm_and_no_values():
    for dtype in (jnp.float32, jnp.int32):
        found = lox.stats({"x": jnp.zeros((0, 3), dtype)}, ALL)
        assert list(found) == ["x/norm", "x/nonfinite", "x/histogram"]
        assert found["x/norm"] == 0 and found["x/nonfinite"] == 0
        assert found["x/histogram"]["counts"].sum() == 0


def test_histogram_of_values_that_are_not_finite_is_empty():
    histogram = lox.stats(jnp.array([jnp.nan, jnp.inf]), "histogram")["histogram"]
    assert histogram["counts"].tolist() == [0] * 32
    assert histogram["edges"][0] == 0 and histogram["edges"][-1] == 1


def test_histogram_of_one_value_has_bins_around_it():
    histogram = lox.stats(jnp.full(5, 2.0), "histogram")["histogram"]
    assert histogram["edges"][0] == 1.5 and histogram["edges"][-1] == 2.5
    assert histogram["counts"][16] == 5


def test_histogram_takes_no_memory_per_bin():
    x = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    compiled = jax.jit(lambda x: lox.stats(x, "histogram")).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * 4 << 20


def test_keys_are_paths():
    tree = {
        "a": [jnp.ones(1), (jnp.ones(1), None)],
        "b": jnp.ones(1),
        "key": jax.random.key(0),
    }
    assert list(lox.stats(tree, "rms")) == ["a/0/rms", "a/1/0/rms", "b/rms"]
    assert list(lox.stats(jnp.ones(1), "rms")) == ["rms"]
    assert list(lox.stats({"lr": 0.5, "name": "x", "on": True}, "rms")) == ["lr/rms"]


def test_equinox_modules_have_statistics_of_their_arrays():
    eqx = pytest.importorskip("equinox")
    key = jax.random.key(0)
    model = (eqx.nn.MLP(2, 3, 4, 1, key=key), eqx.nn.Dropout(0.5))
    found = lox.stats(model, ("rms",))
    assert list(found) == [
        "0/layers/0/weight/rms",
        "0/layers/0/bias/rms",
        "0/layers/1/weight/rms",
        "0/layers/1/bias/rms",
    ]
    np.testing.assert_allclose(
        found["0/layers/0/weight/rms"],
        expected(model[0].layers[0].weight)["rms"],
        rtol=1e-6,
    )


def test_nnx_modules_and_states_have_statistics_of_their_variables():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    wanted = ["layers/0/bias/rms", "layers/0/kernel/rms"]
    assert list(lox.stats(model, "rms")) == wanted
    assert list(lox.stats(nnx.state(model, nnx.Param), "rms")) == wanted


def test_statistics_are_differentiable():
    x = jnp.array([3e38, -4.0, 5.0])
    for name, gradient in {
        "mean": jnp.full(3, 1 / 3),
        "mean_abs": jnp.sign(x) / 3,
        "max_abs": jnp.array([1.0, 0, 0]),
    }.items():
        found = jax.grad(lambda x, name=name: lox.stats(x, name)[name])(x)
        np.testing.assert_allclose(found, gradient, rtol=1e-6)
    x = jnp.array([3.0, -4.0])
    found = jax.grad(lambda x: lox.stats(x, "norm")["norm"])(x)
    np.testing.assert_allclose(found, x / 5, rtol=1e-6)


def test_unknown_statistic_is_refused():
    with pytest.raises(lox.LoxValueError, match=r"test_stats.py:\d+.*'rsm'.*rms, norm"):
        lox.stats(jnp.ones(1), ["rms", "rsm"])
    with pytest.raises(lox.LoxValueError, match="no names"):
        lox.stats(jnp.ones(1), [])
    for which in (3, jnp.ones(2)):
        with pytest.raises(lox.LoxTypeError, match="must be names of statistics"):
            lox.stats(jnp.ones(1), which)


def test_tree_without_arrays_is_refused():
    for tree in ({}, {"a": "text"}, jax.random.key(0), None):
        with pytest.raises(lox.LoxTypeError, match=r"test_stats.py:\d+.*no array"):
            lox.stats(tree)


def test_leaves_with_the_same_key_are_refused():
    tree = {"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(1)}
    with pytest.raises(lox.LoxValueError, match=r"\['a'\]\['b'\] and \['a/b'\]"):
        lox.stats(tree)


def test_numbers_that_jax_cannot_hold_are_refused():
    with pytest.raises(lox.RangeError, match=r"test_stats.py:\d+ got .*'x'"):
        lox.stats({"x": np.array([2**40])})
