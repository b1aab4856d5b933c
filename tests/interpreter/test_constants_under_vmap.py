"""Events inside higher-order primitives whose inputs do not depend on the lane."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import hijax
from jax.sharding import PartitionSpec as P

import lox
from lox._events.primitive import LOG_EFFECT
from lox._interpreter import rule_table
from lox._jax import hijax as lox_hijax, jaxprs
from tests.interpreter.programs_that_log import printed

LANES = 3


def log(y):
    lox.log({"y": y})
    return 2 * y


def custom_jvp(y):
    fun = jax.custom_jvp(lambda y: log(y))
    fun.defjvp(lambda primals, tangents: (log(*primals), 2 * tangents[0]))
    return fun(y)


def custom_vjp(y):
    fun = jax.custom_vjp(lambda y: log(y))
    fun.defvjp(lambda y: (log(y), None), lambda _, g: (2 * g,))
    return fun(y)


def custom_vmap(y):
    fun = jax.custom_batching.custom_vmap(lambda y: log(y))
    fun.def_vmap(lambda size, batched, y: (jax.vmap(log)(y), batched[0]))
    return fun(y)


def linear_solve(y):
    return lax.custom_linear_solve(
        lambda x: 2 * x, y, lambda _, b: log(b) / 4, lambda _, b: b / 2
    )


def root(y):
    def solve(fun, guess):
        return log(guess) / 2

    return lax.custom_root(lambda x: x - y, y, solve, lambda g, b: b / g(1.0))


def shard_map(y):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "i")
    return jax.shard_map(log, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(
        y
    )


class _Double(getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive):
    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        self.effects = frozenset({LOG_EFFECT})
        super().__init__()

    def expand(self, y):
        return log(jnp.asarray(y))

    def batch(self, axis_data, args, dims):
        assert dims == (None,)
        return self(*args), None


PROGRAMS = {
    "jit": jax.jit(log),
    "checkpoint": jax.checkpoint(log),
    "scan": lambda y: lax.scan(lambda c, _: (log(c), None), y, length=2)[0],
    "while": lambda y: lax.while_loop(lambda c: c < 10.0, log, y),
    "cond": lambda y: lax.cond(y > 0, log, jnp.negative, y),
    "shard_map": shard_map,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "custom_vmap": custom_vmap,
    "custom_linear_solve": linear_solve,
    "custom_root": root,
    "hijax": lambda y: _Double(jax.typeof(y))(y),
    "log_grad": jax.grad(lambda y: lox.log_grad("y", y) ** 2),
}

if jax.__version_info__ < (0, 10):  # which ignores the effects of such primitives
    del PROGRAMS["hijax"]

SPOOLED = {
    "spool(vmap)": lambda f: lox.spool(jax.vmap(f), capacity=9),
    "vmap(spool)": lambda f: jax.vmap(lox.spool(f, capacity=9)),
}


def rows_per_lane(logs, depth=1):
    if depth == 0:
        return [np.ravel(logs.compact()["y"]).tolist()]
    return [rows for lane in logs.lanes() for rows in rows_per_lane(lane, depth - 1)]


def program_of(call):
    """A program whose events do not depend on its argument."""
    return lambda x: x + call(jnp.zeros(()) + 3.0)


@pytest.mark.parametrize("way", SPOOLED)
@pytest.mark.parametrize("name", PROGRAMS)
def test_spool_has_constants_of_every_lane(name, way):
    fun = program_of(PROGRAMS[name])
    expected = np.ravel(lox.spool(fun, capacity=9)(0.0)[1]["y"]).tolist()
    _, logs = SPOOLED[way](fun)(jnp.zeros(LANES))
    if name == "shard_map":  # the lanes, and the device
        assert rows_per_lane(logs, 2) == [expected] * LANES
    else:
        assert rows_per_lane(logs) == [expected] * LANES


@pytest.mark.parametrize("name", PROGRAMS)
def test_tap_and_printing_deliver_constants_once_per_lane(name):
    fun = program_of(PROGRAMS[name])
    alone = np.ravel(lox.spool(fun, capacity=9)(0.0)[1]["y"]).tolist()
    expected = collections.Counter(LANES * alone)
    received = []
    for run in (
        lox.tap(jax.vmap(fun), lambda logs: received.append(float(logs["y"]))),
        jax.vmap(lox.tap(fun, lambda logs: received.append(float(logs["y"])))),
    ):
        run(jnp.zeros(LANES))
        jax.effects_barrier()
        assert collections.Counter(received) == expected
        received.clear()
    for run in (jax.vmap(fun), jax.jit(jax.vmap(fun))):
        with printed() as seen:
            run(jnp.zeros(LANES))
        assert collections.Counter(float(logs["y"]) for logs in seen) == expected


def test_constants_are_tested_in_every_primitive_with_a_rule():
    def kinds(jaxpr):
        for eqn in jaxprs.open_jaxpr(jaxpr).eqns:
            yield lox_hijax.kind_of(eqn)
            for inner in jaxprs.jaxprs_of(eqn):
                yield from kinds(inner)

    found = set()
    for call in PROGRAMS.values():
        found |= set(kinds(jax.make_jaxpr(program_of(call))(0.0)))
    found.add("lox_log_grad")  # gone after `grad`
    found.add("noinline")  # in the tests of Equinox
    found.add("closed_call")  # no public function binds it
    if "hijax" not in PROGRAMS:
        found.add("call_hi_primitive")
    # a rule for several names needs one of them
    tested = {rule_table._rules[kind] for kind in found & rule_table._rules.keys()}
    assert tested == set(rule_table._rules.values())


# --- several vmaps, of which only some have lanes -----------------------------

DEPENDS_ON = {
    "outer": lambda a, b: a,
    "inner": lambda a, b: b,
    "neither": lambda a, b: jnp.zeros(()) + 2.0,
}


@pytest.mark.parametrize("depends_on", DEPENDS_ON)
@pytest.mark.parametrize("name", ["jit", "scan", "custom_vmap"])
def test_lanes_of_several_vmaps_are_in_order(name, depends_on):
    def fun(a, b):
        return a * b + PROGRAMS[name](DEPENDS_ON[depends_on](a, b))

    outer, inner = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0, 5.0])
    both = jax.vmap(jax.vmap(fun, (None, 0)), (0, None))
    expected = [
        np.ravel(lox.spool(fun)(a, b)[1]["y"]).tolist() for a in outer for b in inner
    ]
    for spooled in (lox.spool(both), lox.spool(jax.jit(both))):
        assert rows_per_lane(spooled(outer, inner)[1], 2) == expected
    gradient = jax.grad(lambda s: both(s * outer, s * inner).sum())
    assert rows_per_lane(lox.spool(gradient)(1.0)[1], 2) == expected


def test_batching_rule_of_custom_vmap_logs_in_lanes_that_it_does_not_depend_on():
    fun = jax.custom_batching.custom_vmap(lambda y: 2 * y)

    @fun.def_vmap
    def rule(size, batched, y):
        lox.log({"y": y})  # all lanes of the `vmap` in one event
        return 2 * y, batched[0]

    def both(xs, ys):
        return jax.vmap(lambda y: jax.vmap(lambda x: x + fun(y))(xs))(ys)

    logs = lox.spool(both)(jnp.zeros(3), jnp.array([1.0, 2.0]))[1]
    assert rows_per_lane(logs) == [[1.0, 2.0]] * 3
