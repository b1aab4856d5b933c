"""Groups of runs: by default, runs that differ in nothing but their seed."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lox._store.configs import (
    differing_keys as differing_keys,
    distinct_labels,
    hashable,
)

# config keys that number repetitions of the same experiment, by the end of their path
_SEED = re.compile(
    r"(.*[._/-])?(seeds?|rng|prng|key|random_state)(_?(key|seed|id|index))?",
    re.IGNORECASE,
)
MISSING = "\u2013"
_NO_VALUE = object()


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


def group_runs(configs: Mapping[int, Mapping[str, Any]], by: list[str]) -> list[Group]:
    """Groups runs by config keys, in the order of their values.

    As in `Runs.group_by`, values that are equal are one group, such as 1 and 1.0, and a
    run without the key has the value None.

    Args:
        configs: the config of each run, by its number.
        by: the keys; without any, all runs are one group.
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    examples: dict[tuple[Any, ...], list[Any]] = {}  # values as in the configs
    for number, config in configs.items():
        group = tuple(hashable(config.get(key)) for key in by)
        found.setdefault(group, []).append(number)
        example = examples.setdefault(group, [config.get(key) for key in by])
        for i, key in enumerate(by):
            if key not in config:
                example[i] = _NO_VALUE
    groups = sorted(found, key=lambda group: [_order(x) for x in examples[group]])
    values = [examples[group] for group in groups]
    labels = distinct_labels(_short_names(by), values, _shown, _quoted)
    return [
        Group(label or "all runs", found[group])
        for label, group in zip(labels, groups, strict=True)
    ]


def _short_names(keys: list[str]) -> list[str]:
    """The last part of each path, unless two are the same."""
    last = [key.rpartition("/")[2] for key in keys]
    return [
        name if name and last.count(name) == 1 else key
        for key, name in zip(keys, last, strict=True)
    ]


def _shown(value: Any) -> str:
    return MISSING if value is _NO_VALUE else show(value)


def _quoted(value: Any) -> str:
    """A value as text that no other value has."""
    is_text = isinstance(value, str)
    return json.dumps(value, ensure_ascii=False) if is_text else _shown(value)


def _order(value: Any) -> tuple[Any, ...]:
    """The sort key of a value: numbers by size, then text; a missing value is last."""
    if value is _NO_VALUE:
        return 2, 0.0, ""
    if isinstance(value, int | float) and value == value:
        try:
            return 0, float(value), ""
        except OverflowError:
            pass
    return 1, 0.0, show(value)
