"""`lox.log`, which checks the logged values and binds an event."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never

import jax.numpy as jnp
import numpy as np

from lox._arrays import is_array
from lox._errors import LoxTypeError, describe
from lox._jax import tracing
from lox._logs.access import key_of
from lox._logs.key import KeyInfo
from lox._logs.logdict import logdict, make_logdict
from lox._logs.metadata import Metadata
from lox._reduce import reductions
from lox._source import Source, user_source

from .condition import Condition
from .event import Call, Event, Layout, Route
from .not_traced import may_run_early, warn_if_in_host_function
from .over import axes_of, check_reductions, reduced
from .primitive import log_p
from .values import arrays_of, numbers_of, step_of

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
            device. The reduction is `reduce`, if it is `"mean"`, `"sum"`, `"min"` or
            `"max"`, and by default the mean; only devices where `when` is true are
            included. All devices must reach the call.
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

        Log only the environments that have finished:

        >>> def step(returns, done):
        ...     lox.log({"return": returns}, when=done)
        >>> returns, done = jnp.array([1.0, 2.0, 3.0]), jnp.array([True, False, True])
        >>> lox.spool(step)(returns, done)[1]
        {'return': [1.0, 3.0]}

        Log the mean over all devices:

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


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """The options of a call that logs, as the user has given them.

    Attributes:
        function: the function that was called.
        source: the user's line of the call.
        tags, reduce, prefix, explicit, steps: as in `lox.log`.
    """

    function: str
    source: Source
    tags: Any
    reduce: Any
    prefix: Any
    explicit: Any
    steps: Mapping[str, Any]

    @functools.cached_property
    def caller(self) -> str:
        """What was called, and where, for messages."""
        return f"`{self.function}` at {self.source}"

    def check(self) -> None:
        """Checks the types of `prefix` and `explicit`."""
        if not isinstance(self.prefix, str) or not isinstance(self.explicit, bool):
            name = "explicit" if isinstance(self.prefix, str) else "prefix"
            kind = "a bool" if isinstance(self.prefix, str) else "a string"
            raise LoxTypeError(
                f"{self.caller}: `{name}` must be {kind}. If it was meant as a step, "
                f"give the step another name, such as `{name}_step`."
            )

    def step_numbers(self, condition: Condition | None) -> list[Any]:
        """The steps as arrays, one number per element that `condition` has."""
        shape = () if condition is None else condition.shape
        items = self.steps.items()
        numbers = [step_of(name, value, self.caller, shape) for name, value in items]
        return numbers if condition is None else list(map(condition.step, numbers))

    def call(
        self,
        keys: Sequence[str],
        trees: Sequence[Any],
        conditional: bool,
        over: tuple[str, ...] = (),
        numbers: tuple[Any, ...] = (),
    ) -> Call:
        """The call that logs values of these structures under these keys."""
        return Call(
            keys=tuple(keys),
            trees=tuple(trees),
            steps=tuple(self.steps),
            source=self.source,
            tags=_tags(self.tags, self.caller),
            explicit=self.explicit,
            reduce=self._reduction(),
            conditional=conditional,
            over=over,
            early=may_run_early(),
            numbers=numbers,
        )

    def _reduction(self) -> Any:
        """The checked `reduce`, by keys with their prefix."""
        checked = reductions.check(self.reduce, f" of the {self.caller}")
        if isinstance(checked, tuple):
            return tuple((self.prefix + key, name) for key, name in checked)
        return checked


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
) -> logdict:
    """Logs an event for the line `source` of the user's code."""
    options = CallOptions("lox.log", source, tags, reduce, prefix, explicit, steps)
    return log_with(options, data, when, over)


def log_with(
    options: CallOptions, data: Any, when: Any = None, over: Any = None
) -> logdict:
    """Logs an event."""
    caller = options.caller
    if not isinstance(data, Mapping):
        raise LoxTypeError(
            f"{caller} got {describe(data)} instead of a mapping from names to "
            'values: `lox.log({"loss": loss})`.'
        )
    options.check()
    axes = axes_of(over, caller)
    if isinstance(data, logdict) and (data.mask or data.steps):
        return _log_spooled(options, data, when, axes)
    condition = None if when is None else Condition.of(when, caller)
    return _log_event(options, data, condition, axes)


