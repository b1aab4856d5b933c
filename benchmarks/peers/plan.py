"""The groups, their contenders, and how long each group may take."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from . import bars, first_calls, rows
from .contender import Peer
from .contenders import BY_HAND, PEERS
from .group import measure, measure_sizes, of_workload
from .results import Result
from .workloads import WORKLOADS, scan_workload

_SWEEPS = {
    "steps": [10, 100, 1_000, 10_000, 100_000],
    "lanes": [1, 4, 16, 64, 256],
    "keys": [1, 4, 16, 64],
}
_SWEEP_STEPS = 100  # of the sweeps over lanes and keys
_EQUATIONS = 10_000
_ROWS = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000]
_MANY_ROWS = 100_000_000

NAMES = [
    *WORKLOADS,
    *_SWEEPS,
    "trace",
    "lower",
    "compile",
    "progress",
    "write-rows",
    "read-rows",
]

# Parts of names of peers that do not take part.
_LEFT_OUT: dict[str, tuple[str, ...]] = {
    # Flax has `perturb`, which needs initial values; the others have nothing
    "cotangents": ("jax-tap", "Flax", "oryx"),
    **dict.fromkeys(("transformer", "checkpointed"), ("without jit", "buffer")),
    **dict.fromkeys(_SWEEPS, ("without jit", "NNX")),
    **dict.fromkeys(("trace", "lower"), ("without jit", "buffer")),
    # takes seconds
    "compile": ("without jit", "buffer", "NNX", "io_callback", "jax-tap"),
}
# In a short measurement.
QUICK_NAMES = [
    *("scan-10", "scan-100000", "while", "derivative", "ppo", "cotangents"),
    *("steps", "lanes", "trace", "progress", "write-rows"),
]

Trying = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        quick: a short measurement, of less.
        many_rows: also stores of 1e8 rows.
        peers: parts of names of peers, to compare only these; empty for all.
    """

    quick: bool = False
    many_rows: bool = False
    peers: tuple[str, ...] = ()

    def run(
        self, name: str, skipped: Sequence[str], trying: Trying
    ) -> Iterator[Result]:
        """Measures one group, at all its sizes."""
        if name in WORKLOADS:
            yield from self._work(name, skipped, trying)
        elif name in _SWEEPS:
            yield from self._sweep(name, skipped, trying)
        elif name in ("trace", "lower", "compile"):
            yield from self._first_call(name, skipped, trying)
        elif name == "progress":
            seconds = 2.0 if self.quick else 9.0
            yield from measure(bars.group(), seconds, skipped, trying)
        else:
            yield from self._rows(name, skipped, trying)

    def taking_part(self, group: str, lanes: bool = False) -> list[Peer]:
        """The peers of a group of programs."""
        left_out = _LEFT_OUT.get(group, ())
        if not lanes:
            left_out = (*left_out, "batched")  # the same as without
        if group not in ("cotangents", "while"):
            left_out = (*left_out, "with_logs")
        return [
            peer
            for peer in PEERS
            if peer is BY_HAND
            or (
                (not self.peers or _names_one_of(self.peers, peer))
                and not _names_one_of(left_out, peer)
            )
        ]

    def _work(self, name: str, skipped: Sequence[str], trying: Trying) -> list[Result]:
        work = WORKLOADS[name]
        if self.quick and name == "scan-100000":
            work = scan_workload(2_000)
        peers = self.taking_part(name, lanes=bool(work.lanes))
        group = of_workload(name, work, peers, None)
        seconds = 2.0 if self.quick else 9.0
        return measure(group, seconds, skipped, trying)

    def _sweep(
        self, name: str, skipped: Sequence[str], trying: Trying
    ) -> Iterator[Result]:
        sizes = _SWEEPS[name][:3] if self.quick else _SWEEPS[name]
        peers = self.taking_part(name, lanes=name == "lanes")

        def work(size: int) -> object:
            if name == "steps":
                return scan_workload(size)
            if name == "lanes":
                return scan_workload(_SWEEP_STEPS, lanes=size)
            return scan_workload(_SWEEP_STEPS, keys=size)

        groups = (of_workload(name, work(size), peers, size) for size in sizes)
        seconds, longest = (1.0, 0.5) if self.quick else (3.0, 3.0)
        yield from measure_sizes(groups, seconds, lambda _: longest, skipped, trying)

    def _first_call(
        self, name: str, skipped: Sequence[str], trying: Trying
    ) -> list[Result]:
        peers = self.taking_part(name)
        equations = 1_000 if self.quick else _EQUATIONS
        (group,) = (
            group
            for group in first_calls.groups(equations, peers)
            if group.name == name
        )
        seconds = 2.0 if self.quick else 9.0
        return measure(group, seconds, skipped, trying)

    def _rows(
        self, name: str, skipped: Sequence[str], trying: Trying
    ) -> Iterator[Result]:
        sizes = _ROWS[:3] if self.quick else list(_ROWS)
        if self.many_rows:
            sizes.append(_MANY_ROWS)
        if name == "read-rows":
            sizes = sizes[1:]
        groups = {"write-rows": rows.write_groups, "read-rows": rows.read_groups}[name]
        seconds, longest = (1.0, 0.5) if self.quick else (4.0, 2.5)

        def allowed(size: int) -> float:
            return 100.0 if size == _MANY_ROWS else longest

        yield from measure_sizes(groups(sizes), seconds, allowed, skipped, trying)


def _names_one_of(parts: Sequence[str], peer: Peer) -> bool:
    return any(part in peer.name for part in parts)
