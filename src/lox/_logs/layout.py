"""The layout of a logdict: everything about it that is not an array."""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .key import FirstRows, KeyInfo
from .metadata import Metadata, MetadataDict


class Layout(tuple[Any, ...]):
    """Everything static about a logdict; a tuple, which JAX compares quickly.

    Its items are the keys; for each step, its name and its keys; the keys with a mask;
    the axes of all keys; the keys with a number of dropped rows; of those with a mask,
    the keys of which the first rows happened, in programs that older versions exported;
    and for each group of keys that share the number of their rows, the keys and their
    capacity.
    """

    @functools.cached_property
    def _values(self) -> Callable[[MetadataDict], tuple[Any, ...]]:
        """A function that returns the values of a logdict in the order of the keys."""
        keys = self[0]
        if len(keys) < 2:  # `itemgetter` returns no tuple
            return lambda logs: tuple(logs[key] for key in keys)
        return operator.itemgetter(*keys)

    @functools.cached_property
    def _info(self) -> dict[str, KeyInfo]:
        return dict(zip(self[0], self[3], strict=True))

    @functools.cached_property
    def plain(self) -> "Unflattened | None":
        """The metadata, if the values are the only arrays."""
        _, steps, masks, _, dropped, _, totals = self
        return None if steps or masks or dropped or totals else self.metadata(())

    def metadata(self, rest: tuple[Any, ...]) -> "Unflattened":
        """The metadata of a logdict, given its children that are not values."""
        return _new(Unflattened, (self, rest, self._values, len(self[0])))

    def parts(self, rest: tuple[Any, ...]) -> Metadata:
        """The metadata as a plain `Metadata`, given the same children."""
        _, steps, masks, _, dropped, counted, totals = self
        remaining = iter(rest)
        # `zip` does not consume an extra child, because it asks for a key first
        by_step = {name: dict(zip(by_key, remaining)) for name, by_key in steps}  # noqa: B905
        mask: dict[str, Any] = {
            key: FirstRows(x) if key in counted else x
            for key, x in zip(masks, remaining)  # noqa: B905
        }
        by_key = dict(zip(dropped, remaining))  # noqa: B905
        for (names, capacity), total in zip(totals, remaining):  # noqa: B905
            mask.update(dict.fromkeys(names, FirstRows(total, capacity)))
        return Metadata(by_step, mask, self._info, by_key)


_new: Any = tuple.__new__


class Unflattened(Metadata):
    """The metadata of a logdict that was created from its layout.

    A tuple that says how to flatten the logdict: its layout, its children that are not
    values, a function that returns its values, and their number. Every change of the
    keys of a logdict replaces its metadata, so this stays valid as long as the logdict
    has this metadata. JAX flattens the logs of each eager call at least once
    (`jax.block_until_ready`), and computing the layout takes most of that time.
    Everything else is computed when it is needed, because most logs need only their
    values.
    """

    @functools.cached_property
    def _parts(self) -> Metadata:
        layout: Any = self[0]
        parts: Metadata = layout.parts(self[1])
        return parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)  # the fields, as for any `Metadata`

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        return self._parts.steps

    @property
    def mask(self) -> dict[str, Any]:
        return self._parts.mask

    @property
    def info(self) -> dict[str, KeyInfo]:
        return self._parts.info

    @property
    def dropped(self) -> dict[str, Any]:
        return self._parts.dropped

    @property
    def step_names(self) -> tuple[str, ...]:
        return ()  # not part of a layout

    def _replace(self, **changes: Any) -> Metadata:  # type: ignore[override]
        # the changed metadata has another layout
        return self._parts._replace(**changes)


def layout_of(logs: MetadataDict) -> Layout:
    """The layout of a logdict."""
    keys = tuple(logs)
    steps = tuple((name, tuple(by_key)) for name, by_key in logs.steps.items())
    infos = tuple(logs._info_of(key) for key in keys)
    metadata = logs._metadata
    dropped = tuple(key for key in metadata.dropped if key in logs)
    masks, counted = [], []
    groups: dict[FirstRows, list[str]] = {}
    for key, mask in metadata.mask.items():
        if key not in logs:
            continue
        if isinstance(mask, FirstRows):
            if mask.capacity is not None:
                groups.setdefault(mask, []).append(key)
                continue
            counted.append(key)
        masks.append(key)
    totals = tuple((tuple(names), mask.capacity) for mask, names in groups.items())
    return Layout((keys, steps, tuple(masks), infos, dropped, tuple(counted), totals))


def children_of(logs: MetadataDict, layout: Layout) -> list[Any]:
    """The children of a logdict: values, steps, masks, and numbers of rows."""
    keys, steps, masks, _, dropped, _, totals = layout
    metadata = logs._metadata
    children = [logs[key] for key in keys]
    children += [metadata.steps[name][key] for name, by_key in steps for key in by_key]
    found = [metadata.mask[key] for key in masks]
    children += [x.total if isinstance(x, FirstRows) else x for x in found]
    children += [metadata.dropped[key] for key in dropped]
    children += [metadata.mask[names[0]].total for names, _ in totals]
    return children


def flatten(logs: MetadataDict) -> tuple[Sequence[Any], Layout]:
    """The children of a logdict, and its layout."""
    metadata: Any = logs._metadata
    kind: Any = type(metadata)
    if kind is Unflattened and len(logs) == metadata[3]:
        try:
            return metadata[2](logs) + metadata[1], metadata[0]
        except KeyError:  # methods of `dict` have changed the keys
            pass
    layout = layout_of(logs)
    return children_of(logs, layout), layout
