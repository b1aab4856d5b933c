"""The inputs of loops that `vmap` batches, with the lanes they get in any case."""

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
    """The inputs of a loop, with those carries in lanes that get them in any case.

    JAX's own rules would do the same in the end. To find out for which carries, they
    batch the body until nothing changes; those that are known need not be found.

    Args:
        axis_data: the axis.
        args: the constants of the loop, then its carries, then others.
        dims: their axes.
        consts: the number of the constants.
        lanes: of the carries, which get lanes.
    """
    args, dims = list(args), list(dims)
    for i, known in enumerate(lanes, consts):
        if known and dims[i] is None:
            args[i], dims[i] = batching.broadcast_carry(args[i], axis_data), 0
    return args, dims
