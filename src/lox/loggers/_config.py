"""What runs were made with, as plain as JSON has it."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lox._errors import LoxTypeError


def plain_config(config: Any) -> dict[str, Any]:
    """A config of plain values: arrays are lists, and strange objects their `repr`."""
    plain = _plain(config)
    if not isinstance(plain, dict):
        raise LoxTypeError(
            f"a logger's `config` is a dict or a dataclass, not {config!r}."
        )
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise LoxTypeError(
            f"a logger's `config` has {value!r:.80}, whose value is not known while "
            "JAX traces, and which may differ between lanes. Log what a run was made "
            'with: `lox.log({"lr": lr})`.'
        )
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(x) for x in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(value):  # without its address, which says nothing
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        return f"{value.__module__}.{name}" if isinstance(name, str) else repr(value)
    return repr(value)


def _array(value: Any) -> Any:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return repr(value)
    plain = np.asarray(value)
    if plain.dtype.kind not in "biufU":
        plain = (
            plain.astype(np.float32) if plain.dtype.kind == "V" else plain.astype(str)
        )
    return plain.tolist()


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A config without dicts in it: `{"net/width": 64}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flat_config(value, f"{prefix}{key}/")
        elif isinstance(value, str | bool | int | float):
            flat[f"{prefix}{key}"] = value
        else:
            flat[f"{prefix}{key}"] = json.dumps(value)
    return flat
