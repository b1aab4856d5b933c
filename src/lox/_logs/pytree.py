"""`logdict` as a pytree; loaded when JAX is imported."""

import json
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from jax.tree_util import DictKey, GetAttrKey

from lox._jax import export

from .key import KeyInfo
from .layout import Layout, children_of, flatten, layout_of
from .logdict import logdict


def register(jax: ModuleType) -> None:
    """Registers logdicts as pytrees, and for `jax.export`."""
    jax.tree_util.register_pytree_with_keys(
        logdict, _flatten_with_keys, _unflatten, flatten
    )
    # as JSON: deserializing it cannot run code
    export.register_node(logdict, "lox.logdict", _serialize_layout, _deserialize_layout)


def _flatten_with_keys(logs: logdict) -> tuple[list[Any], tuple[Any, ...]]:
    layout = layout_of(logs)
    keys, steps, masks, _, dropped, _, totals = layout
    paths: list[Any] = [DictKey(key) for key in keys]
    paths += [
        GetAttrKey(f"{name}[{key!r}]") for name, by_key in steps for key in by_key
    ]
    paths += [GetAttrKey(f"mask[{key!r}]") for key in masks]
    paths += [GetAttrKey(f"dropped[{key!r}]") for key in dropped]
    paths += [GetAttrKey(f"total[{', '.join(map(repr, x))}]") for x, _ in totals]
    return list(zip(paths, children_of(logs, layout), strict=True)), layout


def _unflatten(layout: Layout, children: Iterable[Any]) -> logdict:
    children = tuple(children)
    keys = layout[0]
    metadata = layout.plain
    if metadata is None:
        metadata = layout.metadata(children[len(keys) :])
    logs = _new(logdict)
    _update(logs, zip(keys, children))  # noqa: B905
    logs._metadata = metadata
    return logs


_new, _update = dict.__new__, dict.update


def _serialize_layout(layout: tuple[Any, ...]) -> bytes:
    return json.dumps(layout).encode()


def _deserialize_layout(data: bytes) -> Layout:
    parts: list[Any] = json.loads(data)
    # the last two are missing in programs that older versions exported
    keys, steps, masks, infos, dropped, counted, totals = [*parts, [], []][:7]
    return Layout(
        (
            tuple(keys),
            tuple((name, tuple(by_key)) for name, by_key in steps),
            tuple(masks),
            tuple(map(KeyInfo.from_json, infos)),
            tuple(dropped),
            tuple(counted),
            tuple((tuple(names), capacity) for names, capacity in totals),
        )
    )
