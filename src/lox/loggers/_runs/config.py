"""What runs were made with, as plain as JSON has it."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lox._errors import LoxTypeError, describe


def plain_config(config: Any) -> dict[str, Any]:
    """A config of plain values: arrays are lists, and strange objects their `repr`."""
    plain = _plain(config)
    if not isinstance(plain, dict):
        raise LoxTypeError(
            f"a logger's `config` is a dict or a dataclass, not {config!r}."
        )
    return plain


_TRACED = "\0traced"


def split_config(config: Any) -> tuple[str, list[Any]]:
    """A config as JSON, and the values of it that are not known before a program runs.

    Returns:
        What `whole_config` makes the config of, once the values are known.
    """
    traced: list[Any] = []

    def place(tracer: Any) -> Any:
        traced.append(tracer)
        return {_TRACED: len(traced) - 1}

    plain = _plain({} if config is None else config, place)
    if not isinstance(plain, dict):
        raise LoxTypeError(
            f"a run's `config` is a dict or a dataclass, not {describe(config)}."
        )
    return json.dumps(plain), traced


def whole_config(static: str, values: Sequence[Any]) -> dict[str, Any]:
    """The config of one run, from what `split_config` gave."""

    def found(items: dict[str, Any]) -> Any:
        return _array(values[items[_TRACED]]) if _TRACED in items else items

    whole: dict[str, Any] = json.loads(static, object_hook=found)
    return whole


def _refuse(tracer: Any) -> Any:
    raise LoxTypeError(
        f"a logger's `config` has {tracer!r:.80}, whose value is not known while JAX "
        "traces, and which may differ between lanes. Give it to the run: "
        '`logger.init(key, config={"lr": lr})`.'
    )


def _plain(value: Any, traced: Callable[[Any], Any] = _refuse) -> Any:
    if isinstance(value, jax.core.Tracer):
        return traced(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), traced) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(x, traced) for key, x in value.items()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(x, traced) for x in value]
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
    if plain.dtype.kind == "f" and plain.dtype.itemsize < 8:
        plain = plain.astype(str).astype(float)  # no more digits than it has
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
