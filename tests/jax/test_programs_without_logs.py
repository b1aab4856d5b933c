"""Programs that do not log: lox changes neither their jaxprs nor the cost of tracing.

They run in processes with and without lox.
"""

import jax
import pytest

from tests import programs

FORMS = """
import re
import sys
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify

def scan(x):
    return lax.scan(lambda c, y: (jnp.sin(c) * y, c), x, jnp.arange(3.0))[0]

def branch(x):
    return lax.cond(x > 0, jnp.sin, lambda y: y * 2, x)

def loop(x):
    return lax.while_loop(lambda y: y < 3, lambda y: y * 2 + 1, x)

def known_length(x):
    return lax.fori_loop(0, 3, lambda i, y: y * 2 + i, x)

@jax.custom_vjp
def with_vjp(x):
    return jnp.sin(x)

with_vjp.defvjp(
    lambda x: (lax.cond(x > 0, jnp.sin, jnp.cos, x), x),
    lambda x, ct: (scan(x) * ct,),
)

@jax.custom_jvp
def with_jvp(x):
    return jnp.sin(x)

with_jvp.defjvp(lambda p, t: (with_jvp(*p), jnp.cos(p[0]) * t[0]))

def solved(x):
    return lax.custom_linear_solve(
        lambda v: 2 * v, x, lambda _, b: b / 2, symmetric=True
    )

def root(x):
    return lax.custom_root(
        lambda y: y * y - x, x, lambda f, y: loop(y), lambda g, y: y / g(1.0)
    )

def vector(f):
    return lambda x: jax.vmap(f)(jnp.stack([x, -x])).sum()

def forward(f):
    yield lambda x: jax.jvp(f, (x,), (1.0,))
    yield lambda x: jax.linearize(f, x)[1](1.0)
    yield jax.jacfwd(lambda x: f(x) * jnp.stack([x, x]))

def backward(f):
    yield from (jax.grad(f), jax.grad(jax.checkpoint(f)), jax.jit(jax.grad(f)))
    yield vector(jax.grad(f))
    yield jax.grad(lambda x: scan(jax.checkpoint(f)(x)) * f(lax.stop_gradient(x)))

def forms_of(f):
    yield from (f, jax.jit(f), vector(f), vector(jax.jit(f)))
    yield lambda x: checkify.checkify(f)(x)
    if f is not with_vjp:
        yield from forward(f)
    if f is not loop:
        yield from backward(f)
    if f not in (loop, with_vjp):
        yield jax.hessian(f)

FORMS = [
    (f.__name__, i, form)
    for f in (scan, branch, loop, known_length, with_vjp, with_jvp, solved, root)
    for i, form in enumerate(forms_of(f))
]
"""

SHOW_AND_COUNT = """
for name, i, form in FORMS:
    jaxpr = re.sub("0x[0-9a-f]+", "0x", str(jax.make_jaxpr(form)(1.0)))
    print(name, i, jaxpr)
    print(jax.jit(form).lower(1.0).as_text())

# All that JAX loads or computes on first use is there now, so what is counted are the
# calls of Python functions that tracing itself makes.
calls = 0

def profile(frame, event, argument):
    global calls
    calls += event == "call"

jax.clear_caches()
sys.setprofile(profile)
for _, _, form in FORMS:
    jax.make_jaxpr(form)(1.0)
sys.setprofile(None)
print(calls)
"""

STARTS = {
    "without lox": "assert 'lox' not in sys.modules",
    "with lox": "import lox, lox._runtime",
    "after events": """
import lox
lox.set_default("silent")
jax.jit(jax.vmap(lambda x: lox.log({"x": x})))(jnp.ones(2))
lox.tap(jax.grad(lambda x: (lox.log({"x": x}), x)[1]), lambda logs: None)(1.0)
jax.effects_barrier()
""",
}


@pytest.fixture(scope="module")
def runs():
    """The programs as text, and the number of calls that tracing them makes."""
    found = {}
    for name, start in STARTS.items():
        code = "\n".join([FORMS, start, SHOW_AND_COUNT])
        done = programs.run(code, without_lox=True)
        assert done.returncode == 0, done.stderr
        *lines, calls = done.stdout.splitlines()
        found[name] = "\n".join(lines), int(calls)
    return found


def test_programs_without_logs_compile_identically_with_and_without_lox(runs):
    text, _ = runs["without lox"]
    assert len(text) > 100_000
    assert runs["with lox"][0] == text
    assert runs["after events"][0] == text


@pytest.mark.parametrize(
    ("start", "most"),
    [
        ("with lox", 1.01),
        # the patches are installed now and look for events; programs of users are
        # larger, so that this adds less
        ("after events", 1.03),
    ],
)
def test_tracing_without_logs_makes_as_many_calls_as_without_lox(runs, start, most):
    """Counts calls, because times depend on the machine."""
    _, calls = runs["without lox"]
    assert calls > 100_000
    if jax.__version_info__[:3] == (0, 11, 2):  # whose `custom_root` is in Python
        most += 0.005
    if any(
        getattr(jax.config, flag, False) for flag in ("jax_remat3", "jax_custom_vjp3")
    ):
        most += 0.005  # high-level primitives have their rules in Python
    assert 0.99 * calls <= runs[start][1] <= most * calls
