"""A function of many equations, whose first call takes long."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from benchmarks.peers.contender import Tools, Workload

_PER_LOG = 100
# Without them, XLA fuses all equations into one, which takes minutes.
_PER_DOT = 10


def equations_workload(count: int) -> Workload:
    """A function of that many equations, which logs every hundredth value."""

    def step(x: Any, i: int) -> Any:
        if i % _PER_DOT == _PER_DOT - 1:
            return lax.dot(x, x)
        return lax.mul(x, x) if i % 2 else lax.sin(x)

    def program(tools: Tools) -> Any:
        def fun(x: Any) -> Any:
            for i in range(count):
                x = step(x, i)
                if i % _PER_LOG == 0:
                    tools.log({f"x{i}": x})
            return x

        return fun

    def by_hand(x: Any) -> Any:
        logs = {}
        for i in range(count):
            x = step(x, i)
            if i % _PER_LOG == 0:
                logs[f"x{i}"] = x
        return x, logs

    def arguments() -> tuple[Any, ...]:
        return (jnp.full((4, 4), 0.5),)

    name = f"a function of {count:,} equations, {count // _PER_LOG} of them logged"
    return Workload(name, program, by_hand, arguments)
