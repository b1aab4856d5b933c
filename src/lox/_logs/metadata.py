"""The base class of `logdict`: values, with steps, masks and axes for each key."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lox._arrays import leaves_of, local_numpy

from .key import FirstRows, Key, KeyInfo, describe_axes, equal

_EMPTY: dict[str, Any] = {}


class Metadata(NamedTuple):
    """Everything that a logdict holds besides its values.

    Logdicts share these dicts, so they are never changed in place. They may contain
    keys that the logdict does not have.

    Attributes:
        steps: the step numbers, by the name of the step and then by key.
        mask: which rows happened, for the keys with rows that may not have: an array,
            or `FirstRows`.
        info: the axes and tags of each key; none for values assigned by the user.
        dropped: how many rows were dropped, for the keys with a `capacity`, except for
            those whose mask has it: `FirstRows`.
        step_names: the names of steps that are known even if no key has them. A key
            without rows is removed, and it must not depend on the data whether a step
            is known.
    """

    steps: dict[str, dict[str, Any]] = _EMPTY
    mask: dict[str, Any] = _EMPTY
    info: dict[str, KeyInfo] = _EMPTY
    dropped: dict[str, Any] = _EMPTY
    step_names: tuple[str, ...] = ()

    @property
    def known_steps(self) -> tuple[str, ...]:
        """The names of all steps, including `step_names`."""
        return tuple(dict.fromkeys((*self.steps, *self.step_names)))

    @classmethod
    def of_keys(
        cls, keys: Mapping[str, Key], step_names: Iterable[str] = ()
    ) -> "Metadata":
        """The metadata of keys, with the steps in the order of `step_names`."""
        steps: dict[str, dict[str, Any]] = {name: {} for name in step_names}
        for name, key in keys.items():
            for step, value in key.steps.items():
                steps.setdefault(step, {})[name] = value
        return cls(
            {step: by_key for step, by_key in steps.items() if by_key},
            {name: key.mask for name, key in keys.items() if key.mask is not None},
            {name: key.info for name, key in keys.items()},
            {n: key.dropped for n, key in keys.items() if key.dropped is not None},
        )

    def without(self, key: str) -> "Metadata":
        return Metadata(
            {name: _without(by_key, key) for name, by_key in self.steps.items()},
            _without(self.mask, key),
            _without(self.info, key),
            _without(self.dropped, key),
            self.step_names,
        )


class MetadataDict(dict[str, Any]):
    """A dict that keeps the metadata of its keys up to date."""

    __slots__ = ("_metadata",)

    _metadata: Metadata

    def _key(self, key: str) -> Key:
        return Key(
            self[key],
            self._key_steps(key),
            self._mask_of(key),
            self._info_of(key),
            self._dropped_of(key),
        )

    def _counted_key(self, key: str) -> Key:
        """As `_key`, but the mask may be a `FirstRows`, and `dropped` is left out."""
        mask = self._metadata.mask.get(key)
        return Key(self[key], self._key_steps(key), mask, self._info_of(key))

    def _keys(self) -> dict[str, Key]:
        return {key: self._key(key) for key in self}

    def _dropped_of(self, key: str) -> Any:
        mask = self._metadata.mask.get(key)
        if isinstance(mask, FirstRows) and mask.capacity is not None:
            return mask.dropped()
        return self._metadata.dropped.get(key)

    def _dropped_on_host(self) -> dict[str, Any]:
        """How many rows were dropped, for the keys of which some were."""
        metadata = self._metadata
        # keys that are logged together share their masks
        masks = {id(x): x for x in metadata.mask.values() if isinstance(x, FirstRows)}
        any_dropped = {number: x.dropped_on_host() for number, x in masks.items()}
        found: dict[str, Any] = {}
        for key in self:
            count = any_dropped.get(id(metadata.mask.get(key)))
            if count is None and key in metadata.dropped:
                count = local_numpy(metadata.dropped[key])
            if count is not None and count.any():
                found[key] = count
        return found

    def _mask_of(self, key: str) -> Any:
        mask = self._metadata.mask.get(key)
        if isinstance(mask, FirstRows):
            return mask.mask(self[key], self._info_of(key))
        return mask

    def _key_steps(self, key: str) -> dict[str, Any]:
        steps = self._metadata.steps
        return {name: by_key[key] for name, by_key in steps.items() if key in by_key}

    def _info_of(self, key: str) -> KeyInfo:
        metadata = self._metadata
        info = metadata.info.get(key)
        if info is None:  # assigned by the user
            info = describe_axes(self[key], False)
            self._metadata = metadata._replace(info={**metadata.info, key: info})
        return info

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self or not _have_same_ndims(self[key], value):
            self._metadata = self._metadata.without(key)
        elif key in self._metadata.info:
            info = self._metadata.info[key]
            if _row_shapes(self[key], info) != _row_shapes(value, info):
                # other rows: the axes are the same, but steps and masks are not
                metadata = self._metadata.without(key)
                infos = {**metadata.info, key: info}
                self._metadata = metadata._replace(info=infos)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._metadata = self._metadata.without(key)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        value = super().pop(key, *default)
        self._metadata = self._metadata.without(key)
        return value

    def popitem(self) -> tuple[str, Any]:
        key, value = super().popitem()
        self._metadata = self._metadata.without(key)
        return key, value

    def clear(self) -> None:
        super().clear()
        self._metadata = Metadata()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if isinstance(other, MetadataDict) and not (
            equal(self.steps, other.steps) and equal(self.mask, other.mask)
        ):
            return False
        return equal(dict(self), dict(other))

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    __hash__ = None

    @property
    def data(self) -> dict[str, Any]:
        """The values alone, as a plain dict."""
        return dict(self)

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """The steps by name, then by key."""
        return {name: self._present(x) for name, x in self._metadata.steps.items()}

    @property
    def mask(self) -> dict[str, Any]:
        """Which rows happened, for the keys with rows that may not have."""
        return {key: self._mask_of(key) for key in self if key in self._metadata.mask}

    @property
    def dropped(self) -> dict[str, Any]:
        """How many rows were dropped, for the keys with a `capacity`.

        `compact`, which an eager call includes, warns about them and clears this.
        """
        found = {key: self._dropped_of(key) for key in self}
        return {key: dropped for key, dropped in found.items() if dropped is not None}

    @property
    def tags(self) -> dict[str, tuple[str, ...]]:
        """The tags of each key, from all `lox.log` calls that logged it, if any."""
        tags = {key: self._info_of(key).tags for key in self}
        return {key: found for key, found in tags.items() if found}

    def _present(self, by_key: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in by_key.items() if key in self}


def _have_same_ndims(first: Any, second: Any) -> bool:
    ndims = [[np.ndim(leaf) for leaf in leaves_of(x)] for x in (first, second)]
    return ndims[0] == ndims[1]


def _row_shapes(value: Any, info: KeyInfo) -> list[tuple[int, ...]]:
    """The shapes of the lane and time axes of all leaves."""
    return [
        np.shape(leaf)[: np.ndim(leaf) - own]
        for leaf, own in zip(leaves_of(value), info.ndims, strict=True)
    ]


def _without(by_key: dict[str, Any], key: str) -> dict[str, Any]:
    if key not in by_key:
        return by_key
    return {k: value for k, value in by_key.items() if k != key}
