"""Flax Linen: events in the body of `nn.scan`.

Before its loop, `nn.scan` traces the body once more, to find the outputs that are the
same in every iteration, and evaluates those. Of that trace, Flax takes what does not
depend on the loop: an event of constants would be logged once too often, and newer
versions (0.12.12) take any other event for a broadcasted output that does depend on it,
and refuse the program. The events of the loop itself are all that count, so those of
the first trace are removed.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from lox._events.event import Event
from lox._imports import when_imported
from lox._jax import compat

from .walk import Remover, Walk, events_of


class _All(Remover):
    """Removes every event, also those that a transformation has taken."""

    def wants(self, event: Event) -> bool:
        del event
        return True


def _silent(closed: Any) -> Any:
    return Walk(_All()).rebuilt(closed, ())[0] if events_of(closed) else closed


class _PartialEval:
    """JAX's module of that name, as Flax uses it for its first trace."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def trace_to_jaxpr_dynamic(
        self, fun: Any, avals: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        jaxpr, outs, consts, *rest = self._module.trace_to_jaxpr_dynamic(
            fun, avals, *args, **kwargs
        )
        if events_of(jaxpr):
            closed = _silent(compat.ClosedJaxpr(compat.open_jaxpr(jaxpr), consts))
            jaxpr, consts = closed.jaxpr, closed.consts
        return (jaxpr, outs, consts, *rest)

    def trace_to_jaxpr_nounits(
        self, fun: Any, values: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Up to Flax 0.12.8, which evaluates while it traces."""
        try:
            closed = compat.trace_unknown(fun, values)
        except compat.CONCRETE_VALUE_ERRORS:
            # a function that looks at values can only be evaluated at once
            return self._module.trace_to_jaxpr_nounits(fun, values, *args, **kwargs)
        fun = compat.jaxpr_function(_silent(closed))
        return self._module.trace_to_jaxpr_nounits(fun, values, *args, **kwargs)


def _install(axes_scan: ModuleType) -> None:
    module = getattr(axes_scan, "pe", None)
    if module is not None and not isinstance(module, _PartialEval):
        axes_scan.pe = _PartialEval(module)  # type: ignore[attr-defined]


when_imported("flax.core.axes_scan", _install)
