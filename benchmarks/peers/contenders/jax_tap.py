"""jax-tap, which observes loops and primitives of a program.

The values to log are passed through an identity primitive, with a number that
identifies their keys. jax-tap calls the host once for each of them, as it does for the
carry or for the outputs of a step. A function is observed before it is differentiated,
because JAX drops the primitive from its derivative.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from benchmarks.peers.checking import joined
from benchmarks.peers.contender import (
    Peer,
    Prepared,
    Tools,
    Workload,
    imported,
    lanes_of,
)

_OUTSIDE, _INSIDE = "mark", "mark_in_derivative"


@functools.cache
def _mark(name: str) -> Any:
    """A primitive that returns its operands."""
    mark_p: Any = Primitive(name)
    mark_p.multiple_results = True
    mark_p.def_impl(lambda *values: list(values))
    mark_p.def_abstract_eval(lambda *values: list(values))

    def jvp(primals: Any, tangents: Any) -> Any:
        return mark_p.bind(*primals), list(tangents)

    ad.primitive_jvps[mark_p] = jvp
    batching.primitive_batchers[mark_p] = lambda values, axes: (
        mark_p.bind(*values),
        axes,
    )
    mlir.register_lowering(mark_p, lambda ctx, *values: list(values))
    return mark_p


class _MarkTools(Tools):
    def __init__(self, jaxtap: Any, receive: Any) -> None:
        self.keys: list[tuple[str, ...]] = []
        self._jaxtap = jaxtap
        self._receive = receive
        self._mark = _OUTSIDE

    def watched(self, fun: Any, mark: str) -> Any:
        # without carries of loops, which are not asked for
        return self._jaxtap.verbose(
            fun, on_step=self._receive, ops=(), taps=[self._jaxtap.on(mark)]
        )

    def log(self, metrics: Mapping[str, Any]) -> None:
        keys = tuple(metrics)
        if keys not in self.keys:
            self.keys.append(keys)
        number = jnp.int32(self.keys.index(keys))
        _mark(self._mark).bind(number, *metrics.values())

    def value_and_grad(self, fun: Any) -> Any:
        def inside(*args: Any) -> Any:
            self._mark = _INSIDE
            try:
                return fun(*args)
            finally:
                self._mark = _OUTSIDE

        return jax.value_and_grad(self.watched(inside, _INSIDE))


def _prepare(work: Workload) -> Prepared:
    received: list[Any] = []
    tools = _MarkTools(imported("jaxtap", "jax-tap"), received.append)
    fun = tools.watched(work.program(tools), _OUTSIDE)

    def values(_: Any) -> Mapping[str, Any]:
        rows = []
        for event in received:
            number, *logged = event.value
            rows.append(dict(zip(tools.keys[int(number)], logged, strict=True)))
        return joined(rows)

    return Prepared(lanes_of(work, fun), values, received=received)


PEERS = [Peer("jax-tap", _prepare, package="jax-tap", streams=True)]
