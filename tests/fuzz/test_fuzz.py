"""Some random programs of each kind, and how a failing one is shrunk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests import oracle
from tests.fuzz import found_programs, orders, shrinking
from tests.fuzz.checks import CHECKS
from tests.fuzz.evaluation import without_compiling
from tests.interpreter.test_mixed_oracle import CAPACITY, LANES, Program

pytestmark = pytest.mark.filterwarnings(
    "ignore:`lox.observe` found no loop",
    "ignore:.*is logged only by a derivative",
)

# the other checks have separate tests
SEEDS = range(oracle.PROGRAMS // 8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["orders", "stores", "devices"])
def test_random_program_logs_what_plain_python_logs(name, seed):
    CHECKS[name](seed, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_evaluating_a_program_gives_the_results_of_compiling_it(seed):
    program = Program(100 + seed, None)
    fun = jax.vmap(lox.spool(program.function, capacity=CAPACITY))
    x = jnp.array(LANES)
    compiled = jax.jit(lambda x: fun(x))(x)
    with without_compiling():
        evaluated = jax.jit(lambda x: fun(x))(x)
    for ours, theirs in zip(*map(jax.tree.leaves, (evaluated, compiled)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def test_programs_that_once_failed_log_what_plain_python_logs():
    for name, seed, program in found_programs.FOUND:
        CHECKS[name](seed, program)
        if name != "devices":  # which sharded arrays need
            with without_compiling():
                CHECKS[name](seed, program)


def test_random_orders_place_the_collector_and_the_transformations_anywhere():
    chosen = {orders.choose(seed, Program(seed)) for seed in range(400)}
    for collector in ("spool", "tap"):
        places = {
            (kind, order.index(kind) < order.index(collector))
            for order in chosen
            if collector in order
            for kind in order
            if kind != collector
        }
        kinds = ("jit", "checkpoint", "vmap", "map", "shard_map", "grad", "jvp")
        assert places == {(kind, inside) for kind in kinds for inside in (True, False)}


def test_shrink_removes_what_a_failure_does_not_need():
    def logs_in_a_loop(program, inside=False):
        return any(
            (inside and s.kind == "log")
            or any(logs_in_a_loop(b, inside or s.kind == "scan") for b in s.blocks)
            for s in program
        )

    log = oracle.Statement("log", 2)
    scan = oracle.Statement("scan", 3, ((oracle.Statement("update", 1), log),))
    cond = oracle.Statement("cond", 1, ((scan, log), (log,)))
    found = shrinking.shrink((log, cond, oracle.Statement("update")), logs_in_a_loop)
    assert found == (oracle.Statement("scan", 0, ((oracle.Statement("log", 0),),)),)
