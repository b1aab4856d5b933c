"""`over`: the devices along mesh axes of a `shard_map` log one event together.

The values are reduced where they are logged, by a collective, as if the user had called
`jax.lax.pmean`. The event then names the axes: `lox.spool` returns no device axis for
them, and on the host only the first device along these axes delivers the event.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from lox._errors import LoxTypeError, LoxValueError
from lox._jax import array_types
from lox._reduce.devices import KINDS, Devices
from lox._reduce.named import REDUCTIONS, Named
from lox._reduce.reductions import Checked, choose

from .event import Event


def axes_of(over: Any, caller: str) -> tuple[str, ...]:
    """The checked axes of `over`, in the order of the mesh; none for None.

    Args:
        over: the name of a mesh axis, or several.
        caller: what was called, and where, for messages.
    """
    if over is None:
        return ()
    names = (over,) if isinstance(over, str) else over
    if not isinstance(names, tuple | list) or not all(
        isinstance(name, str) for name in names
    ):
        raise LoxTypeError(
            f"{caller}: `over` must be the name of a mesh axis, or a tuple of names, "
            f'not {over!r:.80}: `over="data"`. If it was meant as a step, give the '
            "step another name, such as `over_step`."
        )
    if not names or len(set(names)) < len(names):
        what = "names an axis twice" if names else "names no axis"
        raise LoxValueError(f"{caller}: `over={over!r}` {what}.")
    manual = array_types.manual_axes()
    if not manual:
        raise LoxValueError(
            f"{caller}: `over={over!r}` reduces across the devices of a "
            "`jax.shard_map`, but this call is not inside one. Leave `over` out: "
            "outside `jax.shard_map`, each event is logged once, with the global "
            "value, on any number of devices."
        )
    for name in names:
        if name not in manual:
            raise LoxValueError(f"{caller}: {_not_manual(name, over, manual)}")
    return tuple(axis for axis in manual if axis in names)


def _not_manual(name: str, over: Any, manual: Sequence[Any]) -> str:
    known = ", ".join(map(repr, manual))
    if name in array_types.mesh_axes():
        return (
            f"`over={over!r}`, but {name!r} is not one of the axes that the "
            f"`jax.shard_map` around it splits ({known}): along {name!r}, each event "
            "is logged once, with the global value. Leave that axis out of `over`."
        )
    return (
        f"`over={over!r}`, but {name!r} is not an axis of the mesh of the "
        f"`jax.shard_map` around it, which splits {known}. Use one of these, or "
        "several."
    )


def check_reductions(reduce: Checked, keys: Iterable[str], caller: str) -> None:
    """Raises if the reduction of a key cannot be used across devices.

    Args:
        reduce: the reductions that the call requests.
        keys: the keys of the call.
        caller: what was called, and where, for messages.
    """
    for key in keys:
        reduction = choose(reduce, key)
        if reduction is not None and not _works_across_devices(reduction):
            raise LoxValueError(
                f"{caller}: {key!r} has `reduce={reduction!r}` and an `over`. Across "
                f"devices, a value is reduced by {', '.join(KINDS[:-1])} or "
                f"{KINDS[-1]} (by default the mean). Leave `reduce` out of the call, "
                "and give the reduction over time to the transformation: "
                f"`lox.spool(f, reduce={{{key!r}: ...}})`."
            )


def _works_across_devices(reduction: Any) -> bool:
    return isinstance(reduction, Named) and reduction.name in KINDS


def reduced(event: Event, operands: Sequence[Any]) -> tuple[Event, list[Any]]:
    """Reduces the values of an event across the axes of its `over`.

    Where `when` is not true on all devices, those where it is true are reduced. A step
    that differs between devices is that of the first of these.
    """
    call = event.call
    if not call.over:
        return event, list(operands)
    parts = event.split(operands)
    devices = Devices(call.over, parts.mask)
    numbers, step_numbers = call.split_numbers()
    known: list[Any] = []
    for key, leaves, literals in zip(call.keys, parts.values, numbers, strict=True):
        reduction = across_devices(choose(call.reduce, key))
        where = f"{key!r}, logged at {call.source},"
        for i, number in enumerate(literals):
            # a number is the same on all devices, which run the same Python code
            unchanged = number is not None and _is_unchanged(leaves[i], reduction)
            known.append(number if unchanged else None)
            if not unchanged:
                leaves[i] = devices.reduced(leaves[i], reduction, where)
    parts.steps = [
        step if number is not None else devices.first(step)
        for step, number in zip(parts.steps, step_numbers, strict=True)
    ]
    parts.mask = devices.mask
    event = event.with_call(numbers=(*known, *step_numbers))
    return event, parts.flat()


def across_devices(reduction: Any) -> Named:
    """The reduction across devices: that of the key if possible, else the mean."""
    chosen = reduction if _works_across_devices(reduction) else REDUCTIONS["mean"]
    assert isinstance(chosen, Named)
    return chosen


def _is_unchanged(x: Any, reduction: Named) -> bool:
    """Whether the reduction of equal values is the value itself."""
    return reduction.name != "sum" and reduction.dtype(x.dtype) == x.dtype
