"""Functions with which other packages read the metadata of a logdict.

These packages do not use the private attributes of logdicts. To create logdicts, they
use `make_logdict` and `from_keys` in `logdict.py`.
"""

import numpy as np

from lox._arrays import is_jax_array, leaves_of

from .key import Key, KeyInfo
from .lane_step import DTYPE, LANE
from .logdict import from_keys, logdict, make_logdict
from .metadata import Metadata


def metadata_of(logs: logdict) -> Metadata:
    return logs._metadata


def with_info(logs: logdict, info: dict[str, KeyInfo]) -> logdict:
    """The same logs with other axes or tags."""
    return make_logdict(logs, logs._metadata._replace(info=info))


def key_of(logs: logdict, name: str) -> Key:
    return logs._key(name)


def keys_of(logs: logdict) -> dict[str, Key]:
    return logs._keys()


def with_key_data(logs: logdict) -> logdict:
    """Replaces typed PRNG keys with their data, which is what programs deliver."""
    if not any(map(is_jax_array, leaves_of(dict(logs)))):
        return logs
    keys = ((name, key.with_key_data()) for name, key in logs._keys().items())
    return from_keys(keys, logs._metadata.steps)


def with_lane(logs: logdict, number: int) -> logdict:
    """Adds the step `lane` to all rows; an existing step of this name is kept."""
    metadata = logs._metadata
    own = metadata.steps.get(LANE, {})
    shapes = {name: key.row_shape() for name, key in logs._keys().items()}
    # keys that are logged together share one array
    arrays = {shape: np.full(shape, number, DTYPE) for shape in set(shapes.values())}
    lane = {name: own.get(name, arrays[shape]) for name, shape in shapes.items()}
    if not lane:
        return logs
    return make_logdict(logs, metadata._replace(steps={**metadata.steps, LANE: lane}))
