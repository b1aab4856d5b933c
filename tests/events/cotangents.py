"""Programs whose cotangents are logged, and an oracle for them.

The oracle adds a perturbation of zero to every value whose cotangent is logged, and
differentiates with respect to it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox

STEPS = 4
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def logged(h, step):
    return lox.log_grad("dh", h, step=step)


def cotangents(program, *args, steps=STEPS):
    """The cotangent of every value, in the order of the forward pass.

    Args:
        program: a function of `mark` and the arguments, which calls `mark(h, i)` for
            every i below `steps`.
        args: the arguments.
        steps: the number of values.
    """
    shape = []

    def find(h, i):
        shape.append(jnp.shape(h))
        return h

    jax.eval_shape(functools.partial(program, find), *args)
    return _compiled_oracle(program)(jnp.zeros((steps, *shape[0])), *args)


@functools.cache
def _compiled_oracle(program):
    def perturbed(eps, *args):
        return program(lambda h, i: h + eps[i], *args)

    return jax.jit(jax.grad(perturbed))


def without_marks(program):
    """The program as a function of x alone, which logs nothing."""
    return functools.partial(program, lambda h, i: h)


@functools.cache
def gradient(program):
    """The gradient of a program at X."""
    return jax.jit(jax.grad(without_marks(program)))(X)


# --- programs: functions of `mark` and x, with a scalar result ---------------


def unrolled(mark, x):
    for i in range(STEPS):
        x = jnp.sin(mark(x, i)) * 1.5
    return jnp.sum(x**2)


def scanned(mark, x):
    def body(h, i):
        return jnp.sin(mark(h, i)) * 1.5 + 0.1 * h, None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0] ** 2)


def scanned_outputs(mark, x):
    def body(h, i):
        return h * 1.1, jnp.sin(mark(x * h, i))

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[1])


def scanned_constant(mark, x):
    def body(h, i):
        return h + mark(x, i) * h, None

    return jnp.sum(lax.scan(body, jnp.ones_like(x), jnp.arange(STEPS))[0])


def nested(mark, x):
    def outer(h, i):
        def inner(h, j):
            return jnp.cos(mark(h, 2 * i + j)) + h, None

        return lax.scan(inner, h, jnp.arange(2))[0], None

    return jnp.sum(lax.scan(outer, x, jnp.arange(STEPS // 2))[0])


def loop(mark, x):
    return jnp.sum(
        lax.fori_loop(0, STEPS, lambda i, h: jnp.sin(mark(h, i)) + 0.5 * h, x)
    )


def jitted(mark, x):
    @jax.jit
    def layer(h, i):
        return jnp.tanh(mark(h, i)) * 2

    for i in range(STEPS):
        x = layer(x, i)
    return jnp.sum(x)


def checkpointed(mark, x):
    @jax.checkpoint
    def layer(h, i):
        return jnp.sin(jnp.sin(mark(h, i)) * 2), None

    return jnp.sum(lax.scan(layer, x, jnp.arange(STEPS))[0])


def checkpointed_loops(mark, x):
    @jax.checkpoint
    def outer(h, i):
        def inner(h, j):
            return jnp.sin(jnp.sin(mark(h, 2 * i + j)) * 2), None

        return jax.jit(lambda h: lax.scan(inner, h, jnp.arange(2))[0])(h), None

    return jnp.sum(lax.scan(outer, x, jnp.arange(STEPS // 2))[0])


def nested_checkpoints(mark, x):
    @jax.checkpoint
    def layer(h, i):
        return jnp.sin(jax.checkpoint(lambda h: jnp.sin(mark(h, i) * 2))(h) * 2)

    for i in range(STEPS):
        x = layer(x, i)
    return jnp.sum(x)


def checkpointed_with_policy(mark, x):
    policy = jax.checkpoint_policies.everything_saveable

    @functools.partial(jax.checkpoint, policy=policy)
    def layer(h, i):
        return jnp.sin(jnp.sin(mark(h, i)) * 2)

    for i in range(STEPS):
        x = layer(x, i)
    return jnp.sum(x)


def around_checkpoint(mark, x):
    return jax.checkpoint(functools.partial(nested, mark))(x)


def taken_branch(mark, x):
    def body(h, i):
        return lax.cond(i >= 0, lambda h: jnp.sin(mark(h, i)), lambda h: h, h), None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0])


def switched(mark, x):
    def body(h, i):
        branches = [lambda h: jnp.sin(mark(h, i)), lambda h: 2 * mark(h, i)]
        return lax.switch(i % 2, branches, h), None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0])


def custom_vjp(mark, x):
    """The values are marked on both sides of a function with its own rules."""

    @jax.custom_vjp
    def double(h):
        return 2 * h

    double.defvjp(lambda h: (2 * h, None), lambda _, ct: (3 * ct,))

    def body(h, i):
        return double(jnp.sin(mark(double(h), i))), None

    return jnp.sum(lax.scan(body, x, jnp.arange(STEPS))[0])


def custom_jvp(mark, x):
    @jax.custom_jvp
    def double(h):
        return 2 * h

    double.defjvps(lambda t, out, h: 3 * t)

    for i in range(STEPS):
        x = double(mark(jnp.sin(x), i))
    return jnp.sum(x)


def used_twice(mark, x):
    for i in range(STEPS):
        h = mark(x, i)
        x = jnp.sin(h) * h + x
    return jnp.sum(x)


PROGRAMS = [
    unrolled,
    scanned,
    scanned_outputs,
    scanned_constant,
    nested,
    loop,
    jitted,
    checkpointed,
    checkpointed_loops,
    nested_checkpoints,
    checkpointed_with_policy,
    around_checkpoint,
    taken_branch,
    switched,
    custom_vjp,
    custom_jvp,
    used_twice,
]

X = jnp.array([0.3, -0.7, 1.1])


def check_rows(logs, expected, steps=STEPS):
    """Compares rows in the order of the backward pass with cotangents."""
    assert list(logs) == ["dh"]
    np.testing.assert_array_equal(logs.step["dh"], np.arange(steps)[::-1])
    assert_close(logs["dh"], expected[::-1])
    ordered = logs.sort("step")
    np.testing.assert_array_equal(ordered.step["dh"], np.arange(steps))
    assert_close(ordered["dh"], expected)
