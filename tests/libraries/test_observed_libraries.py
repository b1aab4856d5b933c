"""`lox.observe` on samplers and solvers, compared with what they report themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import scaled

SAMPLES = scaled(4)
CAPACITY = 64 * SAMPLES


def lanes_of(fun, xs):
    """What every lane logs alone."""
    return [lox.spool(fun, capacity=CAPACITY)(x)[1] for x in xs]


def assert_lanes(fun, xs):
    """Checks that lanes of one program log what they log alone."""
    _, logs = jax.vmap(lox.spool(fun, capacity=CAPACITY))(xs)
    for lane, alone in zip(logs.lanes(), lanes_of(fun, xs), strict=True):
        lane = lane.compact()
        assert lane.keys() == alone.keys()
        for key in alone:
            np.testing.assert_allclose(lane[key], alone[key], rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(lane.iteration[key], alone.iteration[key])


# --- BlackJAX ----------------------------------------------------------------


def nuts(seed):
    blackjax = pytest.importorskip("blackjax")

    def log_density(x):
        return -0.5 * jnp.sum(x**2 / jnp.array([1.0, 4.0]))

    kernel = blackjax.nuts(log_density, 0.5, jnp.ones(2))

    def step(state, i):
        key = jax.random.fold_in(jax.random.key(seed), i)
        state, info = kernel.step(key, state)
        return state, (state.position, info.num_integration_steps)

    return jax.lax.scan(step, kernel.init(jnp.ones(2)), jnp.arange(SAMPLES))[1]


def test_blackjax_nuts_logs_every_state_of_the_chain():
    fun = lox.observe(nuts, carry=True, loops="nuts")
    (positions, _), logs = lox.spool(fun)(0)
    np.testing.assert_array_equal(logs["state.position"], positions)
    assert logs.iteration["state.position"].tolist() == list(range(SAMPLES))


def leaps(leaves):
    return {"position": leaves[1]}


def test_blackjax_nuts_logs_every_leapfrog_step():
    fun = lox.observe(nuts, carry=leaps, loops="dynamic_progressive_integration.*")
    (_, steps), logs = lox.spool(fun, capacity=CAPACITY)(0)
    assert len(logs["position"]) == int(steps.sum())
    assert_lanes(fun, jnp.arange(3))


# --- diffrax -----------------------------------------------------------------


def decay(rate, **options):
    diffrax = pytest.importorskip("diffrax")
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -rate * y),
        diffrax.Tsit5(),
        0.0,
        1.0,
        0.1,
        jnp.ones(2),
        stepsize_controller=diffrax.PIDController(1e-3, 1e-6),
        max_steps=64,
        **options,
    )


def decayed(rate):
    return decay(rate).ys.sum()


def times_of(rate):
    """The end of every step, accepted or not, with the adjoint that observe sees."""
    diffrax = pytest.importorskip("diffrax")
    found = decay(rate, saveat=diffrax.SaveAt(steps=True))
    return np.asarray(found.ts)[: int(found.stats["num_accepted_steps"])]


TIME = "x[3].tprev"


def test_diffrax_logs_every_step_of_a_solve():
    fun = lox.observe(decayed, carry=True, loops="while[0]")
    _, logs = lox.spool(fun, argnames=TIME, capacity=CAPACITY)(2.0)
    np.testing.assert_array_equal(np.unique(logs[TIME]), times_of(2.0))


def test_diffrax_logs_the_same_once_under_grad():
    fun = lox.observe(decayed, carry=True, loops="while[0]")
    value, logs = lox.spool(jax.grad(fun), argnames=TIME, capacity=CAPACITY)(2.0)
    np.testing.assert_array_equal(np.unique(logs[TIME]), times_of(2.0))
    assert value == jax.grad(decayed)(2.0)


def test_diffrax_lanes_log_their_own_steps():
    fun = lox.observe(decayed, carry=lambda leaves: {"y": leaves[3]}, loops="while[0]")
    assert_lanes(fun, jnp.array([0.5, 2.0, 30.0]))


# --- optimistix --------------------------------------------------------------


def root(a):
    optx = pytest.importorskip("optimistix")
    solver = optx.Newton(rtol=1e-4, atol=1e-4)
    start = jnp.array([1.0, 2.0])
    return optx.root_find(lambda x, a: x**3 - a, solver, start, a)


def root_sum(a):
    return root(a).value.sum()


def iterate(leaves):
    return {"x": leaves[3]}


@pytest.mark.parametrize("way", [lambda fun: fun, jax.grad], ids=["call", "grad"])
def test_optimistix_logs_every_newton_step_once(way):
    fun = lox.observe(root_sum, carry=iterate, loops="while[0]")
    _, logs = lox.spool(way(fun), capacity=CAPACITY)(2.0)
    found = root(2.0)
    assert len(logs["x"]) == int(found.stats["num_steps"])
    np.testing.assert_array_equal(logs["x"][-1], found.value)


def test_optimistix_lanes_log_their_own_steps():
    fun = lox.observe(root_sum, carry=iterate, loops="while[0]")
    assert_lanes(fun, jnp.array([1.0, 2.0, 700.0]))


def test_loops_of_a_linear_solve_are_reported():
    lx = pytest.importorskip("lineax")

    def solve(b, solver):
        matrix = jnp.array([[2.0, 0.1], [0.1, 3.0]])
        operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)

        def step(x, t):
            return x + lx.linear_solve(operator, b * t, solver).value, None

        return jax.lax.scan(step, b, jnp.arange(3.0))[0]

    def iterative(b):
        return solve(b, lx.CG(1e-4, 1e-4))

    def direct(b):
        return solve(b, lx.Cholesky())

    b = jnp.ones(2)
    with pytest.warns(lox.LoxWarning, match="inside of `lineax.linear_solve`"):
        logs = lox.spool(lox.observe(iterative, carry=True))(b)[1]
    for fun in (
        lox.observe(iterative, carry=True, loops="scan[0]"),
        lox.observe(direct, carry=True),
    ):
        np.testing.assert_allclose(lox.spool(fun)(b)[1]["x"], logs["x"], rtol=1e-3)
