"""`lox.log`, which checks the logged values and binds an event."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never

import jax
import jax.numpy as jnp
import numpy as np

from lox._arrays import is_array
from lox._errors import LoxTypeError, RangeError, StepError, describe
from lox._jax import host, tracing
from lox._jax.numbers import lost_by, number_of, rounds
from lox._libraries.nnx import as_arrays
from lox._logs.access import key_of
from lox._logs.logdict import RESERVED, logdict, reserved_step
from lox._reduce import reductions
from lox._source import Source, user_source

from .condition import Condition, event_logs
from .event import Call, Event, Layout, Route
from .not_traced import may_run_early, warn_if_in_host_function
from .over import axes_of, check_reductions, reduced
from .primitive import log_p

_MISSING: Any = object()


def log(
    data: Mapping[str, Any] = _MISSING,
    *others: Never,
    tags: str | Iterable[str] = (),
    reduce: Any = None,
    prefix: str = "",
    explicit: bool = False,
    when: Any = None,
    over: str | Sequence[str] | None = None,
    **steps: Any,
) -> logdict:
    """Logs named values from anywhere in a program.

    Transformations decide what happens to them: `lox.spool` returns them, `lox.tap`
    streams them to a callback, `lox.nolog` removes them. Without a transformation, they
    are printed (see `lox.set_default`).

    Args:
        data: the values by name: arrays, numbers, or pytrees of these.
        tags: strings by which a transformation can select the event.
        reduce: the default reduction of these keys over time, which a transformation
            can override: a name (`"mean"`), or a dict of names by key.
        prefix: a prefix for every key.
        explicit: if True, only transformations with `argnames` or `tags` collect the
            event.
        when: log only if this is true. With an array, each true element is a separate
            event, in C order: its shape must be a prefix of the shape of every value,
            and steps are numbers or have its shape.
        over: in `jax.shard_map`, the name of a mesh axis, or several: the values are
            reduced across the devices along it, and logged once instead of once per
            device. The reduction is that of `reduce` if it is `"mean"`, `"sum"`,
            `"min"` or `"max"`, and by default the mean, over the devices where `when`
            is true. All devices must reach the call.
        **steps: step numbers, by any name: `step=i`, `episode=n`.

    Returns:
        The event, as a `lox.logdict`.

    Example:
        >>> @jax.jit
        ... def f(x):
        ...     lox.log({"x": x, "y": x + 1}, step=0)
        ...     return x * x
        >>> _ = f(3).block_until_ready()
        {'x': 3, 'y': 4}

        Of many environments, log only those that have finished:

        >>> def step(returns, done):
        ...     lox.log({"return": returns}, when=done)
        >>> returns, done = jnp.array([1.0, 2.0, 3.0]), jnp.array([True, False, True])
        >>> lox.spool(step)(returns, done)[1]
        {'return': [1.0, 3.0]}

        Of many devices, log the mean:

        >>> mesh = jax.sharding.Mesh(jax.devices(), "data")
        >>> @jax.shard_map(mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("data"))
        ... def double(xs):
        ...     lox.log({"x": xs.sum()}, over="data")
        ...     return 2 * xs
        >>> lox.spool(double)(jnp.arange(16.0))[1]
        {'x': 15.0}
    """
    source = user_source()
    if data is _MISSING:
        first = next(iter(steps), "loss")
        raise LoxTypeError(
            f"`lox.log` at {source} got no values: keyword arguments are steps and "
            "options. Pass values as a dict by name: "
            f'`lox.log({{"{first}": {first}}})`.'
        )
    name: Any = data
    if others and isinstance(name, str):
        raise LoxTypeError(
            f"`lox.log` at {source} got the name {name!r} and a value. Pass values "
            f'as a dict by name: `lox.log({{"{name}": ...}})`.'
        )
    if others:
        raise LoxTypeError(
            f"`lox.log` at {source} got {describe(others[0])} after the values. Pass "
            'steps and options by keyword: `lox.log({"loss": loss}, step=i)`.'
        )
    return log_from(source, data, tags, reduce, prefix, explicit, steps, when, over)


def log_from(
    source: Source,
    data: Any,
    tags: Any,
    reduce: Any,
    prefix: Any,
    explicit: Any,
    steps: dict[str, Any],
    when: Any = None,
    over: Any = None,
    function: str = "lox.log",
) -> logdict:
    """Logs an event for the line `source` of the user's code, a call of `function`."""
    caller = f"`{function}` at {source}"
    if not isinstance(data, Mapping):
        raise LoxTypeError(
            f"{caller} got {describe(data)} instead of a mapping from names to "
            'values: `lox.log({"loss": loss})`.'
        )
    check_options(prefix, explicit, caller)
    axes = axes_of(over, caller)
    if isinstance(data, logdict) and (data.mask or data.steps):
        return _log_spooled(
            source, data, tags, reduce, prefix, explicit, steps, when, axes
        )
    condition = None if when is None else Condition.of(when, caller)
    return _log_event(
        source, data, condition, tags, reduce, prefix, explicit, steps, axes, caller
    )


