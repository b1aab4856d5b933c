"""`lox.watch`: statistics of trees as events."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from lox._arrays import is_array, is_typed_key
from lox._errors import LoxTypeError, LoxValueError, ShapeError, describe
from lox._jax import array_types
from lox._libraries.nnx import as_arrays
from lox._source import user_source

from .array_statistics import statistics_of
from .condition import Condition
from .event import Call, Event
from .log import CallOptions, log_with
from .log_grad import bind_log_grad
from .primitive import log_p
from .stats import DEFAULT, check_names, join, name_of, named_arrays

T = TypeVar("T")
_NONFINITE = "nonfinite"


def watch(
    name: str,
    tree: T,
    *,
    stats: str | Iterable[str] = DEFAULT,
    grad: bool = False,
    split: int | None = None,
    when: Any = None,
    tags: str | Iterable[str] = (),
    reduce: Any = None,
    prefix: str = "",
    explicit: bool = False,
    **steps: Any,
) -> T:
    """Logs statistics of every array in a tree, and returns the tree.

    The keys are those of `lox.stats`, under `name`: `params/dense/kernel/rms`.

    Args:
        name: put in front of every key, with a `/`.
        tree: a pytree of arrays: parameters, gradients, activations, a module.
        stats: the names of the statistics; see `lox.stats`.
        grad: if True, also log the statistics of the cotangents of the returned tree,
            under `name` and `grad`: `params/grad/dense/kernel/rms`. This happens in the
            backward pass, as in `lox.log_grad`.
        split: an axis along which every array holds stacked layers. Each layer gets
            its own statistics: `params/0/kernel/rms`, `params/1/kernel/rms`.
        when: log only if this is true; `"nonfinite"` logs only the arrays, and with
            `split` the layers, that have values that are NaN or infinite, each as a
            separate event.
        tags: as in `lox.log`.
        reduce: as in `lox.log`; the names in a dict are those of `lox.stats`.
        prefix: put in front of every key.
        explicit: as in `lox.log`.
        **steps: step numbers, by any name: `step=i`, `episode=n`.

    Returns:
        The tree, unchanged. With `grad=True`, it must be used in place of the argument.

    Example:
        >>> def layer(h, w):
        ...     return lox.watch("h", w * h, stats=["rms", "max"]), None
        >>> forward = lambda h: jax.lax.scan(layer, h, jnp.array([2.0, 3.0]))[0]
        >>> lox.spool(forward)(jnp.array([1.0, -1.0]))[1]
        {'h/rms': [2.0, 6.0], 'h/max': [2.0, 6.0]}

        Also log statistics of the gradient, which the backward pass computes:

        >>> def loss(w):
        ...     w = lox.watch("w", w, stats="max_abs", grad=True)
        ...     return (w**2).sum()
        >>> lox.spool(jax.grad(loss))(jnp.array([1.0, -3.0]))[1]
        {'w/max_abs': 3.0, 'w/grad/max_abs': 6.0}

        Log only arrays that are not finite:

        >>> grads = {"bias": jnp.ones(2), "kernel": jnp.array([0.0, jnp.nan])}
        >>> _ = lox.watch("grads", grads, stats="max_abs", when="nonfinite", step=7)
        {'grads/kernel/max_abs': nan}
    """
    source = user_source()
    caller = f"`lox.watch` at {source}"
    _check_options(caller, name, grad, split, when)
    if "over" in steps:
        raise LoxTypeError(
            f"{caller} has no `over`: how devices combine depends on the statistic. "
            "Reduce the tree across devices, and log its statistics once: "
            '`tree = jax.lax.pmean(tree, "data")`, and then '
            '`lox.log(lox.stats(tree), over="data")`. If it was meant as a step, give '
            "the step another name, such as `over_step`."
        )
    names = check_names(stats, f"{caller}: `stats`")
    arrays = named_arrays(tree, caller)
    _check_split(caller, arrays, split)
    paths = tuple(path for path, _ in arrays)
    nonfinite = isinstance(when, str)
    statistics = _Statistics(paths, names, split, nonfinite)
    below = f"{prefix}{name}/" if name else prefix
    options = CallOptions("lox.watch", source, tags, reduce, below, explicit, steps)
    result = tree
    if grad:
        given = None if nonfinite or when is None else Condition.of(when, caller)
        of_cotangents = dataclasses.replace(options, prefix=f"{below}grad/")
        call = of_cotangents.call([f"{below}grad"], [], when is not None)
        numbers = options.step_numbers(given)
        result = _watch_cotangents(tree, statistics, call, numbers, given)
    for values, happens in statistics.events([x for _, x in arrays]):
        log_with(options, values, happens if nonfinite else when)
    return result


class _Statistics(NamedTuple):
    """The statistics to log of a tree; for cotangents, also their `Summary`.

    Attributes:
        paths: the paths of the arrays.
        names: the names of the statistics.
        split: the axis of stacked layers, if any.
        nonfinite: whether to log only arrays that are not finite.
    """

    paths: tuple[str, ...]
    names: tuple[str, ...]
    split: int | None
    nonfinite: bool

    def events(
        self, arrays: Sequence[Any], lanes: int = 0
    ) -> list[tuple[dict[str, Any], Any]]:
        """The values of each event by key, and whether it happens; None if always.

        Args:
            arrays: one array per path, or None to leave it out.
            lanes: the number of leading axes of the arrays that are lanes.
        """
        compute = functools.partial(_layers, names=self._computed, split=self.split)
        for _ in range(lanes):
            compute = jax.vmap(compute)
        computed = {
            # otherwise JAX would also differentiate the statistics, which nothing uses
            path: compute(jax.lax.stop_gradient(x))
            for path, x in zip(self.paths, arrays, strict=True)
            if x is not None and self._may_happen(x)
        }
        found = []
        for i in range(max(map(len, computed.values()), default=0)):
            layer = "" if self.split is None else str(i)
            for path, layers in computed.items():
                values = {
                    join(layer, path, name): layers[i][name]
                    for name in self.names
                    if name in layers[i]
                }
                happens = layers[i][_NONFINITE] > 0 if self.nonfinite else None
                found.append((values, happens))
        if self.nonfinite:
            return found
        return [({key: x for values, _ in found for key, x in values.items()}, None)]

    @property
    def _computed(self) -> tuple[str, ...]:
        condition = (_NONFINITE,) if self.nonfinite else ()
        return tuple(dict.fromkeys((*self.names, *condition)))

    def _may_happen(self, x: Any) -> bool:
        return not self.nonfinite or jnp.issubdtype(x.dtype, jnp.inexact)

    def bind(self, event: Event, operands: Sequence[Any]) -> None:
        parts = event.split(operands)
        (key,), (tree,), (cotangents,) = event.call.keys, event.call.trees, parts.values
        arrays = tree.unflatten(cotangents)  # None for those that are zero
        for values, happens in self.events(arrays, event.layout.lanes):
            mask = parts.mask
            if happens is not None:
                mask = happens if mask is None else mask & happens
            trees = tuple(map(jax.tree.structure, values.values()))
            statistics = (
                event.with_call(
                    keys=tuple(join(key, name) for name in values),
                    trees=trees,
                    summary=None,
                )
                .with_layout(masked=mask is not None)
                .with_route(multi_row=event.route.multi_row * len(values))
            )
            leaves = list(map(jax.tree.leaves, values.values()))
            changed = dataclasses.replace(parts, values=leaves, mask=mask)
            log_p.bind(*changed.flat(), event=statistics)


@functools.partial(jax.jit, static_argnames=("names", "split"))
def _layers(x: Any, names: tuple[str, ...], split: int | None) -> list[dict[str, Any]]:
    """The statistics of an array, or of each of its stacked layers."""
    if split is None:
        return [statistics_of(x, names)]
    x = array_types.with_whole_axis(x, split)  # JAX cannot slice a sharded axis
    stacked = jax.vmap(lambda layer: statistics_of(layer, names), in_axes=split)(x)
    leaves, tree = jax.tree.flatten(stacked)
    return [tree.unflatten(leaf[i] for leaf in leaves) for i in range(x.shape[split])]


# --- cotangents --------------------------------------------------------------


def _watch_cotangents(
    tree: Any,
    statistics: "_Statistics",
    call: Call,
    numbers: list[Any],
    condition: Condition | None,
) -> Any:
    """The tree; if reverse mode differentiates it, `call` logs statistics."""
    caller = f"`lox.watch` at {call.source}"
    leaves, structure = jax.tree.flatten(tree)
    logged = _differentiable(leaves, caller)
    paths = _paths_of(tree, len(leaves))
    _check_grad_keys(caller, statistics, paths)
    call = dataclasses.replace(
        call,
        trees=(jax.tree.structure([0 if one else None for one in logged]),),
        summary=statistics._replace(paths=paths),
    )
    return structure.unflatten(bind_log_grad(leaves, logged, call, numbers, condition))


def _differentiable(leaves: Sequence[Any], caller: str) -> list[bool]:
    """Which leaves may have a cotangent; NumPy arrays are constants."""
    numbers = [leaf for leaf in leaves if is_array(leaf) and not is_typed_key(leaf)]
    if not any(jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in numbers):
        raise LoxTypeError(
            f"{caller}: `grad=True`, but no array in the tree has real or complex "
            "numbers, which have derivatives. Leave `grad` out."
        )
    return [
        isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        for leaf in leaves
    ]


def _paths_of(tree: Any, count: int) -> tuple[str, ...]:
    """The paths of all leaves of a tree, in the order of `jax.tree`."""
    for same in (as_arrays(tree), tree):  # NNX variables become arrays
        found, _ = jax.tree_util.tree_flatten_with_path(same)
        if len(found) == count:
            break
    return tuple(name_of(path) for path, _ in found)


# --- checks ------------------------------------------------------------------


def _check_options(caller: str, name: Any, grad: Any, split: Any, when: Any) -> None:
    if not isinstance(name, str):
        raise LoxTypeError(
            f"{caller}: the name must be a string, not {describe(name)}: "
            '`lox.watch("params", params)`.'
        )
    if not isinstance(grad, bool):
        raise LoxTypeError(
            f"{caller}: `grad` must be a bool, not {describe(grad)}. To log the "
            'statistics of gradients that you have, watch them: `lox.watch("grads", '
            "grads)`."
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
            "are one event, so `when` must be a scalar. Reduce it, as in "
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
                "separately."
            )
        if length is None:
            first, length = path, x.shape[split]
        if x.shape[split] != length:
            raise ShapeError(
                f"{caller}: `split={split}`, but {first} has {length} layers and "
                f"{path} has {x.shape[split]}. Watch the arrays that hold stacked "
                "layers separately."
            )


def _check_grad_keys(
    caller: str, statistics: "_Statistics", differentiated: Sequence[str]
) -> None:
    if statistics.split is not None:  # keys start with a number, or with `grad`
        return
    of_cotangents = {join("grad", path) for path in differentiated}
    for path in statistics.paths:
        if path in of_cotangents:
            raise LoxValueError(
                f"{caller}: `grad=True` logs statistics of a cotangent as {path!r}, "
                "which is also an array of the tree. Rename that array, or watch it "
                "separately."
            )
