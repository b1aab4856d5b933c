"""Groups of runs: by default, runs that differ in nothing but their seed."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# config keys that number repetitions of the same experiment, by the end of their path
_SEED = re.compile(
    r"(.*[._/-])?(seeds?|rng|prng|key|random_state)(_?(key|seed|id|index))?",
    re.IGNORECASE,
)
MISSING = "\u2013"


class Group(NamedTuple):
    """Runs that are lanes of one curve.

    Attributes:
        label: the settings that its runs share.
        runs: the numbers of its runs.
    """

    label: str
    runs: list[int]


def is_seed(key: str) -> bool:
    """Whether a config key numbers repetitions of the same experiment."""
    return _SEED.fullmatch(key) is not None


def show(value: Any) -> str:
    """A value of a config as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def differing_keys(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The config keys that do not have the same value in all runs."""
    every = list(configs)
    keys = dict.fromkeys(key for config in every for key in config)
    return [key for key in keys if len({_shown(c, key) for c in every}) > 1]


def group_runs(configs: Mapping[int, Mapping[str, Any]], by: list[str]) -> list[Group]:
    """Groups runs by config keys, in the order of their values.

    Args:
        configs: the config of each run, by its number.
        by: the keys; without any, all runs are one group.
    """
    found: dict[tuple[str, ...], list[int]] = {}
    order: dict[tuple[str, ...], Any] = {}
    for number, config in configs.items():
        values = tuple(_shown(config, key) for key in by)
        found.setdefault(values, []).append(number)
        order[values] = [_order(config.get(key), key in config) for key in by]
    return [
        Group(_label(by, values), found[values])
        for values in sorted(found, key=lambda values: order[values])
    ]


def _label(by: list[str], values: tuple[str, ...]) -> str:
    pairs = zip(_short_names(by), values, strict=True)
    return ", ".join(f"{key}={value}" for key, value in pairs) or "all runs"


def _short_names(keys: list[str]) -> list[str]:
    """The last part of each path, unless two are the same."""
    last = [key.rpartition("/")[2] for key in keys]
    return [
        name if name and last.count(name) == 1 else key
        for key, name in zip(keys, last, strict=True)
    ]


def _shown(config: Mapping[str, Any], key: str) -> str:
    return show(config[key]) if key in config else MISSING


def _order(value: Any, present: bool) -> tuple[Any, ...]:
    """The sort key of a value: numbers by size, then text; a missing value is last."""
    if not present:
        return 2, 0.0, ""
    if isinstance(value, int | float) and value == value:
        try:
            return 0, float(value), ""
        except OverflowError:
            pass
    return 1, 0.0, show(value)
