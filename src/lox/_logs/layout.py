"""The layout of a logdict: everything about it that is not an array."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .key import FirstRows, KeyInfo
from .metadata import Metadata, MetadataDict


class Layout(tuple[Any, ...]):
    """Everything static about a logdict; a tuple, which JAX compares quickly."""

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
        _, steps, masks, _, dropped, _ = self
        return None if steps or masks or dropped else self.metadata(())

    def metadata(self, rest: tuple[Any, ...]) -> "Unflattened":
        """The metadata of a logdict, given its children that are not values."""
        keys, steps, masks, _, dropped, counted = self
        remaining = iter(rest)
        parts = (
            # `zip` does not consume an extra child, because it asks for a key first
            {name: dict(zip(by_key, remaining)) for name, by_key in steps},  # noqa: B905
            {
                key: FirstRows(x) if key in counted else x
                for key, x in zip(masks, remaining)  # noqa: B905
            },
            self._info,
            dict(zip(dropped, remaining)),  # noqa: B905
        )
        how = self._values, len(keys), rest or None, self
        return tuple.__new__(Unflattened, (*parts, how))


class Unflattened(Metadata):
    """The metadata of a logdict that was created from its layout.

    A fifth element says how to flatten the logdict: a function that returns its values,
    their number, its other children, and its layout. Every change of the keys of a
    logdict replaces its metadata, so this stays valid as long as the logdict has this
    metadata. JAX flattens the logs of each eager call at least once
    (`jax.block_until_ready`), and computing the layout takes most of that time.
    """

    __slots__ = ()

    def _replace(self, **changes: Any) -> Metadata:  # type: ignore[override]
        # the changed metadata has another layout
        return Metadata(*self[:4])._replace(**changes)


def layout_of(logs: MetadataDict) -> Layout:
    """The layout of a logdict."""
    keys = tuple(logs)
    steps = tuple((name, tuple(by_key)) for name, by_key in logs.steps.items())
    infos = tuple(logs._info_of(key) for key in keys)
    masks = {key: x for key, x in logs._metadata.mask.items() if key in logs}
    # the keys whose mask is the number of their first rows
    counted = tuple(key for key, x in masks.items() if isinstance(x, FirstRows))
    return Layout((keys, steps, tuple(masks), infos, tuple(logs.dropped), counted))


def children_of(logs: MetadataDict, layout: Layout) -> list[Any]:
    """The children of a logdict: values, steps, masks and numbers of dropped rows."""
    keys, steps, masks, _, dropped, _ = layout
    metadata = logs._metadata
    children = [logs[key] for key in keys]
    children += [metadata.steps[name][key] for name, by_key in steps for key in by_key]
    found = [metadata.mask[key] for key in masks]
    children += [x.count if isinstance(x, FirstRows) else x for x in found]
    children += [metadata.dropped[key] for key in dropped]
    return children


def flatten(logs: MetadataDict) -> tuple[Sequence[Any], Layout]:
    """The children of a logdict, and its layout."""
    metadata: Any = logs._metadata
    if type(metadata) is Unflattened:
        values, count, rest, layout = metadata[4]  # type: ignore[misc]
        if len(logs) == count:
            try:
                children = values(logs)
                return (children if rest is None else children + rest), layout
            except KeyError:  # then the methods of `dict` itself were called
                pass
    layout = layout_of(logs)
    return children_of(logs, layout), layout
