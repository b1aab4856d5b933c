"""`vmap` of `scan`, which JAX batches several times, including the loops inside.

This is correct, but slow. If it is known which carries get lanes, JAX batches the body
only once.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._interpreter.lane_flow import lanes_of_scan
from lox._jax import jaxprs, primitives

from .missing import events_in
from .with_lanes import with_lanes


def batch_scan(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> Any:
    """Wraps the batching rule of `scan`."""
    consts, carry, _ = primitives.scan_sizes(params, len(args))
    lanes = lanes_of_scan(params, [dim is not None for dim in dims])[:carry]
    args, dims = with_lanes(axis_data, args, dims, consts, lanes)
    return rule(axis_data, args, dims, **params)


def logs_or_made_by_lox(params: dict[str, Any]) -> bool:
    """Whether a scan logs, or lox has rebuilt it from a scan that does."""
    return bool(events_in(params)) or jaxprs.is_made_by_lox(params["jaxpr"])
