"""Sends payloads from a program, or from the host, to the runs of a logger."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from lox._arrays import is_typed_key
from lox._errors import LoxTypeError, StepError
from lox._events.condition import Condition
from lox._events.log import CallOptions, logs_of, make_event
from lox._events.payload import send_payload
from lox._events.values import arrays_of
from lox._host import signals
from lox._jax import array_types, host
from lox._logs.access import keys_of, metadata_of
from lox._logs.logdict import from_keys, logdict
from lox._source import delivery, user_source
from lox._transforms.compiled import is_outermost

from .open_runs import OpenRuns
from .sinks import CloseSink, RunSink


def send(
    runs: OpenRuns,
    payload: Any,
    make_sink: Callable[[OpenRuns, int], RunSink],
    over: tuple[str, ...] = (),
    names: Iterable[str] = (),
) -> None:
    """Sends a payload to a sink, immediately or when the traced program runs.

    Args:
        runs: the open runs of the logger.
        payload: a pytree of arrays.
        make_sink: creates the sink, given the runs and the number of devices that send.
        over: the mesh axes along which the devices send as one.
        names: the user's names of the values, for messages.
    """
    sink = make_sink(runs, array_types.shard_map_devices())
    if is_outermost():
        _send_from_host(runs, payload, sink)
        return
    send_payload(payload, sink, "the logger", over, sink.names_devices, names)


def _send_from_host(runs: OpenRuns, payload: Any, sink: RunSink) -> None:
    payload = jax.tree.map(_to_host, payload)
    in_callback = host.in_callback()
    if not in_callback:
        delivery.per_device = False
        # programs that are still running may have logged before
        host.wait_for_callbacks()
        runs.close_ending()
    if isinstance(sink, CloseSink):  # closing may be slow, and can be interrupted
        sink.handle(payload, late=in_callback)
    else:
        signals.uninterrupted(lambda: sink.handle(payload, late=in_callback))


def _to_host(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.flags.writeable:
        return x.copy()  # the user may change it while it is in a queue
    return x if is_typed_key(x) else np.asarray(x)


def check_logs(
    logs: Mapping[str, Any],
    steps: Mapping[str, Any],
    logger: str,
    when: Any = None,
    over: tuple[str, ...] = (),
) -> logdict:
    """Checks the arguments of `Logger.log`, and converts them to a `logdict`.

    With `over`, the values are reduced across the devices along these mesh axes.
    """
    call = f"`{logger}.log`"
    if not isinstance(logs, Mapping):
        raise LoxTypeError(
            f"{call} takes a state and values by name, not {logs!r}: "
            '`logger.log(state, {"loss": loss}, step=i)`.'
        )
    source = user_source()
    caller = f"{call} at {source}"
    condition = None if when is None else Condition.of(when, caller)
    if isinstance(logs, logdict) and steps:
        raise LoxTypeError(
            f"a `logdict` already has its steps; {call} accepts "
            f"{', '.join(map(repr, steps))} only with a plain dict."
        )
    if isinstance(logs, logdict) and over:
        raise LoxTypeError(
            f"{caller}: the values for `over` must be a plain dict, not a `logdict`. "
            "Give `over` to the `lox.log` calls of the function that was spooled."
        )
    for key, value in logs.items():
        leaves = jax.tree.leaves(value)
        if not leaves or not all(map(_is_array, leaves)):
            arrays_of(value, key, caller)  # raises
    if isinstance(logs, logdict):
        return logs if condition is None else _masked(logs, condition)
    shape = () if condition is None else condition.shape
    for name, step in steps.items():
        if not _is_array(step) or np.shape(step) not in ((), shape):
            raise StepError(
                f"{caller}: the step {name!r} must be a number, not "
                f"{step!r:.80}. To log several rows at once, pass a `lox.logdict(..., "
                "stacked=True)`."
            )
    if condition is None and not over:
        by_key = {name: dict.fromkeys(logs, step) for name, step in steps.items()}
        return logdict(logs, by_key)
    options = CallOptions(f"{logger}.log", source, (), None, "", False, steps)
    return logs_of(*make_event(options, logs, condition, over))


def _masked(logs: logdict, condition: Condition) -> logdict:
    """Logs of which all rows happen or none."""
    if condition.shape:
        raise LoxTypeError(
            f"{condition.caller}: the `when` of a `logdict` must be a scalar. Pass the "
            "values as a plain dict to log some of their elements."
        )
    return from_keys(
        ((name, key.only_if(condition.mask)) for name, key in keys_of(logs).items()),
        metadata_of(logs).steps,
    )


def _is_array(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype.kind not in "OSUMm"
    return isinstance(x, jax.Array | bool | int | float | complex)
