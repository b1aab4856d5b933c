"""The configs of runs, as JSON-serializable values."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lox._arrays import is_typed_key
from lox._errors import LoxTypeError, describe


def plain_config(config: Any) -> dict[str, Any]:
    """Converts a config to JSON values: arrays to lists, other objects to `repr`."""
    plain = _plain(config)
    if not isinstance(plain, dict):
        raise LoxTypeError(
            f"a logger's `config` must be a dict or a dataclass, not {config!r}."
        )
    return plain


_TRACED = "\0traced"


def split_config(config: Any) -> tuple[str, list[Any]]:
    """Splits a config into JSON and traced values, known only when the program runs.

    Returns:
        The JSON, with placeholders, and the traced values, for `fill_config`.
    """
    traced: list[Any] = []

    def placeholder(tracer: Any) -> Any:
        traced.append(tracer)
        return {_TRACED: len(traced) - 1}

    plain = _plain({} if config is None else config, placeholder)
    if not isinstance(plain, dict):
        raise LoxTypeError(
            f"a run's `config` must be a dict or a dataclass, not {describe(config)}."
        )
    return json.dumps(plain), traced


def fill_config(static: str, values: Sequence[Any]) -> dict[str, Any]:
    """Puts the values into the placeholders of `split_config`."""

    def fill(items: dict[str, Any]) -> Any:
        return _array(values[items[_TRACED]]) if _TRACED in items else items

    config: dict[str, Any] = json.loads(static, object_hook=fill)
    return config


def _refuse(tracer: Any) -> Any:
    raise LoxTypeError(
        f"a logger's `config` contains the traced value {tracer!r:.80}, which is not "
        "known yet and may differ between lanes. Pass it to the run instead: "
        '`logger.init(key, config={"lr": lr})`.'
    )


def _plain(value: Any, traced: Callable[[Any], Any] = _refuse) -> Any:
    """Converts a value to JSON values, and tracers by the function `traced`."""
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
    if callable(value):  # `repr` would show an address, which differs in every process
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        return f"{value.__module__}.{name}" if isinstance(name, str) else repr(value)
    return repr(value)


def _array(value: Any) -> Any:
    if is_typed_key(value):
        return repr(value)
    plain = np.asarray(value)
    if plain.dtype.kind not in "biufU":
        plain = (
            plain.astype(np.float32) if plain.dtype.kind == "V" else plain.astype(str)
        )
    if plain.dtype.kind == "f" and plain.dtype.itemsize < 8:
        plain = plain.astype(str).astype(float)  # without spurious digits
    return plain.tolist()
