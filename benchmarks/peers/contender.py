"""The interface between peers and workloads."""

import dataclasses
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax


class MissingError(Exception):
    """A peer is not installed, or this version of JAX lacks it."""


class Tools:
    """The functions with which a program logs and loops; a peer may replace JAX's."""

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Logs values; an event."""
        raise NotImplementedError

    def log_grad(self, name: str, x: Any) -> Any:
        """Returns `x`; in a backward pass, logs its cotangent."""
        raise NotImplementedError("no function for values of a backward pass")

    def scan(self, body: Any, carry: Any, xs: Any, length: int | None = None) -> Any:
        return lax.scan(body, carry, xs, length)

    def while_loop(self, condition: Any, body: Any, carry: Any) -> Any:
        return lax.while_loop(condition, body, carry)

    def value_and_grad(self, fun: Any) -> Any:
        return jax.value_and_grad(fun)

    def checkpoint(self, fun: Any) -> Any:
        return jax.checkpoint(fun)


Program = Callable[[Tools], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A program that logs.

    Attributes:
        name: what it is.
        program: makes the function from tools; of one lane.
        by_hand: returns the result and the values, by key; of one lane.
        arguments: makes the arguments; with a leading axis if there are lanes.
        lanes: the size of that axis, or 0.
        capacity: the maximum number of rows, if JAX does not know it.
        events: the number of events of a lane.
        ordered: whether the order of the values is compared.
    """

    name: str
    program: Program
    by_hand: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    lanes: int = 0
    capacity: int | None = None
    events: int = 1
    ordered: bool = True


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A workload, as a function that a peer has prepared.

    Attributes:
        fun: the function.
        values: what was logged, by key, from the output of the function.
        jitted: whether `fun` is called directly, instead of under `jax.jit`.
        received: what the host has received, if the peer calls a host function.
    """

    fun: Callable[..., Any]
    values: Callable[[Any], Mapping[str, Any]]
    jitted: bool = False
    received: list[Any] | None = None

    def run(self, arguments: tuple[Any, ...]) -> Callable[[], Any]:
        """A call that ends when all values have arrived."""
        call = self.fun if self.jitted else jax.jit(self.fun)
        received = self.received

        def collected() -> Any:
            return jax.block_until_ready(call(*arguments))

        def streamed() -> Any:
            assert received is not None
            received.clear()
            output = jax.block_until_ready(call(*arguments))
            jax.effects_barrier()
            return output

        return collected if received is None else streamed


@dataclasses.dataclass(frozen=True)
class Peer:
    """A way to get values out of a program.

    Attributes:
        name: as the table shows it.
        prepare: creates a function from a workload; raises `MissingError` if it cannot.
        package: the distribution whose version the results state.
        streams: whether values reach the host while the program runs.
    """

    name: str
    prepare: Callable[[Workload], Prepared]
    package: str = "jax"
    streams: bool = False


def lanes_of(work: Workload, fun: Callable[..., Any]) -> Callable[..., Any]:
    return jax.vmap(fun) if work.lanes else fun


def imported(module: str, package: str) -> Any:
    """Imports a module of a package."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingError("not installed") from None
    try:
        return importlib.import_module(module)
    except Exception as error:
        version = importlib.metadata.version(package)
        raise MissingError(
            f"version {version} cannot be imported with JAX {jax.__version__}: "
            f"{described(error)}"
        ) from error


def described(error: Exception) -> str:
    """An error in one line, without paths of this machine."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    text = re.sub(r" ?\(?(?:/[\w.+-]+){2,}\)?", "", text)
    return text if len(text) < 200 else text[:197] + "..."
