"""Shell-style patterns that select keys by name."""

import fnmatch


def matches(key: str, pattern: str) -> bool:
    """Whether a key is equal to a pattern or matches it."""
    return key == pattern or fnmatch.fnmatchcase(key, pattern)
