"""Flax Linen: events in the body of `nn.scan`.

Before its loop, `nn.scan` traces the body an additional time, to find the outputs that
are the same in every iteration, and evaluates those. From that trace, Flax keeps what
does not depend on the loop, so an event of constants would be logged once too often.
Newer versions (0.12.12) mistake any other event for a broadcasted output that depends
on the loop, and refuse the program. Only the events of the loop itself count, so those
of the first trace are removed.

The first event of a process may be in that trace, so this module changes Flax as soon
as it is imported.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from lox._jax import jaxprs, partial_eval, patches, tracing


class _Source:
    """Holds a function that removes all events from a jaxpr; set by the traversal."""

    without_events: Callable[[Any], Any]


source = _Source()


class _PartialEval:
    """Wraps JAX's module `partial_eval`, which Flax uses for its first trace."""

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
        if patches.installed:
            closed = jaxprs.ClosedJaxpr(jaxprs.open_jaxpr(jaxpr), consts)
            new = source.without_events(closed)
            if new is not closed:
                jaxpr, consts = new.jaxpr, new.consts
        return (jaxpr, outs, consts, *rest)

    def trace_to_jaxpr_nounits(
        self, fun: Any, values: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Called by Flax up to 0.12.8, which evaluates while it traces."""
        try:
            closed = partial_eval.trace_unknown(fun, values)
        except tracing.CONCRETE_VALUE_ERRORS:
            # a function that depends on concrete values must be evaluated immediately
            return self._module.trace_to_jaxpr_nounits(fun, values, *args, **kwargs)
        if patches.installed:
            closed = source.without_events(closed)
        fun = jaxprs.jaxpr_function(closed)
        return self._module.trace_to_jaxpr_nounits(fun, values, *args, **kwargs)


def prepare(axes_scan: ModuleType) -> None:
    """Changes the module of Flax that has `nn.scan`."""
    module = getattr(axes_scan, "pe", None)
    if module is not None and not isinstance(module, _PartialEval):
        axes_scan.pe = _PartialEval(module)  # type: ignore[attr-defined]
