"""Programs of other libraries, compared with returning the same values by hand."""

import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lox

from .figure import Figure
from .interleaved import best_times

Program = Callable[[Any], Any]

_CHAINS, _SAMPLES, _ITERATIONS = 4, 200, 30
_KEPT = ("sample", "accept")  # the values that the hand-written program returns


def figures() -> Iterator[Figure]:
    for name, figures_of in (("blackjax", _sampler), ("jaxopt", _solver)):
        if importlib.util.find_spec(name) is None:
            print(f"skipped: {name} is not installed", file=sys.stderr)
        else:
            yield from figures_of()


# --- BlackJAX: NUTS ----------------------------------------------------------


def _sampler() -> Iterator[Figure]:
    keys = jax.random.split(jax.random.key(0), _CHAINS)
    what = f"NUTS, {_CHAINS} vmapped chains"
    ways: dict[str, tuple[Callable[[], Program], float]] = {
        "spool of samples": (lambda: lox.spool(_chains(True), _KEPT), 1.05),
        "spool of all": (
            lambda: lox.spool(_chains(True), capacity=40 * _SAMPLES),
            1.05,
        ),
        "spool(reduce=)": (lambda: lox.spool(_chains(True), reduce="mean"), 1.05),
        "tap(buffer=)": (lambda: lox.tap(_chains(True), _ignore, buffer=1000), 1.3),
    }
    yield from _compared(what, lambda: _chains(False), ways, keys)


def _chains(logs: bool) -> Program:
    """All chains; without logs, they return the samples by hand."""
    import blackjax

    data = jax.random.normal(jax.random.key(1), (50,))

    def density(x: Any) -> Any:
        value = -jnp.sum((data[:, None] - x) ** 2) / 8 - jnp.sum(x**2) / 2
        if logs:
            lox.log({"density": value})
        return value

    def chain(key: Any) -> Any:
        nuts = blackjax.nuts(density, step_size=0.1, inverse_mass_matrix=jnp.ones(4))

        def step(state: Any, key: Any) -> Any:
            state, info = nuts.step(key, state)
            kept = state.position, info.acceptance_rate
            if logs:
                lox.log(dict(zip(_KEPT, kept, strict=True)))
            return state, None if logs else kept

        start = nuts.init(jnp.zeros(4))
        state, kept = lax.scan(step, start, jax.random.split(key, _SAMPLES))
        return state.position, kept

    return jax.vmap(chain)


# --- jaxopt: L-BFGS ----------------------------------------------------------


def _solver() -> Iterator[Figure]:
    ways: dict[str, tuple[Callable[[], Program], float]] = {
        "spool": (lambda: lox.spool(_solve(True), capacity=2000), 1.05),
        "spool(reduce=)": (lambda: lox.spool(_solve(True), reduce="mean"), 1.05),
        "tap(buffer=)": (lambda: lox.tap(_solve(True), _ignore, buffer=100), 1.3),
    }
    with warnings.catch_warnings(action="ignore"):  # jaxopt is no longer developed
        yield from _compared(
            "L-BFGS", lambda: _solve(False), ways, jnp.zeros(10), rounds=25
        )


def _solve(logs: bool) -> Program:
    """The solver; without logs, no value of its objective can be returned."""
    import jaxopt

    matrix = jax.random.normal(jax.random.key(1), (20, 10))

    def loss(x: Any) -> Any:
        value = jnp.mean((jnp.tanh(matrix @ x) - 1) ** 2)
        if logs:
            lox.log({"loss": value})
        return value

    def run(x: Any) -> Any:
        solver = jaxopt.LBFGS(loss, maxiter=_ITERATIONS, implicit_diff=False)
        return solver.run(x).params

    return run


# --- comparison --------------------------------------------------------------


def _compared(
    what: str,
    by_hand: Callable[[], Program],
    ways: dict[str, tuple[Callable[[], Program], float]],
    argument: Any,
    rounds: int = 9,
) -> Iterator[Figure]:
    makes = [by_hand, *(make for make, _ in ways.values())]
    runs = [
        _running(jax.jit(make()).lower(argument).compile(), argument) for make in makes
    ]
    base, *times = best_times(*runs, rounds=rounds)
    for (name, (_, goal)), spent in zip(ways.items(), times, strict=True):
        yield Figure(f"{what}: {name} / hand-written", spent / base, goal)
    base, *times = _tracing_times(makes, argument)
    for name, spent in zip(ways, times, strict=True):
        yield Figure(f"  tracing {name} / hand-written", spent / base, 1.3)
    jax.clear_caches()


def _running(compiled: Any, argument: Any) -> Callable[[], Any]:
    def run() -> None:
        jax.block_until_ready(compiled(argument))
        jax.effects_barrier()

    return run


def _tracing_times(
    makes: Sequence[Callable[[], Program]], argument: Any, rounds: int = 6
) -> list[float]:
    """The shortest processor time of a first trace of each program."""
    times = [float("inf")] * len(makes)
    for _ in range(rounds):
        for i, make in enumerate(makes):
            jax.clear_caches()  # they also contain functions of the libraries
            program = jax.jit(make())
            start = time.process_time()
            program.trace(argument)
            times[i] = min(times[i], time.process_time() - start)
    return times


def _ignore(logs: lox.logdict) -> None:
    del logs
