"""The arguments of a transformed function: which are traced, and which are static.

An eager call traces arrays and numbers, as `jax.jit` does. Everything else is static:
strings, functions, `None`, Python bools, objects that are not pytrees, and, as in
`eqx.filter_jit`, numbers in Equinox modules. Inside another trace, Python numbers are
static too, because the function would see them unchanged without lox.
"""

import collections
import dataclasses
import enum
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from lox._errors import LoxTypeError, LoxValueError
from lox._libraries import nnx
from lox._objects import attributes_of, slots_of

# --- which types are traced --------------------------------------------------

_NUMBERS = (int, float, complex)


def _is_traced(kind: type, numbers: bool) -> bool:
    if issubclass(kind, bool | enum.Enum):
        return False
    if issubclass(kind, (*_NUMBERS, np.generic)):
        return numbers
    # before JAX 0.10, tracers are instances of `jax.Array`, but not of a subclass
    arrays = (jax.Array, jax.core.Tracer, np.ndarray)
    return issubclass(kind, arrays) or hasattr(kind, "__jax_array__")


class _Types(dict[type, bool]):
    """Whether leaves of a type are traced, computed once per type."""

    def __init__(self, numbers: bool) -> None:
        super().__init__()
        self._numbers = numbers

    def __missing__(self, kind: type) -> bool:
        self[kind] = found = _is_traced(kind, self._numbers)
        if found and not issubclass(kind, jax.core.Tracer):
            array_types.add(kind)
        return found


_traced_types = {numbers: _Types(numbers) for numbers in (True, False)}


# The types of arrays and numbers that were arguments before, without those of traced
# values. An eager call with such arguments need not be searched for static values.
array_types: set[type] = set()


