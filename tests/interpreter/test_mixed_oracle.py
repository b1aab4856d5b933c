"""Random programs with every kind of event log what a plain Python run logs.

They log values, conditionally and by `watch`, cotangents by `log_grad`, `watch` and a
backward rule, and every second one has its loops observed. Forward events come first,
in program order; then those of the backward pass, in reverse.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests import oracle, streams_oracle
from tests.interpreter import test_observed_oracle as observing

# random programs may have no loop, and `grad(spool)` leaves out what only rules log
pytestmark = [
    pytest.mark.filterwarnings("ignore:`lox.observe` found no loop"),
    pytest.mark.filterwarnings("ignore:.*is logged only by a derivative"),
]

X = 0.7
LANES = (0.3, 0.7, 1.9)
CAPACITY = 400  # more rows than any program logs per key
SEEDS = range(oracle.PROGRAMS // 4)


class Program:
    """A random program, and what it logs.

    Attributes:
        function: the program, as a function of x.
        without_lox: the same with `jax.debug.callback` instead of events.
        unbounded: whether it has loops without a static length, and no gradient.
    """

    def __init__(self, seed, statements=None):
        self.unbounded = seed % 5 == 4
        self._observed = seed % 2 == 1
        self.statements = statements or oracle.generate(
            seed, self.unbounded, oracle.MIXED, oracle.MIXED_BLOCKS
        )
        ops = observing.Jax() if self._observed else oracle.Jax()

        def function(x):
            return oracle.run(self.statements, x, ops)

        self.function = function
        if self._observed:
            self.function = lox.observe(function, carry=observing.value)
        without = ObservedWithoutLox() if self._observed else WithoutLox()
        self.without_lox = lambda x: oracle.run(self.statements, x, without)

    @property
    def has_forward_mode(self):
        return "custom_vjp" not in oracle.show(self.statements)

    def forward(self, x):
        plain = ObservedPlain() if self._observed else oracle.Plain()
        oracle.run(self.statements, np.float32(x), plain)
        return plain.events

    def events(self, x):
        """The events of the forward and the backward pass."""
        plain = ObservedPerturbed if self._observed else oracle.Perturbed
        backward = oracle.expected_cotangents(self.statements, x, plain)
        return [*self.forward(x), *backward]

    def gradient(self, x):
        return jax.jit(jax.grad(lox.nolog(self.function)))(x)


class WithoutLox(oracle.Jax):
    def log(self, data, **steps):
        # the callback keeps JAX from removing the values
        jax.debug.callback(lambda *_: None, *jax.tree.leaves((data, steps)))

    def log_grad(self, name, x, **steps):
        return x

    def watch(self, name, tree, **options):
        return tree


class ObservedWithoutLox(WithoutLox, observing.Jax):
    pass


class ObservedPlain(observing.Plain):
    def while_in_custom_vjp(self, fun, x, i, who):
        for n in range(2):
            x = fun(x, i, who) + 0.125
            self.log({"observed": x}, iteration=n)
        return x


class ObservedPerturbed(oracle.Perturbed):
    """Its loops change their carries, as the observed ones do."""

    def scan(self, body, x, length, reverse=False):
        return super().scan(observing.changed(body), x, length, reverse)

    fori_dynamic = fori = scan


def spooled(fun):
    return lox.spool(fun, capacity=CAPACITY)


def tapped(fun, x, **options):
    calls = []
    lox.tap(fun, calls.append, **options)(x)
    jax.effects_barrier()
    return calls


def assert_lanes(program, logs, events):
    for x, lane in zip(LANES, logs.lanes() if logs else (), strict=bool(logs)):
        oracle.assert_spooled(lane.compact(), events(program, x))


def assert_tapped_lanes(program, calls, events):
    for lane, x in enumerate(LANES):
        mine = [c for c in calls if int(c.lane[next(iter(c))]) == lane]
        oracle.assert_tapped(mine, events(program, x))


def close(gradient, expected):
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


# --- forward -----------------------------------------------------------------


def check_tap(program):
    oracle.assert_tapped(tapped(program.function, X), program.forward(X))


def check_spool(program):
    logs = jax.jit(spooled(program.function))(X)[1]
    oracle.assert_spooled(logs.compact(), program.forward(X))


def check_vmap_spool(program):
    spool = spooled(program.function)
    logs = jax.vmap(spool)(jnp.array(LANES))[1]
    assert_lanes(program, logs, Program.forward)


def check_spool_vmap(program):
    spool = spooled(jax.vmap(program.function))
    assert_lanes(program, spool(jnp.array(LANES))[1], Program.forward)


def check_tap_vmap(program):
    calls = tapped(jax.vmap(program.function), jnp.array(LANES))
    assert_tapped_lanes(program, calls, Program.forward)


def check_jvp(program):
    if not program.has_forward_mode:
        return

    def derivative(x):
        return jax.jvp(program.function, (x,), (1.0,))

    oracle.assert_tapped(tapped(derivative, X), program.forward(X))


# --- backward ----------------------------------------------------------------


def check_spool_grad(program):
    gradient, logs = spooled(jax.grad(program.function))(X)
    oracle.assert_spooled(logs, program.events(X))
    close(gradient, program.gradient(X))


def check_tap_grad(program):
    calls = tapped(jax.value_and_grad(program.function), X)
    oracle.assert_tapped(calls, program.events(X))


def check_checkpoint(program):
    fun = jax.grad(jax.checkpoint(program.function))
    logs = jax.jit(spooled(fun))(X)[1]
    oracle.assert_spooled(logs.compact(), program.events(X))


def check_vmap_spool_grad(program):
    logs = jax.vmap(spooled(jax.grad(program.function)))(jnp.array(LANES))[1]
    assert_lanes(program, logs, Program.events)


def check_spool_vmap_grad(program):
    logs = spooled(jax.vmap(jax.grad(program.function)))(jnp.array(LANES))[1]
    assert_lanes(program, logs, Program.events)


def check_spool_grad_vmap(program):
    total = jax.grad(lambda xs: jnp.sum(jax.vmap(program.function)(xs)))
    assert_lanes(program, spooled(total)(jnp.array(LANES))[1], Program.events)


def check_tap_grad_vmap(program):
    total = jax.grad(lambda xs: jnp.sum(jax.vmap(program.function)(xs)))
    calls = tapped(total, jnp.array(LANES))
    assert_tapped_lanes(program, calls, Program.events)


def check_grad_spool(program):
    gradient, logs = jax.grad(spooled(program.function), has_aux=True)(X)
    oracle.assert_spooled(logs.compact(), program.forward(X))
    close(gradient, program.gradient(X))


def check_linearize(program):
    def pullback(x):
        y, linear = jax.linearize(program.function, x)
        return y, jax.linear_transpose(linear, x)(jnp.ones_like(y))

    oracle.assert_spooled(spooled(pullback)(X)[1], program.events(X))


def check_jacrev(program):
    logs = spooled(jax.jacrev(lambda x: program.function(x)))(X)[1]
    oracle.assert_spooled(logs.compact(), program.events(X))


def check_hessian(program):
    if not program.has_forward_mode:
        return
    logs = spooled(jax.jacfwd(jax.grad(program.function)))(X)[1]
    oracle.assert_spooled(logs.compact(), program.events(X))


def check_streams(program):
    options = streams_oracle.options(len(str(program.statements)))
    spool = lox.spool(jax.grad(program.function), capacity=CAPACITY, **options.given())
    streams_oracle.assert_spooled(spool(X)[1], program.events(X), options)


def check_nolog(program):
    seen = []
    lox.set_default(seen.append)
    close(jax.grad(lox.nolog(program.function))(X), program.gradient(X))
    jax.effects_barrier()
    assert not seen
    jax.grad(program.function)(X)
    jax.effects_barrier()
    found = oracle.by_key([(logs, None) for logs in seen])
    expected = oracle.by_key(program.events(X))
    counts = [{key: len(rows) for key, rows in x.items()} for x in (found, expected)]
    assert counts[0] == counts[1]


FORWARD = [
    check_tap,
    check_spool,
    check_vmap_spool,
    check_spool_vmap,
    check_tap_vmap,
    check_jvp,
]
BACKWARD = [
    check_spool_grad,
    check_tap_grad,
    check_checkpoint,
    check_vmap_spool_grad,
    check_spool_vmap_grad,
    check_spool_grad_vmap,
    check_tap_grad_vmap,
    check_grad_spool,
    check_linearize,
    check_jacrev,
    check_hessian,
    check_streams,
    check_nolog,
]


def check(seed, statements=None, comparisons=2):
    program = Program(seed, statements)
    checks = FORWARD if program.unbounded else FORWARD + BACKWARD
    for number in {seed, seed // 3 + 7} if comparisons == 2 else {seed // 7}:
        checks[number % len(checks)](program)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_program_with_every_kind_of_event_logs_what_plain_python_logs(seed):
    check(seed)
