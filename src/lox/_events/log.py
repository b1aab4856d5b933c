"""`lox.log`: where events come from."""

from collections.abc import Iterable, Mapping
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
from .not_traced import check_host_function, may_run_early
from .primitive import log_p

_NOTHING: Any = object()


def log(
    data: Mapping[str, Any] = _NOTHING,
    *others: Never,
    tags: str | Iterable[str] = (),
    reduce: Any = None,
    prefix: str = "",
    explicit: bool = False,
    when: Any = None,
    **steps: Any,
) -> logdict:
    """Logs named values, wherever in a program this is called.

    What happens to them is decided outside: `lox.spool` returns them, `lox.tap` streams
    them to a callback, `lox.nolog` removes them. Untransformed, they are printed (see
    `lox.set_default`).

    Args:
        data: the values by name: arrays, numbers, or pytrees of these.
        tags: by which a transformation can select the event.
        reduce: the reduction over time that these keys get unless the transformation
            says otherwise: a name (`"mean"`), or a dict of names by key.
        prefix: put in front of every key.
        explicit: if True, the event appears only where `argnames` or `tags` ask for it.
        when: log only if this is true. An array makes every true element an event of
            its own, in C order: its shape must be a prefix of the shape of every value,
            and steps are numbers or have its shape.
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

        Only what has finished, of many environments:

        >>> def step(returns, done):
        ...     lox.log({"return": returns}, when=done)
        >>> returns, done = jnp.array([1.0, 2.0, 3.0]), jnp.array([True, False, True])
        >>> lox.spool(step)(returns, done)[1]
        {'return': [1.0, 3.0]}
    """
    source = user_source()
    if data is _NOTHING:
        first = next(iter(steps), "loss")
        raise LoxTypeError(
            f"`lox.log` at {source} got no values: keyword arguments are steps and "
            "options. Values go by their names into a dict: "
            f'`lox.log({{"{first}": {first}}})`.'
        )
    name: Any = data
    if others and isinstance(name, str):
        raise LoxTypeError(
            f"`lox.log` at {source} got the name {name!r} and a value. Values go by "
            f'their names into a dict: `lox.log({{"{name}": ...}})`.'
        )
    if others:
        raise LoxTypeError(
            f"`lox.log` at {source} got {describe(others[0])} beside the values. Steps "
            'and options go by their names: `lox.log({"loss": loss}, step=i)`.'
        )
    return log_from(source, data, tags, reduce, prefix, explicit, steps, when)


def log_from(
    source: Source,
    data: Any,
    tags: Any,
    reduce: Any,
    prefix: Any,
    explicit: Any,
    steps: dict[str, Any],
    when: Any = None,
    function: str = "lox.log",
) -> logdict:
    """Logs on behalf of a line of the user's, which calls `function`."""
    caller = f"`{function}` at {source}"
    if not isinstance(data, Mapping):
        raise LoxTypeError(
            f"{caller} got {describe(data)}; it takes a mapping from names to "
            'values, such as `lox.log({"loss": loss})`.'
        )
    check_options(prefix, explicit, caller)
    if isinstance(data, logdict) and (data.mask or data.steps):
        return _log_again(source, data, tags, reduce, prefix, explicit, steps, when)
    condition = None if when is None else Condition.of(when, caller)
    return _log_event(
        source, data, condition, tags, reduce, prefix, explicit, steps, caller
    )


def _log_again(
    source: Source,
    logs: logdict,
    tags: Any,
    reduce: Any,
    prefix: str,
    explicit: bool,
    steps: dict[str, Any],
    when: Any,
) -> logdict:
    """Logs what was spooled, with the steps it has, and only if it happened."""
    result = logdict()
    caller = f"`lox.log` at {source}"
    given = None if when is None else Condition.of(when, caller)
    for key in logs:
        mask = logs.mask.get(key)
        if mask is not None and jnp.ndim(mask):
            raise LoxTypeError(
                f"`lox.log` at {source} cannot log {key!r} again: some of its rows may "
                'not have happened. Reduce it first, as by `logs.reduce("last")`.'
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
            source, one, condition, tags, reduce, prefix, explicit, own, caller
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
        early=may_run_early(),
        numbers=numbers_of(data.values(), trees, steps.values()),
    )
    event = Event(call, layout_of(condition), Route(quiet=explicit))
    if keys:
        if tracing.at_top_level():
            check_host_function(keys, source)
        masks = [] if condition is None else [condition.mask]
        operands = [*leaves, *numbers, *masks]
        if any(isinstance(x, np.ndarray) for x in operands):
            log_p.impl(*operands, event=event)  # `bind` would make it JAX's
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


def numbers_of(
    values: Iterable[Any], trees: Iterable[Any], steps: Iterable[Any] = ()
) -> tuple[Any, ...]:
    """The numbers that are known already, which decide what they may be cast to.

    Args:
        values: what was logged.
        trees: the structure of each value, of which arrays were made.
        steps: the steps.
    """
    if tracing.at_top_level():
        return ()  # nobody joins what goes to the host as it is
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
        value: what was logged.
        key: under which name.
        call: what was called, and where.
    """
    leaves, tree = jax.tree.flatten(as_arrays(value))
    if not leaves:
        raise LoxTypeError(
            f"{call} got {describe(value)} for {key!r}, which holds no array. Log an "
            "array or a number, or leave the key out."
        )
    return [_array(x, key, call) for x in leaves], tree


def _array(x: Any, key: str, call: str) -> Any:
    if not is_array(x):
        raise LoxTypeError(
            f"{call} got {describe(x)} for {key!r}; values are arrays, numbers or "
            "pytrees of these. A name that tells events apart can go into `tags`."
        )
    return operand(x, key, call)


def operand(x: Any, key: str, call: str) -> Any:
    """A number or array as JAX's, or as it is if it stays on the host."""
    if _stays_on_host(x):
        return np.array(x)
    lost = lost_by(x)
    if lost is not None:
        raise RangeError(f"{call} got {too_large(lost, repr(key))}")
    try:
        return host.to_array(x)
    except TypeError as error:
        raise LoxTypeError(
            f"{call} cannot make an array of {key!r}: {error}"
        ) from error


def _stays_on_host(x: Any) -> bool:
    """Whether a number never leaves the host, and JAX would change it."""
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
        f"{number} for {name}, which {dtype} does not hold, the widest type of its "
        "kind that JAX has here. Log it in a larger unit (thousands, say), "
        f"{other}or set `jax_enable_x64`."
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
            f"{describe(value)}{shape}. Log {name!r} as a value, or pass one number "
            "of it."
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
            f"{caller}: `tags` must be strings, not {tags!r}. If it was meant as "
            "a step, give the step another name, such as `tags_step`."
        )
    return found


def reduction_of(reduce: Any, prefix: str, caller: str) -> Any:
    """The checked `reduce`, by keys with their prefix."""
    checked = reductions.check(reduce, f" of the {caller}")
    if isinstance(checked, tuple):
        return tuple((prefix + key, name) for key, name in checked)
    return checked
