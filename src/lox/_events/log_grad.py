"""`lox.log_grad`: logs cotangents.

`log_grad_p` is the identity on its first operands, the values. The other operands are
the steps and the mask, as in `log_p`. Its JVP binds it on the tangents, in which it is
linear; the transpose of that binds an event of `log_p` on the cotangents. So the event
exists only in the program that reverse mode creates, and is an ordinary event there.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Never, TypeVar

import jax
import jax.numpy as jnp

from lox._arrays import is_array
from lox._errors import LoxTypeError, describe
from lox._jax import ad, patches, primitives, rule_tables
from lox._libraries.nnx import as_arrays
from lox._source import user_source

from .condition import Condition
from .event import Call, Event, Route
from .log import CallOptions, layout_of
from .over import axes_of, check_reductions, reduced
from .primitive import log_p, with_lanes

T = TypeVar("T")
_MISSING: Any = object()


def log_grad(
    name: str = _MISSING,
    x: T = _MISSING,
    *others: Never,
    tags: str | Iterable[str] = (),
    reduce: Any = None,
    prefix: str = "",
    explicit: bool = False,
    when: Any = None,
    over: str | Sequence[str] | None = None,
    **steps: Any,
) -> T:
    """Returns `x`, and logs its cotangent when it is differentiated in reverse mode.

    The cotangent is the derivative of the function's result with respect to `x`. It is
    logged in the backward pass, so `lox.spool`, `lox.tap` and loggers go outside of
    `jax.grad`: `lox.spool(jax.grad(f))`. Rows come in the order of the backward pass,
    which runs loops in reverse; `logs.sort("step")` sorts them by a step.

    Forward mode passes through unchanged. With nested derivatives, the innermost one
    logs. Nothing is logged for values that are not differentiated, or that the result
    does not depend on.

    Args:
        name: the key of the cotangent.
        x: an array or a pytree of arrays. The cotangent is a tree of the same
            structure, with None in place of leaves that are not differentiated, such as
            integers.
        tags: as in `lox.log`.
        reduce: as in `lox.log`.
        prefix: as in `lox.log`.
        explicit: as in `lox.log`.
        when: as in `lox.log`; it is evaluated in the forward pass.
        over: as in `lox.log`; the cotangents are reduced across devices.
        **steps: step numbers, from the forward pass.

    Returns:
        `x`. The result must be used in place of `x`: values computed from `x` itself do
        not contribute to the cotangent.

    Example:
        >>> def f(x):
        ...     def layer(h, i):
        ...         h = lox.log_grad("dh", h, step=i)
        ...         return 2.0 * h, None
        ...     return jax.lax.scan(layer, x, jnp.arange(3))[0]
        >>> grad, logs = lox.spool(jax.grad(f))(1.0)
        >>> logs, logs.step["dh"].tolist()
        ({'dh': [2.0, 4.0, 8.0]}, [2, 1, 0])
        >>> logs.sort("step")
        {'dh': [8.0, 4.0, 2.0]}
    """
    options = CallOptions(
        "lox.log_grad", user_source(), tags, reduce, prefix, explicit, steps
    )
    caller = options.caller
    _check_arguments(name, x, others, caller)
    options.check()
    leaves, tree = jax.tree.flatten(x)
    logged = _differentiable(leaves, name, x, caller)
    condition = None if when is None else Condition.of(when, caller)
    numbers = options.step_numbers(condition)
    axes = axes_of(over, caller)
    structure = _with_none(_tree_of_arrays(x, tree), logged)
    call = options.call([prefix + name], [structure], condition is not None, axes)
    if axes:
        check_reductions(call.reduce, call.keys, caller)
    return tree.unflatten(bind_log_grad(leaves, logged, call, numbers, condition))


def bind_log_grad(
    leaves: list[Any],
    logged: Sequence[bool],
    call: Call,
    numbers: Sequence[Any],
    condition: Condition | None,
) -> list[Any]:
    """Returns the leaves unchanged; reverse mode logs the cotangents of some of them.

    Args:
        leaves: the leaves of a value.
        logged: for each, whether its cotangent is logged.
        call: the call that logs them.
        numbers: its steps.
        condition: its `when`, if there is one.
    """
    if not any(logged):
        return leaves
    values = [leaf for leaf, chosen in zip(leaves, logged, strict=True) if chosen]
    shapes = [value.shape for value in values]
    masks = []
    if condition is not None:
        values = condition.values(call.keys[0], values)
        masks = [condition.mask]
    call = dataclasses.replace(call, of_cotangents=True)
    event = Event(call, layout_of(condition), Route(quiet=call.explicit))
    outs = iter(log_grad_p.bind(*values, *numbers, *masks, event=event))
    same = iter(shapes)
    return [
        _shaped(next(outs), next(same)) if chosen else leaf
        for leaf, chosen in zip(leaves, logged, strict=True)
    ]


def _check_arguments(name: Any, x: Any, others: tuple[Any, ...], caller: str) -> None:
    if not isinstance(name, str) or x is _MISSING:
        given = [describe(one) for one in (name, x) if one is not _MISSING]
        raise LoxTypeError(
            f"{caller} got {' and '.join(given) or 'nothing'}; it takes the name of "
            'the cotangent, and then the value: `h = lox.log_grad("dh", h)`.'
        )
    if others:
        raise LoxTypeError(
            f"{caller} got {describe(others[0])} after the value. Pass steps and "
            f"options by keyword: `lox.log_grad({name!r}, h, step=i)`."
        )


def _differentiable(
    leaves: Sequence[Any], name: str, x: Any, caller: str
) -> list[bool]:
    """Which leaves may have a cotangent: JAX arrays of real or complex numbers."""
    for leaf in leaves:
        if not is_array(leaf):
            raise LoxTypeError(
                f"{caller} got {describe(leaf)} for {name!r}; it logs the cotangents "
                "of arrays, or of pytrees of arrays. Pass only the arrays."
            )
    if not leaves:
        raise LoxTypeError(
            f"{caller} got {describe(x)} for {name!r}, which contains no array. Pass "
            f"the value whose cotangent to log: `h = lox.log_grad({name!r}, h)`."
        )
    kinds = [jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves]
    if not any(kinds):
        dtypes = ", ".join(dict.fromkeys(str(jnp.result_type(x)) for x in leaves))
        raise LoxTypeError(
            f"{caller} got values of dtype {dtypes} for {name!r}, which have no "
            "derivative. Log the cotangent of a real or complex value, or log the "
            f'value itself: `lox.log({{"{name}": ...}})`.'
        )
    # Python numbers and NumPy arrays are constants
    return [
        kind and isinstance(leaf, jax.Array)
        for kind, leaf in zip(kinds, leaves, strict=True)
    ]


def _tree_of_arrays(x: Any, tree: Any) -> Any:
    """The structure of the logged value: NNX variables become arrays."""
    plain = jax.tree.structure(as_arrays(x))
    return plain if plain.num_leaves == tree.num_leaves else tree


def _with_none(tree: Any, kept: Sequence[bool]) -> Any:
    """A structure with None in place of the leaves that are not kept."""
    if all(kept):
        return tree
    return jax.tree.structure(tree.unflatten([0 if one else None for one in kept]))


def _shaped(x: Any, shape: tuple[int, ...]) -> Any:
    return x if x.shape == shape else x.reshape(shape)


# --- the primitive -----------------------------------------------------------


class _LogGradPrimitive(primitives.Primitive):
    def bind(self, *operands: Any, **params: Any) -> Any:
        if not patches.installed:  # as for events: reverse mode turns it into one
            patches.install()
        return super().bind(*operands, **params)


log_grad_p: Any = _LogGradPrimitive("lox_log_grad")
log_grad_p.multiple_results = True


def value_count(event: Event) -> int:
    """The number of operands that are values; all others are not linear."""
    return sum(tree.num_leaves for tree in event.call.trees)


def _values(*operands: Any, event: Event) -> list[Any]:
    return list(operands[: value_count(event)])


log_grad_p.def_impl(_values)
log_grad_p.def_abstract_eval(_values)
rule_tables.register_lowering(
    log_grad_p, lambda ctx, *operands, event: _values(*operands, event=event)
)
rule_tables.register_jet(log_grad_p, _values)


def _batch(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, event: Event
) -> tuple[list[Any], list[Any]]:
    # Values without lanes get a lane axis, too: each lane has its own cotangent, and
    # only the sum of these would remain.
    count = value_count(event)
    once, event = event.layout.once, event.with_layout(once="")
    if once and all(dim is None for dim in dims):
        return log_grad_p.bind(*operands, event=event), [None] * count
    lanes, event = with_lanes(axis_data, operands, dims, event)
    return log_grad_p.bind(*lanes, event=event), [0] * count


rule_tables.register_batching(log_grad_p, _batch)


def _of_leaves(event: Event, kept: Sequence[bool]) -> Event:
    """The event, for only some leaves of its value."""
    (tree,) = event.call.trees
    return event.with_call(trees=(_with_none(tree, kept),))


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, event: Event
) -> tuple[list[Any], list[Any]]:
    count = value_count(event)
    out_tangents = list(tangents[:count])
    varied = [not ad.is_symbolic_zero(tangent) for tangent in out_tangents]
    places = [i for i, one in enumerate(varied) if one]
    if places:
        outs = log_grad_p.bind(
            *(out_tangents[i] for i in places),
            *primals[count:],
            event=_of_leaves(event, varied),
        )
        for i, out in zip(places, outs, strict=True):
            out_tangents[i] = out
    return list(primals[:count]), out_tangents


def _transpose(cotangents: Sequence[Any], *operands: Any, event: Event) -> list[Any]:
    count = value_count(event)
    linear = [ad.is_linear_operand(x) for x in operands[:count]]
    chosen = [ct for ct, one in zip(cotangents, linear, strict=True) if one]
    if not all(map(ad.is_symbolic_zero, chosen)):
        values = [*map(ad.instantiated, chosen), *operands[count:]]
        event = _of_leaves(event, linear)
        if event.call.summary is None:
            event, values = reduced(event, values)
            log_p.bind(*values, event=event)
        else:
            event.call.summary.bind(event, values)
    given = [ct if one else None for ct, one in zip(cotangents, linear, strict=True)]
    return [*given, *[None] * (len(operands) - count)]


rule_tables.register_jvp(log_grad_p, _jvp)
rule_tables.register_transpose(log_grad_p, _transpose)
