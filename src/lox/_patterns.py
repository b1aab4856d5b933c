"""Shell-style patterns that select keys by name."""

import fnmatch
from collections.abc import Iterable
from typing import Any

from ._errors import LoxTypeError


def matches(key: str, pattern: str) -> bool:
    """Whether a key is equal to a pattern or matches it."""
    return key == pattern or fnmatch.fnmatchcase(key, pattern)


def matches_any(key: str, patterns: Iterable[str]) -> bool:
    """Whether a key matches at least one of the patterns."""
    return any(matches(key, pattern) for pattern in patterns)


def unmatched(patterns: Iterable[str], keys: Iterable[str]) -> list[str]:
    """The patterns that match none of the keys."""
    seen = list(keys)
    return [one for one in patterns if not any(matches(key, one) for key in seen)]


def names_of(option: str, names: Any) -> tuple[str, ...] | None:
    """The names or patterns of an option: one, several, or None for the default."""
    if names is None:
        return None
    if isinstance(names, str):
        return (names,)
    try:
        listed = tuple(names)
    except TypeError:
        listed = (names,)
    if not all(isinstance(name, str) for name in listed):
        raise LoxTypeError(
            f"`{option}` must be a string or a sequence of strings, not {names!r}."
        )
    return listed
