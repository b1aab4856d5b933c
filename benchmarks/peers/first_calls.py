"""The cost of a first call: tracing, lowering and compiling."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .contender import Peer
from .group import Contender, Group, Made
from .workloads.equations import equations_workload

_FEW = 300  # compiled and run, to check what is logged


def groups(equations: int, peers: Sequence[Peer]) -> Iterator[Group]:
    # A first call computes and does not wait: the time of the processor is not
    # affected by other programs.
    for name, what in (
        ("trace", "trace"),
        ("lower", "trace and lower"),
        ("compile", "trace, lower and compile"),
    ):
        contenders = [
            Contender(peer.name, _maker(peer, name, equations), peer.package)
            for peer in peers
        ]
        work = f"{what} {equations_workload(equations).name}"
        yield Group(name, work, contenders, clock=time.process_time)


def _maker(peer: Peer, stage: str, equations: int) -> Callable[[], Made]:
    def make() -> Made:
        few = equations_workload(_FEW)
        arguments = few.arguments()

        def values() -> Any:
            prepared = peer.prepare(few)
            return prepared.values(prepared.run(arguments)())

        def trace() -> Any:
            # a new function, which JAX has not traced before
            fun = peer.prepare(equations_workload(equations)).fun
            return jax.jit(fun).trace(*arguments)

        run = {
            "trace": trace,
            "lower": lambda: trace().lower(),
            "compile": lambda: trace().lower().compile(),
        }[stage]
        return Made(run, values)

    return make
