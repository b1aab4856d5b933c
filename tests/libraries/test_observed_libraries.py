"""`lox.observe` on samplers and solvers, compared with what they report themselves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import long, scaled

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


def test_stages_of_a_diffrax_solve_are_counted_per_lane():
    # a lane that rejects its first step makes all lanes compute their first stage again
    def stages(leaves):
        return {"y": leaves[4]}

    fun = lox.observe(decayed, carry=stages, loops="while[0]/while[0]")
    xs = jnp.array([0.5, 60.0])
    counts = [np.bincount(one.iteration["y"]) for one in lanes_of(fun, xs)]
    # every step has six stages, and only some have a seventh
    assert all(len(count) == 7 and count[0] > count[-1] for count in counts)
    assert_lanes(fun, xs)


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


def residual(leaves):
    """The norm of the first vector in the carry."""
    vectors = [x for x in leaves if x.ndim == 1]
    return {"r": jnp.linalg.norm(vectors[0])} if vectors else {}


def solved(solver, log=None):
    lx = pytest.importorskip("lineax")
    matrix = jnp.array([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]])

    def fun(y):
        def matvec(v):
            if log is not None:
                log({"v": v.sum()})
            return matrix @ v + y * v

        structure = jax.ShapeDtypeStruct((3,), jnp.float32)
        tags = lx.positive_semidefinite_tag if solver == "CG" else ()
        operator = lx.FunctionLinearOperator(matvec, structure, tags)
        # above 4, the solution has equal elements, and takes one step
        b = jnp.where(y > 4.0, matrix @ jnp.ones(3) + y, jnp.array([1.0, 2.0, 3.0]))
        method = getattr(lx, solver)(rtol=1e-3, atol=1e-3)
        return lx.linear_solve(operator, b, method, throw=False).value.sum()

    return fun


SHIFTS = jnp.array([3.0, 5.0])
IN_LANES = {
    "vmap(spool)": lambda f, spool: jax.vmap(spool(f)),
    "spool(vmap)": lambda f, spool: spool(jax.vmap(f)),
    "vmap(spool(grad))": lambda f, spool: jax.vmap(spool(jax.grad(f))),
    "spool(grad(vmap))": lambda f, spool: spool(
        jax.grad(lambda ys: jax.vmap(f)(ys).sum())
    ),
}


@pytest.mark.parametrize("solver", ["CG", pytest.param("GMRES", marks=long)])
def test_loops_of_a_linear_solve_log_each_iteration_once(solver):
    spool = functools.partial(lox.spool, capacity=CAPACITY)
    plain = solved(solver)
    fun = lox.observe(plain, carry=residual)
    values, logs = zip(*map(spool(fun), SHIFTS), strict=True)
    np.testing.assert_allclose(values, jax.vmap(plain)(SHIFTS), rtol=1e-3)
    if solver == "CG":
        assert len({len(one["r"]) for one in logs}) == 2
    for y, one in zip(SHIFTS, logs, strict=True):
        gradient, found = spool(jax.grad(fun))(y)
        np.testing.assert_allclose(gradient, jax.grad(plain)(y), rtol=1e-3)
        np.testing.assert_allclose(found["r"], one["r"], rtol=1e-3, atol=1e-4)
        tangent = spool(jax.jacfwd(fun))(y)[1].compact()
        np.testing.assert_allclose(tangent["r"], one["r"], rtol=1e-3, atol=1e-4)
    for way in IN_LANES.values():
        lanes = way(fun, spool)(SHIFTS)[1].lanes()
        for lane, one in zip(lanes, logs, strict=True):
            found = lane.compact()["r"]
            np.testing.assert_allclose(found, one["r"], rtol=1e-2, atol=1e-4)


def test_loops_of_a_linear_solve_have_addresses():
    found = lox.observe(solved("CG")).loops(3.0)
    assert [(loop.address, loop.kind) for loop in found] == [("while[0]", "while")]
    assert found[0].file.endswith("cg.py")


def test_observed_linear_solve_logs_its_own_events_once():
    y = SHIFTS[0]
    expected = lox.spool(solved("CG", lox.log), capacity=CAPACITY)(y)[1]
    fun = lox.observe(solved("CG", lox.log), carry=residual)
    for way in (fun, jax.grad(fun)):
        logs = lox.spool(way, capacity=CAPACITY)(y)[1]
        np.testing.assert_allclose(logs["v"], expected["v"], rtol=1e-3, atol=1e-4)
        assert len(logs["r"]) == 3
    assert not jax.make_jaxpr(lox.nolog(fun))(y).effects


def test_loops_of_noinline_are_reported():
    eqxi = pytest.importorskip("equinox.internal")

    @eqxi.noinline
    def halved(x):
        return jax.lax.fori_loop(0, 3, lambda i, x: x / 2, x)

    def fun(x):
        return jax.lax.scan(lambda c, _: (halved(c), None), x, length=2)[0]

    with pytest.warns(lox.LoxWarning, match="in functions of `eqxi.noinline`"):
        logs = lox.spool(lox.observe(fun, carry=True))(64.0)[1]
    assert np.ravel(next(iter(logs.values()))).tolist() == [8.0, 1.0]
    logs = lox.spool(lox.observe(fun, carry=True, loops="scan[0]"))(64.0)[1]
    assert np.ravel(next(iter(logs.values()))).tolist() == [8.0, 1.0]
