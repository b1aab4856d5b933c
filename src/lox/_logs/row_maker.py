"""Creates the logdicts of single rows, of which a program may log millions."""

from collections.abc import Callable, Sequence
from typing import Any

from .key import KeyInfo
from .logdict import RowToLogs, logdict
from .metadata import Metadata


def row_maker(
    keys: Sequence[str],
    steps: Sequence[str],
    describe: Callable[[Sequence[Any]], dict[str, KeyInfo]],
) -> RowToLogs:
    """A function that creates a logdict from the values of keys and then of steps.

    It does the same as `make_logdict`, in a third of the time.

    Args:
        keys: the keys, each with a single array.
        steps: the names of the steps.
        describe: the metadata of the keys, from the values of the first row.
    """
    count = len(keys)
    (first, *others) = keys
    one_step = steps[0] if len(steps) == 1 else None
    new, put, update, fromkeys = (
        dict.__new__,
        dict.__setitem__,
        dict.update,
        dict.fromkeys,
    )
    as_metadata = tuple.__new__
    nothing: dict[str, Any] = {}
    info: dict[str, KeyInfo] = {}
    # all rows without steps share it
    plain = Metadata(nothing, nothing, info, nothing)

    def make_row(values: Sequence[Any]) -> logdict:
        logs = new(logdict)
        if others:
            update(logs, zip(keys, values))  # noqa: B905  (the steps come after)
        else:
            put(logs, first, values[0])
        if not info:
            info.update(describe(values))
        if one_step is not None:
            by_key = {one_step: fromkeys(keys, values[count])}
        elif steps:
            pairs = zip(steps, values[count:])  # noqa: B905  (others may come after)
            by_key = {name: fromkeys(keys, step) for name, step in pairs}
        else:
            logs._metadata = plain
            return logs
        logs._metadata = as_metadata(Metadata, (by_key, nothing, info, nothing, ()))
        return logs

    return make_row