def _log_spooled(
    source: Source,
    logs: logdict,
    tags: Any,
    reduce: Any,
    prefix: str,
    explicit: bool,
    steps: dict[str, Any],
    when: Any,
    over: tuple[str, ...],
) -> logdict:
    """Logs a spooled logdict again, with its steps and its mask."""
    result = logdict()
    caller = f"`lox.log` at {source}"
    given = None if when is None else Condition.of(when, caller)
    for key in logs:
        mask = logs.mask.get(key)
        if mask is not None and jnp.ndim(mask):
            raise LoxTypeError(
                f"`lox.log` at {source} cannot log {key!r} again: some of its rows may "
                'not have been logged. Reduce it first: `logs.reduce("last")`.'
            )
        own = key_of(logs, key).steps
        own = {name: step for name, step in own.items() if jnp.ndim(step) == 0}
        own.update(steps)
        one = {key: logs[key]}
        condition = given
        if mask is not None:
            both = mask if given is None else jnp.reshape(mask & when, jnp.shape(when))
            condition = Condition.of(both, caller)
        result |= _log_event(
            source, one, condition, tags, reduce, prefix, explicit, own, over, caller
        )
    return result


def _log_event(
    source: Source,
    data: Mapping[str, Any],
    condition: Condition | None,
    tags: Any,
    reduce: Any,
    prefix: str,
    explicit: bool,
    steps: dict[str, Any],
    over: tuple[str, ...],
    caller: str,
) -> logdict:
    keys, trees, leaves = [], [], []
    for key, value in data.items():
        if not isinstance(key, str):
            raise LoxTypeError(
                f"{caller} got the key {key!r}; keys are strings: "
                f"`lox.log({{{str(key)!r}: ...}})`."
            )
        value_leaves, tree = arrays_of(value, key, caller)
        if condition is not None:
            value_leaves = condition.values(key, value_leaves)
        keys.append(prefix + key)
        trees.append(tree)
        leaves += value_leaves
    numbers = step_numbers(steps, condition, caller)
    call = Call(
        keys=tuple(keys),
        trees=tuple(trees),
        steps=tuple(steps),
        source=source,
        tags=tags_of(tags, caller),
        explicit=explicit,
        reduce=reduction_of(reduce, prefix, caller),
        conditional=condition is not None,
        over=over,
        early=may_run_early(),
        numbers=numbers_of(data.values(), trees, steps.values()),
    )
    event = Event(call, layout_of(condition), Route(quiet=explicit))
    if keys:
        if tracing.at_top_level():
            warn_if_in_host_function(keys, source)
        masks = [] if condition is None else [condition.mask]
        operands = [*leaves, *numbers, *masks]
        if over:
            check_reductions(call.reduce, keys, caller)
            event, operands = reduced(event, operands)
            leaves, numbers, condition = _split(operands, leaves, numbers, condition)
        if any(isinstance(x, np.ndarray) for x in operands):
            log_p.impl(*operands, event=event)  # `bind` would convert NumPy arrays
        else:
            log_p.bind(*operands, event=event)
    rest = iter(leaves)
    values = [
        tree.unflatten([next(rest) for _ in range(tree.num_leaves)]) for tree in trees
    ]
    return event_logs(
        dict(zip(keys, values, strict=True)),
        dict(zip(steps, numbers, strict=True)),
        condition,
        call.tags,
    )


def _split(
    operands: list[Any],
    leaves: Sequence[Any],
    numbers: Sequence[Any],
    condition: Condition | None,
) -> tuple[list[Any], list[Any], Condition | None]:
    """New operands of an event, as its leaves, steps and condition."""
    first, last = len(leaves), len(leaves) + len(numbers)
    if condition is not None:
        condition = condition._replace(mask=operands[last])
    return operands[:first], operands[first:last], condition


def numbers_of(
    values: Iterable[Any], trees: Iterable[Any], steps: Iterable[Any] = ()
) -> tuple[Any, ...]:
    """The Python numbers among logged values, for `Call.numbers`.

    Args:
        values: the logged values.
        trees: the structure of each value after its conversion to arrays.
        steps: the steps.
    """
    if tracing.at_top_level():
        return ()  # eager events are not joined, and so are never cast
    known: list[Any] = []
    for value, tree in zip(values, trees, strict=True):
        leaves = jax.tree.leaves(value)
        same = len(leaves) == tree.num_leaves
        known += map(number_of, leaves if same else [None] * tree.num_leaves)
    known += map(number_of, steps)
    return () if all(number is None for number in known) else tuple(known)