def _log_spooled(
    options: CallOptions, logs: logdict, when: Any, over: tuple[str, ...]
) -> logdict:
    """Logs a spooled logdict again, with its steps and its mask."""
    result = logdict()
    caller = options.caller
    given = None if when is None else Condition.of(when, caller)
    for key in logs:
        mask = logs.mask.get(key)
        if mask is not None and jnp.ndim(mask):
            raise LoxTypeError(
                f"{caller} cannot log {key!r} again: some of its rows may not have "
                'been logged. Reduce it first: `logs.reduce("last")`.'
            )
        own = key_of(logs, key).steps
        kept = {name: step for name, step in own.items() if name not in options.steps}
        per_row = [name for name, step in kept.items() if jnp.ndim(step)]
        if per_row:
            raise LoxTypeError(
                f"{caller} cannot log {key!r} again: each of its rows has its own "
                f"{per_row[0]!r}, and an event has one. Reduce it first: "
                '`logs.reduce("last")`; or log its values without their steps: '
                "`logs.data`."
            )
        with_steps = dataclasses.replace(options, steps={**own, **options.steps})
        condition = given
        if mask is not None:
            both = mask if given is None else jnp.reshape(mask & when, jnp.shape(when))
            condition = Condition.of(both, caller)
        result |= _log_event(with_steps, {key: logs[key]}, condition, over)
    return result


def _log_event(
    options: CallOptions,
    data: Mapping[str, Any],
    condition: Condition | None,
    over: tuple[str, ...],
) -> logdict:
    event, operands = make_event(options, data, condition, over)
    if event.call.keys:
        if tracing.at_top_level():
            warn_if_in_host_function(event.call.keys, event.call.source)
        if any(isinstance(x, np.ndarray) for x in operands):
            log_p.impl(*operands, event=event)  # `bind` would convert NumPy arrays
        else:
            log_p.bind(*operands, event=event)
    return logs_of(event, operands)


def make_event(
    options: CallOptions,
    data: Mapping[str, Any],
    condition: Condition | None,
    over: tuple[str, ...],
) -> tuple[Event, list[Any]]:
    """The event of a call and its operands, reduced across the mesh axes `over`."""
    caller = options.caller
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
        keys.append(options.prefix + key)
        trees.append(tree)
        leaves += value_leaves
    steps = options.step_numbers(condition)
    numbers = numbers_of(data.values(), trees, options.steps.values())
    call = options.call(keys, trees, condition is not None, over, numbers)
    event = Event(call, layout_of(condition), Route(quiet=call.explicit))
    masks = [] if condition is None else [condition.mask]
    operands = [*leaves, *steps, *masks]
    if not over or not keys:
        return event, operands
    check_reductions(call.reduce, keys, caller)
    return reduced(event, operands)


def logs_of(event: Event, operands: Sequence[Any]) -> logdict:
    """The values of an event as a logdict, masked if it has a `when`."""
    call, parts = event.call, event.split(operands)
    stacked = event.layout.elements
    values, info = {}, {}
    for key, tree, leaves in zip(call.keys, call.trees, parts.values, strict=True):
        values[key] = tree.unflatten(leaves)
        ndims = tuple(jnp.ndim(leaf) - stacked for leaf in leaves)
        info[key] = KeyInfo(stacked, 0, ndims, call.tags)
    pairs = zip(call.steps, parts.steps, strict=True)
    by_key = {name: dict.fromkeys(values, step) for name, step in pairs}
    mask = {} if parts.mask is None else dict.fromkeys(values, parts.mask)
    return make_logdict(values, Metadata(by_key, mask, info))


def layout_of(condition: Condition | None) -> Layout:
    """The layout of an event with this `when`."""
    if condition is None:
        return Layout()
    return Layout(elements=bool(condition.shape), masked=True)


def _tags(tags: Any, caller: str) -> tuple[str, ...]:
    """The checked `tags`."""
    listed = (tags,) if isinstance(tags, str) else tags
    if not isinstance(listed, Iterable) or is_array(listed):
        listed = (None,)
    found = tuple(listed)
    if not all(isinstance(tag, str) for tag in found):
        raise LoxTypeError(
            f"{caller}: `tags` must be strings, not {tags!r}. If it was meant as a "
            "step, give the step another name, such as `tags_step`."
        )
    return found
