"""JAX itself: values returned by hand, callbacks, and logs of a VJP."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import io_callback

from benchmarks.peers.checking import joined
from benchmarks.peers.contender import (
    MissingError,
    Peer,
    Prepared,
    Tools,
    Workload,
    lanes_of,
)

# --- by hand -------------------------------------------------------------------------


def _by_hand(work: Workload) -> Prepared:
    def values(output: Any) -> Mapping[str, Any]:
        logs = dict(output[1])
        count = logs.pop("count", None)
        if count is not None:  # of rows in buffers
            logs = {key: value[: int(count)] for key, value in logs.items()}
        return logs

    return Prepared(lanes_of(work, work.by_hand), values)


BY_HAND = Peer("by hand", _by_hand)


# --- callbacks -----------------------------------------------------------------------

Receive = Callable[[Mapping[str, Any]], None]
Emit = Callable[[Receive, Mapping[str, Any]], None]


class _CallbackTools(Tools):
    def __init__(self, emit: Emit, receive: Receive) -> None:
        self._emit = emit
        self._receive = receive

    def log(self, metrics: Mapping[str, Any]) -> None:
        self._emit(self._receive, metrics)

    def log_grad(self, name: str, x: Any) -> Any:
        @jax.custom_vjp
        def identity(x: Any) -> Any:
            return x

        def backward(_: None, cotangent: Any) -> Any:
            self.log({name: cotangent})
            return (cotangent,)

        identity.defvjp(lambda x: (x, None), backward)
        return identity(x)


def _callback(name: str, emit: Emit) -> Peer:
    def prepare(work: Workload) -> Prepared:
        received: list[Any] = []
        fun = work.program(_CallbackTools(emit, received.append))
        return Prepared(
            lanes_of(work, fun), lambda _: joined(received), received=received
        )

    return Peer(name, prepare, streams=True)


def _debug(receive: Receive, metrics: Mapping[str, Any]) -> None:
    jax.debug.callback(receive, metrics)


def _io(receive: Receive, metrics: Mapping[str, Any]) -> None:
    io_callback(receive, None, metrics)


def _ordered_io(receive: Receive, metrics: Mapping[str, Any]) -> None:
    io_callback(receive, None, metrics, ordered=True)


# --- logs of a VJP -------------------------------------------------------------------


class _VJPTools(Tools):
    """Logs of backward rules, including values kept from the forward pass."""

    def __init__(self) -> None:
        self.differentiates = False

    def log(self, metrics: Mapping[str, Any]) -> None:
        self._identity(lambda metrics, cotangent: metrics)(dict(metrics))

    def log_grad(self, name: str, x: Any) -> Any:
        return self._identity(lambda x, cotangent: {name: cotangent})(x)

    def _identity(self, logs: Any) -> Any:
        @jax.custom_vjp
        def identity(x: Any) -> Any:
            return x

        def backward(x: Any, cotangent: Any) -> Any:
            return (cotangent,), logs(x, cotangent)

        identity.defvjp_with_logs(lambda x: (x, x), backward)
        return identity

    def value_and_grad(self, fun: Any) -> Any:
        self.differentiates = True

        def with_logs(x: Any, *rest: Any) -> Any:
            value, vjp = jax.vjp(lambda x: fun(x, *rest), x)
            (grad,), logs = vjp.with_logs(jax.numpy.ones_like(value))
            return (value, grad), logs

        return with_logs


def _vjp(work: Workload) -> Prepared:
    if not hasattr(jax.custom_vjp, "defvjp_with_logs"):
        raise MissingError(f"JAX {jax.__version__} does not have it")
    tools = _VJPTools()
    fun = work.program(tools)
    if not tools.differentiates:  # there are no logs without a backward pass
        fun = tools.value_and_grad(fun)
    return Prepared(lanes_of(work, fun), lambda output: output[1])


PEERS = [
    _callback("jax.debug.callback", _debug),
    _callback("io_callback", _io),
    _callback("io_callback(ordered=True)", _ordered_io),
    Peer("vjp.with_logs", _vjp),
]
