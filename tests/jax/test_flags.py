"""Flags that may become JAX's defaults: with them on, the events are the same.

`jax_remat3` makes every checkpoint a high-level primitive, `jax_custom_vjp3` every call
of a `custom_vjp` function. `.ci/run` also runs the tests of derivatives with both on.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.interpreter.programs_that_log import logged, rows, tapped

FLAGS = ("jax_remat3", "jax_custom_vjp3")
COMBINATIONS = {
    "none": (),
    "remat3": FLAGS[:1],
    "custom_vjp3": FLAGS[1:],
    "both": FLAGS,
}

pytestmark = pytest.mark.skipif(
    not all(hasattr(jax.config, flag) for flag in FLAGS),
    reason=f"JAX {jax.__version__} does not have the flags jax_remat3, jax_custom_vjp3",
)


@pytest.fixture(params=COMBINATIONS)
def flags(request):
    before = {flag: getattr(jax.config, flag) for flag in FLAGS}
    for flag in FLAGS:
        jax.config.update(flag, flag in COMBINATIONS[request.param])
    yield COMBINATIONS[request.param]
    for flag, value in before.items():
        jax.config.update(flag, value)


def with_rules(function=jnp.sin, **options):
    """A function whose rules log on its line and on other lines."""

    @jax.custom_vjp
    def f(x):
        return function(logged(x, "x"))

    def fwd(x):
        return function(logged(x, "x")), logged(x, "fwd")

    def bwd(x, ct):
        logged(x, "x")
        return (logged(ct, "ct") * jnp.cos(logged(x, "residual")),)

    f.defvjp(fwd, bwd, **options)
    return f


def by_key(calls):
    keys = dict.fromkeys(itertools.chain.from_iterable(calls))
    return {key: rows(calls, key) for key in keys}


def twice(f):
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]


def where_positive(f):
    return lambda x: lax.cond(x > 0, f, lambda x: x * 3, x)


def sum_over_lanes(f):
    return lambda xs: jax.vmap(f)(xs).sum()


def in_a_backward_rule(inner):
    """A function whose backward rule differentiates `inner`, and logs in a loop."""

    @jax.custom_vjp
    def f(x):
        return x * 2

    def bwd(x, ct):
        lax.fori_loop(0, 2, lambda i, c: logged(c, "loop") + 1, ct)
        return (ct * jax.grad(inner)(x),)

    f.defvjp(lambda x: (x * 2, x), bwd)
    return f


ONE, MANY = jnp.float32(0.5), jnp.array([1.0, -1.0, 2.0])
AGAIN = float(jnp.sin(ONE))
SLOPE = float(jnp.cos(jnp.sin(ONE)))
ONCE = {"x": [0.5], "fwd": [0.5], "ct": [1.0], "residual": [0.5]}
TWICE = {
    "x": [0.5, AGAIN],
    "fwd": [0.5, AGAIN],
    "ct": [1.0, SLOPE],
    "residual": [AGAIN, 0.5],
}
TAKEN = {"x": [1, 2], "fwd": [1, 2], "ct": [1, 1], "residual": [1, 2]}
LOOP = {"loop": [1, 1, 2, 2]}

# a function that makes the program, its input, and its events
PROGRAMS = {
    "grad": (lambda: jax.grad(with_rules()), ONE, ONCE),
    "jit": (lambda: jax.grad(jax.jit(with_rules())), ONE, ONCE),
    "checkpoint": (lambda: jax.grad(jax.checkpoint(with_rules())), ONE, ONCE),
    "scan": (lambda: jax.grad(twice(with_rules())), ONE, TWICE),
    "checkpoint of scan": (
        lambda: jax.grad(jax.checkpoint(twice(with_rules()))),
        ONE,
        TWICE,
    ),
    "scan of checkpoint": (
        lambda: jax.grad(twice(jax.checkpoint(with_rules()))),
        ONE,
        TWICE,
    ),
    "vmapped cond": (
        lambda: jax.grad(sum_over_lanes(where_positive(with_rules()))),
        MANY,
        TAKEN,
    ),
    "vmapped cond of checkpoint": (
        lambda: jax.vmap(jax.grad(where_positive(jax.checkpoint(with_rules())))),
        MANY,
        TAKEN,
    ),
    "vmapped cond, in a backward rule": (
        lambda: jax.vmap(jax.grad(where_positive(in_a_backward_rule(with_rules())))),
        MANY,
        {**LOOP, **TAKEN},
    ),
    "vmapped cond of checkpoint, in a backward rule": (
        lambda: jax.vmap(
            jax.grad(where_positive(in_a_backward_rule(jax.checkpoint(with_rules()))))
        ),
        MANY,
        {**LOOP, **TAKEN},
    ),
    "second derivative": (lambda: jax.grad(jax.grad(with_rules())), ONE, ONCE),
}


def forward_rule_runs_in_the_backward_pass():
    """Whether JAX itself calls the function in the forward pass of a checkpoint."""
    seen = []

    def fwd(x):
        jax.debug.callback(lambda: seen.append(None))
        return jnp.sin(x), x

    f = jax.custom_vjp(jnp.sin)
    f.defvjp(fwd, lambda x, ct: (ct * jnp.cos(x),))
    jax.vjp(jax.checkpoint(f), ONE)
    jax.effects_barrier()
    return not seen


@pytest.mark.parametrize("name", PROGRAMS)
def test_flags_do_not_change_events_of_derivatives(flags, name):
    make, x, expected = PROGRAMS[name]
    if name == "scan of checkpoint" and forward_rule_runs_in_the_backward_pass():
        expected = {**expected, "fwd": expected["fwd"][::-1]}
    found = by_key(tapped(make(), x))
    assert found.keys() == expected.keys()
    for key, values in found.items():
        np.testing.assert_allclose(values, expected[key], rtol=1e-6)
    result, sums = lox.spool(make(), reduce="sum")(x)
    np.testing.assert_allclose(result, lox.nolog(make())(x), rtol=1e-6)
    assert sums.keys() == expected.keys()
    for key, values in sums.items():
        np.testing.assert_allclose(np.sum(values), np.sum(expected[key]), rtol=1e-6)


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, jax.jit, jax.checkpoint, twice, where_positive],
    ids=["plain", "jit", "checkpoint", "scan", "cond"],
)
def test_flags_do_not_change_events_of_grad_of_transformation(flags, wrap, capsys):
    f = wrap(with_rules())
    gradient = jax.grad(lox.nolog(f))(ONE)
    expected = lox.spool(f)(ONE)[1]
    assert expected.keys() == {"x"}
    with pytest.warns(lox.LoxWarning, match="'(fwd|ct|residual)'.*derivative rule"):
        found, logs = jax.grad(lox.spool(f), has_aux=True)(ONE)
    np.testing.assert_array_equal(logs["x"], expected["x"])
    np.testing.assert_allclose(found, gradient, rtol=1e-6)
    calls = []
    with pytest.warns(lox.LoxWarning, match="'(fwd|ct|residual)'.*derivative rule"):
        found = jax.grad(lox.tap(f, calls.append))(ONE)
        jax.effects_barrier()
    assert by_key(calls) == {"x": np.ravel(expected["x"]).tolist()}
    np.testing.assert_allclose(found, gradient, rtol=1e-6)
    assert capsys.readouterr().out == ""


def test_flags_keep_lanes_of_vmapped_checkpoint(flags):
    silent = jax.custom_vjp(jnp.sin)
    silent.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
    logging = jax.grad(sum_over_lanes(jax.checkpoint(with_rules())))
    try:
        jax.grad(sum_over_lanes(jax.checkpoint(silent)))(MANY)
    except TypeError as error:  # JAX up to 0.11 cannot, even without events
        assert flags == ("jax_custom_vjp3",) and "custom_vjp function" in str(error)
        with pytest.raises(TypeError, match="custom_vjp function"):
            tapped(logging, MANY)
        return
    expected = {"x": [1, -1, 2], "fwd": [1, -1, 2], "ct": [1, 1, 1]}
    assert by_key(tapped(logging, MANY)) == {**expected, "residual": [1, -1, 2]}


def test_flags_refuse_custom_vjp_that_closes_over_tracer(flags):
    def loss(w, log):
        @jax.custom_vjp
        def f(x):
            return (logged(x, "x") if log else x) * w

        f.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 2,))
        return f(1.0)

    for refused in (
        lambda w: loss(w, log=False),
        lambda w: loss(w, log=True),
        lambda w: lox.spool(loss, static_argnames="log")(w, log=True)[0],
    ):
        with pytest.raises(Exception, match=r"closed.over|unexpected tracer"):
            jax.grad(refused)(3.0)


def test_flags_let_custom_vjp_with_closed_over_array_log_once(flags):
    weights = jnp.arange(3.0)

    @jax.custom_vjp
    def f(x):
        return (logged(x, "x") * weights).sum()

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (logged(ct, "ct") * 3,))
    assert by_key(tapped(jax.grad(twice(f)), 1.0)) == {"x": [1, 3], "ct": [1, 3]}


def test_defvjp_with_logs_of_jax_works_together_with_events(flags):
    if not hasattr(jax.custom_vjp, "defvjp_with_logs"):
        pytest.skip(f"JAX {jax.__version__} has no `defvjp_with_logs`")

    @jax.custom_vjp
    def f(x):
        return logged(x, "x") * 2

    def bwd(_, ct):
        return (logged(ct, "ct") * 2,), {"own": ct}

    f.defvjp_with_logs(lambda x: (f(x), None), bwd)

    def pulled_back(x):
        return jax.vjp(twice(f), x)[1].with_logs(1.0)

    expected = jax.tree.map(np.asarray, lox.nolog(pulled_back)(1.0))
    result, logs = lox.spool(pulled_back)(1.0)
    jax.tree.map(np.testing.assert_array_equal, result, expected)
    assert logs["x"].tolist() == [1, 2] and logs["ct"].tolist() == [1, 2]


def test_optimize_remat_logs_once_or_raises(flags):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(logged(x, "x"))

    def fwd(x):
        return f(x), logged(x * 2, "fwd")

    f.defvjp(fwd, lambda r, ct: (logged(ct, "ct") * r,), optimize_remat=True)
    for g in (f, jax.checkpoint(f)):
        if "jax_custom_vjp3" not in flags:
            with pytest.raises(lox.UnsupportedPrimitiveError, match="remat_opt"):
                tapped(jax.grad(g), 1.0)
        else:
            assert tapped(jax.grad(g), 1.0) == [{"x": 1.0}, {"fwd": 2.0}, {"ct": 1.0}]


def test_generic_batching_logs_once(flags):
    try:
        f = with_rules(generic_batching=True)
    except TypeError:
        pytest.skip(f"JAX {jax.__version__} has no `generic_batching`")
    found = by_key(tapped(jax.grad(sum_over_lanes(twice(f))), MANY[:1]))
    assert {key: len(values) for key, values in found.items()} == dict.fromkeys(
        ("x", "fwd", "ct", "residual"), 2
    )


@pytest.mark.parametrize("around", [lambda f: f, twice], ids=["plain", "scan"])
def test_defremat_recomputation_logs_nothing(flags, around):
    if not hasattr(jax.custom_vjp, "defremat"):
        pytest.skip(f"JAX {jax.__version__} has no `defremat`")

    @jax.custom_vjp
    def f(x):
        return logged(x, "x") * 2

    f.defremat(
        lambda x: (f(x), logged(x, "fwd")),
        lambda x, _: (f(x), logged(x, "rem")),
        lambda x, ct: (logged(ct, "ct") * 2,),
    )
    if "jax_custom_vjp3" not in flags:  # JAX says what it needs
        with pytest.raises(NotImplementedError, match="jax_custom_vjp3"):
            around(f)(1.0)
        return
    for g in (around(f), jax.checkpoint(around(f))):
        found = by_key(tapped(jax.grad(g), 1.0))
        forward = [1.0] if around is not twice else [1.0, 2.0]
        assert found["x"] == found["fwd"] == found["ct"] == forward
        assert sorted(found["rem"]) == forward


def test_observed_loops_log_their_iterations_once(flags):
    @jax.custom_vjp
    def halve(x):
        return lax.fori_loop(0, 2, lambda i, v: v / 2, x)

    halve.defvjp(lambda x: (halve(x), None), lambda _, ct: (ct / 4,))

    @jax.checkpoint
    def block(x):
        return lax.fori_loop(0, 3, lambda i, v: halve(v) + i, x)

    fun = lox.observe(block, carry=lambda leaves: {"v": leaves[1]})
    expected, x = [], 8.0
    for i in range(3):
        expected += [x / 2, x / 4, x / 4 + i]
        x = x / 4 + i
    for way in (lambda f: f, jax.jit, jax.grad):
        _, logs = lox.spool(way(fun))(8.0)
        assert logs["v"].tolist() == expected
    assert lox.nolog(jax.grad(fun))(8.0) == 1 / 64
