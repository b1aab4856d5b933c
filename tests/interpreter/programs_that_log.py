"""Programs that log, and short ways to collect their events."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox


def spooled(fun, *args, **kwargs):
    return lox.spool(fun)(*args, **kwargs)[1]


def tapped(fun, *args, **options):
    calls = []
    lox.tap(fun, calls.append, **options)(*args)
    jax.effects_barrier()
    return calls


@contextlib.contextmanager
def printed():
    """What is logged without any transformation."""
    seen = []
    lox.set_default(lambda logs: seen.append(dict(logs)))
    yield seen
    jax.effects_barrier()


def every_way(fun, *args):
    """What a function logs if it is printed and tapped, eagerly and under `jit`."""
    found = []
    for f in (fun, jax.jit(fun)):
        with printed() as seen:
            f(*args)
        found.append(seen)
    found.append(tapped(fun, *args))
    found.append(tapped(jax.jit(fun), *args))
    return found


def rows(calls, key):
    return [np.asarray(c[key]).tolist() for c in calls if key in c]


def logged(x, key="x"):
    lox.log({key: x})
    return x


@jax.custom_jvp
def custom_jvp(x):
    return logged(x, "primal") * 2


@custom_jvp.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    lox.log({"rule": x})
    return custom_jvp(x), t * 5


@jax.custom_vjp
def custom_vjp(x):
    return logged(x, "primal") * 2


custom_vjp.defvjp(
    lambda x: (logged(x, "fwd") * 2, x),
    lambda x, ct: (logged(ct, "bwd") * 7,),
)


def model(w):
    def step(c, i):
        lox.log({"lr": 0.1}, step=i)
        lox.log({"c": c, "w": w}, step=i)
        return jnp.tanh(c * w), None

    return lax.scan(step, 1.0, jnp.arange(4))[0]


def branchy(x):
    def positive(x):
        lox.log({"pos": x})
        return lax.fori_loop(0, 2, lambda i, x: logged(x + i, "loop"), x)

    return lax.cond(x > 0, positive, partial(logged, key="neg"), x)
