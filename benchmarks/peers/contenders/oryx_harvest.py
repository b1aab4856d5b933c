"""oryx: `sow` and `harvest`."""

from collections.abc import Mapping
from typing import Any

import jax

from benchmarks.peers.contender import (
    Peer,
    Prepared,
    Tools,
    Workload,
    imported,
    lanes_of,
)


class _SowTools(Tools):
    def __init__(self, harvest: Any) -> None:
        self._harvest = harvest

    def log(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            self._harvest.sow(value, tag="log", name=name, mode="append")

    def value_and_grad(self, fun: Any) -> Any:
        # values that are sown inside a derivative are not returned
        reaped = self._harvest.call_and_reap(fun, tag="log")

        def differentiated(*args: Any) -> Any:
            value_and_grad = jax.value_and_grad(reaped, has_aux=True)
            (value, logs), grads = value_and_grad(*args)
            self.log(logs)
            return value, grads

        return differentiated


def _prepare(work: Workload) -> Prepared:
    harvest = imported("oryx.core.interpreters.harvest", "oryx")
    fun = work.program(_SowTools(harvest))
    reaped = harvest.call_and_reap(fun, tag="log")
    return Prepared(lanes_of(work, reaped), lambda output: output[1])


PEERS = [Peer("oryx harvest", _prepare, package="oryx")]
