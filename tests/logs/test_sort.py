"""`logs.sort`: rows in the order of a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox

LENGTH = 6


def run(x, order):
    """Logs values whose steps come in any order, some of them twice."""

    def body(carry, i):
        step = order[i]
        lox.log({"a": carry, "tree": {"v": carry * jnp.ones(2)}}, step=step, other=i)
        lox.log({"without": carry})
        return carry + 1, None

    lox.log({"once": x}, step=7)
    return lax.scan(body, x, jnp.arange(LENGTH))[0]


def by_step(logs):
    return logs.sort("step")


eager_and_traced = pytest.mark.parametrize(
    "sort", [by_step, jax.jit(by_step)], ids=["eager", "traced"]
)
ORDERS = jnp.array([[3, 1, 2, 1, 0, 3], [5, 4, 3, 2, 1, 0]])


def expected_rows(x, order):
    rows = [(int(step), i, float(x) + i) for i, step in enumerate(order)]
    return sorted(rows, key=lambda row: row[0])


def rows_of(logs):
    np.testing.assert_array_equal(logs["tree"]["v"][:, 1], logs["a"])
    np.testing.assert_array_equal(logs.step["tree"], logs.step["a"])
    steps, others = logs.step["a"].tolist(), logs.other["a"].tolist()
    return list(zip(steps, others, logs["a"].tolist(), strict=True))


@eager_and_traced
def test_sort_is_stable_and_moves_values_and_steps(sort):
    _, logs = lox.spool(run)(1.0, ORDERS[0])
    ordered = sort(logs)
    assert rows_of(ordered) == expected_rows(1.0, ORDERS[0])
    assert ordered["without"].tolist() == logs["without"].tolist()
    assert ordered["once"] == 1.0 and ordered.step["once"] == 7
    assert ordered.sort("other") == logs
    assert isinstance(ordered["a"], jax.Array)


@eager_and_traced
@pytest.mark.parametrize("outside", [False, True])
def test_sort_orders_each_lane_by_its_own_steps(outside, sort):
    xs = jnp.array([1.0, 10.0])
    if outside:
        _, logs = jax.vmap(lox.spool(run))(xs, ORDERS)
    else:
        _, logs = lox.spool(jax.vmap(run))(xs, ORDERS)
    for lane, x, order in zip(sort(logs).lanes(), xs, ORDERS, strict=True):
        assert rows_of(lane) == expected_rows(x, order)


@pytest.mark.parametrize("traced", [False, True])
def test_sort_puts_rows_that_did_not_happen_last(traced):
    def program(x):
        def body(carry, i):
            lox.log({"a": i}, when=(i + x) % 2 == 0, step=LENGTH - i)
            return carry, None

        return lax.scan(body, 0, jnp.arange(LENGTH))[0]

    def ordered(x):
        return lox.spool(program)(x)[1].sort("step")

    logs = jax.jit(ordered)(1) if traced else ordered(1)
    assert logs.compact()["a"].tolist() == [5, 3, 1]
    lanes = jax.jit(jax.vmap(ordered))(jnp.arange(2)).lanes()
    assert [lane.compact()["a"].tolist() for lane in lanes] == [[4, 2, 0], [5, 3, 1]]


def test_sort_keeps_typed_keys_and_numpy():
    def program(order):
        def body(key, i):
            lox.log({"key": key}, step=order[i])
            return jax.random.fold_in(key, i), None

        return lax.scan(body, jax.random.key(0), jnp.arange(3))[0]

    _, logs = lox.spool(program)(jnp.array([2, 0, 1]))
    data = jax.random.key_data(logs["key"])
    for ordered in (by_step(logs), jax.jit(by_step)(logs)):
        sorted_data = jax.random.key_data(ordered["key"])
        np.testing.assert_array_equal(sorted_data, data[jnp.array([1, 2, 0])])
    steps = {"step": {"a": np.array([2, 0, 1])}}
    numpy = lox.logdict({"a": np.array([1, 2, 3])}, steps, stacked=True).sort("step")
    assert type(numpy["a"]) is np.ndarray and numpy["a"].tolist() == [2, 3, 1]


def test_sort_keeps_logs_without_rows():
    assert lox.logdict().sort("step") == {}
    _, logs = lox.spool(lambda: lox.log({"a": 1}, step=3))()
    assert logs.sort("step") == logs


def test_sort_by_an_unknown_step_is_refused():
    _, logs = lox.spool(run)(1.0, ORDERS[0])
    with pytest.raises(lox.LoxKeyError, match="no such step.*'step', 'other'"):
        logs.sort("steps")


def log_up_to(limit):
    """Logs only the first rows of the key that has a step."""

    def body(carry, i):
        lox.log({"a": i}, step=LENGTH - i, when=i < limit)
        lox.log({"b": i})
        return carry, None

    return lax.scan(body, 0, jnp.arange(LENGTH))[0]


def as_lanes_of_rows(limit):
    """The logs of a lane that logs `limit` rows, from rows that name their lane."""
    calls = []
    jax.vmap(lox.tap(log_up_to, calls.append))(jnp.array([LENGTH, limit]))
    jax.effects_barrier()
    return sum(calls, lox.logdict()).lanes()[1]


@pytest.mark.parametrize("limit", [0, 2])
@pytest.mark.parametrize(
    "logs_of",
    [
        lambda limit: lox.spool(log_up_to)(limit)[1],
        lambda limit: jax.jit(lox.spool(log_up_to))(limit)[1].compact(),
        lambda limit: jax.vmap(lox.spool(log_up_to))(jnp.array([limit]))[1].lanes()[0],
        lambda limit: lox.logdict() + lox.spool(log_up_to)(limit)[1],
        lambda limit: lox.logdict() | lox.spool(log_up_to)(limit)[1],
        lambda limit: lox.spool(log_up_to)(limit)[1].filter("*"),
        as_lanes_of_rows,
    ],
    ids=["eager", "compact", "lanes", "add", "or", "filter", "named lanes"],
)
def test_step_of_a_key_without_rows_is_known(logs_of, limit):
    logs = logs_of(limit)
    assert logs.sort("step")["b"].tolist() == list(range(LENGTH))
    assert logs.step.get("a", jnp.zeros(0)).tolist() == [6, 5][:limit]
    with pytest.raises(lox.LoxKeyError, match=r"no such step; their steps are 'step'"):
        logs.sort("steps")


def test_step_of_a_key_without_rows_does_not_change_equality_and_structure():
    logs = lox.spool(log_up_to)(0)[1]
    _, expected = lox.spool(log_up_to)(2)
    del expected["a"]
    assert logs == expected.filter("*") and logs.steps == {}
    plain = lox.logdict({"b": logs["b"]}, stacked=True)
    assert jax.tree.structure(logs) == jax.tree.structure(plain)
