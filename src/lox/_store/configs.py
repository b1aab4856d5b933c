"""The configs of runs: their keys and values, for selecting and grouping."""

import json
from collections.abc import Iterable, Mapping
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
    configs = [flat_config(run.config) for run in runs]
    return [
        name
        for name in all_names(configs)
        if len({hashable(config.get(name, _MISSING)) for config in configs}) > 1
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
    return value
