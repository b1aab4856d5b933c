"""`python -m benchmarks [topic ...]` prints a table; by default, of all topics.

`python -m benchmarks peers` compares with other libraries, and has options.
"""

import sys

from . import (
    cli,
    cluster,
    compiled,
    conditional,
    cotangents,
    devices,
    eager,
    importing,
    lanes,
    libraries,
    loggers,
    observing,
    page,
    processes,
    progress,
    removed,
    statistics,
    store,
    streaming,
    streams,
    tracing,
    trackers,
    viewers,
)
from .figure import HEADER
from .peers import command as peers

TOPICS = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        eager,
        compiled,
        removed,
        cotangents,
        tracing,
        importing,
        streams,
        streaming,
        conditional,
        statistics,
        observing,
        progress,
        lanes,
        devices,
        store,
        cluster,
        processes,
        page,
        viewers,
        cli,
        loggers,
        trackers,
        libraries,
    )
}


def main(names: list[str]) -> None:
    if names[:1] == ["peers"]:
        sys.exit(peers.main(names[1:]))
    unknown = sorted(set(names) - set(TOPICS))
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; topics are {', '.join(TOPICS)}")
    print(HEADER)
    for name in names or TOPICS:
        for figure in TOPICS[name].figures():
            print(figure, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
