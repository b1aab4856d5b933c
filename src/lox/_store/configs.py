"""The configs of runs: their keys and values, for selecting and grouping."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

Names = str | Iterable[str] | None


class _HasConfig(Protocol):
    @property
    def config(self) -> dict[str, Any]: ...


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested dicts: `{"net": {"width": 64}}` to `{"net/width": 64}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flat_config(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A flat config, whose values are strings, numbers or JSON."""
    return {
        name: value
        if isinstance(value, str | bool | int | float)
        else json.dumps(value)
        for name, value in flat_config(config).items()
    }


def all_names(dicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names in all dicts, in the order in which they are found."""
    return list(dict.fromkeys(name for each in dicts for name in each))


def varying_names(runs: Iterable[_HasConfig]) -> list[str]:
    """The config keys that do not have the same value in all runs."""
    return differing_keys(flat_config(run.config) for run in runs)


def differing_keys(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys of flat configs that do not have the same value in all of them."""
    every = list(configs)
    return [
        name
        for name in all_names(every)
        if len({hashable(config.get(name, _MISSING)) for config in every}) > 1
    ]


_MISSING = object()


def hashable(value: Any) -> Any:
    """A value that can be compared, and be the key of a dict."""
    if hasattr(value, "tolist"):  # a NumPy or JAX array
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    if isinstance(value, Mapping):
        return tuple((key, hashable(value[key])) for key in sorted(value))
    if isinstance(value, float) and math.isnan(value):
        return math.nan  # one object, since NaN is equal to nothing but itself
    return value


def distinct_labels(
    names: Sequence[str],
    groups: Sequence[Sequence[Any]],
    short: Callable[[Any], str] = str,
    exact: Callable[[Any], str] = repr,
) -> list[str]:
    """A label for each group of runs, such as `lr=0.1`; no two are the same.

    Args:
        names: the config keys that the runs are grouped by.
        groups: the values of these keys, for each group.
        short: a value as text.
        exact: a value as text that no other value has, for example with quotes. It is
            used for the keys of which different values have the same short text.
    """

    def labels(texts: Sequence[Sequence[str]]) -> list[str]:
        return [
            ", ".join(f"{name}={text}" for name, text in zip(names, each, strict=True))
            for each in texts
        ]

    columns = []
    for values in zip(*groups, strict=True):
        texts = [short(value) for value in values]
        if len(set(texts)) < len(set(map(hashable, values))):
            texts = [exact(value) for value in values]
        columns.append(texts)
    found = labels(list(zip(*columns, strict=True)) or [()] * len(groups))
    if len(set(found)) < len(found):  # texts may contain a comma and a name
        found = labels([[exact(value) for value in values] for values in groups])
    return found
