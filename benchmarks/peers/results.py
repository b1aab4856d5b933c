"""Results of a measurement, and the JSON file that stores them."""

import dataclasses
import json
import pathlib
from typing import Any

from .spread import Spread

# of a result: it was measured; the peer is not installed; it logs something else; it
# raises an error; it ends the process; it takes too long
STATUSES = ("measured", "missing", "wrong", "error", "crashed", "slow")


@dataclasses.dataclass
class Result:
    """One contender of one group.

    Attributes:
        group: the name of the group.
        work: what was done.
        peer: the name of the contender.
        streams: whether values reach the host while the program runs.
        package: the distribution of the peer.
        size: the number of steps, lanes, keys or rows, if the group has several.
        status: one of `STATUSES`.
        note: why there is no time.
        best, low, median, high: seconds; the shortest, the quartiles.
        samples: the number of times measured.
        ratio: the median, relative to the first contender of the group.
    """

    group: str
    work: str
    peer: str
    streams: bool = False
    package: str = "jax"
    size: int | None = None
    status: str = "error"
    note: str = ""
    best: float | None = None
    low: float | None = None
    median: float | None = None
    high: float | None = None
    samples: int = 0
    ratio: float | None = None

    def measured(self, times: Spread) -> None:
        self.status = "measured"
        self.best, self.low, self.median, self.high, self.samples = times


def with_ratios(results: list[Result]) -> list[Result]:
    """Computes ratios to the first contender of each group, at the same size."""
    first: dict[str, str] = {}
    for result in results:
        first.setdefault(result.group, result.peer)
    base = {
        (result.group, result.size): result.median
        for result in results
        if result.peer == first[result.group]
    }
    for result in results:
        by_hand = base.get((result.group, result.size))
        if result.median is not None and by_hand:
            result.ratio = result.median / by_hand
    return results


@dataclasses.dataclass
class Measurement:
    """Results of one call of the command, with one version of JAX.

    Attributes:
        date: when.
        machine: the processor and the number of cores.
        load: the load of the machine before.
        versions: of Python, JAX and the peers.
        quick: whether it was a short measurement.
        results: what was measured.
    """

    date: str
    machine: str
    load: float
    versions: dict[str, str]
    quick: bool
    results: list[Result]


def write(path: pathlib.Path, measurements: list[Measurement]) -> None:
    data = [dataclasses.asdict(one) for one in measurements]
    for one in data:
        one["results"] = [_compact(result) for result in one["results"]]
    lines = []
    for one in data:
        rows = ",\n  ".join(json.dumps(row) for row in one.pop("results"))
        head = json.dumps(one)[:-1]
        lines.append(f'{head}, "results": [\n  {rows}\n]}}')
    path.write_text("[" + ",\n".join(lines) + "]\n")


def _compact(result: dict[str, Any]) -> dict[str, Any]:
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in result.items()
        if value not in (None, "")
    }


def read(path: pathlib.Path) -> list[Measurement]:
    measurements = []
    for one in json.loads(path.read_text()):
        results = [Result(**row) for row in one.pop("results")]
        measurements.append(Measurement(**one, results=results))
    return measurements
