"""Functions with which other packages read the metadata of a logdict.

These packages do not use the private attributes of logdicts. To create logdicts, they
use `make_logdict` and `from_keys` in `logdict.py`.
"""

from lox._arrays import is_jax_array, leaves_of

from .key import Key, KeyInfo
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
    """The same logs with the data of typed PRNG keys, as programs output them."""
    if not any(map(is_jax_array, leaves_of(dict(logs)))):
        return logs
    keys = ((name, key.with_key_data()) for name, key in logs._keys().items())
    return from_keys(keys, logs._metadata.steps)
