"""The configs of runs, as JSON-serializable values."""

import argparse
import dataclasses
import functools
import json
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lox._arrays import is_typed_key
from lox._errors import LoxTypeError, describe


def plain_config(config: Any) -> dict[str, Any]:
    """Converts a config to JSON values: arrays to lists, other objects to `repr`.

    The result is the same in every process: it has no addresses, and sets are sorted.
    """
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


def _plain(
    value: Any,
    traced: Callable[[Any], Any] = _refuse,
    outer: frozenset[int] = frozenset(),
) -> Any:
    """Converts a value to JSON values.

    Args:
        value: the value.
        traced: converts tracers.
        outer: the `id`s of the objects that contain the value.
    """
    if isinstance(value, jax.core.Tracer):
        return traced(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if id(value) in outer:  # as in the `repr` of a list that contains itself
        return "..."

    def inner(x: Any) -> Any:
        return _plain(x, traced, outer | {id(value)})

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: inner(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {_key(key): inner(x) for key, x in value.items()}
    if isinstance(value, types.SimpleNamespace | argparse.Namespace):
        return {name: inner(x) for name, x in vars(value).items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return inner(value.tolist())
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, list | tuple):
        return [inner(x) for x in value]
    if isinstance(value, set | frozenset):
        return sorted(map(inner, value), key=json.dumps)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, functools.partial):
        return _partial(value, outer)
    return _name(value)


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def _key(key: Any) -> str:
    """A key of a dict as text."""
    if isinstance(key, str):
        return str(key)
    return _name(key) if callable(key) else _ADDRESS.sub("", str(key))


def _name(value: Any) -> str:
    """A value as text, without addresses, which differ in every process."""
    if callable(value):
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if isinstance(name, str):
            module = getattr(value, "__module__", None)
            return f"{module}.{name}" if isinstance(module, str) else name
    return _ADDRESS.sub("", repr(value))


def _partial(value: functools.partial[Any], outer: frozenset[int]) -> str:
    """A partial as text: the name of its function, and its arguments."""

    def text(x: Any) -> str:
        plain = _plain(x, _name, outer | {id(value)})
        is_name = isinstance(plain, str) and not isinstance(x, str)
        return plain if is_name else repr(plain)

    arguments = [
        *map(text, (value.func, *value.args)),
        *(f"{name}={text(x)}" for name, x in value.keywords.items()),
    ]
    return f"functools.partial({', '.join(arguments)})"


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
