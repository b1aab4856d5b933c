"""`lox.watch`: statistics of trees as events."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from lox._arrays import is_array
from lox._errors import LoxTypeError, LoxValueError, ShapeError, describe
from lox._source import Source, user_source

from .log import log_from
from .stats import DEFAULT, check_names, join, named_arrays, statistics_of

T = TypeVar("T")
_NONFINITE = "nonfinite"


def watch(
    name: str,
    tree: T,
    *,
    stats: str | Iterable[str] = DEFAULT,
    split: int | None = None,
    when: Any = None,
    tags: str | Iterable[str] = (),
    reduce: Any = None,
    prefix: str = "",
    explicit: bool = False,
    **steps: Any,
) -> T:
    """Logs statistics of every array in a tree, and returns the tree.

    The keys are those of `lox.stats`, below `name`: `params/dense/kernel/rms`.

    Args:
        name: put in front of every key, with a `/`.
        tree: a pytree of arrays: parameters, gradients, activations, a module.
        stats: the names of the statistics; see `lox.stats`.
        split: an axis along which every array holds stacked layers. Each layer gets
            statistics of its own: `params/0/kernel/rms`, `params/1/kernel/rms`.
        when: log only if this is true; `"nonfinite"` logs only the arrays, and with
            `split` the layers, that have values that are NaN or infinite, each as an
            event of its own.
        tags: as in `lox.log`.
        reduce: as in `lox.log`; the names in a dict are those of `lox.stats`.
        prefix: put in front of every key.
        explicit: as in `lox.log`.
        **steps: step numbers, by any name: `step=i`, `episode=n`.

    Returns:
        The tree, unchanged.

    Example:
        >>> def layer(h, w):
        ...     return lox.watch("h", w * h, stats=["rms", "max"]), None
        >>> forward = lambda h: jax.lax.scan(layer, h, jnp.array([2.0, 3.0]))[0]
        >>> lox.spool(forward)(jnp.array([1.0, -1.0]))[1]
        {'h/rms': [2.0, 6.0], 'h/max': [2.0, 6.0]}

        Which array is the first that is not finite?

        >>> grads = {"bias": jnp.ones(2), "kernel": jnp.array([0.0, jnp.nan])}
        >>> _ = lox.watch("grads", grads, stats="max_abs", when="nonfinite", step=7)
        {'grads/kernel/max_abs': nan}
    """
    source = user_source()
    caller = f"`lox.watch` at {source}"
    _check_options(caller, name, split, when)
    names = check_names(stats, f"{caller}: `stats`")
    arrays = named_arrays(tree, caller)
    _check_split(caller, arrays, split)
    options = _Options(names, split, when, tags, reduce, explicit, steps)
    _log_statistics(source, prefix + name, arrays, options)
    return tree


class _Options(NamedTuple):
    """The options of a `lox.watch` call."""

    names: tuple[str, ...]
    split: int | None
    when: Any
    tags: Any
    reduce: Any
    explicit: bool
    steps: Mapping[str, Any]


def _log_statistics(
    source: Source, name: str, arrays: list[tuple[str, Any]], options: _Options
) -> None:
    prefix = f"{name}/" if name else ""

    def log(data: Mapping[str, Any], when: Any) -> None:
        steps = dict(options.steps)
        log_from(
            source,
            data,
            options.tags,
            options.reduce,
            prefix,
            options.explicit,
            steps,
            when,
        )

    found = _statistics(arrays, options)
    if isinstance(options.when, str):
        for path, values, nonfinite in found:
            if nonfinite is not None:
                log(_with_path(path, values), nonfinite)
        return
    data: dict[str, Any] = {}
    for path, values, _ in found:
        data |= _with_path(path, values)
    log(data, options.when)


def _with_path(path: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {join(path, name): value for name, value in values.items()}


def _statistics(
    arrays: list[tuple[str, Any]], options: _Options
) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """The statistics of each array, or of each layer of each array.

    Yields:
        The path, the statistics by name, and whether there are values that are not
        finite; None if there cannot be.
    """
    condition = (_NONFINITE,) if isinstance(options.when, str) else ()
    names = tuple(dict.fromkeys((*options.names, *condition)))
    layers = {}
    for path, x in arrays:
        # tangents would be computed for nothing
        x = jax.lax.stop_gradient(x)
        if options.split is None:
            layers[path] = [statistics_of(x, names)]
        else:
            layers[path] = _statistics_of_layers(x, names, options.split)
    exact = {path for path, x in arrays if not jnp.issubdtype(x.dtype, jnp.inexact)}
    for i in range(max(map(len, layers.values()))):
        layer = "" if options.split is None else str(i)
        for path, values in layers.items():
            found = {
                name: values[i][name] for name in options.names if name in values[i]
            }
            count = None if path in exact else values[i].get(_NONFINITE)
            yield join(layer, path), found, None if count is None else count > 0


@functools.partial(jax.jit, static_argnames=("names", "axis"))
def _statistics_of_layers(
    x: Any, names: tuple[str, ...], axis: int
) -> list[dict[str, Any]]:
    """The statistics of each element of an axis."""
    stacked = jax.vmap(lambda layer: statistics_of(layer, names), in_axes=axis)(x)
    leaves, tree = jax.tree.flatten(stacked)
    return [tree.unflatten(x[i] for x in leaves) for i in range(x.shape[axis])]


# --- checks ------------------------------------------------------------------


def _check_options(caller: str, name: Any, split: Any, when: Any) -> None:
    if not isinstance(name, str):
        raise LoxTypeError(
            f"{caller}: the name must be a string, not {describe(name)}: "
            '`lox.watch("params", params)`.'
        )
    if split is not None and (not isinstance(split, int) or isinstance(split, bool)):
        raise LoxTypeError(
            f"{caller}: `split` must be the number of an axis, not {describe(split)}. "
            "If it was meant as a step, give the step another name, such as "
            "`split_step`."
        )
    if isinstance(when, str) and when != _NONFINITE:
        raise LoxValueError(
            f'{caller}: `when` must be a boolean or "{_NONFINITE}", not {when!r}.'
        )
    if is_array(when) and jnp.shape(when):
        raise ShapeError(
            f"{caller}: `when` has the shape {jnp.shape(when)}; statistics of a tree "
            "are one event, which a scalar decides about. Reduce it, as in "
            "`when=bad.any()`, or call `lox.watch` under `jax.vmap`."
        )


def _check_split(caller: str, arrays: list[tuple[str, Any]], split: int | None) -> None:
    if split is None:
        return
    first, length = "", None
    for key, x in arrays:
        path = repr(key) if key else "the array"
        if not -x.ndim <= split < x.ndim:
            raise ShapeError(
                f"{caller}: `split={split}`, but {path} has the shape {x.shape}, "
                "which has no such axis. Watch the arrays that hold stacked layers "
                "by themselves."
            )
        if length is None:
            first, length = path, x.shape[split]
        if x.shape[split] != length:
            raise ShapeError(
                f"{caller}: `split={split}`, but {first} has {length} layers and "
                f"{path} has {x.shape[split]}. Watch the arrays that hold stacked "
                "layers by themselves."
            )
