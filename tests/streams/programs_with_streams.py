"""Programs that the tests of streams and reductions share."""

import jax
import jax.numpy as jnp
from jax import lax

import lox

NAMES = ("mean", "sum", "min", "max", "first", "last", "count", "std", "var")


def scanned(xs):
    """Logs every row of `xs`, and returns the sum of them."""

    def body(carry, x):
        i, total = carry
        lox.log({"x": x}, step=i)
        return (i + 1, jax.tree.map(jnp.add, total, x)), None

    zeros = jax.tree.map(lambda x: jnp.zeros_like(x[0]), xs)
    return lax.scan(body, (0, zeros), xs)[0][1]


def counted(n):
    """Logs 0 to n - 1 in a loop without a static length."""

    def body(i):
        lox.log({"i": i}, step=10 * i)
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


def reduced(xs, name, **options):
    return lox.spool(scanned, reduce=name, **options)(xs)[1]


def tapped(fun, *args, **options):
    calls = []
    lox.tap(fun, calls.append, **options)(*args)
    return calls


average = lox.Reduction(
    lambda x: (jnp.zeros_like(x), 0),
    lambda state, x: (state[0] + x, state[1] + 1),
    lambda state: state[0] / state[1],
)
