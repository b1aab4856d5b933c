"""Which keys share rows."""

from collections.abc import Callable, Hashable, Iterable


def group_keys(
    keys: Iterable[str],
    kind: Callable[[str], Hashable],
    same: Callable[[str, str], bool] | None = None,
) -> list[list[str]]:
    """Groups of keys that share rows, in the order of the first key of each.

    Args:
        keys: the keys.
        kind: what the keys of a group have in common.
        same: whether two keys of the same kind belong together; by default, they do.
    """
    groups: list[list[str]] = []
    of_kind: dict[Hashable, list[list[str]]] = {}
    for key in keys:
        known = of_kind.setdefault(kind(key), [])
        found = next((g for g in known if same is None or same(g[0], key)), None)
        if found is None:
            found = []
            known.append(found)
            groups.append(found)
        found.append(key)
    return groups
