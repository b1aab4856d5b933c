"""Names, and the shell-style patterns that select them."""

import fnmatch


def matches(key: str, pattern: str) -> bool:
    return key == pattern or fnmatch.fnmatchcase(key, pattern)
