"""Results of transformed functions: leaves that are arrays, and others."""

import enum
import inspect
from typing import Any

import jax

from lox._arrays import is_array
from lox._errors import LoxTypeError


@jax.tree_util.register_pytree_node_class
class MixedResult:
    """A result with leaves that are not arrays, which `jit` sees as tree structure."""

    def __init__(self, arrays: Any, static: tuple[Any, dict[int, Any]]) -> None:
        self._arrays = arrays
        # the structure of the result, and the other leaves by position
        self._static = static

    def fill(self) -> Any:
        """The result itself."""
        tree, others = self._static
        arrays = iter(self._arrays)
        return jax.tree.unflatten(
            tree,
            [
                others[i] if i in others else next(arrays)
                for i in range(tree.num_leaves)
            ],
        )

    def tree_flatten(self) -> tuple[Any, Any]:
        return tuple(self._arrays), self._static

    @classmethod
    def tree_unflatten(cls, static: Any, arrays: Any) -> "MixedResult":
        return cls(arrays, static)


def is_array_result(x: Any, numbers: bool) -> bool:
    """Whether a leaf of a result becomes an array; others are returned unchanged.

    Args:
        x: the leaf.
        numbers: whether Python numbers become arrays.
    """
    if isinstance(x, bool | enum.Enum):
        return False
    if isinstance(x, int | float | complex):
        return numbers
    return is_array(x)


def runs_later(x: Any) -> bool:
    """Whether the body of `x` runs only after the function has returned."""
    return inspect.isgenerator(x) or inspect.iscoroutine(x) or inspect.isasyncgen(x)


def check_runs_now(x: Any, fun: Any) -> None:
    """Raises if `fun` returns something that would log after it has returned."""
    if runs_later(x):
        raise LoxTypeError(
            f"{getattr(fun, '__name__', 'the function')} returns a "
            f"{type(x).__name__}, whose body runs later, outside the transformation, "
            "so its logs would be missed. Return a list of what it yields, or "
            "transform the function that iterates over it."
        )
