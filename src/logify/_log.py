"""`logify.log`: logs one named value with its reduction."""

from collections.abc import Sequence
from typing import Any

import lox._runtime
from lox._errors import LoxTypeError
from lox._events.condition import Condition
from lox._events.event import Call, Event, Layout, Route
from lox._events.over import axes_of, check_reductions, reduced
from lox._events.primitive import log_p
from lox._events.values import arrays_of, numbers_of
from lox._reduce.named import REDUCTIONS
from lox._reduce.reductions import check_one
from lox._source import user_source

API = "logify"

# these reductions select values over time; across devices, the mean is used instead
_CHOICES = tuple(REDUCTIONS[name] for name in ("first", "last", "append"))


def log(
    name: str,
    value: Any,
    reduction: str | lox.Reduction = "replace",
    when: Any = None,
    over: str | Sequence[str] | None = None,
) -> None:
    """Logs a value for the enclosing `logify.logify`; without one, does nothing.

    Args:
        name: the name of the value. One name may have multiple reductions.
        value: an array, a number, or a pytree of these.
        reduction: how to reduce multiple values: `"replace"` keeps the last one,
            `"append"` keeps all of them; others are `mean sum min max first last count
            std var`, or a `lox.Reduction`.
        when: log only if this is true. With an array, each true element of the value is
            a separate event, as in `lox.log`.
        over: in `jax.shard_map`, the name of a mesh axis, or several: the value is
            reduced across the devices along it, as in `lox.log`. The reduction is
            `reduction` if it is `"mean"`, `"sum"`, `"min"` or `"max"`; it is the mean
            for `"replace"`, `"first"`, `"last"` and `"append"`, which select values
            over time.

    Example:
        >>> import logify
        >>> def f(x):
        ...     logify.log("x", x)
        ...     logify.log("x", x + 1)
        ...     return x * 2
        >>> f(1.0)
        2.0
        >>> logify.logify(f)(1.0)[1]
        {'x': {'replace': 2.0}}
    """
    caller = f"`logify.log` at {user_source()}"
    if not isinstance(name, str):
        raise LoxTypeError(
            f"{caller} got the name {name!r}, which must be a string: "
            '`logify.log("loss", loss)`.'
        )
    reduced_over_time = check_one(reduction, f"the `reduction` of the {caller}")
    leaves, tree = arrays_of(value, name, caller)
    condition = None if when is None else Condition.of(when, caller)
    axes = axes_of(over, caller)
    if axes and reduced_over_time not in _CHOICES:
        check_reductions(reduced_over_time, (name,), caller)
    masks = []
    if condition is not None:
        leaves, masks = condition.values(name, leaves), [condition.mask]
    call = Call(
        keys=(f"{name} ({_label(reduction)})",),
        trees=(tree,),
        steps=(),
        source=user_source(),
        reduce=reduced_over_time,
        api=API,
        api_data=(name, reduction),
        conditional=condition is not None,
        over=axes,
        numbers=numbers_of([value], [tree]),
    )
    elements = condition is not None and bool(condition.shape)
    layout = Layout(elements=elements, masked=condition is not None)
    event = Event(call, layout, Route(quiet=True))
    event, operands = reduced(event, [*leaves, *masks])
    log_p.bind(*operands, event=event)


def _label(reduction: Any) -> str:
    # two custom reductions under one name have separate results
    return reduction if isinstance(reduction, str) else f"reduction {id(reduction)}"
