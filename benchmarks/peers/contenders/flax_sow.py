"""Flax: `sow` in modules, Linen and NNX, with the loops of each.

The whole program is a module, so that sown values are returned through Flax's own
transformations.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.contender import (
    Peer,
    Prepared,
    Tools,
    Workload,
    imported,
    lanes_of,
)

# --- Linen ---------------------------------------------------------------------------

_COLLECTION = "intermediates"


class _LinenTools(Tools):
    """Tools of a module; inside a loop, of the module that the loop passes."""

    def __init__(self, linen: Any, module: Any) -> None:
        self._linen = linen
        self._module = module

    @contextmanager
    def _inside(self, module: Any) -> Iterator[None]:
        outside, self._module = self._module, module
        try:
            yield
        finally:
            self._module = outside

    def _of_module(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        def lifted(module: Any, *args: Any) -> Any:
            with self._inside(module):
                return fun(*args)

        return lifted

    def log(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            self._module.sow(_COLLECTION, name, value)

    def scan(self, body: Any, carry: Any, xs: Any, length: int | None = None) -> Any:
        lifted = self._linen.scan(
            self._of_module(body), variable_axes={_COLLECTION: 0}, length=length
        )
        return lifted(self._module, carry, xs)

    def while_loop(self, condition: Any, body: Any, carry: Any) -> Any:
        return self._linen.while_loop(
            self._of_module(condition),
            self._of_module(body),
            self._module,
            carry,
            carry_variables=_COLLECTION,
        )

    def value_and_grad(self, fun: Any) -> Any:
        def differentiated(x: Any, *rest: Any) -> Any:
            lifted = self._of_module(lambda x: fun(x, *rest))
            value, (grad,) = self._linen.value_and_grad(lifted, self._module, x)
            return value, grad

        return differentiated

    def checkpoint(self, fun: Any) -> Any:
        def recomputed(*args: Any) -> Any:
            return self._linen.remat(self._of_module(fun))(self._module, *args)

        return recomputed


def _linen(work: Workload) -> Prepared:
    linen = imported("flax.linen", "flax")

    class Program(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact
        def __call__(self, *args: Any) -> Any:
            return work.program(_LinenTools(linen, self))(*args)

    def apply(*args: Any) -> Any:
        return Program().apply({}, *args, mutable=[_COLLECTION])

    def values(output: Any) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        _collect(output[1].get(_COLLECTION, {}), found)
        return found

    return Prepared(lanes_of(work, apply), values)


def _collect(tree: Any, found: dict[str, Any]) -> None:
    """Finds what was sown, also in modules inside; it is a tuple."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _collect(value, found)
        else:
            (found[name],) = value


# --- NNX -----------------------------------------------------------------------------


class _NNXTools(Tools):
    def __init__(self, nnx: Any, module: Any) -> None:
        self._nnx = nnx
        self._module = module

    def _of_module(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        def lifted(module: Any, *args: Any) -> Any:
            outside, self._module = self._module, module
            try:
                return fun(*args)
            finally:
                self._module = outside

        return lifted

    def log(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            self._module.sow(self._nnx.Intermediate, name, value)

    def scan(self, body: Any, carry: Any, xs: Any, length: int | None = None) -> Any:
        nnx = self._nnx
        axes = nnx.StateAxes({nnx.Intermediate: 0, ...: None})
        lifted = nnx.scan(
            self._of_module(body),
            in_axes=(axes, nnx.Carry, 0),
            out_axes=(nnx.Carry, 0),
            length=length,
        )
        return lifted(self._module, carry, xs)

    def while_loop(self, condition: Any, body: Any, carry: Any) -> Any:
        nnx = self._nnx
        of_condition = self._of_module(condition)
        of_body = self._of_module(body)
        _, carry = nnx.while_loop(
            lambda state: of_condition(*state),
            lambda state: (state[0], of_body(*state)),
            (self._module, carry),
        )
        return carry

    def value_and_grad(self, fun: Any) -> Any:
        def differentiated(x: Any, *rest: Any) -> Any:
            lifted = self._of_module(lambda x: fun(x, *rest))
            value_and_grad = self._nnx.value_and_grad(lifted, argnums=1)
            return value_and_grad(self._module, x)

        return differentiated

    def checkpoint(self, fun: Any) -> Any:
        def recomputed(*args: Any) -> Any:
            return self._nnx.remat(self._of_module(fun))(self._module, *args)

        return recomputed


def _nnx(work: Workload) -> Prepared:
    nnx = imported("flax.nnx", "flax")

    class Program(nnx.Module):  # type: ignore[misc, name-defined]
        def __call__(self, *args: Any) -> Any:
            return work.program(_NNXTools(nnx, self))(*args)

    def captured(*args: Any) -> Any:
        result, state = nnx.capture(Program(), nnx.Intermediate)(*args)
        return result, nnx.to_pure_dict(state)

    def values(output: Any) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        _collect(output[1], found)
        return found

    return Prepared(lanes_of(work, captured), values)


PEERS = [
    Peer("Flax Linen sow", _linen, package="flax"),
    Peer("Flax NNX sow", _nnx, package="flax"),
]
