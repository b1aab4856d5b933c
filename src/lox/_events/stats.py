"""`lox.stats`: named statistics of every array in a tree."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from lox._arrays import is_array, is_typed_key
from lox._errors import LoxTypeError, LoxValueError, RangeError, describe
from lox._jax import host
from lox._jax.numbers import lost_by
from lox._libraries.nnx import as_arrays
from lox._source import user_source

from .array_statistics import STATISTICS, statistics_of
from .values import too_large

DEFAULT = ("rms", "max_abs", "nonfinite")


def stats(tree: Any, which: str | Iterable[str] = DEFAULT) -> dict[str, Any]:
    """Computes statistics of every array in a tree.

    The statistics are:

    - `rms`, `norm`: the root mean square and the Euclidean norm
    - `mean`, `std`: the mean and the standard deviation
    - `min`, `max`: the smallest and the largest value
    - `mean_abs`, `max_abs`: the mean and the largest absolute value
    - `zero_fraction`: the fraction of values that are zero
    - `nonfinite`: the number of values that are NaN or infinite
    - `histogram`: a dict: `counts` of the finite values in 32 bins of equal width
      between the smallest and the largest one, and the 33 `edges` of the bins

    They are computed in float32 or wider, without overflow if the result itself fits.
    NaN and infinities propagate as in NumPy. `min`, `max` and `max_abs` of integers are
    exact integers. Booleans count as 0 and 1.

    A statistic that is not defined for a leaf is left out: `min`, `max` and `histogram`
    of complex numbers, and everything but `norm`, `nonfinite` and `histogram` of an
    empty array. Leaves that are not arrays or numbers are left out, and so are PRNG
    keys, Python bools, and the numbers in Equinox modules, which are settings.

    Args:
        tree: a pytree of arrays: parameters, gradients, a Flax or Equinox module.
        which: the names of the statistics.

    Returns:
        The statistics. Keys are the path of the leaf, joined by `/`, and the name of
        the statistic: `dense/kernel/rms`.

    Example:
        >>> dense = {"kernel": jnp.array([[3.0, -4.0]]), "bias": jnp.ones(1)}
        >>> params = {"dense": dense}
        >>> for key, value in lox.stats(params, ["norm", "max_abs"]).items():
        ...     print(key, value)
        dense/bias/norm 1.0
        dense/bias/max_abs 1.0
        dense/kernel/norm 5.0
        dense/kernel/max_abs 4.0
    """
    caller = f"`lox.stats` at {user_source()}"
    names = check_names(which, f"{caller}: `which`")
    return {
        join(path, name): value
        for path, x in named_arrays(tree, caller)
        for name, value in statistics_of(x, names).items()
    }


def join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def check_names(names: Any, option: str) -> tuple[str, ...]:
    """Checks the names of statistics; `option` names the argument for messages."""
    listed = (names,) if isinstance(names, str) else names
    known = ", ".join(STATISTICS)
    if not isinstance(listed, Iterable) or is_array(listed):
        raise LoxTypeError(
            f"{option} must be names of statistics, not {describe(names)}; available: "
            f"{known}."
        )
    found = tuple(listed)
    for name in found:
        if not isinstance(name, str) or name not in STATISTICS:
            raise LoxValueError(
                f"{option} has the unknown statistic {name!r}; available: {known}."
            )
    if not found:
        raise LoxValueError(f"{option} has no names of statistics; available: {known}.")
    return found


# --- leaves ------------------------------------------------------------------


def named_arrays(tree: Any, caller: str) -> list[tuple[str, Any]]:
    """The arrays of a tree, with their paths joined by `/`.

    Args:
        tree: a pytree.
        caller: what was called, and where, for messages.
    """
    found: dict[str, tuple[str, Any]] = {}
    for path, leaf in _leaves(as_arrays(tree)):
        if not has_statistics(leaf):
            continue
        name = name_of(path)
        shown = jax.tree_util.keystr(path)
        if name in found:
            raise LoxValueError(
                f"{caller}: the leaves {found[name][0]} and {shown} have the same key "
                f"{name!r}. Rename one of them."
            )
        found[name] = shown, _array(leaf, name, caller)
    if not found:
        raise LoxTypeError(
            f"{caller} got {describe(tree)}, which contains no array. Pass a pytree of "
            "arrays."
        )
    return [(name, x) for name, (_, x) in found.items()]


def name_of(path: Sequence[Any]) -> str:
    """The path of a leaf, joined by `/`."""
    return join(*(jax.tree_util.keystr((key,), simple=True) for key in path))


def has_statistics(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers."""
    return is_array(leaf) and not isinstance(leaf, bool) and not is_typed_key(leaf)


def _leaves(tree: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The leaves with their paths, without the numbers in Equinox modules."""
    module = getattr(sys.modules.get("equinox"), "Module", ())

    def is_module(x: Any) -> bool:
        return isinstance(x, module)

    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_module)[0]:
        if not is_module(leaf):
            yield path, leaf
            continue
        for inner, x in jax.tree_util.tree_flatten_with_path(leaf)[0]:
            if not isinstance(x, int | float | complex):
                yield (*path, *inner), x


def _array(x: Any, name: str, caller: str) -> Any:
    lost = lost_by(x)
    if lost is not None:
        raise RangeError(f"{caller} got {too_large(lost, repr(name))}")
    return host.to_array(x)