def arrays_of(value: Any, key: str, call: str) -> tuple[list[Any], Any]:
    """The leaves of a value as arrays, and its structure.

    Args:
        value: the logged value.
        key: its key, for messages.
        call: the call and its line, for messages.
    """
    leaves, tree = jax.tree.flatten(as_arrays(value))
    if not leaves:
        raise LoxTypeError(
            f"{call} got {describe(value)} for {key!r}, which contains no array. Log "
            "an array or a number, or omit the key."
        )
    return [_leaf(x, key, call) for x in leaves], tree


def _leaf(x: Any, key: str, call: str) -> Any:
    if not is_array(x):
        raise LoxTypeError(
            f"{call} got {describe(x)} for {key!r}; values are arrays, numbers or "
            "pytrees of these. A string that identifies events can be passed as `tags`."
        )
    return operand(x, key, call)


def operand(x: Any, key: str, call: str) -> Any:
    """Converts to a JAX array, or to a NumPy array if it stays on the host."""
    if _stays_on_host(x):
        return np.array(x)
    lost = lost_by(x)
    if lost is not None:
        raise RangeError(f"{call} got {too_large(lost, repr(key))}")
    try:
        return host.to_array(x)
    except TypeError as error:
        raise LoxTypeError(
            f"{call} cannot convert {key!r} to an array: {error}"
        ) from error


def _stays_on_host(x: Any) -> bool:
    """Whether a value never leaves the host, and a JAX array would round it."""
    if not tracing.at_top_level():
        return False
    if isinstance(x, np.generic | np.ndarray):
        return rounds(x)
    return lost_by(x) is not None and np.asarray(x).dtype != object


def too_large(number: Any, name: str) -> str:
    whole = isinstance(number, int)
    dtype = jax.dtypes.canonicalize_dtype(np.int64 if whole else np.float64)
    if isinstance(number, complex):
        dtype = jax.dtypes.canonicalize_dtype(np.complex128)
    other = "convert it to a float, " if whole else ""
    return (
        f"{number} for {name}, which is too large for {dtype}, the widest dtype of its "
        "kind that JAX currently uses. Log it in a larger unit (for example, "
        f"thousands), {other}or set `jax_enable_x64`."
    )


def check_options(prefix: Any, explicit: Any, caller: str) -> None:
    """Refuses a `prefix` that is not a string and an `explicit` that is not a bool."""
    if not isinstance(prefix, str) or not isinstance(explicit, bool):
        name = "explicit" if isinstance(prefix, str) else "prefix"
        kind = "a bool" if isinstance(prefix, str) else "a string"
        raise LoxTypeError(
            f"{caller}: `{name}` must be {kind}. If it was meant as a step, give "
            f"the step another name, such as `{name}_step`."
        )


def layout_of(condition: Condition | None) -> Layout:
    """The layout of an event with this `when`."""
    if condition is None:
        return Layout()
    return Layout(elements=bool(condition.shape), masked=True)


def step_numbers(
    steps: Mapping[str, Any], condition: Condition | None, caller: str
) -> list[Any]:
    """The steps as arrays, one number per element that `condition` has."""
    shape = () if condition is None else condition.shape
    numbers = [_step(name, value, caller, shape) for name, value in steps.items()]
    return numbers if condition is None else list(map(condition.step, numbers))


def _step(name: str, value: Any, caller: str, when: tuple[int, ...] = ()) -> Any:
    if name in RESERVED:
        raise StepError(f"{caller}: {reserved_step(name)}")
    if not is_array(value) or jnp.shape(value) not in ((), when):
        shape = f" of shape {jnp.shape(value)}" if is_array(value) else ""
        other = f" or have the shape {when} of `when`" if when else ""
        raise StepError(
            f"{caller}: the step {name!r} must be a scalar{other}, not "
            f"{describe(value)}{shape}. Log {name!r} as a value, or pass one of its "
            "elements."
        )
    if _stays_on_host(value):
        return np.array(value)
    lost = lost_by(value)
    if lost is not None:
        raise StepError(f"{caller} got {too_large(lost, f'the step {name!r}')}")
    number = host.to_array(value)
    if jnp.issubdtype(number.dtype, jax.dtypes.extended):
        raise StepError(f"{caller}: the step {name!r} must be a number.")
    return number


def tags_of(tags: Any, caller: str) -> tuple[str, ...]:
    """The checked `tags`."""
    listed = (tags,) if isinstance(tags, str) else tags
    if not isinstance(listed, Iterable) or is_array(listed):
        listed = (None,)
    found = tuple(listed)
    if not all(isinstance(tag, str) for tag in found):
        raise LoxTypeError(
            f"{caller}: `tags` must be strings, not {tags!r}. To log a step of "
            "this name, give it another name: `tags_step`."
        )
    return found


def reduction_of(reduce: Any, prefix: str, caller: str) -> Any:
    """The checked `reduce`, by keys with their prefix."""
    checked = reductions.check(reduce, f" of the {caller}")
    if isinstance(checked, tuple):
        return tuple((prefix + key, name) for key, name in checked)
    return checked
