"""Which keys share rows."""

from collections.abc import Callable, Hashable, Iterable, Mapping

from .key import Key, equal


def group_keys(
    keys: Iterable[str],
    kind: Callable[[str], Hashable],
    same: Callable[[str, str], bool] | None = None,
) -> list[list[str]]:
    """Groups keys that share rows, in the order of the first key of each group.

    Args:
        keys: the keys.
        kind: what the keys of a group have in common.
        same: whether two keys of the same kind are in one group; by default, they are.
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


def group_by_steps(keys: Mapping[str, Key]) -> list[tuple[list[str], int]]:
    """Groups keys that have the same steps and equally many rows.

    Returns:
        The names of the keys of each group, and its number of rows.
    """
    lengths = {name: key.length() for name, key in keys.items()}
    groups = group_keys(
        keys,
        lambda name: (lengths[name], frozenset(keys[name].steps)),
        lambda first, name: equal(keys[first].steps, keys[name].steps),
    )
    return [(names, lengths[names[0]]) for names in groups]
