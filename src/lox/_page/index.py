"""The index of a page: its runs, keys and groupings."""

from typing import Any

from .chart_requests import ALL, AUTO
from .charts import grouping
from .grouping import differing_keys, is_seed
from .source import StoreSource

# config keys by which a page offers to group runs
_MAX_GROUPINGS = 40


def index_of(source: StoreSource, since: int = 0) -> dict[str, Any]:
    """Describes a store.

    Args:
        source: the store.
        since: leave out what has not changed after this version.
    """
    configs = [(number, run.config) for number, run in source.runs.items()]
    cache = source.groupings
    if cache.configs != configs:
        cache.configs = configs
        cache.version = source.version
        cache.content = _describe_groupings(source)
    content = source.describe(since)
    if not since or cache.version > since:
        content |= cache.content
    return content


def _describe_groupings(source: StoreSource) -> dict[str, Any]:
    differing = differing_keys(run.config for run in source.runs.values())
    offered: list[dict[str, Any]] = [
        {
            "id": by,
            "title": title,
            "groups": [[g.label, g.runs] for g in grouping(source, [by])],
        }
        for by, title in _offered(differing)
    ]
    offered = offered[:1] + [
        grouping for grouping in offered[1:] if not _separates(grouping["groups"])
    ]
    # each run as a group, which the page itself does
    offered.append({"id": "@run", "title": "each run", "groups": []})
    return {
        "config": source.config_keys(),
        "differing": differing,
        "groupings": offered,
    }


def _separates(groups: list[Any]) -> bool:
    """Whether each of several runs is a separate group."""
    return len(groups) > 1 and all(len(runs) == 1 for _, runs in groups)


def _offered(differing: list[str]) -> list[tuple[str, str]]:
    """The groupings that a page offers, with their titles."""
    settings = [key for key in differing if not is_seed(key)]
    title = f"all but seed ({', '.join(settings)})" if settings else "all but seed"
    if len(title) > 60:
        title = f"all but seed ({len(settings)} of the config)"
    return [
        (AUTO, title),
        *((key, key) for key in differing[:_MAX_GROUPINGS]),
        (ALL, "nothing: all runs"),
    ]
