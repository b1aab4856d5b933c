"""`vmap` of `scan`, which JAX batches several times, and the loops inside with it.

That loses nothing, but takes long. Once is enough if it is known which carries get
lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._interpreter.lane_flow import lanes_of_scan
from lox._jax import jaxprs, primitives

from .missing import events_in
from .with_lanes import with_lanes


def with_known_carries(
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> Any:
    """Keeps JAX from batching the loops inside again and again."""
    consts, carry, _ = primitives.scan_sizes(params, len(args))
    lanes = lanes_of_scan(params, [dim is not None for dim in dims])[:carry]
    args, dims = with_lanes(axis_data, args, dims, consts, lanes)
    return rule(axis_data, args, dims, **params)


def logs_or_is_made_here(params: dict[str, Any]) -> bool:
    """Whether a scan logs, or has been made of one that does."""
    return bool(events_in(params)) or jaxprs.is_made_here(params["jaxpr"])
