"""optax: gradient transformations with conditions inside, and a line search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import (
    assert_bitwise,
    assert_close,
    assert_recorded,
    assert_spooled,
    check_lanes,
    check_logs,
    events_of,
    quiet,
    record,
    record_lanes,
    scaled,
)

optax = pytest.importorskip("optax")

STEPS = scaled(12)


# --- MultiSteps and apply_if_finite ------------------------------------------


def logging(inner, log):
    """A gradient transformation that logs whenever it is evaluated."""

    def update(updates, state, params=None):
        updates, state = inner.update(updates, state, params)
        log({"update_norm": optax.tree.norm(updates)}, count=state[0].count)
        return updates, state

    return optax.GradientTransformation(inner.init, update)


def accumulating(log):
    def train(seed, rate):
        data = jax.random.normal(jax.random.key(seed), (STEPS, 4, 3))
        data = data.at[5].set(jnp.nan)  # a batch that must not be applied
        steps = optax.MultiSteps(logging(optax.adam(rate), log), every_k_schedule=2)
        optimizer = optax.apply_if_finite(steps.gradient_transformation(), 3)

        def loss_of(w, batch):
            loss = jnp.mean((batch @ w - batch.sum(-1)) ** 2)
            log({"loss": loss}, lane=seed)
            return loss

        def step(carry, batch):
            w, state = carry
            loss, grad = jax.value_and_grad(loss_of)(w, batch)
            updates, state = optimizer.update(grad, state, w)
            w = optax.apply_updates(w, updates)
            log({"w": w, "skipped": state.total_notfinite}, lane=seed)
            return (w, state), (loss, w, state.total_notfinite)

        start = jnp.zeros(3), optimizer.init(jnp.zeros(3))
        return jax.lax.scan(step, start, data)

    return train


def test_multi_steps_and_apply_if_finite_log_only_the_updates_that_happen():
    (_, (loss, w, skipped)), events = record(accumulating, 1, 0.1)
    assert sum("update_norm" in data for data, _ in events) == STEPS - 1
    lane = np.full(STEPS, 1)
    by_hand = events_of({"loss": loss}, lane=lane)
    by_hand += events_of({"w": w, "skipped": skipped}, lane=lane)
    assert_recorded(events, by_hand)
    reduce = {"loss": "last", "w": "mean", "update_norm": "count"}
    check_logs(accumulating, (1, 0.1), events, reduce)


def test_gradient_through_training_loop_logs_forward_pass():
    def make(log):
        def last_loss(rate):
            return accumulating(log)(1, rate)[1][0][-1]

        return last_loss

    _, events = record(make, 0.1)
    plain = jax.jit(jax.value_and_grad(make(quiet)))(0.1)
    logged = make(lox.log)
    outside = jax.value_and_grad(lox.spool(logged), has_aux=True)
    (_, logs), grad = jax.jit(outside)(0.1)
    assert_spooled(logs, events)
    assert_close(grad, plain[1])
    (_, grad), logs = lox.spool(jax.value_and_grad(logged))(0.1)
    assert_spooled(logs, events)
    assert_close(grad, plain[1])
    assert_bitwise(jax.jit(jax.value_and_grad(lox.nolog(logged)))(0.1), plain)


def test_vmapped_conditional_update_logs_only_lanes_that_update():
    def make(log):
        def train(lane, scale):
            inner = optax.scale(-0.1)

            def update(updates, state, params=None):
                log({"update": updates}, lane=lane)
                return inner.update(updates, state, params)

            logged = optax.GradientTransformation(inner.init, update)
            optimizer = optax.apply_if_finite(logged, 100)

            def step(carry, i):
                w, state = carry
                grad = jnp.where((i + lane) % 3 == 0, jnp.inf, w * scale)
                updates, state = optimizer.update(grad, state, w)
                return (optax.apply_updates(w, updates), state), None

            start = jnp.float32(1), optimizer.init(jnp.float32(1))
            return jax.lax.scan(step, start, jnp.arange(STEPS))[0]

        return train

    args = jnp.arange(3), jnp.array([0.5, 1.0, 1.5])
    lanes = record_lanes(make, *args)
    assert [len(events) for events in lanes] == [STEPS - STEPS // 3] * 3
    check_lanes(make, args, lanes)


# --- L-BFGS with a line search -----------------------------------------------


def minimizing(log):
    """Rosenbrock's function, whose line searches are of different lengths."""

    def fun(x, lane):
        value = (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2
        log({"x": x, "value": value}, lane=lane)
        return value

    def minimize(lane, x):
        optimizer = optax.lbfgs(memory_size=3)
        value_and_grad = optax.value_and_grad_from_state(fun)

        def step(carry, i):
            x, state = carry
            value, grad = value_and_grad(x, lane, state=state)
            updates, state = optimizer.update(
                grad, state, x, value=value, grad=grad, value_fn=fun, lane=lane
            )
            x = optax.apply_updates(x, updates)
            log({"end": x}, step=i, lane=lane)
            return (x, state), x

        start = x, optimizer.init(x)
        return jax.lax.scan(step, start, jnp.arange(scaled(4)))[1]

    return minimize


STARTS = jnp.arange(3), jnp.array([[-1.0, 1.5], [0.5, 0.0], [1.0, 1.0]])
CAPACITY = scaled(80)


def test_line_search_logs_every_evaluation():
    args = jax.tree.map(lambda x: x[0], STARTS)
    ends, events = record(minimizing, *args)
    assert len(events) > 2 * scaled(4)
    steps = np.arange(scaled(4))
    assert_recorded(events, events_of({"end": ends}, step=steps, lane=0 * steps))
    reduce = {"value": "min", "x": "count"}
    check_logs(minimizing, args, events, reduce, capacity=CAPACITY)


def test_vmapped_line_searches_log_per_lane_until_they_end():
    lanes = record_lanes(minimizing, *STARTS)
    assert len({len(events) for events in lanes}) > 1
    check_lanes(minimizing, STARTS, lanes, capacity=CAPACITY)
