"""`logdict` as a pytree; loaded once somebody has imported JAX."""

import functools
import json
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from jax.tree_util import DictKey, GetAttrKey

from lox._jax import export

from .key import KeyInfo
from .logdict import logdict


def register(jax: ModuleType) -> None:
    """Lets JAX's transformations, and its export, take logdicts apart."""
    jax.tree_util.register_pytree_with_keys(
        logdict, _flatten_with_keys, _unflatten, _flatten
    )
    # as JSON, which can do no harm
    export.register_node(logdict, "lox.logdict", _serialize_layout, _deserialize_layout)


_new, _update = dict.__new__, dict.update
_NOTHING: dict[str, Any] = {}


class _Layout(tuple[Any, ...]):
    """All of a logdict but its arrays; a tuple, which JAX compares at no cost."""

    @functools.cached_property
    def info(self) -> dict[str, KeyInfo]:
        keys, _, _, infos, _ = self
        return dict(zip(keys, infos, strict=True))


def _layout(logs: logdict) -> _Layout:
    keys = tuple(logs)
    steps = tuple(
        (name, tuple(key for key in of if key in logs))
        for name, of in logs._steps.items()
    )
    masks = tuple(key for key in logs._mask if key in logs)
    infos = tuple(logs._info_for(key) for key in keys)
    return _Layout((keys, steps, masks, infos, tuple(logs.dropped)))


def _children(logs: logdict, layout: tuple[Any, ...]) -> list[Any]:
    keys, steps, masks, _, dropped = layout
    children = [logs[key] for key in keys]
    children += [logs._steps[name][key] for name, of in steps for key in of]
    children += [logs._mask[key] for key in masks]
    children += [logs._dropped[key] for key in dropped]
    return children


def _flatten(logs: logdict) -> tuple[list[Any], tuple[Any, ...]]:
    layout = _layout(logs)
    return _children(logs, layout), layout


def _flatten_with_keys(logs: logdict) -> tuple[list[Any], tuple[Any, ...]]:
    layout = _layout(logs)
    keys, steps, masks, _, dropped = layout
    paths: list[Any] = [DictKey(key) for key in keys]
    paths += [GetAttrKey(f"{name}[{key!r}]") for name, of in steps for key in of]
    paths += [GetAttrKey(f"mask[{key!r}]") for key in masks]
    paths += [GetAttrKey(f"dropped[{key!r}]") for key in dropped]
    return list(zip(paths, _children(logs, layout), strict=True)), layout


def _unflatten(layout: _Layout, children: Iterable[Any]) -> logdict:
    keys, steps, masks, _, dropped = layout
    if not steps and not masks:  # on the way of every eager call
        logs = _new(logdict)
        _update(logs, zip(keys, children))  # noqa: B905
        logs._steps = logs._mask = logs._dropped = _NOTHING
        logs._info = layout.info
        return logs
    rest = iter(children)
    data = {key: next(rest) for key in keys}
    step_values = {name: {key: next(rest) for key in of} for name, of in steps}
    mask = {key: next(rest) for key in masks}
    lost = {key: next(rest) for key in dropped}
    return logdict._of(data, step_values, mask, layout.info, lost)


def _serialize_layout(layout: tuple[Any, ...]) -> bytes:
    return json.dumps(layout).encode()


def _deserialize_layout(data: bytes) -> _Layout:
    keys, steps, masks, infos, dropped = json.loads(data)
    return _Layout(
        (
            tuple(keys),
            tuple((name, tuple(of)) for name, of in steps),
            tuple(masks),
            tuple(map(KeyInfo.from_json, infos)),
            tuple(dropped),
        )
    )
