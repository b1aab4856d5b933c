"""This process's part of logs whose arrays are spread over the processes of a job.

No process has all of such an array, and lox does not gather it. Each device is a lane,
as in the logs that a `shard_map` delivers: its rows are its shards of the arrays, and
the step `lane` is the number of the shard.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import (
    flatten,
    imported_jax,
    is_jax_array,
    is_spread,
    is_typed_key,
    leaves_of,
    to_numpy,
)
from lox._errors import LoxValueError

from .access import with_lane
from .compaction import compacted
from .key import Key
from .logdict import from_keys, logdict


class LocalLogs(NamedTuple):
    """What this process has of some logs.

    Attributes:
        own: the keys that are complete in this process.
        shared: those of the complete keys that an earlier process has as well.
        lanes: the rows of the keys that are not complete, per lane.
    """

    own: logdict
    shared: frozenset[str]
    lanes: list[logdict]

    def written_here(self) -> logdict:
        """The complete keys, without those that the first of several processes has."""
        if not self.shared:
            return self.own
        return self.own.filter(lambda name: name not in self.shared)


def local_logs(logs: logdict, caller: str) -> LocalLogs:
    """Splits concrete logs into what is complete in this process, and what is not.

    Args:
        logs: the logs.
        caller: the calling function, for messages.
    """
    # one check for all keys: most logs have no such arrays, and this is a hot path
    if not any(map(_is_global, leaves_of(dict(logs)))):
        return LocalLogs(logs, frozenset(), [])
    global_arrays = {
        name: [x for x in flatten(value)[0] if _is_global(x)]
        for name, value in logs.items()
    }
    spread = {
        name for name, arrays in global_arrays.items() if any(map(is_spread, arrays))
    }
    shared = {
        name
        for name, arrays in global_arrays.items()
        if arrays and name not in spread and not _is_first_owner(arrays[0])
    }
    own = logs.filter(lambda name: name not in spread)
    by_lane: dict[int, list[tuple[str, Key]]] = {}
    for name in logs:
        if name in spread:
            for number, key in _lanes(name, logs._key(name), caller):
                by_lane.setdefault(number, []).append((name, key))
    lanes = [
        with_lane(from_keys(keys, logs._metadata.steps), number)
        for number, keys in sorted(by_lane.items())
    ]
    return LocalLogs(own, frozenset(shared), lanes)


def _is_global(x: Any) -> bool:
    return is_jax_array(x) and not x.is_fully_addressable


def _is_first_owner(array: Any) -> bool:
    """Whether this process is the first of those that have a replicated array."""
    owners = {device.process_index for device in array.sharding.device_set}
    return imported_jax().process_index() == min(owners)


def _lanes(name: str, key: Key, caller: str) -> Iterator[tuple[int, Key]]:
    """The rows of each lane of this process, and its number."""
    if key.outer_lanes():
        raise LoxValueError(
            f"{caller}: {name!r} is spread over the processes of the job, and also has "
            "lanes of a `vmap` around the function that logged. Log it with "
            "`logger.tap`."
        )
    arrays = [*flatten(key.value)[0], *key.steps.values(), key.mask]
    spread = [x for x in arrays if is_spread(x)]
    numbers, *others = map(_shard_numbers, spread)
    if any(other != numbers for other in others):
        raise LoxValueError(
            f"{caller}: the arrays of {name!r} are spread over the processes of the "
            "job in different ways, so its shards are not rows. Log each array "
            "under a separate name, or gather them first: "
            "`jax.experimental.multihost_utils.process_allgather`."
        )
    # replicas of a shard are the same rows
    devices = {s.device for s in spread[0].addressable_shards if s.replica_id == 0}
    for device in sorted(devices, key=lambda device: numbers[device]):
        on_device = functools.partial(_shard_on, device=device)
        local = key._replace(dropped=None).arrays(on_device)
        yield from _inner_lanes(local, numbers[device])


def _inner_lanes(key: Key, number: int) -> Iterator[tuple[int, Key]]:
    count = key.lane_count()
    if count is None:
        happened = compacted(key)
        if happened is not None:
            yield number, happened
        return
    for i in range(count):
        yield from _inner_lanes(key.lane(i), number * count + i)


def _shard_numbers(array: Any) -> dict[Any, int]:
    """The number of the shard on each device, in C order."""
    indices = array.sharding.devices_indices_map(array.shape)
    starts = {
        device: tuple(part.start or 0 for part in index)
        for device, index in indices.items()
    }
    order = {start: i for i, start in enumerate(sorted(set(starts.values())))}
    return {device: order[start] for device, start in starts.items()}


def _shard_on(array: Any, axis: int, device: Any) -> Any:
    del axis
    if not is_spread(array):
        return to_numpy(array) if is_jax_array(array) else array
    (data,) = (s.data for s in array.addressable_shards if s.device == device)
    return data if is_typed_key(data) else np.asarray(data)
