"""lox: logs that a program returns, and logs that it streams."""

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.checking import joined
from benchmarks.peers.contender import (
    Peer,
    Prepared,
    Tools,
    Workload,
    imported,
    lanes_of,
)

_BUFFER_SIZE = 1_000


class _LoxTools(Tools):
    def __init__(self, lox: Any) -> None:
        self._lox = lox

    def log(self, metrics: Mapping[str, Any]) -> None:
        self._lox.log(metrics)

    def log_grad(self, name: str, x: Any) -> Any:
        return self._lox.log_grad(name, x)


def _spool(name: str, eager: bool) -> Peer:
    def prepare(work: Workload) -> Prepared:
        lox = imported("lox", "jax-lox")
        fun = work.program(_LoxTools(lox))
        spooled = lox.spool(fun, capacity=work.capacity)

        def values(output: Any) -> Mapping[str, Any]:
            logs: Mapping[str, Any] = output[1].compact()
            return logs

        return Prepared(lanes_of(work, spooled), values, jitted=eager)

    return Peer(name, prepare, package="jax-lox")


def _tap(name: str, **options: Any) -> Peer:
    def prepare(work: Workload) -> Prepared:
        lox = imported("lox", "jax-lox")
        received: list[Any] = []
        tapped = lox.tap(work.program(_LoxTools(lox)), received.append, **options)
        return Prepared(
            lanes_of(work, tapped), lambda _: joined(received), received=received
        )

    return Peer(name, prepare, package="jax-lox", streams=True)


PEERS = [
    _spool("lox.spool", eager=False),
    _spool("lox.spool, without jit", eager=True),
    _tap("lox.tap"),
    _tap("lox.tap(batched=True)", batched=True),
    _tap(f"lox.tap(buffer={_BUFFER_SIZE})", buffer=_BUFFER_SIZE),
]
