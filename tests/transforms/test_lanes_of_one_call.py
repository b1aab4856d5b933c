"""One `lox.log` call that is reached with and without a `vmap` around it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers


def simplex(x):
    """Evaluates a function under `vmap` and without, as Nelder-Mead does."""

    def f(x):
        lox.log({"x": x, "tree": {"twice": jnp.stack([x, 2 * x])}}, step=x.astype(int))
        return x**2

    return jax.vmap(f)(jnp.stack([x, x + 1, x + 2])).sum() + f(x)


def simplex_in_scan(x):
    return lax.scan(lambda c, _: (c + 1 + 0 * simplex(c), None), x, None, length=2)[0]


def simplex_in_cond(x):
    def f(x):
        lox.log({"x": x, "tree": {"twice": jnp.stack([x, 2 * x])}}, step=x.astype(int))
        return x**2

    def many(x):
        return jax.vmap(f)(jnp.stack([x, x + 1, x + 2])).sum()

    return lax.cond(x > 0, many, f, x) + lax.cond(x < 0, many, f, x)


def simplex_in_while(x):
    return lax.while_loop(lambda c: c < 3, lambda c: c + 1 + 0 * simplex(c), x)


def simplex_deeper(x):
    def f(x):
        lox.log({"x": x, "tree": {"twice": jnp.stack([x, 2 * x])}}, step=x.astype(int))
        return x

    grid = jnp.stack([x, x + 1, x + 2, x + 3]).reshape(2, 2)
    return jax.vmap(jax.vmap(f))(grid).sum() + f(x) + jax.vmap(f)(grid[0]).sum()


PROGRAMS = [simplex, simplex_in_scan, simplex_in_cond, simplex_in_while, simplex_deeper]


def tapped_rows(fun, x, **options):
    calls = []
    lox.tap(fun, calls.append, **options)(x)
    # `lanes` takes the step `lane` away, which spooled rows do not have
    return [row for call in calls for logs in call.lanes() for row in logs.rows()]


def assert_same_rows(rows, wanted):
    assert len(rows) == len(wanted)
    for row, other in zip(rows, wanted, strict=True):
        assert row.keys() == other.keys() and row.steps == other.steps
        assert jax.tree.all(jax.tree.map(np.array_equal, dict(row), dict(other)))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_call_inside_and_outside_vmap_returns_lanes_as_rows(program):
    x = jnp.float32(1)
    wanted = tapped_rows(program, x)
    assert len(wanted) > 3
    kept = {"capacity": 20}
    for rows in (
        list(lox.spool(program, **kept)(x)[1].rows()),
        list(jax.jit(lox.spool(program, **kept))(x)[1].rows()),
        list(jax.vmap(lox.spool(program, **kept))(x[None])[1].lanes()[0].rows()),
        list(lox.spool(jax.vmap(program), **kept)(x[None])[1].lanes()[0].rows()),
        list(lox.spool(program, interval=1, **kept)(x)[1].rows()),
        tapped_rows(program, x, buffer=3),
    ):
        assert_same_rows(rows, wanted)
    if program is not simplex_in_while:
        assert_same_rows(list(lox.spool(program)(x)[1].rows()), wanted)
        rows = list(lox.spool(jax.grad(program))(x)[1].rows())
        assert_same_rows(rows, wanted)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_call_inside_and_outside_vmap_is_reduced_over_lanes(program):
    x = jnp.float32(1)
    values = [float(row["x"]) for row in tapped_rows(program, x)]
    for name in ("mean", "min", "first", "last"):
        _, logs = lox.spool(program, "x", reduce=name)(x)
        wanted = lox.logdict({"x": np.array(values)}, stacked=True).reduce(name)["x"]
        assert logs["x"] == pytest.approx(wanted)
    (row,) = tapped_rows(program, x, argnames="x", reduce="last")
    assert row["x"] == pytest.approx(wanted)
    two = [values[i : i + 2] for i in range(0, len(values), 2)]
    _, logs = lox.spool(program, "x", reduce="max", window=2, capacity=20)(x)
    assert logs["x"].tolist() == list(map(max, two))


def test_vmap_around_all_rows_keeps_lanes():
    xs = jnp.array([1.0, 5.0])
    _, logs = lox.spool(jax.vmap(simplex))(xs)
    assert logs["x"].shape == (4, 2) and logs["tree"]["twice"].shape == (4, 2, 2)
    for lane, x in zip(logs.lanes(), xs, strict=True):
        assert lane == lox.spool(simplex)(x)[1]
    _, reduced = lox.spool(jax.vmap(simplex), "x", reduce="sum")(xs)
    assert reduced["x"].tolist() == [7.0, 23.0]


def test_lax_map_with_remainder_under_vmap_joins_along_time():
    def f(x):
        def each(v):
            lox.log({"v": v * x}, step=v.astype(int))
            return v

        return lax.map(each, jnp.arange(5.0), batch_size=2).sum()

    xs = jnp.array([1.0, 3.0])
    _, logs = lox.spool(jax.vmap(f))(xs)
    assert logs["v"].tolist() == [[i * 1.0, i * 3.0] for i in range(5)]
    assert logs.step["v"].tolist() == [[i, i] for i in range(5)]
    _, logs = lox.spool(jax.vmap(f), reduce="sum")(xs)
    assert logs["v"].tolist() == [10.0, 30.0]

    def twice(x):
        def each(v):
            lox.log({"v": v})
            lax.scan(lambda c, i: (lox.log({"v": v + i}), None)[::-1], None, xs)
            return v

        ends = [lax.map(each, jnp.arange(5.0), batch_size=2) for _ in range(2)]
        return sum(end.sum() for end in ends) + x

    calls = []
    lox.tap(twice, calls.append)(1.0)
    _, logs = lox.spool(twice)(1.0)
    assert logs["v"].tolist() == [float(call["v"]) for call in calls]


def test_lanes_that_differ_between_calls_raise_error_with_remedy():
    def f(x):
        lox.log({"x": x})
        jax.vmap(lambda x: lox.log({"x": x}) and None)(jnp.ones(2))
        return x

    with pytest.raises(lox.ShapeError, match="another name.*`argnames`.*`lox.tap`"):
        lox.spool(f)(1.0)

    def g(x):
        def log(x):
            lox.log({"x": x})
            return x

        return (
            jax.vmap(log)(jnp.arange(3.0) + x).sum()
            + jax.vmap(log)(jnp.arange(2.0)).sum()
        )

    with pytest.raises(lox.ShapeError, match="the same line.*reduce.*`lox.tap`"):
        lox.spool(g)(1.0)
    assert lox.spool(g, reduce="sum")(1.0)[1]["x"] == 7
    assert len(tapped_rows(g, 1.0)) == 5


@pytest.mark.parametrize(
    "options", [{"reduce": "last"}, {"window": 2, "reduce": "mean"}, {"buffer": 2}]
)
def test_remedy_for_lanes_that_differ_helps_in_a_tap(tmp_path, options):
    def f(x):
        lox.log({"x": x})
        jax.vmap(lambda x: lox.log({"x": x}) and None)(jnp.arange(2.0))
        return x

    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    remedy = "`logger.tap` without `reduce`, `window` and `buffer`"
    for tap in (lox.tap, lambda f, **options: logger.tap(f, state, **options)):
        with pytest.raises(lox.ShapeError, match=remedy):
            tap(f, **options)(1.0)
    assert len(tapped_rows(f, 1.0)) == 3
    logger.tap(f, state)(1.0)
    logger.finish(state)
    assert lox.load(tmp_path)["x"].tolist() == [1, 0, 1]
