"""Broadcasts the carries of loops before `vmap` batches them."""

from collections.abc import Sequence
from typing import Any

from lox._jax import batching


def with_lanes(
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    consts: int,
    lanes: Sequence[bool | None],
) -> tuple[list[Any], list[Any]]:
    """Broadcasts the carries of a loop that are known to get lanes.

    JAX's own rules have the same result. But to find these carries, they batch the body
    until a fixed point, which is not needed for carries that are known.

    Args:
        axis_data: the axis.
        args: the constants of the loop, its carries, and other inputs.
        dims: their batch axes.
        consts: the number of constants.
        lanes: whether each carry gets lanes; None if unknown.
    """
    args, dims = list(args), list(dims)
    for i, known in enumerate(lanes, consts):
        if known and dims[i] is None:
            args[i], dims[i] = batching.broadcast_carry(args[i], axis_data), 0
    return args, dims
