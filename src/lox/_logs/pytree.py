"""`logdict` as a pytree; loaded when JAX is imported."""

import functools
import json
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from jax.tree_util import DictKey, GetAttrKey

from lox._jax import export

from .key import FirstRows, KeyInfo
from .logdict import logdict, make_logdict
from .metadata import Metadata


def register(jax: ModuleType) -> None:
    """Registers logdicts as pytrees, and for `jax.export`."""
    jax.tree_util.register_pytree_with_keys(
        logdict, _flatten_with_keys, _unflatten, _flatten
    )
    # as JSON: deserializing it cannot run code
    export.register_node(logdict, "lox.logdict", _serialize_layout, _deserialize_layout)


class _Layout(tuple[Any, ...]):
    """Everything static about a logdict; a tuple, which JAX compares quickly."""

    @functools.cached_property
    def metadata(self) -> "_Unflattened":
        """What can be known without the arrays."""
        keys, infos = self[0], self[3]
        metadata = _Unflattened(info=dict(zip(keys, infos, strict=True)))
        metadata.layout = self
        return metadata

    @functools.cached_property
    def plain(self) -> tuple[Any, Metadata] | None:
        """The keys and the metadata, if the values are the only arrays."""
        keys, steps, masks, *_ = self
        return None if steps or masks else (keys, self.metadata)


class _Unflattened(Metadata):
    """The metadata of a logdict that was created from its layout.

    Every change of the keys of a logdict replaces its metadata, so as long as it has
    this one, it has this layout. JAX flattens the logs of each eager call at least once
    (`jax.block_until_ready`), and to compute the layout takes most of that time.
    """

    layout: _Layout | None = None


def _layout(logs: logdict) -> _Layout:
    keys = tuple(logs)
    steps = tuple((name, tuple(by_key)) for name, by_key in logs.steps.items())
    infos = tuple(logs._info_of(key) for key in keys)
    masks = {key: x for key, x in logs._metadata.mask.items() if key in logs}
    # the keys whose mask is the number of their first rows
    counted = tuple(key for key, x in masks.items() if isinstance(x, FirstRows))
    return _Layout((keys, steps, tuple(masks), infos, tuple(logs.dropped), counted))


def _children(logs: logdict, layout: tuple[Any, ...]) -> list[Any]:
    keys, steps, masks, _, dropped, _ = layout
    metadata = logs._metadata
    children = [logs[key] for key in keys]
    children += [metadata.steps[name][key] for name, by_key in steps for key in by_key]
    found = [metadata.mask[key] for key in masks]
    children += [x.count if isinstance(x, FirstRows) else x for x in found]
    children += [metadata.dropped[key] for key in dropped]
    return children


def _flatten(logs: logdict) -> tuple[list[Any], tuple[Any, ...]]:
    metadata = logs._metadata
    layout = metadata.layout if type(metadata) is _Unflattened else None
    if layout is None or layout[0] != tuple(logs):
        layout = _layout(logs)
    elif layout.plain is not None:
        return list(logs.values()), layout
    return _children(logs, layout), layout


def _flatten_with_keys(logs: logdict) -> tuple[list[Any], tuple[Any, ...]]:
    layout = _layout(logs)
    keys, steps, masks, _, dropped, _ = layout
    paths: list[Any] = [DictKey(key) for key in keys]
    paths += [
        GetAttrKey(f"{name}[{key!r}]") for name, by_key in steps for key in by_key
    ]
    paths += [GetAttrKey(f"mask[{key!r}]") for key in masks]
    paths += [GetAttrKey(f"dropped[{key!r}]") for key in dropped]
    return list(zip(paths, _children(logs, layout), strict=True)), layout


def _unflatten(layout: _Layout, children: Iterable[Any]) -> logdict:
    plain = layout.plain
    if plain is not None:  # the fast path of eager calls, without `make_logdict`
        logs = _new(logdict)
        _update(logs, zip(plain[0], children))  # noqa: B905
        logs._metadata = plain[1]
        return logs
    keys, steps, masks, _, dropped, counted = layout
    rest = iter(children)
    data = [(key, next(rest)) for key in keys]
    metadata = _Unflattened(
        {name: {key: next(rest) for key in by_key} for name, by_key in steps},
        {key: FirstRows(next(rest)) if key in counted else next(rest) for key in masks},
        layout.metadata.info,
        {key: next(rest) for key in dropped},
    )
    metadata.layout = layout
    return make_logdict(data, metadata)


_new, _update = dict.__new__, dict.update


def _serialize_layout(layout: tuple[Any, ...]) -> bytes:
    return json.dumps(layout).encode()


def _deserialize_layout(data: bytes) -> _Layout:
    keys, steps, masks, infos, dropped, *counted = json.loads(data)
    return _Layout(
        (
            tuple(keys),
            tuple((name, tuple(by_key)) for name, by_key in steps),
            tuple(masks),
            tuple(map(KeyInfo.from_json, infos)),
            tuple(dropped),
            tuple(*counted),  # missing in programs that older versions exported
        )
    )