def all_arrays(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an eager call surely traces all leaves; this takes a microsecond.

    False means that it is not known.
    """
    leaves, _ = _flatten((args, kwargs) if kwargs else args)
    return array_types.issuperset(map(type, leaves)) and (
        "equinox" not in _modules or not any(map(_is_number, leaves))
    )


_modules = sys.modules
_flatten = jax.tree_util.default_registry.flatten


def all_traced(args: tuple[Any, ...], kwargs: dict[str, Any], numbers: bool) -> bool:
    """Whether all leaves of the arguments are traced.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.
        numbers: whether Python and NumPy scalars are traced.
    """
    traced = _traced_types[numbers]
    if not kwargs and all(map(traced.get, map(type, args))):
        return True  # the common case: arguments that are arrays
    kinds = set(map(type, jax.tree.leaves((args, kwargs))))
    return all(traced[kind] for kind in kinds)


# --- static arguments by position and name -----------------------------------

Argnums = int | Sequence[int] | None
Argnames = str | Iterable[str] | None


@dataclasses.dataclass(frozen=True)
class Static:
    """The positions and names of static arguments, as in `jax.jit`."""

    argnums: tuple[int, ...] = ()
    argnames: tuple[str, ...] = ()

    @classmethod
    def of(cls, fun: Any, argnums: Any, argnames: Any) -> "Static":
        """Infers names from positions and positions from names, as `jax.jit` does."""
        nums, names = _tuple(argnums), _tuple(argnames)
        if not nums and not names:
            return NO_STATIC
        try:
            parameters = inspect.signature(fun).parameters.values()
        except (TypeError, ValueError):
            return cls(nums, names)
        positional = [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        for i in nums:
            if i < -len(positional):
                raise LoxValueError(
                    f"`static_argnums` has the position {i}, but the function has "
                    f"{len(positional)} positional arguments."
                )
        nums = tuple(i + len(positional) if i < 0 else i for i in nums)
        named = {positional[i] for i in nums if i < len(positional)}
        indices = {positional.index(name) for name in names if name in positional}
        return cls(tuple(sorted({*nums, *indices})), tuple(sorted({*names, *named})))

    def after(self, count: int) -> "Static":
        """The static arguments of a function with `count` more arguments in front."""
        return Static(tuple(i + count for i in self.argnums), self.argnames)

    def __bool__(self) -> bool:
        return bool(self.argnums or self.argnames)

    def hide(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replaces each static argument with a single leaf that is not an array."""
        if not self:
            return args, kwargs
        return (
            tuple(_Hidden(x) if i in self.argnums else x for i, x in enumerate(args)),
            {k: _Hidden(x) if k in self.argnames else x for k, x in kwargs.items()},
        )

    def traced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without the static ones."""
        if not self:
            return args, kwargs
        return (
            tuple(x for i, x in enumerate(args) if i not in self.argnums),
            {k: x for k, x in kwargs.items() if k not in self.argnames},
        )


NO_STATIC = Static()


@dataclasses.dataclass(frozen=True)
class _Hidden:
    """A static value as a leaf, compared by value as in `jax.jit`."""

    value: Any


def revealed(leaf: Any) -> Any:
    """The value of a leaf that may be hidden."""
    return leaf.value if type(leaf) is _Hidden else leaf


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


def hide_settings(tree: Any, is_leaf: Callable[[Any], bool] = lambda x: False) -> Any:
    """Hides the numbers in Equinox modules, so that they are not traced.

    They are settings of the model, such as a dropout rate, not parameters. As arrays,
    they would be differentiated and trained.
    """
    equinox = sys.modules.get("equinox")
    module = getattr(equinox, "Module", None)
    if module is None or not any(
        map(_is_number, jax.tree.leaves(tree, is_leaf=is_leaf))
    ):
        return tree

    def is_module(x: Any) -> bool:
        return isinstance(x, module)

    def hide(x: Any) -> Any:
        if not is_module(x):
            return x
        return jax.tree.map(lambda leaf: _Hidden(leaf) if _is_number(leaf) else leaf, x)

    return jax.tree.map(hide, tree, is_leaf=lambda x: is_module(x) or is_leaf(x))


def _is_number(x: Any) -> bool:
    return type(x) in _NUMBERS


# --- static leaves -----------------------------------------------------------

_ARRAY = object()


class StaticLeaves:
    """The arguments without their arrays, as one hashable static argument of `jit`."""

    def __init__(self, tree: Any, leaves: Sequence[Any]) -> None:
        self._tree = tree
        self._leaves = leaves
        for leaf in map(revealed, leaves):
            if leaf.__hash__ is None:
                raise LoxTypeError(
                    f"an argument holds {leaf!r} of type {type(leaf).__name__}, which "
                    "is neither an array nor hashable. Arguments that are not arrays "
                    "are static, as in `jax.jit`, and must be hashable: pass a tuple "
                    "or a frozenset."
                )
        self._hash = hash((tree, *leaves))
        # objects that are compared by identity may change between calls
        self._snapshots = [_snapshot(leaf) for leaf in leaves]

    def fill(self, arrays: Sequence[Any]) -> Any:
        rest = iter(arrays)
        leaves = [next(rest) if leaf is _ARRAY else leaf for leaf in self._leaves]
        args, kwargs = jax.tree.unflatten(self._tree, map(revealed, leaves))
        return args, kwargs

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StaticLeaves)
            and self._tree == other._tree
            and all(map(_same, self._leaves, other._leaves))
            and all(map(_same_snapshot, self._snapshots, other._snapshots))
        )


def split(
    args: tuple[Any, ...], kwargs: dict[str, Any], numbers: bool
) -> tuple[StaticLeaves, list[Any]]:
    """Splits the arguments into static leaves and arrays."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = _traced_types[numbers]
    arrays = [leaf for leaf in leaves if traced[type(leaf)]]
    rest = [_ARRAY if traced[type(leaf)] else leaf for leaf in leaves]
    return StaticLeaves(tree, rest), arrays


def _same(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if type(x) is _Hidden:
        return _same(x.value, y.value)
    if isinstance(x, float | complex | np.inexact):  # 0.0 is not -0.0, but NaN is NaN
        return repr(x) == repr(y)
    return bool(x == y)


# --- objects that may change -------------------------------------------------

_DEPTH = 4  # how deep attributes of attributes are compared
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)


def is_plain_object(x: Any) -> bool:
    """Whether `x` is compared by identity and has attributes that may change."""
    if isinstance(x, type | types.ModuleType | types.FunctionType):
        return False
    identity: Any = object.__hash__
    return type(x).__hash__ is identity and (
        hasattr(x, "__dict__") or bool(slots_of(type(x)))
    )


def _snapshot(x: Any, depth: int = _DEPTH) -> Any:
    """The contents of an object; None if it is compared by value or cannot change."""
    if depth == 0 or nnx.is_object(x):  # which `StatefulCall` compares
        return None
    if isinstance(x, dict):
        return {key: (value, _snapshot(value, depth - 1)) for key, value in x.items()}
    if isinstance(x, _SEQUENCES):
        return [(value, _snapshot(value, depth - 1)) for value in x]
    return _snapshot(attributes_of(x), depth) if is_plain_object(x) else None


def _same_snapshot(x: Any, y: Any) -> bool:
    if x is None or y is None:
        return x is y
    if len(x) != len(y):
        return False
    if isinstance(x, list):
        return all(map(_same_item, x, y))
    return x.keys() == y.keys() and all(_same_item(x[key], y[key]) for key in x)


def _same_item(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    (x, inside_x), (y, inside_y) = first, second
    if isinstance(x, (dict, *_SEQUENCES)) and type(x) is type(y):
        return _same_snapshot(inside_x, inside_y)
    if x is not y and not (
        isinstance(x, bool | str | bytes | int | float | complex | np.generic)
        and _same(x, y)
    ):
        return False
    return _same_snapshot(inside_x, inside_y)


def traced_attribute(x: Any) -> str | None:
    """The name of an attribute of `x` that is a tracer, if there is one."""
    if not is_plain_object(x):
        return None
    for name, value in attributes_of(x).items():
        if isinstance(value, jax.core.Tracer):
            return name
    return None
